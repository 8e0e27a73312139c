# What differs between meshes, besides regions.toml. Everything has a default that is closed and safe; who may reach the
# gateways (client_cidrs) and the hosts (operator_cidrs, operator_ssh_keys) is for you to say.

variable "client_cidrs" {
  description = "Who may reach the gateways, as CIDRs; [\"0.0.0.0/0\"] is everybody. Empty: nobody from outside."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && !strcontains(cidr, ":")])
    error_message = "client_cidrs: write IPv4 networks such as \"203.0.113.0/24\"; a single address is \"203.0.113.7/32\"."
  }
}

variable "private_client_cidrs" {
  description = "Private networks, joined to the VPCs by you (VPN, peering), from which Kafka and gRPC clients reach brokers."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.private_client_cidrs : can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", cidr)) && can(cidrhost(cidr, 0))])
    error_message = "private_client_cidrs: write networks of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16; clients from elsewhere use the gateways (client_cidrs)."
  }
}

variable "operator_cidrs" {
  description = "Private networks, joined to the VPCs by you, from which hosts are reached by SSH (Ansible)."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.operator_cidrs : can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", cidr)) && can(cidrhost(cidr, 0))])
    error_message = "operator_cidrs: write networks of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16; without a private network of yours set connect_endpoints = true instead."
  }
}

variable "monitor_cidrs" {
  description = "Private networks, joined to the VPCs by you, from which Prometheus reads metrics of brokers, gateways and hosts."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.monitor_cidrs : can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", cidr)) && can(cidrhost(cidr, 0))])
    error_message = "monitor_cidrs: write networks of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16."
  }
}

variable "operator_ssh_keys" {
  description = "Public SSH keys of who runs Ansible; they are put on each host, for the user admin, when it is first started."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for key in var.operator_ssh_keys : can(regex("^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/=]+( [^\\n]*)?$", key))])
    error_message = "operator_ssh_keys: write whole public keys, such as the line in id_ed25519.pub (\"ssh-ed25519 AAAA... name\")."
  }
}

variable "connect_endpoints" {
  description = "Make an EC2 Instance Connect Endpoint in each region: SSH to hosts without a private network of yours."
  type        = bool
  default     = false
}

variable "domain" {
  description = "Domain of the gateways, such as mesh.example.com; a public zone is made for it. Empty: no names."
  type        = string
  default     = ""

  validation {
    condition     = var.domain == "" || can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.domain))
    error_message = "domain: write a domain in small letters, without a dot at its end, such as \"mesh.example.com\"."
  }
}

variable "nat" {
  description = "How hosts reach package mirrors: none, one (a NAT gateway in each region) or zone (one in each zone)."
  type        = string
  default     = "one"

  validation {
    condition     = contains(["none", "one", "zone"], var.nat)
    error_message = "nat: write \"none\", \"one\" (a gateway in each region) or \"zone\" (a gateway in each zone)."
  }
}

variable "internal_balancers" {
  description = "Give the gateways' load balancers private addresses only."
  type        = bool
  default     = false
}

variable "architecture" {
  description = "Of the hosts: amd64 or arm64. The release that they install is made on the same (make release)."
  type        = string
  default     = "amd64"

  validation {
    condition     = contains(["amd64", "arm64"], var.architecture)
    error_message = "architecture: write \"amd64\" or \"arm64\"; instance types of arm64 have a g behind their generation (m7g)."
  }
}

variable "broker_instance_type" {
  description = "Of brokers."
  type        = string
  default     = "m7i.large"

  validation {
    condition     = can(regex("^[a-z]+[0-9]+[a-z-]*\\.[a-z0-9-]+$", var.broker_instance_type))
    error_message = "broker_instance_type: write a type of AWS, such as \"m7i.large\"."
  }
}

variable "gateway_instance_type" {
  description = "Of gateways."
  type        = string
  default     = "c7i.large"

  validation {
    condition     = can(regex("^[a-z]+[0-9]+[a-z-]*\\.[a-z0-9-]+$", var.gateway_instance_type))
    error_message = "gateway_instance_type: write a type of AWS, such as \"c7i.large\"."
  }
}

variable "broker_volume" {
  description = "Data volume of each broker (gp3). It may grow later and never shrinks."
  type = object({
    size_gib             = optional(number, 200)
    iops                 = optional(number, 3000)
    throughput_mib_per_s = optional(number, 125)
  })
  default = {}

  validation {
    condition     = var.broker_volume.size_gib >= 20 && var.broker_volume.size_gib <= 16384
    error_message = "broker_volume: size_gib is 20 to 16384."
  }

  validation {
    condition     = var.broker_volume.iops >= 3000 && var.broker_volume.iops <= 16000 && var.broker_volume.iops <= 500 * var.broker_volume.size_gib
    error_message = "broker_volume: iops is 3000 to 16000, and at most 500 for each GiB of size_gib."
  }

  validation {
    condition     = var.broker_volume.throughput_mib_per_s >= 125 && var.broker_volume.throughput_mib_per_s <= 1000 && 4 * var.broker_volume.throughput_mib_per_s <= var.broker_volume.iops
    error_message = "broker_volume: throughput_mib_per_s is 125 to 1000, and at most a quarter of iops."
  }
}

variable "snapshot_removed_volumes" {
  description = "Take a snapshot of a broker's volume before Terraform deletes it. Apply it before what deletes."
  type        = bool
  default     = true
}

variable "deletion_protection" {
  description = "Have AWS refuse to delete load balancers, and to terminate hosts; apply false before you destroy."
  type        = bool
  default     = false
}

variable "detailed_monitoring" {
  description = "Have CloudWatch read the hosts' metrics each minute, not every five."
  type        = bool
  default     = false
}

variable "traces_expire_days" {
  description = "Days after which trace files are deleted from the bucket."
  type        = number
  default     = 90

  validation {
    condition     = var.traces_expire_days >= 1 && var.traces_expire_days <= 3650 && floor(var.traces_expire_days) == var.traces_expire_days
    error_message = "traces_expire_days: write whole days, 1 to 3650."
  }
}

variable "traces_delete_on_destroy" {
  description = "Let terraform destroy delete the bucket with the traces in it. Apply it before you destroy."
  type        = bool
  default     = false
}

variable "secret_recovery_days" {
  description = "Days in which a deleted secret can be had back: 7 to 30, or 0 for deletion at once."
  type        = number
  default     = 30

  validation {
    condition     = var.secret_recovery_days == 0 || (var.secret_recovery_days >= 7 && var.secret_recovery_days <= 30)
    error_message = "secret_recovery_days: write 7 to 30, or 0 for deletion at once."
  }
}

variable "key_deletion_days" {
  description = "Days in which a deleted KMS key can be had back: 7 to 30."
  type        = number
  default     = 30

  validation {
    condition     = var.key_deletion_days >= 7 && var.key_deletion_days <= 30
    error_message = "key_deletion_days: write 7 to 30."
  }
}

variable "tags" {
  description = "Tags of everything that is made, besides Project, Mesh and ManagedBy."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setintersection(keys(var.tags), ["Project", "Mesh", "ManagedBy", "Name", "Role"])) == 0
    error_message = "tags: Project, Mesh, ManagedBy, Name and Role are set by the modules; choose other keys."
  }
}
