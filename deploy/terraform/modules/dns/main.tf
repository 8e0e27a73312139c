# Names of the gateways: one for the nearest region with a healthy gateway, and one for each region.

resource "aws_route53_zone" "mesh" {
  name    = var.domain
  comment = "Names of the gateways."
}

# Health comes from the balancers' own checks, through an alarm: no checker has to be let in from outside.
resource "aws_route53_health_check" "gateways" {
  for_each = var.balancer

  type                            = "CLOUDWATCH_METRIC"
  cloudwatch_alarm_name           = each.value.alarm
  cloudwatch_alarm_region         = each.key
  insufficient_data_health_status = "LastKnownStatus"

  tags = { Name = "gateway.${each.key}.${var.domain}" }
}

resource "aws_route53_record" "nearest" {
  for_each = var.balancer

  zone_id         = aws_route53_zone.mesh.zone_id
  name            = "gateway.${var.domain}"
  type            = "A"
  set_identifier  = each.key
  health_check_id = aws_route53_health_check.gateways[each.key].id

  latency_routing_policy {
    region = each.key
  }

  alias {
    name                   = each.value.host
    zone_id                = each.value.zone
    evaluate_target_health = true
  }
}

resource "aws_route53_record" "region" {
  for_each = var.balancer

  zone_id = aws_route53_zone.mesh.zone_id
  name    = "gateway.${each.key}.${var.domain}"
  type    = "CNAME"
  ttl     = 60
  records = [each.value.host]
}
