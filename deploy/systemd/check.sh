#!/usr/bin/env bash
# Has systemd judge the units: no word of systemd-analyze verify, and an exposure of 2.5 at most. Nothing is started.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v systemd-analyze >/dev/null; then
  echo "make units needs systemd-analyze. Run: apt-get install systemd" >&2
  exit 1
fi
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
for unit in georelay-*.service georelay-*.timer; do
  # What it starts is installed on hosts only.
  sed 's#^ExecStart=.*#ExecStart=/bin/true#' "$unit" >"$scratch/$unit"
done
for unit in georelay-*.service georelay-*.timer; do
  # An unknown key is a warning, with exit code 0: silence is what counts. Of a template, its unit of brokers is judged.
  said="$(systemd-analyze verify "$scratch/${unit/@/@broker}" 2>&1)" || true
  if [ -n "$said" ]; then
    printf '%s: systemd-analyze verify says:\n%s\n' "$unit" "${said//$scratch\//}" >&2
    exit 1
  fi
  [[ "$unit" == *.service ]] || continue
  systemd-analyze security --offline=true --threshold=25 "$scratch/$unit" >"$scratch/exposure" || {
    echo "$unit: its exposure is more than 2.5:" >&2
    grep -v '✓' "$scratch/exposure" >&2
    exit 1
  }
  grep 'Overall' "$scratch/exposure"
done
