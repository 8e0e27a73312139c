# The mesh of examples/three-regions as it is planned, and the refusals of its variables.

mock_provider "aws" {}

mock_provider "aws" {
  alias = "us_east_1"

  mock_data "aws_availability_zones" {
    defaults = { names = ["us-east-1a", "us-east-1b", "us-east-1c"] }
  }
}

mock_provider "aws" {
  alias = "eu_west_1"

  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-west-1a", "eu-west-1b", "eu-west-1c"] }
  }
}

mock_provider "aws" {
  alias = "ap_southeast_1"

  mock_data "aws_availability_zones" {
    defaults = { names = ["ap-southeast-1a", "ap-southeast-1b", "ap-southeast-1c"] }
  }
}

variables {
  operator_ssh_keys = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ0 operator"]
  domain            = "mesh.example.com"
}

run "three_regions" {
  command = plan

  assert {
    condition     = toset(keys(output.inventory)) == toset(["ap-southeast-1", "eu-west-1", "us-east-1"])
    error_message = "The inventory has the active regions."
  }

  assert {
    condition     = output.gateway == "gateway.mesh.example.com" && output.ports.kafka == 9092
    error_message = "Outputs are as README.md says."
  }
}

run "addresses_that_are_none" {
  command = plan

  variables {
    client_cidrs         = ["everybody"]
    private_client_cidrs = ["8.8.8.0/24"]
    operator_cidrs       = ["0.0.0.0/0"]
    monitor_cidrs        = ["10.0.0.0"]
  }

  expect_failures = [var.client_cidrs, var.private_client_cidrs, var.operator_cidrs, var.monitor_cidrs]
}

run "words_that_are_none" {
  command = plan

  variables {
    nat                   = "two"
    domain                = "Mesh.Example.com."
    architecture          = "x86_64"
    operator_ssh_keys     = ["id_ed25519.pub"]
    broker_instance_type  = "large"
    gateway_instance_type = "c7i"
    tags                  = { Mesh = "other" }
  }

  expect_failures = [var.nat, var.domain, var.architecture, var.operator_ssh_keys, var.broker_instance_type, var.gateway_instance_type, var.tags]
}

run "numbers_that_are_out_of_range" {
  command = plan

  variables {
    broker_volume        = { size_gib = 10 }
    traces_expire_days   = 0
    secret_recovery_days = 3
    key_deletion_days    = 1
  }

  expect_failures = [var.broker_volume, var.traces_expire_days, var.secret_recovery_days, var.key_deletion_days]
}

run "hosts_that_nobody_can_reach_are_warned_of" {
  command = plan

  variables {
    operator_ssh_keys = []
    nat               = "none"
  }

  expect_failures = [check.somebody_may_sign_in, check.traces_are_reachable]
}
