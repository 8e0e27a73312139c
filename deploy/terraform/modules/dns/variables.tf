variable "domain" {
  description = "Domain of the zone that is made, without a dot at its end."
  type        = string
}

variable "balancer" {
  description = "By region: the load balancer's host name, its hosted zone, and the alarm that says no gateway is healthy."
  type        = map(object({ host = string, zone = string, alarm = string }))
}
