variable "name" {
  description = "The region, as AWS and the mesh call it."
  type        = string
}

variable "cidr" {
  description = "Of the VPC: private, /16 to /20."
  type        = string

  validation {
    condition     = can(cidrhost(var.cidr, 0)) && can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.).*/(16|17|18|19|20)$", var.cidr))
    error_message = "cidr: write a private network of /16 to /20, such as \"10.10.0.0/16\"."
  }
}

variable "brokers" {
  description = "How many brokers: odd, because a majority of an even number bears no more losses. 1 to 9."
  type        = number

  validation {
    condition     = var.brokers >= 1 && var.brokers <= 9 && var.brokers % 2 == 1
    error_message = "brokers: write 1, 3, 5, 7 or 9; an even number bears no more losses than one less."
  }
}

variable "gateways" {
  description = "How many gateways: 1 to 9."
  type        = number

  validation {
    condition     = var.gateways >= 1 && var.gateways <= 9 && floor(var.gateways) == var.gateways
    error_message = "gateways: write 1 to 9."
  }
}

variable "zones" {
  description = "Letters of the three availability zones; empty: the first three of the region."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.zones) == 0 || length(distinct(var.zones)) == 3 && alltrue([for letter in var.zones : can(regex("^[a-z]$", letter))])
    error_message = "zones: write three letters, such as [\"a\", \"b\", \"d\"]."
  }
}

variable "image" {
  description = "AMI of all hosts; empty: the newest Debian 12."
  type        = string
  default     = ""

  validation {
    condition     = var.image == "" || can(regex("^ami-[0-9a-f]{8,17}$", var.image))
    error_message = "image: write an AMI of this region, such as \"ami-0123456789abcdef0\"."
  }
}

variable "settings" {
  description = "What all regions share; the root module makes it of its variables."
  type = object({
    mesh     = string
    ports    = map(number)
    cidrs    = list(string)
    profiles = map(string)
    nat      = string
    access = object({
      clients         = list(string)
      private_clients = list(string)
      operators       = list(string)
      monitors        = list(string)
      ssh_keys        = list(string)
      endpoint        = bool
    })
    hosts = object({
      architecture = string
      types        = map(string)
      volume       = object({ size_gib = number, iops = number, throughput_mib_per_s = number })
      snapshot     = bool
      monitoring   = bool
    })
    internal_balancers  = bool
    deletion_protection = bool
    recovery_days       = object({ key = number, secret = number })
  })
}
