#!/usr/bin/env bash
# Makes the virtual environment and installs georelay with the tested versions of constraints.txt.
# Three things side by side: what comes from Debian, pyspark (which is built here: half of all bytes), everything else.
set -euo pipefail
python="$1"
venv="$2"

export PYTHONDONTWRITEBYTECODE=  # what is compiled here is for every process that follows
say() { printf 'georelay: %3d s  %s\n' "$SECONDS" "$*"; }
# Says what takes long of what pip does; a line for each of the hundred small packages would hide it.
told() {
  while IFS= read -r line; do
    case "$line" in
      *Downloading*[0-9][0-9].[0-9]" MB)"*) say "${line#"${line%%[![:space:]]*}"}" ;;
      *"Building wheel for"*) case "$line" in *started*) say "${line#"${line%%[![:space:]]*}"}" ;; esac ;;
      *"Installing collected packages"*) say "unpacking $(tr -cd , <<<"$line" | wc -c) packages" ;;
      *ERROR*|*error:*) echo "$line" >&2 ;;
    esac
  done
}
install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
    --constraint constraints.txt "$@" 2>&1 | told
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "georelay needs Python 3.11 or newer; '$python' is not. Run: make setup PYTHON=python3.11" >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "Python has no venv module. Run: apt-get install python3-venv" >&2
  exit 1
fi
wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT

say "setting up $venv: a minute or two, once"
bash tools/needs.sh &
needs=$!
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# --use-pep517: the venv of an older Python has setuptools and no wheel, and pip would take setup.py bdist_wheel there.
"$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --use-pep517 --no-deps --constraint constraints.txt \
  --wheel-dir "$wheels" pyspark &
pyspark=$!
say "downloading and building pyspark beside everything else"

# Groups are read here because pip learned --group only in 25.1.
mapfile -t dev < <("$venv/bin/python" - <<'PY'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print("\n".join(project["dependency-groups"]["dev"]))
print("\n".join(line for line in project["project"]["optional-dependencies"]["sla"] if not line.startswith("pyspark")))
PY
)
install --editable '.[testbed,load]' "${dev[@]}"
wait "$pyspark" || { echo "georelay: pyspark could not be had (above). Run make setup again." >&2; exit 1; }
install --find-links "$wheels" --editable '.[sla,testbed,load]'
say "compiling Python"
# Ours first, by every core. Then whatever the tests import, and the tests themselves: pip would compile all of every
# package instead, most of it in vain, and each process of a demo or of the suite would compile the same once more.
"$venv/bin/python" -m compileall -q -j 0 sdk/georelay mesh region gateway loadtest sla
wait "$needs"
"$venv/bin/georelay-sla" doctor --archive >/dev/null 2>"$wheels/archive" &  # twenty JVMs of the suite start from it
archive=$!
"$venv/bin/python" -m pytest --collect-only -q tests/unit >"$wheels/unit" &
unit=$!
"$venv/bin/python" -m pytest --collect-only -q --ignore tests/unit >"$wheels/others" || { tail -40 "$wheels/others" >&2; exit 1; }
wait "$unit" || { tail -40 "$wheels/unit" >&2; exit 1; }
wait "$archive" || { cat "$wheels/archive" >&2; exit 1; }
say "ready: $("$venv/bin/python" -m pip list --disable-pip-version-check 2>/dev/null | tail -n +3 | wc -l) packages"
