# What a host may do with the API of AWS: put its traces into the bucket. Nothing else; Ansible brings secrets to it.

locals {
  trace_rights = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "ShipTraces"
        Effect   = "Allow"
        Action   = ["s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        Resource = "${aws_s3_bucket.traces.arn}/${local.traces_prefix}/*"
      },
      {
        Sid       = "SeeWhatIsThere"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = aws_s3_bucket.traces.arn
        Condition = { StringLike = { "s3:prefix" = ["${local.traces_prefix}", "${local.traces_prefix}/*"] } }
      },
      {
        Sid      = "EncryptTraces"
        Effect   = "Allow"
        Action   = ["kms:GenerateDataKey", "kms:Decrypt"]
        Resource = aws_kms_key.traces.arn
      },
    ]
  })
}

resource "aws_iam_role" "host" {
  for_each = toset(["broker", "gateway"])

  name        = "${local.mesh}-${each.key}"
  description = "What ${each.key}s of the mesh ${local.mesh} may do with the API of AWS."
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "traces" {
  for_each = aws_iam_role.host

  name   = "traces"
  role   = each.value.name
  policy = local.trace_rights
}

resource "aws_iam_instance_profile" "host" {
  for_each = aws_iam_role.host

  name = each.value.name
  role = each.value.name
}
