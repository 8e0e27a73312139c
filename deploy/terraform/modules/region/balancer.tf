# In front of the gateways: TCP is passed on as it comes, TLS ends in the gateway.

resource "aws_lb" "gateways" {
  name                             = "${var.settings.mesh}-gateways"
  load_balancer_type               = "network"
  internal                         = var.settings.internal_balancers
  subnets                          = [for subnet in(var.settings.internal_balancers ? aws_subnet.private : aws_subnet.public) : subnet.id]
  security_groups                  = [aws_security_group.kind["balancer"].id]
  enable_cross_zone_load_balancing = true
  enable_deletion_protection       = var.settings.deletion_protection

  tags = { Name = "${local.name}-gateways" }
}

resource "aws_lb_target_group" "gateways" {
  for_each = local.gateway_ports

  name                   = "${var.settings.mesh}-${each.key}"
  port                   = each.value
  protocol               = "TCP"
  target_type            = "instance"
  vpc_id                 = aws_vpc.mesh.id
  deregistration_delay   = 30
  connection_termination = true

  # Healthy is a gateway whose region is ready. Its certificate is not looked at: the port is the gateway's own.
  health_check {
    protocol            = "HTTPS"
    port                = local.ports.gateway_http
    path                = "/readyz"
    matcher             = "200"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }

  tags = { Name = "${local.name}-${each.key}" }
}

resource "aws_lb_listener" "gateways" {
  for_each = local.gateway_ports

  load_balancer_arn = aws_lb.gateways.arn
  port              = each.value
  protocol          = "TCP"

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.gateways[each.key].arn
  }
}

resource "aws_lb_target_group_attachment" "gateways" {
  for_each = merge([for key, port in local.gateway_ports : {
    for name in keys(local.gateways) : "${key}-${name}" => { group = key, gateway = name, port = port }
  }]...)

  target_group_arn = aws_lb_target_group.gateways[each.value.group].arn
  target_id        = aws_instance.host[each.value.gateway].id
  port             = each.value.port
}

# The name for the nearest region passes this one over while the alarm is on.
resource "aws_cloudwatch_metric_alarm" "no_gateway" {
  alarm_name          = "${local.name}-no-gateway"
  alarm_description   = "No gateway of ${local.name} is healthy."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 2
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"

  dimensions = {
    LoadBalancer = aws_lb.gateways.arn_suffix
    TargetGroup  = aws_lb_target_group.gateways["http"].arn_suffix
  }
}
