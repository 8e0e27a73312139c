"""What one operation of the log and of the codec costs, stored, and beside another commit of the code.

`python -m loadtest.bench.storage` measures this checkout; `--compare COMMIT` measures both in turn, each in processes
of its own, in another order with every pair, so that what else the machine does falls on both alike. The other commit
is laid into a worktree for that time. This checkout's region/storage_timer.py measures both.
The figures go to a file below out/bench, a line for each operation to standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.bench.machine import add_directory, describe, disk_of, revision
from loadtest.scratch import scratch_directory

ROOT: Final = Path(__file__).resolve().parents[2]
TIMER: Final = ROOT / "region" / "storage_timer.py"
RESULTS: Final = ROOT / "out" / "bench"
PAIRS: Final = 3
SECONDS_MAX: Final = 300

Costs = Mapping[str, Mapping[str, Any]]  # of each operation: wall_us and cpu_us, peak_bytes, blocks, syncs


class BadCommit(ValueError):
    """There is no such commit; the text is what git says."""


def run(directory: Path) -> list[str]:
    """Measure this checkout once, store the figures and return report lines."""
    found = {"this": [measured(ROOT, directory)]}
    return [*lines_of(found), stored(found, {"this": revision(ROOT)}, describe(directory.parent))]


def measured(checkout: Path, directory: Path) -> Costs:
    """Return the costs of the code of a checkout, measured in a new data directory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "sdk")])}
    command = [sys.executable, "-P", str(TIMER), str(directory)]
    try:
        said = subprocess.check_output(command, env=environment, text=True, timeout=SECONDS_MAX)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    costs: Costs = json.loads(said.splitlines()[-1])
    return costs


def lines_of(found: Mapping[str, Sequence[Costs]]) -> list[str]:
    """Return a line for each operation: of one checkout its costs, of two also the ratio pair by pair."""
    names = list(found)
    lines = []
    for operation in found[names[-1]][0]:
        cells = [_told([run[operation] for run in runs]) for runs in found.values() if operation in runs[0]]
        line = f"{operation}: {' -> '.join(cells)}"
        if len(names) > 1 and len(cells) > 1:
            pairs = zip(*(found[name] for name in names), strict=True)
            ratios = sorted(_cpu_us(new[operation]) / _cpu_us(old[operation]) for old, new in pairs)
            line += f"; CPU pair by pair x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(line)
    return lines


def _cpu_us(cost: Mapping[str, Any]) -> float:
    least: float = min(cost["cpu_us"])  # what other processes did to it only ever made it longer
    return max(1e-3, least)


def _told(runs: Sequence[Mapping[str, Any]]) -> str:
    cpu_us = statistics.median(map(_cpu_us, runs))
    wall_us = statistics.median(statistics.median(run["wall_us"]) for run in runs)
    blocks = statistics.median(run["blocks"] for run in runs)
    peak = statistics.median(run["peak_bytes"] for run in runs)
    syncs = f", {runs[0]['syncs']} syncs" if runs[0]["syncs"] else ""
    return f"CPU {cpu_us:.1f} us, {wall_us:.1f} us in all, {blocks:.0f} blocks kept, {peak:,.0f} B at most{syncs}"


def stored(found: Mapping[str, Sequence[Costs]], revisions: Mapping[str, str], machine: Sequence[str]) -> str:
    """Store everything and return a line that says where."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"storage-{time.strftime('%Y%m%d-%H%M%S')}-{'-'.join(revisions.values())}.json"
    file.write_text(json.dumps({"machine": machine, "revisions": revisions, "costs": found}, indent=1))
    return f"stored: {file.relative_to(ROOT)}"


@contextlib.contextmanager
def worktree(commit: str, place: Path) -> Iterator[Path]:
    """Lay a commit into a folder and take it away again. Raises BadCommit."""
    git = ["git", "-C", str(ROOT), "worktree"]
    made = subprocess.run([*git, "add", "--detach", str(place), commit], capture_output=True, text=True, check=False)
    if made.returncode:
        raise BadCommit(f"{commit}: {made.stderr.strip().splitlines()[-1]}")
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=True, capture_output=True)


def compare(commit: str, pairs: int, scratch: Path) -> list[str]:
    """Measure a commit and this checkout in turn; store the figures and return report lines. Raises BadCommit."""
    with worktree(commit, scratch / "old") as old:
        checkouts = {"old": old, "new": ROOT}
        found: dict[str, list[Costs]] = {"old": [], "new": []}
        for number in range(pairs):
            for name in sorted(checkouts, reverse=bool(number % 2)):
                found[name].append(measured(checkouts[name], scratch / "data"))
        revisions = {name: revision(checkout) for name, checkout in checkouts.items()}
    lines = [f"{name}: {text}" for name, text in revisions.items()]
    return [*lines, *lines_of(found), stored(found, revisions, describe(scratch))]


def main() -> int:
    """Measure; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.storage", description=__doc__)
    parser.add_argument("--compare", metavar="COMMIT", help="measure this commit too, in turn")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="runs of each of the two")
    add_directory(parser)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error("--pairs is from 1")
    with scratch_directory("georelay-storage-", disk_of(parser, options)) as scratch:
        try:
            lines = compare(options.compare, options.pairs, scratch) if options.compare else run(scratch / "data")
        except BadCommit as error:
            sys.stderr.write(f"{error}\n")
            return 2
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
