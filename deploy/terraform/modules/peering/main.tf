# Joins two VPCs of two regions: the connection, its acceptance, and the way there in each route table of hosts.

resource "aws_vpc_peering_connection" "asking" {
  provider = aws.asking

  vpc_id      = var.asking.vpc
  peer_vpc_id = var.accepting.vpc
  peer_region = var.accepting.region
  auto_accept = false

  tags = { Name = "${var.mesh}-${var.asking.region}-${var.accepting.region}" }
}

resource "aws_vpc_peering_connection_accepter" "accepting" {
  provider = aws.accepting

  vpc_peering_connection_id = aws_vpc_peering_connection.asking.id
  auto_accept               = true

  tags = { Name = "${var.mesh}-${var.asking.region}-${var.accepting.region}" }
}

resource "aws_route" "asking" {
  provider = aws.asking
  for_each = var.asking.route_tables

  route_table_id            = each.value
  destination_cidr_block    = var.accepting.cidr
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.accepting.vpc_peering_connection_id
}

resource "aws_route" "accepting" {
  provider = aws.accepting
  for_each = var.accepting.route_tables

  route_table_id            = each.value
  destination_cidr_block    = var.asking.cidr
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.accepting.vpc_peering_connection_id
}
