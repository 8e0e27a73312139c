# Wrong values are refused by the variable that they are of, before anything is asked of AWS.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-west-1a", "eu-west-1b", "eu-west-1c"] }
  }
}

variables {
  name     = "eu-west-1"
  cidr     = "10.20.0.0/16"
  brokers  = 3
  gateways = 2
  settings = {
    mesh                = "shop"
    ports               = { kafka = 9092, grpc = 9093, peers = 9094, link = 9095, admin = 9096, gossip_lan = 7946, gossip_wan = 7947, gateway_http = 8080, gateway_kafka = 19092, gateway_grpc = 8090, node_metrics = 9100, ssh = 22 }
    cidrs               = ["10.10.0.0/16", "10.20.0.0/16"]
    profiles            = { broker = "shop-broker", gateway = "shop-gateway" }
    nat                 = "none"
    access              = { clients = [], private_clients = [], operators = [], monitors = [], ssh_keys = [], endpoint = true }
    hosts               = { architecture = "amd64", types = { broker = "m7i.large", gateway = "c7i.large" }, volume = { size_gib = 200, iops = 3000, throughput_mib_per_s = 125 }, snapshot = true, monitoring = false }
    internal_balancers  = false
    deletion_protection = false
    recovery_days       = { key = 30, secret = 30 }
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
