output "inventory" {
  description = "Hosts and load balancer of the region, as the root module's inventory has them."
  value = {
    lb      = aws_lb.gateways.dns_name
    secrets = { gossip_lan = aws_secretsmanager_secret.gossip_lan.arn }
    brokers = {
      for name, n in local.brokers : name => {
        number = n
        id     = aws_instance.broker[name].id
        ip     = aws_instance.broker[name].private_ip
        az     = aws_instance.broker[name].availability_zone
        volume = aws_ebs_volume.data[name].id
      }
    }
    gateways = {
      for name, n in local.gateways : name => {
        number = n
        id     = aws_instance.gateway[name].id
        ip     = aws_instance.gateway[name].private_ip
        az     = aws_instance.gateway[name].availability_zone
      }
    }
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
