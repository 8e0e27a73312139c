#!/usr/bin/env bash
# Has Prometheus judge configuration and rules, tests the rules on made-up series, and drills alerts on a real mesh.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v promtool >/dev/null; then
  echo "make alerts needs promtool. Run: apt-get install prometheus" >&2
  exit 1
fi
promtool check config --syntax-only prometheus.yml
promtool check rules alerts.yml
promtool test rules alerts_test.yml
cd ../..
exec "${PYTHON:-.venv/bin/python}" -m loadtest.alerts
