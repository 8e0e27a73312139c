# A VPC with a public and a private subnet in each of three zones. Hosts are in the private ones; in the public ones are
# the load balancer and NAT gateways, nothing else.

data "aws_availability_zones" "here" {
  state = "available"

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }

  lifecycle {
    postcondition {
      condition     = length(self.names) >= 3
      error_message = "${var.name} has ${length(self.names)} availability zones for this account; a region of the mesh needs three. Choose another region in regions.toml."
    }
  }
}

locals {
  found = try(slice(sort(data.aws_availability_zones.here.names), 0, 3), [])
  zones = length(var.zones) == 0 ? local.found : [for letter in var.zones : "${var.name}${letter}"]
  # Numbers as keys: which zones they are may differ in each account, the addresses in the state do not.
  places = { "1" = 0, "2" = 1, "3" = 2 }
  nats   = { none = {}, one = { "1" = 0 }, zone = local.places }[var.settings.nat]
  name   = "${var.settings.mesh}-${var.name}"
}

resource "aws_vpc" "mesh" {
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = { Name = local.name }
}

# What is in no other security group is in this one: it lets nothing in and nothing out.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.mesh.id

  tags = { Name = "${local.name}-closed" }
}

resource "aws_subnet" "public" {
  for_each = local.places

  vpc_id                  = aws_vpc.mesh.id
  cidr_block              = cidrsubnet(var.cidr, 4, each.value)
  availability_zone       = local.zones[each.value]
  map_public_ip_on_launch = false

  tags = { Name = "${local.name}-public-${each.key}" }

  lifecycle {
    ignore_changes = [availability_zone] # a zone that AWS adds to the region moves nothing
  }
}

resource "aws_subnet" "private" {
  for_each = local.places

  vpc_id                  = aws_vpc.mesh.id
  cidr_block              = cidrsubnet(var.cidr, 4, 3 + each.value)
  availability_zone       = local.zones[each.value]
  map_public_ip_on_launch = false

  tags = { Name = "${local.name}-private-${each.key}" }

  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "aws_internet_gateway" "mesh" {
  vpc_id = aws_vpc.mesh.id

  tags = { Name = local.name }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.mesh.id

  tags = { Name = "${local.name}-public" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.mesh.id
}

resource "aws_route_table_association" "public" {
  for_each = aws_subnet.public

  subnet_id      = each.value.id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table" "private" {
  for_each = local.places

  vpc_id = aws_vpc.mesh.id

  tags = { Name = "${local.name}-private-${each.key}" }
}

resource "aws_route_table_association" "private" {
  for_each = aws_subnet.private

  subnet_id      = each.value.id
  route_table_id = aws_route_table.private[each.key].id
}

resource "aws_eip" "nat" {
  for_each = local.nats

  domain = "vpc"

  tags = { Name = "${local.name}-nat-${each.key}" }
}

resource "aws_nat_gateway" "nat" {
  for_each = local.nats

  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.public[each.key].id
  depends_on    = [aws_internet_gateway.mesh]

  tags = { Name = "${local.name}-${each.key}" }
}

resource "aws_route" "nat" {
  for_each = length(local.nats) == 0 ? {} : local.places

  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.nat[contains(keys(local.nats), each.key) ? each.key : "1"].id
}

# Traces that go to a bucket of the same region pass no NAT gateway and cost nothing.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.mesh.id
  service_name      = "com.amazonaws.${var.name}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [for table in aws_route_table.private : table.id]

  tags = { Name = "${local.name}-s3" }
}
