# Who may talk to whom. A group without a rule is closed both ways. Rules between regions name networks, because a
# security group cannot be referred to across a peering of regions.

locals {
  ports = var.settings.ports
  roles = ["broker", "gateway"]

  kinds = merge({
    broker   = "Brokers of ${local.name}."
    gateway  = "Gateways of ${local.name}."
    balancer = "The load balancer in front of the gateways of ${local.name}."
    }, var.settings.access.endpoint ? {
    endpoint = "The endpoint by which operators reach hosts of ${local.name}."
  } : {})

  groups = { for role in local.roles : role => aws_security_group.kind[role].id }

  gateway_ports = { http = local.ports.gateway_http, kafka = local.ports.gateway_kafka, grpc = local.ports.gateway_grpc }
  metrics_ports = { broker = local.ports.admin, gateway = local.ports.gateway_http }

  # From one kind of host of the region to another: a rule that lets out, and one that lets in.
  inside = merge(
    { peers = { from = "broker", to = "broker", port = local.ports.peers, protocol = "tcp", what = "Raft and segments" } },
    { for row in setproduct(local.roles, local.roles, ["tcp", "udp"]) : join("-", row) => { from = row[0], to = row[1], port = local.ports.gossip_lan, protocol = row[2], what = "gossip of the region" } },
    { for name, port in local.gateway_ports : "balancer-${name}" => { from = "balancer", to = "gateway", port = port, protocol = "tcp", what = name } },
    { for role in local.roles : "endpoint-${role}" => { from = "endpoint", to = role, port = local.ports.ssh, protocol = "tcp", what = "SSH of operators" } if var.settings.access.endpoint },
  )

  # Ports of brokers that other regions reach: consecutive ones share a rule, since a group holds 60 of them.
  mesh_ports = {
    clients    = { from = local.ports.kafka, to = local.ports.grpc, protocol = "tcp", what = "Kafka and gRPC" }
    links      = { from = local.ports.link, to = local.ports.admin, protocol = "tcp", what = "links and admin" }
    gossip_tcp = { from = local.ports.gossip_wan, to = local.ports.gossip_wan, protocol = "tcp", what = "gossip of all brokers" }
    gossip_udp = { from = local.ports.gossip_wan, to = local.ports.gossip_wan, protocol = "udp", what = "gossip of all brokers" }
  }

  mesh = merge([for cidr in var.settings.cidrs : {
    for key, row in local.mesh_ports : "broker-${key}-${cidr}" => merge(row, { group = "broker", cidr = cidr })
  }]...)

  # Networks outside the mesh that reach hosts: all private, each with what it is for.
  outside = merge(
    { for row in setproduct(local.roles, var.settings.access.operators) : "${row[0]}-ssh-${row[1]}" => { group = row[0], cidr = row[1], from = local.ports.ssh, to = local.ports.ssh, protocol = "tcp", what = "SSH of operators" } },
    { for row in setproduct(local.roles, var.settings.access.monitors) : "${row[0]}-node-${row[1]}" => { group = row[0], cidr = row[1], from = local.ports.node_metrics, to = local.ports.node_metrics, protocol = "tcp", what = "metrics of the host" } },
    { for row in setproduct(local.roles, var.settings.access.monitors) : "${row[0]}-metrics-${row[1]}" => { group = row[0], cidr = row[1], from = local.metrics_ports[row[0]], to = local.metrics_ports[row[0]], protocol = "tcp", what = "metrics of the ${row[0]}" } },
    { for cidr in var.settings.access.private_clients : "broker-private-${cidr}" => merge(local.mesh_ports.clients, { group = "broker", cidr = cidr, what = "Kafka and gRPC of private clients" }) },
  )

  # Where hosts go besides: gateways to brokers of all regions, and all to packages and buckets of other regions.
  away = merge(
    merge([for cidr in var.settings.cidrs : {
      "gateway-clients-${cidr}" = merge(local.mesh_ports.clients, { group = "gateway", cidr = cidr })
      "gateway-admin-${cidr}"   = { group = "gateway", cidr = cidr, from = local.ports.admin, to = local.ports.admin, protocol = "tcp", what = "HTTP" }
    }]...),
    { for row in setproduct(local.roles, [80, 443]) : "${row[0]}-packages-${row[1]}" => { group = row[0], cidr = "0.0.0.0/0", from = row[1], to = row[1], protocol = "tcp", what = "packages, and buckets of other regions" } if var.settings.nat != "none" },
  )
}

resource "aws_security_group" "kind" {
  for_each = local.kinds

  name_prefix = "${local.name}-${each.key}-"
  description = each.value
  vpc_id      = aws_vpc.mesh.id

  tags = { Name = "${local.name}-${each.key}" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "inside" {
  for_each = local.inside

  security_group_id            = aws_security_group.kind[each.value.to].id
  description                  = "${each.value.what}, from ${each.value.from}"
  referenced_security_group_id = aws_security_group.kind[each.value.from].id
  from_port                    = each.value.port
  to_port                      = each.value.port
  ip_protocol                  = each.value.protocol
}

resource "aws_vpc_security_group_egress_rule" "inside" {
  for_each = local.inside

  security_group_id            = aws_security_group.kind[each.value.from].id
  description                  = "${each.value.what}, to ${each.value.to}"
  referenced_security_group_id = aws_security_group.kind[each.value.to].id
  from_port                    = each.value.port
  to_port                      = each.value.port
  ip_protocol                  = each.value.protocol
}

resource "aws_vpc_security_group_ingress_rule" "network" {
  for_each = merge(local.mesh, local.outside)

  security_group_id = local.groups[each.value.group]
  description       = each.value.what
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.from
  to_port           = each.value.to
  ip_protocol       = each.value.protocol
}

resource "aws_vpc_security_group_egress_rule" "network" {
  for_each = merge(local.mesh, local.away)

  security_group_id = local.groups[each.value.group]
  description       = each.value.what
  cidr_ipv4         = each.value.cidr
  from_port         = each.value.from
  to_port           = each.value.to
  ip_protocol       = each.value.protocol
}

# The one place where clients come in, and the only rules that may name a public network.
resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = { for row in setproduct(keys(local.gateway_ports), var.settings.access.clients) : join("-", row) => { what = row[0], cidr = row[1] } }

  security_group_id = aws_security_group.kind["balancer"].id
  description       = "${each.value.what}, from clients"
  cidr_ipv4         = each.value.cidr
  from_port         = local.gateway_ports[each.value.what]
  to_port           = local.gateway_ports[each.value.what]
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

# SSH by the API of AWS, for who has no private network: the endpoint reaches port 22 of hosts, and nothing else.
resource "aws_ec2_instance_connect_endpoint" "operators" {
  count = var.settings.access.endpoint ? 1 : 0

  subnet_id          = aws_subnet.private["1"].id
  security_group_ids = [aws_security_group.kind["endpoint"].id]
  preserve_client_ip = false

  tags = { Name = local.name }
}
