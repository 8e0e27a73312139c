# What all regions share: names, ports, rights. local.mesh and local.regions are rendered from regions.toml.

locals {
  tags = merge(var.tags, { Project = "georelay", Mesh = local.mesh, ManagedBy = "terraform" })

  # Those of `georelay broker config`, of a gateway's defaults and of gossip; tests/unit/deploy compares.
  ports = {
    kafka         = 9092
    grpc          = 9093
    peers         = 9094
    link          = 9095
    admin         = 9096
    gossip_lan    = 7946
    gossip_wan    = 7947
    gateway_http  = 8080
    gateway_kafka = 19092
    gateway_grpc  = 8090
    node_metrics  = 9100
    ssh           = 22
  }

  active = { for name, region in local.regions : name => region if region.state == "active" }

  settings = {
    mesh     = local.mesh
    ports    = local.ports
    cidrs    = [for region in values(local.active) : region.cidr]
    profiles = { for role, profile in aws_iam_instance_profile.host : role => profile.name }
    nat      = var.nat
    access = {
      clients         = var.client_cidrs
      private_clients = var.private_client_cidrs
      operators       = var.operator_cidrs
      monitors        = var.monitor_cidrs
      ssh_keys        = var.operator_ssh_keys
      endpoint        = var.connect_endpoints
    }
    hosts = {
      architecture = var.architecture
      types        = { broker = var.broker_instance_type, gateway = var.gateway_instance_type }
      volume       = var.broker_volume
      snapshot     = var.snapshot_removed_volumes
      monitoring   = var.detailed_monitoring
    }
    internal_balancers  = var.internal_balancers
    deletion_protection = var.deletion_protection
    recovery_days       = { key = var.key_deletion_days, secret = var.secret_recovery_days }
  }
}

# Hosts of one region reach the bucket of another one through a NAT gateway only: an endpoint for S3 is regional.
check "traces_are_reachable" {
  assert {
    condition     = var.nat != "none" || alltrue([for name in keys(local.active) : name == local.global_region])
    error_message = "nat = \"none\": hosts outside ${local.global_region} do not reach the bucket for traces; set nat = \"one\", or ship traces another way."
  }
}

check "somebody_may_sign_in" {
  assert {
    condition     = length(var.operator_ssh_keys) > 0
    error_message = "operator_ssh_keys is empty: Ansible cannot sign in to any host. Hosts that are there already do not learn of keys later."
  }
}
