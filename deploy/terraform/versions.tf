terraform {
  required_version = ">= 1.9" # validation that looks at other variables; OpenTofu counts the same

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60, < 7.0"
    }
  }
}
