# What Ansible and people need to know. `inventory` is a contract: README.md says what is in it.

output "inventory" {
  description = "The hosts of the active regions, as deploy/ansible reads them."
  value = {
    for name, region in local.active : name => merge(local.made[name], {
      number = region.number
      cidr   = region.cidr
      name   = var.domain == "" ? "" : "gateway.${name}.${var.domain}"
    })
  }
}

output "mesh" {
  description = "The name of the mesh."
  value       = local.mesh
}

output "ports" {
  description = "Which port is for what, on all hosts."
  value       = local.ports
}

output "traces" {
  description = "Where hosts ship their traces."
  value = {
    region = local.global_region
    bucket = aws_s3_bucket.traces.bucket
    url    = "s3://${aws_s3_bucket.traces.bucket}/${local.traces_prefix}"
  }
}

output "secrets" {
  description = "ARNs of the empty secrets of the whole mesh; those of a region are in inventory."
  value       = { for name, secret in aws_secretsmanager_secret.mesh : name => secret.arn }
}

output "gateway" {
  description = "The name that leads a client to the nearest region with a healthy gateway; empty without a domain."
  value       = var.domain == "" ? "" : "gateway.${var.domain}"
}

output "name_servers" {
  description = "What to name in the zone above `domain` (NS records); empty without a domain."
  value       = flatten(module.dns[*].name_servers)
}
