"""Line and branch coverage of the pure cores: `python tests/mutation/core_coverage.py` (`make coverage`).

Runs the fast tests under coverage.py, prints one row per file, and fails when a file is below FLOOR_PERCENT in lines
or in branches. Every file that ends with _core.py is one of them; a pattern that finds none fails too. Every rare
branch of a core is a decision about records, so the floor holds for each file and not for their sum. As many shares of
the tests run side by side as there are processors, and what they reach is added up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FLOOR_PERCENT: Final = 95.0
ROOMS: Final = ("sdk/georelay", "mesh", "region", "gateway", "loadtest")
CORES: Final = (
    *(f"{room}/**/*_core.py" for room in ROOMS),
    "region/raft/core/*.py",
    "region/raft/wire.py",
    "region/raft/membership.py",
    "region/log/recovery.py",
    "region/log/manifest.py",
    "region/log/flushed_marks.py",
    "region/log/index.py",
    "region/log/entry.py",
    "region/log/segment.py",
    "loadtest/history/*.py",
)
UNIT: Final = (
    *("audit", "clock", "control", "controller", "coordination", "gateway", "geo", "gossip", "groups", "history"),
    *("homes", "loadtest", "loadtest_drill", "log", "mesh", "queues", "raft", "routing", "security"),
    *("testbed", "text", "topics", "tracing", "transactions"),
)
PROPERTY: Final = (
    *("audit", "clock", "control", "controller", "geo", "gossip", "groups", "homes", "log", "mesh", "native"),
    *("queues", "raft", "routing", "security", "testbed", "text", "topics", "tracing", "transactions"),
)
GOLDEN: Final = (
    *("control", "controller", "gossip", "groups", "homes", "log", "mesh", "queues", "raft", "security", "topics"),
    "transactions",
)
TESTS: Final = (
    *(f"tests/unit/{part}" for part in UNIT),
    # Of these folders one file each: the other tests there run whole hosts.
    "tests/unit/multiraft/test_multiraft_balancer_core.py",
    "tests/unit/multiraft/test_multiraft_keeper_core.py",
    "tests/unit/api/test_api_coalescer_core.py",
    "tests/unit/api/test_api_standing_moves.py",
    "tests/unit/broker/test_broker_gossip.py",
    "tests/unit/devmesh/test_devmesh_plan.py",
    "tests/unit/devmesh/test_devmesh_plan_core.py",
    "tests/unit/tls/test_tls_admission.py",
    *(f"tests/property/{part}" for part in PROPERTY),
    *(f"tests/golden/{part}" for part in GOLDEN),
    "tests/exhaustive",
)
JOBS: Final = max(1, os.cpu_count() or 1)
SHARES_PER_JOB: Final = 4  # so that a processor whose share was short takes another one
COVERAGE: Final = (sys.executable, "-m", "coverage")
# Hypothesis' profile "ci": no deadlines, which measuring beside others would break, and the same examples every time.
PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-profile=ci")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the tests reach of one file."""

    path: str
    lines: int
    lines_hit: int
    branches: int
    branches_hit: int

    @property
    def line_percent(self) -> float:
        """Return the share of lines; 100 of a file without any."""
        return 100.0 * self.lines_hit / self.lines if self.lines else 100.0

    @property
    def branch_percent(self) -> float:
        """Return the share of branch exits; 100 of a file without any."""
        return 100.0 * self.branches_hit / self.branches if self.branches else 100.0

    @property
    def is_enough(self) -> bool:
        """Return whether both reach the floor."""
        return min(self.line_percent, self.branch_percent) >= FLOOR_PERCENT


def core_files() -> list[str]:
    """Return the measured files. Raises FileNotFoundError for a pattern that finds none."""
    found: dict[str, None] = {}  # in the order of CORES, each once
    for pattern in CORES:
        paths = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        if not paths:
            raise FileNotFoundError(f"{pattern} finds no file: change CORES in {__file__}")
        found |= dict.fromkeys(paths)
    return list(found)


def run_share(tests: Sequence[str], files: list[str], data: Path) -> bool:
    """Run some of the tests under coverage; print how they ended, or all they said; return whether they passed."""
    run = (*COVERAGE, "run", "--branch", f"--data-file={data}", f"--include={','.join(files)}")
    ended = subprocess.run([*run, *PYTEST, *tests], cwd=ROOT, check=False, capture_output=True, text=True)
    passed = ended.returncode == 0
    last = ended.stdout.rstrip().rpartition("\n")[2]
    print(f"{', '.join(tests)}: {last}" if passed else f"{ended.stdout}{ended.stderr}", flush=True)
    return passed


def measure(files: list[str], folder: Path) -> tuple[bool, dict[str, Any]]:
    """Run the tests; return whether they passed, and coverage's report. Raises CalledProcessError without a report."""
    whole, report = folder / "whole", folder / "report.json"
    count = min(len(TESTS), JOBS * SHARES_PER_JOB)
    parts = [folder / f"part-{number}" for number in range(count)]
    with ThreadPoolExecutor(JOBS) as pool:
        passed = list(pool.map(lambda at: run_share(TESTS[at::count], files, parts[at]), range(count)))
    combine = (*COVERAGE, "combine", "-q", f"--data-file={whole}", *(str(part) for part in parts))
    subprocess.run(combine, cwd=ROOT, check=True)
    subprocess.run([*COVERAGE, "json", "-q", f"--data-file={whole}", "-o", str(report)], cwd=ROOT, check=True)
    loaded: dict[str, Any] = json.loads(report.read_text())
    return all(passed), loaded


def rows(files: list[str], report: dict[str, Any]) -> Iterator[Row]:
    """Return one row per file; a file that no test imports has no line hit."""
    for path in files:
        found = report["files"].get(path)
        if found is None:
            yield Row(path=path, lines=1, lines_hit=0, branches=0, branches_hit=0)
            continue
        summary = found["summary"]
        yield Row(
            path=path,
            lines=summary["num_statements"],
            lines_hit=summary["covered_lines"],
            branches=summary["num_branches"],
            branches_hit=summary["covered_branches"],
        )


def show(row: Row, report: dict[str, Any]) -> str:
    """Return one line of the table; what is missing only where that is too much."""
    text = f"{row.path:<52}{row.lines:>6}{row.line_percent:>8.1f} %{row.branches:>6}{row.branch_percent:>8.1f} %"
    if row.is_enough:
        return text
    found = report["files"].get(row.path, {})
    exits = [f"{start}->{end}" for start, end in found.get("missing_branches", [])]
    return (
        f"{text}  BELOW {FLOOR_PERCENT:.0f} %: lines {found.get('missing_lines', 'all')}, branches {', '.join(exits)}"
    )


def main() -> int:
    """Run it; return 1 when a test fails or a file is below the floor."""
    files = [path for path in core_files() if not path.endswith(("__init__.py", "__main__.py"))]
    before = {path: (ROOT / path).read_bytes() for path in files}
    with tempfile.TemporaryDirectory() as folder:
        passed, report = measure(files, Path(folder))
    table = list(rows(files, report))
    print(f"{'file':<52}{'lines':>6}{'hit':>10}{'exits':>6}{'hit':>10}")
    for row in table:
        print(show(row, report))
    lines, branches = sum(row.lines for row in table), sum(row.branches for row in table)
    print(
        f"{len(table)} files, {lines} lines ({100 * sum(row.lines_hit for row in table) / lines:.1f} %), {branches} "
        f"branch exits ({100 * sum(row.branches_hit for row in table) / branches:.1f} %)"
    )
    below = [row.path for row in table if not row.is_enough]
    print(f"below {FLOOR_PERCENT:.0f} %: {', '.join(below) or 'none'}")
    changed = [path for path, content in before.items() if (ROOT / path).read_bytes() != content]
    if changed:
        print(f"changed while the tests ran, so measure again: {', '.join(changed)}")
    if not passed:
        print("the tests do not pass")
    return 1 if below or changed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
