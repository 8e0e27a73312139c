# Brokers and gateways: one instance for each name, with an address that a new instance of that name gets again. Names,
# not a count: which one goes when there are fewer is decided by its number, and the others stay.

locals {
  brokers  = { for n in range(1, var.brokers + 1) : "broker-${n}" => { role = "broker", number = n, address = 10 + n } }
  gateways = { for n in range(1, var.gateways + 1) : "gateway-${n}" => { role = "gateway", number = n, address = 100 + n } }
  hosts    = merge(local.brokers, local.gateways)
  placed   = { for name, host in local.hosts : name => aws_subnet.private[tostring((host.number - 1) % 3 + 1)] }
  image    = var.image != "" ? var.image : one(data.aws_ami.debian[*].id)
  device   = "/dev/sdf" # Nitro calls it by another name: hosts find the volume by its id
}

data "aws_ami" "debian" {
  count = var.image == "" ? 1 : 0

  most_recent = true
  owners      = ["136693071363"] # Debian

  filter {
    name   = "name"
    values = ["debian-12-${var.settings.hosts.architecture}-*"]
  }

  filter {
    name   = "virtualization-type"
    values = ["hvm"]
  }
}

resource "aws_kms_key" "region" {
  description             = "Disks and secrets of ${local.name}."
  enable_key_rotation     = true
  deletion_window_in_days = var.settings.recovery_days.key
}

resource "aws_kms_alias" "region" {
  name          = "alias/${local.name}"
  target_key_id = aws_kms_key.region.key_id
}

resource "aws_instance" "host" {
  for_each = local.hosts

  ami                     = local.image
  instance_type           = var.settings.hosts.types[each.value.role]
  subnet_id               = local.placed[each.key].id
  private_ip              = cidrhost(local.placed[each.key].cidr_block, each.value.address)
  vpc_security_group_ids  = [local.groups[each.value.role]]
  iam_instance_profile    = var.settings.profiles[each.value.role]
  monitoring              = var.settings.hosts.monitoring
  disable_api_termination = var.settings.deletion_protection
  user_data = templatefile("${path.module}/cloud-init.yaml.tftpl", {
    hostname = "${each.key}.${var.name}"
    ssh_keys = var.settings.access.ssh_keys
  })

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    http_endpoint               = "enabled"
  }

  root_block_device {
    encrypted   = true
    kms_key_id  = aws_kms_key.region.arn
    volume_type = "gp3"
    volume_size = 16
  }

  tags = { Name = "${local.name}-${each.key}", Role = each.value.role }

  lifecycle {
    ignore_changes = [ami, user_data] # a new image replaces no host: -replace does, one at a time
  }
}

# Apart from the instance, so that a replaced one gets it back. Only a smaller `brokers` deletes it.
resource "aws_ebs_volume" "data" {
  for_each = local.brokers

  availability_zone = local.placed[each.key].availability_zone
  type              = "gp3"
  size              = var.settings.hosts.volume.size_gib
  iops              = var.settings.hosts.volume.iops
  throughput        = var.settings.hosts.volume.throughput_mib_per_s
  encrypted         = true
  kms_key_id        = aws_kms_key.region.arn
  final_snapshot    = var.settings.hosts.snapshot

  tags = { Name = "${local.name}-${each.key}-data", Role = "broker" }
}

resource "aws_volume_attachment" "data" {
  for_each = local.brokers

  device_name                    = local.device
  volume_id                      = aws_ebs_volume.data[each.key].id
  instance_id                    = aws_instance.host[each.key].id
  stop_instance_before_detaching = true # a clean stop: the file system is written out
}

resource "aws_secretsmanager_secret" "gossip_lan" {
  name                    = "${var.settings.mesh}/${var.name}/gossip-lan"
  description             = "Keyring of the gossip pool of ${var.name}."
  kms_key_id              = aws_kms_key.region.arn
  recovery_window_in_days = var.settings.recovery_days.secret
}
