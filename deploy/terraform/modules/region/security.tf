# Who may talk to whom. A group without a rule is closed both ways. Rules between regions name networks, because a
# security group cannot be referred to across a peering of regions.

locals {
  ports = var.settings.ports
  mesh  = toset(var.settings.cidrs)

  # Ports of brokers that other regions reach: consecutive ones share a rule, since a group holds 60 of them.
  mesh_ports = {
    clients    = { from = local.ports.kafka, to = local.ports.grpc, protocol = "tcp", what = "Kafka and gRPC" }
    links      = { from = local.ports.link, to = local.ports.admin, protocol = "tcp", what = "links and admin" }
    gossip_tcp = { from = local.ports.gossip_wan, to = local.ports.gossip_wan, protocol = "tcp", what = "gossip of all brokers" }
    gossip_udp = { from = local.ports.gossip_wan, to = local.ports.gossip_wan, protocol = "udp", what = "gossip of all brokers" }
  }

  gateway_ports = { http = local.ports.gateway_http, kafka = local.ports.gateway_kafka, grpc = local.ports.gateway_grpc }

  by_mesh = merge([for key, row in local.mesh_ports : { for cidr in local.mesh : "${key}-${cidr}" => merge(row, { cidr = cidr }) }]...)

  # Networks outside the mesh that reach hosts: all private, each with what it is for.
  outside = {
    broker = merge(
      { for cidr in var.settings.access.operators : "ssh-${cidr}" => { cidr = cidr, from = local.ports.ssh, to = local.ports.ssh, what = "SSH of operators" } },
      { for cidr in var.settings.access.monitors : "node-${cidr}" => { cidr = cidr, from = local.ports.node_metrics, to = local.ports.node_metrics, what = "metrics of the host" } },
      { for cidr in var.settings.access.monitors : "admin-${cidr}" => { cidr = cidr, from = local.ports.admin, to = local.ports.admin, what = "metrics of the broker" } },
      { for cidr in var.settings.access.private_clients : "clients-${cidr}" => { cidr = cidr, from = local.ports.kafka, to = local.ports.grpc, what = "Kafka and gRPC of private clients" } },
    )
    gateway = merge(
      { for cidr in var.settings.access.operators : "ssh-${cidr}" => { cidr = cidr, from = local.ports.ssh, to = local.ports.ssh, what = "SSH of operators" } },
      { for cidr in var.settings.access.monitors : "node-${cidr}" => { cidr = cidr, from = local.ports.node_metrics, to = local.ports.node_metrics, what = "metrics of the host" } },
      { for cidr in var.settings.access.monitors : "http-${cidr}" => { cidr = cidr, from = local.ports.gateway_http, to = local.ports.gateway_http, what = "metrics of the gateway" } },
    )
  }

  groups = { broker = aws_security_group.broker.id, gateway = aws_security_group.gateway.id }

  # The pool of the region: each kind of host to each, TCP and UDP.
  pool = merge([for from in ["broker", "gateway"] : merge([for to in ["broker", "gateway"] : {
    for protocol in ["tcp", "udp"] : "${from}-${to}-${protocol}" => { from = from, to = to, protocol = protocol }
  }]...)]...)
}

resource "aws_security_group" "broker" {
  name_prefix = "${local.name}-broker-"
  description = "Brokers of ${local.name}."
  vpc_id      = aws_vpc.mesh.id

  tags = { Name = "${local.name}-broker" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "gateway" {
  name_prefix = "${local.name}-gateway-"
  description = "Gateways of ${local.name}."
  vpc_id      = aws_vpc.mesh.id

  tags = { Name = "${local.name}-gateway" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "balancer" {
  name_prefix = "${local.name}-balancer-"
  description = "The load balancer in front of the gateways of ${local.name}."
  vpc_id      = aws_vpc.mesh.id

  tags = { Name = "${local.name}-balancer" }

  lifecycle {
    create_before_destroy = true
  }
}

# Brokers: from and to the whole mesh.
resource "aws_vpc_security_group_ingress_rule" "broker_mesh" {
  for_each = local.by_mesh

  security_group_id = aws_security_group.broker.id
  description       = "${each.value.what}, from the mesh"
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.from
  to_port           = each.value.to
  ip_protocol       = each.value.protocol
}

resource "aws_vpc_security_group_egress_rule" "broker_mesh" {
  for_each = local.by_mesh

  security_group_id = aws_security_group.broker.id
  description       = "${each.value.what}, to the mesh"
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.from
  to_port           = each.value.to
  ip_protocol       = each.value.protocol
}

# Brokers of one region replicate to each other, and nobody else reaches that port.
resource "aws_vpc_security_group_ingress_rule" "peers" {
  security_group_id            = aws_security_group.broker.id
  description                  = "Raft and segments, from brokers of this region"
  referenced_security_group_id = aws_security_group.broker.id
  from_port                    = local.ports.peers
  to_port                      = local.ports.peers
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "peers" {
  security_group_id            = aws_security_group.broker.id
  description                  = "Raft and segments, to brokers of this region"
  referenced_security_group_id = aws_security_group.broker.id
  from_port                    = local.ports.peers
  to_port                      = local.ports.peers
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "pool" {
  for_each = local.pool

  security_group_id            = local.groups[each.value.to]
  description                  = "Gossip of the region, from ${each.value.from}s"
  referenced_security_group_id = local.groups[each.value.from]
  from_port                    = local.ports.gossip_lan
  to_port                      = local.ports.gossip_lan
  ip_protocol                  = each.value.protocol
}

resource "aws_vpc_security_group_egress_rule" "pool" {
  for_each = local.pool

  security_group_id            = local.groups[each.value.from]
  description                  = "Gossip of the region, to ${each.value.to}s"
  referenced_security_group_id = local.groups[each.value.to]
  from_port                    = local.ports.gossip_lan
  to_port                      = local.ports.gossip_lan
  ip_protocol                  = each.value.protocol
}

# Gateways: to brokers of all regions; from the load balancer alone.
resource "aws_vpc_security_group_egress_rule" "gateway_mesh" {
  for_each = merge([for cidr in local.mesh : {
    "clients-${cidr}" = { cidr = cidr, from = local.ports.kafka, to = local.ports.grpc, what = "Kafka and gRPC" }
    "admin-${cidr}"   = { cidr = cidr, from = local.ports.admin, to = local.ports.admin, what = "HTTP" }
  }]...)

  security_group_id = aws_security_group.gateway.id
  description       = "${each.value.what} of brokers"
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.from
  to_port           = each.value.to
  ip_protocol       = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "gateway_balancer" {
  for_each = local.gateway_ports

  security_group_id            = aws_security_group.gateway.id
  description                  = "${each.key}, from the load balancer"
  referenced_security_group_id = aws_security_group.balancer.id
  from_port                    = each.value
  to_port                      = each.value
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "balancer_gateway" {
  for_each = local.gateway_ports

  security_group_id            = aws_security_group.balancer.id
  description                  = "${each.key}, to gateways"
  referenced_security_group_id = aws_security_group.gateway.id
  from_port                    = each.value
  to_port                      = each.value
  ip_protocol                  = "tcp"
}

# The one place where clients come in, and the only rules that may name a public network.
resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = merge([for port, number in local.gateway_ports : {
    for cidr in var.settings.access.clients : "${port}-${cidr}" => { cidr = cidr, port = number, what = port }
  }]...)

  security_group_id = aws_security_group.balancer.id
  description       = "${each.value.what}, from clients"
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.port
  to_port           = each.value.port
  ip_protocol       = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "outside" {
  for_each = merge([for role, rows in local.outside : { for key, row in rows : "${role}-${key}" => merge(row, { role = role }) }]...)

  security_group_id = local.groups[each.value.role]
  description       = each.value.what
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.from
  to_port           = each.value.to
  ip_protocol       = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  for_each = local.groups

  security_group_id = each.value
  description       = "Traces, to the bucket"
  prefix_list_id    = aws_vpc_endpoint.s3.prefix_list_id
  from_port         = 443
  to_port           = 443
  ip_protocol       = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "packages" {
  for_each = merge([for role, group in local.groups : {
    "${role}-80"  = { group = group, port = 80 }
    "${role}-443" = { group = group, port = 443 }
  } if var.settings.nat != "none"]...)

  security_group_id = each.value.group
  description       = "Packages, and buckets of other regions"
  cidr_ipv4         = "0.0.0.0/0"
  from_port         = each.value.port
  to_port           = each.value.port
  ip_protocol       = "tcp"
}

# SSH by the API of AWS, for who has no private network: the endpoint reaches port 22 of hosts, and nothing else.
resource "aws_security_group" "endpoint" {
  count = var.settings.access.endpoint ? 1 : 0

  name_prefix = "${local.name}-endpoint-"
  description = "The endpoint by which operators reach hosts of ${local.name}."
  vpc_id      = aws_vpc.mesh.id

  tags = { Name = "${local.name}-endpoint" }
}

resource "aws_vpc_security_group_egress_rule" "endpoint" {
  for_each = var.settings.access.endpoint ? local.groups : {}

  security_group_id            = aws_security_group.endpoint[0].id
  description                  = "SSH, to ${each.key}s"
  referenced_security_group_id = each.value
  from_port                    = local.ports.ssh
  to_port                      = local.ports.ssh
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "endpoint" {
  for_each = var.settings.access.endpoint ? local.groups : {}

  security_group_id            = each.value
  description                  = "SSH, from the endpoint of operators"
  referenced_security_group_id = aws_security_group.endpoint[0].id
  from_port                    = local.ports.ssh
  to_port                      = local.ports.ssh
  ip_protocol                  = "tcp"
}

resource "aws_ec2_instance_connect_endpoint" "operators" {
  count = var.settings.access.endpoint ? 1 : 0

  subnet_id          = aws_subnet.private["1"].id
  security_group_ids = [aws_security_group.endpoint[0].id]
  preserve_client_ip = false

  tags = { Name = local.name }
}
