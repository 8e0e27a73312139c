#!/usr/bin/env bash
# What `make tf` needs: terraform, its provider for AWS, and moto, which stands in for AWS. Says what is missing.
set -euo pipefail
python="$1"
if ! command -v terraform >/dev/null; then
  echo "make tf needs terraform 1.9 or newer on the PATH. Install it, then run make tf again." >&2
  exit 1
fi
venv=build/tf/venv
if ! "$venv/bin/python" -c 'import ansible, awscli, moto, boto3, flask, flask_cors, pytest, pytest_timeout' 2>/dev/null; then
  mapfile -t wanted < <("$python" -c '
import tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["terraform"]))')
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"
fi
# A mirror of providers on this machine (MIRROR=folder, or where images keep one); without one, terraform fetches it.
mirror="${MIRROR:-}"
[ -n "$mirror" ] || for folder in "$HOME/.terraform.d/plugins" /usr/share/terraform/plugins /opt/*; do
  if compgen -G "$folder/*/hashicorp/aws/*" >/dev/null; then mirror="$folder"; break; fi
done
mkdir -p build/tf
settings="$PWD/build/tf/terraformrc"
if [ -n "$mirror" ]; then
  printf 'provider_installation {\n  filesystem_mirror {\n    path    = "%s"\n    include = ["hashicorp/aws"]\n  }\n  direct {\n    exclude = ["hashicorp/aws"]\n  }\n}\n' \
    "$(cd "$mirror" && pwd)" >"$settings"
elif [ -f "${TF_CLI_CONFIG_FILE:-}" ]; then
  cp "$TF_CLI_CONFIG_FILE" "$settings"
else
  printf 'plugin_cache_dir = "%s"\n' "$PWD/build/tf" >"$settings"
fi
export TF_CLI_CONFIG_FILE="$settings"
rm -rf build/tf/probe && mkdir build/tf/probe && cp deploy/terraform/versions.tf build/tf/probe
if ! said="$(terraform -chdir=build/tf/probe init -no-color -input=false 2>&1)"; then
  printf '%s\n' "$said" | grep -m1 -A3 'Error' >&2 || true
  echo "make tf needs the provider hashicorp/aws: from the network, or from a folder of providers: make tf MIRROR=folder" >&2
  exit 1
fi
