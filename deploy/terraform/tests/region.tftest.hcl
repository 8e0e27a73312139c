# One region as it is planned: addresses, disks, who is let in; and wrong values, each refused by the variable that it is
# of. No API is asked.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-west-1a", "eu-west-1b", "eu-west-1c"] }
  }

  mock_data "aws_ami" {
    defaults = { id = "ami-0123456789abcdef0" }
  }
}

variables {
  name     = "eu-west-1"
  cidr     = "10.20.0.0/16"
  brokers  = 5
  gateways = 2
  settings = {
    mesh                = "shop"
    ports               = { kafka = 9092, grpc = 9093, peers = 9094, link = 9095, admin = 9096, gossip_lan = 7946, gossip_wan = 7947, gateway_http = 8080, gateway_kafka = 19092, gateway_grpc = 8090, node_metrics = 9100, ssh = 22 }
    cidrs               = ["10.10.0.0/16", "10.20.0.0/16"]
    profiles            = { broker = "shop-broker", gateway = "shop-gateway" }
    nat                 = "none"
    access              = { clients = [], private_clients = [], operators = [], monitors = [], ssh_keys = [], endpoint = true }
    hosts               = { architecture = "amd64", types = { broker = "m7i.large", gateway = "c7i.large" }, volume = { size_gib = 200, iops = 3000, throughput_mib_per_s = 125 }, snapshot = true, monitoring = false }
    internal_balancers  = true
    deletion_protection = true
    recovery_days       = { key = 30, secret = 30 }
  }
}

run "five_brokers_in_three_zones" {
  command = plan

  module {
    source = "./modules/region"
  }

  assert {
    condition     = { for name, host in aws_instance.host : name => host.private_ip if host.tags.Role == "broker" } == { "broker-1" = "10.20.48.11", "broker-2" = "10.20.64.12", "broker-3" = "10.20.80.13", "broker-4" = "10.20.48.14", "broker-5" = "10.20.64.15" }
    error_message = "Brokers have fixed addresses, one zone after the other."
  }

  assert {
    condition     = alltrue([for disk in aws_ebs_volume.data : disk.encrypted && disk.final_snapshot])
    error_message = "Data volumes are encrypted, and a snapshot is taken before one goes."
  }

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.clients) == 0 && length(aws_nat_gateway.nat) == 0
    error_message = "Nobody comes in, and nothing leaves, unless it is said."
  }

  assert {
    condition     = length(aws_ec2_instance_connect_endpoint.operators) == 1 && aws_lb.gateways.internal && aws_instance.host["gateway-1"].disable_api_termination
    error_message = "The endpoint for operators, private balancers and deletion protection are as asked for."
  }
}

run "fewer_brokers_are_those_with_the_highest_numbers" {
  command = plan

  module {
    source = "./modules/region"
  }

  variables {
    brokers = 3
  }

  assert {
    condition     = toset(keys(aws_ebs_volume.data)) == toset(["broker-1", "broker-2", "broker-3"]) && length(aws_instance.host) == 5
    error_message = "The lowest numbers stay."
  }
}

run "an_even_number_of_brokers" {
  command = plan

  module {
    source = "./modules/region"
  }

  variables {
    brokers = 4
  }

  expect_failures = [var.brokers]
}

run "a_network_that_is_too_small" {
  command = plan

  module {
    source = "./modules/region"
  }

  variables {
    cidr = "10.20.0.0/24"
  }

  expect_failures = [var.cidr]
}

run "a_public_network" {
  command = plan

  module {
    source = "./modules/region"
  }

  variables {
    cidr = "8.8.0.0/16"
  }

  expect_failures = [var.cidr]
}

run "no_gateway" {
  command = plan

  module {
    source = "./modules/region"
  }

  variables {
    gateways = 0
  }

  expect_failures = [var.gateways]
}

run "two_zones" {
  command = plan

  module {
    source = "./modules/region"
  }

  variables {
    zones = ["a", "b"]
  }

  expect_failures = [var.zones]
}

run "a_region_with_too_few_zones" {
  command = plan

  module {
    source = "./modules/region"
  }

  override_data {
    target = data.aws_availability_zones.here
    values = { names = ["eu-west-1a", "eu-west-1b"] }
  }

  expect_failures = [data.aws_availability_zones.here]
}
