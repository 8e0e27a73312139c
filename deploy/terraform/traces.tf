# One bucket for the traces of all regions: TLS only, encrypted with a key of its own, closed to the public, expiring.

locals {
  traces_prefix = "traces"
}

data "aws_caller_identity" "current" {}

resource "aws_kms_key" "traces" {
  description             = "Traces of the mesh ${local.mesh}."
  enable_key_rotation     = true
  deletion_window_in_days = var.key_deletion_days
}

resource "aws_kms_alias" "traces" {
  name          = "alias/${local.mesh}-traces"
  target_key_id = aws_kms_key.traces.key_id
}

resource "aws_s3_bucket" "traces" {
  bucket        = "${local.mesh}-traces-${data.aws_caller_identity.current.account_id}"
  force_destroy = var.traces_delete_on_destroy
}

resource "aws_s3_bucket_public_access_block" "traces" {
  bucket                  = aws_s3_bucket.traces.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "traces" {
  bucket = aws_s3_bucket.traces.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "traces" {
  bucket = aws_s3_bucket.traces.id

  rule {
    bucket_key_enabled = true # a call of KMS for many objects, not for each

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.traces.arn
    }
  }
}

resource "aws_s3_bucket_versioning" "traces" {
  bucket = aws_s3_bucket.traces.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "traces" {
  bucket     = aws_s3_bucket.traces.id
  depends_on = [aws_s3_bucket_versioning.traces]

  rule {
    id     = "expire"
    status = "Enabled"

    filter {
      prefix = "${local.traces_prefix}/"
    }

    expiration {
      days = var.traces_expire_days
    }

    noncurrent_version_expiration {
      noncurrent_days = 7
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
  }
}

resource "aws_s3_bucket_policy" "traces" {
  bucket     = aws_s3_bucket.traces.id
  depends_on = [aws_s3_bucket_public_access_block.traces]

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.traces.arn, "${aws_s3_bucket.traces.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}
