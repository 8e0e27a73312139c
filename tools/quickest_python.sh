#!/usr/bin/env bash
# Prints which of the given Pythons .venv is made of: the first that serves, or a later one that needs clearly less CPU.
# A distribution builds its Python with profile-guided optimisation; pyenv and a plain ./configure do not, and then
# brokers, tests and all else here take half as much CPU again. Where none serves it prints the first: set-up says why not.
set -euo pipefail

# Prints the CPU of a bit of everything, best of five, in units of 10 us; fails where set-up would fail.
bench='
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
import ensurepip, json, time, venv

def once():
    start = time.process_time()
    counts = {}
    for number in range(40_000):
        counts[number % 977] = f"{number}x"
    json.loads(json.dumps([{"a": number, "b": [1, number]} for number in range(2_000)]))
    return time.process_time() - start

print(1 + round(min(once() for _ in range(5)) * 100_000))
'
chosen="" least=0
for python in "$@"; do
  cost="$("$python" -I -c "$bench" 2>/dev/null)" || continue
  if [ -z "$chosen" ]; then
    chosen="$python" least="$cost"
  elif [ $((cost * 100)) -lt $((least * 85)) ]; then
    echo "georelay: $python needs $((cost * 100 / least)) % of the CPU of $chosen: taking it (PYTHON=$chosen would not)" >&2
    chosen="$python" least="$cost"
  fi
done
echo "${chosen:-$1}"
