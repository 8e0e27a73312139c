"""What each test costs: `pytest --costs FOLDER` writes it down, `python -m tests.costs FOLDER` adds it up.

1. Every process of pytest-xdist appends to a file of its own, a line of JSON a test: processor seconds of this process
   and of children that it has waited for, and seconds by the clock, set-up and tear-down included. What a shared
   fixture costs stands with the test that asked first (and its end with the one that was last).
2. A file that is collected when it is handed out has a line too, without "::": what collecting it took, and the end of
   what was shared where none of its tests is run.
3. Nothing is asserted about these numbers: machines are shared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.file_by_file import WholeFile

FILES_SHOWN: Final = 30
_noted: Final = [0.0, 0.0]  # seconds and CPU seconds of all rows of this process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", metavar="FOLDER", help="write down what each test costs, for python -m tests.costs FOLDER"
    )


def cpu_s() -> float:
    """Return the processor seconds of this process and of the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = item.config.getoption("costs")
    if folder is None:
        return (yield)
    began_s, cpu_before_s, before = time.monotonic(), cpu_s(), _noted.copy()
    try:
        return (yield)
    finally:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        cost = [time.monotonic() - began_s, cpu_s() - cpu_before_s]
        if isinstance(item, WholeFile):  # its tests have rows of their own
            cost = [whole - (now - then) for whole, now, then in zip(cost, _noted, before, strict=True)]
        _noted[:] = [all_of_it + part for all_of_it, part in zip(_noted, cost, strict=True)]
        row = {"test": item.nodeid, "began_s": began_s, "s": cost[0], "cpu_s": cost[1]}
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"{worker}.jsonl").open("a") as out:
            out.write(json.dumps(row) + "\n")


@dataclass
class Cost:
    tests: int = 0
    s: float = 0.0
    cpu_s: float = 0.0

    def add(self, tests: int, s: float, cpu_s: float) -> None:
        self.tests += tests
        self.s += s
        self.cpu_s += cpu_s


@dataclass
class Costs:
    """All rows of a run, added up by process, folder and file."""

    workers: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    folders: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    files: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))


def added_up(folder: Path) -> Costs:
    costs = Costs()
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            name = row["test"].partition("::")[0]
            if "/" not in name:
                continue  # of a pytest that a test started, and that inherited the option
            for table, key in ((costs.workers, path.stem), (costs.folders, folder_of(name)), (costs.files, name)):
                table[key].add(int("::" in row["test"]), row["s"], row["cpu_s"])
    return costs


def folder_of(name: str) -> str:
    """Return the folder of a file below tests/, with the next one below tests/unit."""
    parts = name.split("/")
    return "/".join(parts[: 3 if parts[1] == "unit" else 2])


def table(title: str, costs: Iterable[tuple[str, Cost]]) -> str:
    rows = [f"| {title} | tests | seconds | CPU seconds |", "|---|---|---|---|"]
    rows += [f"| {key} | {cost.tests:,} | {cost.s:.1f} | {cost.cpu_s:.1f} |" for key, cost in costs]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.costs", description="Add up what `pytest --costs FOLDER` wrote."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=FILES_SHOWN, help="files shown, the dearest first")
    asked = parser.parse_args()
    costs = added_up(asked.folder)

    def dearest(of: dict[str, Cost]) -> list[tuple[str, Cost]]:
        return sorted(of.items(), key=lambda item: -item[1].s)

    print(table("process", sorted(costs.workers.items())), end="\n\n")
    print(table("folder", dearest(costs.folders)), end="\n\n")
    print(table("file", dearest(costs.files)[: asked.files]))


if __name__ == "__main__":
    main()
