variable "mesh" {
  description = "The name of the mesh."
  type        = string
}

variable "asking" {
  description = "The side that asks: region, VPC, its CIDR, and the route tables of its hosts by zone."
  type        = object({ region = string, vpc = string, cidr = string, route_tables = map(string) })
}

variable "accepting" {
  description = "The side that accepts, likewise."
  type        = object({ region = string, vpc = string, cidr = string, route_tables = map(string) })
}
