#!/usr/bin/env bash
# Prints which of the given Pythons .venv is made of: the first that serves, or a later one that needs clearly less CPU.
# A distribution builds its Python with profile-guided optimisation; pyenv and a plain ./configure do not, and then
# brokers, tests and all else here take half as much CPU again. Where none serves it prints the first: set-up says why not.
set -euo pipefail

# Prints the CPU of a bit of everything, best of three, in units of 10 us; fails where set-up would fail.
bench='
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
import ensurepip, json, time, venv

class Log:
    def __init__(self):
        self.end, self.sizes = 0, {}

    def append(self, size):
        self.sizes[self.end % 977] = size
        self.end += 1

    def size(self, offset):
        return self.sizes.get(offset % 977, 0)

def once():
    start = time.process_time()
    log = Log()
    for number in range(40_000):
        log.append(number)
        if log.size(log.end - 1) != number:
            sys.exit(1)
    json.loads(json.dumps([{"a": number, "b": [1, number]} for number in range(1_000)]))
    return time.process_time() - start

print(1 + round(min(once() for _ in range(3)) * 100_000))
'
# In turns, and the least of each counts: a shared machine is twice as quick in one second as in the next.
declare -A least
for _ in 1 2 3; do
  for python in "$@"; do
    cost="$("$python" -I -c "$bench" 2>/dev/null)" || continue
    if [ -z "${least[$python]:-}" ] || [ "$cost" -lt "${least[$python]}" ]; then least[$python]="$cost"; fi
  done
done

chosen=""
for python in "$@"; do
  [ -n "${least[$python]:-}" ] || continue
  if [ -z "$chosen" ]; then
    chosen="$python"
  elif [ $((least[$python] * 100)) -lt $((least[$chosen] * 90)) ]; then
    echo "georelay: $python needs $((least[$python] * 100 / least[$chosen])) % of the CPU of $chosen: taking it (PYTHON=$chosen would not)" >&2
    chosen="$python"
  fi
done
echo "${chosen:-$1}"
