locals {
  made = {
    for name, host in aws_instance.host : name => {
      number = local.hosts[name].number
      id     = host.id
      ip     = host.private_ip
      az     = host.availability_zone
    }
  }
}

output "inventory" {
  description = "Hosts and load balancer of the region, as the root module's inventory has them."
  value = {
    lb      = aws_lb.gateways.dns_name
    secrets = { gossip_lan = aws_secretsmanager_secret.gossip_lan.arn }
    brokers = {
      for name in keys(local.brokers) : name => merge(local.made[name], { volume = aws_ebs_volume.data[name].id })
    }
    gateways = { for name in keys(local.gateways) : name => local.made[name] }
  }
}

output "network" {
  description = "What a peering needs to know."
  value = {
    region       = var.name
    vpc          = aws_vpc.mesh.id
    cidr         = var.cidr
    route_tables = { for place, table in aws_route_table.private : place => table.id }
  }
}

output "balancer" {
  description = "What the gateways' names lead to."
  value = {
    host  = aws_lb.gateways.dns_name
    zone  = aws_lb.gateways.zone_id
    alarm = aws_cloudwatch_metric_alarm.no_gateway.alarm_name
  }
}
