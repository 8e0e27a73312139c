#!/usr/bin/env bash
# Builds what kubectl would apply in each region and holds it against the published schemas. No cluster is asked.
set -euo pipefail
cd "$(dirname "$0")"
refuse() { echo "make kubernetes: $1" >&2; exit 1; }
validate="${VALIDATE:-kubernetes-validate}"
command -v kubectl >/dev/null || refuse "it needs kubectl 1.31 or newer on PATH"
command -v "$validate" >/dev/null || refuse "it needs kubernetes-validate. Run: pip install kubernetes-validate (an environment of its own), VALIDATE=PATH names it"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
for overlay in overlays/*/; do
  region="$(basename "$overlay")"
  kubectl kustomize "$overlay" >"$scratch/$region.yaml"
  "$validate" --strict "$scratch/$region.yaml" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; exit 1; }
  echo "$region: $(grep -c ' passed for resource ' "$scratch/said") resources are as their schemas want them"
done
