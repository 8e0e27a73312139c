"""What a record costs on a link between regions, by what carries the link: gRPC beside framed TLS, in turn in one run.

`mesh/link_timer.py` measures: two processes with the shipping link protocol and carriers, and one more that delays the
network. This prints the medians. `python -m loadtest.bench.links --help` has rates, delays and the number of runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.bench.machine import describe

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS_MAX: Final = 600
FIGURES: Final = ("home_us", "mirror_us", "p50_us", "p99_us", "per_s", "per_ack")
HEAD: Final = (
    "| delay ms | records/s | carrier | CPU us, home | mirror | p50 us | p99 us | held/s | records an answer |",
    "|---|---|---|---|---|---|---|---|---|",
)


def run(_directory: Path) -> list[str]:
    """Measure on the loopback and with 20 ms; return report lines."""
    return table(measured(["--delay-ms", "0", "20"]))


def measured(arguments: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the rows of one run of mesh.link_timer."""
    command = [sys.executable, "-m", "mesh.link_timer", *arguments]
    said = subprocess.check_output(command, cwd=ROOT, text=True, timeout=SECONDS_MAX)
    return [json.loads(line) for line in said.splitlines()]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table: for each delay, rate and carrier the medians of its runs; times are those beyond the delay."""
    groups: dict[tuple[float, int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["delay_ms"], row["rate"], row["carrier"]), []).append(row)
    lines = [*HEAD]
    for (delay_ms, rate, carrier), of_group in groups.items():
        home, mirror, p50, p99, per_s, per_ack = (statistics.median(row[name] for row in of_group) for name in FIGURES)
        said = str(rate) if rate else "all it can"
        figures = f"{home:.1f} | {mirror:.1f} | {p50:.0f} | {p99:.0f} | {per_s:,.0f} | {per_ack:.1f}"
        lines.append(f"| {delay_ms:g} | {said} | {carrier} | {figures} |")
    return lines


def main() -> None:
    """Print the machine and the table; what is not understood here is mesh.link_timer's."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.links", description=__doc__, epilog="options: those of mesh.link_timer"
    )
    _, rest = parser.parse_known_args()
    for line in [*describe(ROOT), *table(measured(rest))]:
        print(line)


if __name__ == "__main__":
    main()
