output "name_servers" {
  description = "What to name in the zone above this one."
  value       = aws_route53_zone.mesh.name_servers
}
