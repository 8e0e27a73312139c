# Empty secrets of the whole mesh: Ansible fills them from the folder of who runs it, and makes that folder of them on
# another machine. What Terraform wrote would be in its state.

resource "aws_secretsmanager_secret" "mesh" {
  for_each = {
    authority      = "The certificate authority of the mesh: its key signs the certificate of each broker and gateway."
    gossip_wan     = "Keyring of the gossip pool of all brokers."
    administration = "The administrator's password, the users' file, and what was founded and let in."
  }

  name                    = "${local.mesh}/${replace(each.key, "_", "-")}"
  description             = each.value
  recovery_window_in_days = var.secret_recovery_days
}
