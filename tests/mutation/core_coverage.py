"""Line and branch coverage of the pure cores: `python tests/mutation/core_coverage.py` (`make coverage`).

Runs the fast tests under coverage.py, prints one row per file, and fails when a file is below FLOOR_PERCENT in lines
or in branches. Every file that ends with _core.py is one of them; a pattern that finds none fails too. Every rare
branch of a core is a decision about records, so the floor holds for each file and not for their sum. The files of
BEHIND are below it still; the list only gets shorter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
BEHIND: Final = frozenset(  # below the floor so far: shown with their gaps, and none may join them
    {
        "loadtest/campaign/transactions_verdict_core.py",
        "loadtest/campaign/verdict_core.py",
        "loadtest/drill/drill_core.py",
        "loadtest/drill/report_core.py",
        "loadtest/groups/verdict_core.py",
        "mesh/listening/link_ends_core.py",
        "mesh/testbed/delay_line_core.py",
        "mesh/testbed/plan_core.py",
        "region/control/members_core.py",
        "region/control/state_core.py",
        "region/devmesh/plan_core.py",
        "region/groups/commands_core.py",
        "region/groups/group_core.py",
        "region/groups/members_core.py",
        "region/groups/offsets_core.py",
        "region/groups/state_core.py",
        "region/queues/commands_core.py",
        "region/queues/index_core.py",
        "region/queues/sessions_core.py",
        "region/queues/state_core.py",
        "region/routing/copies_core.py",
        "region/transactions/book_core.py",
    }
)
UNIT: Final = (
    *("audit", "clock", "control", "controller", "coordination", "gateway", "geo", "gossip", "groups", "history"),
    *("homes", "loadtest", "loadtest_chaos", "loadtest_drill", "log", "mesh", "queues", "raft", "routing", "security"),
    *("testbed", "text", "topics", "tracing", "transactions"),
)
PROPERTY: Final = (
    *("audit", "clock", "control", "controller", "geo", "gossip", "groups", "homes", "log", "mesh", "native"),
    *("queues", "raft", "security", "testbed", "text", "topics", "tracing"),
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
    "tests/unit/tls/test_tls_admission.py",
    *(f"tests/property/{part}" for part in PROPERTY),
    *(f"tests/golden/{part}" for part in GOLDEN),
    "tests/exhaustive",
)
PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header")


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


def measure(files: list[str], folder: Path) -> tuple[bool, dict[str, Any]]:
    """Run the tests; return whether they passed, and coverage's report. Raises CalledProcessError without a report."""
    data, report = folder / "coverage", folder / "report.json"
    own = (sys.executable, "-m", "coverage")
    run = (*own, "run", "--branch", f"--data-file={data}", f"--include={','.join(files)}")
    passed = subprocess.run([*run, *PYTEST, *TESTS], cwd=ROOT, check=False).returncode == 0
    subprocess.run([*own, "json", "-q", f"--data-file={data}", "-o", str(report)], cwd=ROOT, check=True)
    loaded: dict[str, Any] = json.loads(report.read_text())
    return passed, loaded


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
    poor = [path for path in below if path not in BEHIND]
    risen = sorted(BEHIND - set(below))
    print(
        f"below {FLOOR_PERCENT:.0f} %: {', '.join(poor) or 'none'}; of those that were before: {len(below) - len(poor)}"
    )
    if risen:
        print(f"take out of BEHIND: {', '.join(risen)}")
    changed = [path for path, content in before.items() if (ROOT / path).read_bytes() != content]
    if changed:
        print(f"changed while the tests ran, so measure again: {', '.join(changed)}")
    if not passed:
        print("the tests do not pass")
    return 1 if poor or changed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
