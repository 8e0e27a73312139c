operator_ssh_keys     = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ0 put-your-own-here"]
connect_endpoints     = true # SSH without a VPN
broker_instance_type  = "t3.medium"
gateway_instance_type = "t3.small"
broker_volume         = { size_gib = 20 }
