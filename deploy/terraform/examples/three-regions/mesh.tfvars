operator_ssh_keys    = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ0 put-your-own-here"]
client_cidrs         = ["203.0.113.0/24"] # who reaches the gateways
operator_cidrs       = ["10.200.0.0/16"]  # your VPN: Ansible
monitor_cidrs        = ["10.200.1.0/24"]  # your Prometheus
private_client_cidrs = ["10.201.0.0/16"]  # Kafka clients in networks that you joined to the VPCs
domain               = "mesh.example.com"
