#!/usr/bin/env bash
# Makes what spark-submit ships to a cluster that has none of our code, into OUT:
#   georelay_sla.zip          our wheel under a name that --py-files takes (Spark looks for .zip, not for .whl)
#   georelay_sla_env.tar.gz   a virtual environment for --archives ...#env, for hosts without pyarrow
set -euo pipefail
python="$1"
out="$2"

wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
mkdir -p "$out"
"$python" -m hatchling build --target wheel --directory "$wheels" >/dev/null
wheel=("$wheels"/georelay_server-*.whl)
cp "${wheel[0]}" "$out/georelay_sla.zip"

# pyspark itself comes from the workers' Spark. pip of the environment that builds is used: ours needs none inside.
env="$wheels/env"
"$python" -m venv --without-pip "$env"
"$python" -m pip --python "$env/bin/python" install --quiet --disable-pip-version-check --no-compile \
  --constraint constraints.txt pyarrow pandas
"$python" -m pip --python "$env/bin/python" install --quiet --disable-pip-version-check --no-compile --no-deps "${wheel[0]}"
tar -C "$env" -czf "$out/georelay_sla_env.tar.gz" .
ls -l "$out"/georelay_sla*
