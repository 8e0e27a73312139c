module "dns" {
  source = "./modules/dns"
  count  = var.domain == "" ? 0 : 1

  domain   = var.domain
  balancer = { for name in keys(local.active) : name => local.balancers[name] }
}
