#!/usr/bin/env bash
# Makes the virtual environment and installs georelay with the tested versions of constraints.txt.
set -euo pipefail
python="$1"
venv="$2"

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "georelay needs Python 3.11 or newer; '$python' is not. Run: make setup PYTHON=python3.11" >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "Python has no venv module. Run: apt-get install python3-venv" >&2
  exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "georelay: installing the pinned dependencies into $venv (about a minute) ..."
# Groups are read here because pip learned --group only in 25.1.
mapfile -t dev < <("$venv/bin/python" - <<'PY'
import tomllib

with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["dependency-groups"]["dev"]))
PY
)
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[sla,testbed]' "${dev[@]}"
# pip compiles what it installs, but not what is installed editable: every process would.
"$venv/bin/python" -m compileall -q sdk/georelay mesh region gateway loadtest sla
echo "georelay: $("$venv/bin/python" -m pip list --disable-pip-version-check 2>/dev/null | tail -n +3 | wc -l) packages ready"
