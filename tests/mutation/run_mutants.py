"""Mutation testing of what can lose a record: `python tests/mutation/run_mutants.py PART` (`make mutation`).

mutmut changes one place at a time (a comparison, a constant, `and`/`or`, an argument, an assignment) and runs the unit
tests that reach the changed function; a change that no test notices survives and is printed as a diff. Everything
happens in a copy below the scratch folder, so that the checkout stays as it is. Survivors are judged in
docs/development/mutation.md.

    --sample DIGITS   only the mutants whose number ends with one of these digits: 0 is a tenth, 05 is a fifth
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("region", "mesh", "gateway", "loadtest", "sla", "sdk", "proto", "tests")
CODES: Final = {0: "survived", 1: "killed", 3: "killed", 33: "not reached", 34: "skipped"}  # others: out of time


# A mutant may take (what its tests take + 1.5 s) x 4; a change that loops for ever counts as noticed.
TIMEOUT: Final = "[mutmut]\ntimeout_constant=1.5\ntimeout_multiplier=4\n"


@dataclass(frozen=True, slots=True)
class Part:
    """Sources to change, the tests that should notice, and those of them that take too long for every mutant."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    slow: tuple[str, ...] = ()


PARTS: Final = {
    "raft": Part(("region/raft/core",), ("tests/unit/raft",)),
    "receiver": Part(
        ("mesh/replication/receiver_core.py",),
        ("tests/unit/mesh/test_mesh_cores.py", "tests/exhaustive/test_mesh_receiver_rule.py"),
    ),
    "recovery": Part(
        ("region/log/recovery.py", "region/log/segment.py", "region/log/flushed_marks.py"),
        (
            "tests/unit/log/test_log_refused_bytes.py",
            "tests/unit/log/test_log_recovery.py",
            "tests/unit/log/test_log_damage.py",
            "tests/unit/log/test_log_segment_reader.py",
            "tests/unit/log/test_log_group_log.py",
        ),
        (  # every bit or byte of a file in turn: seconds each
            "tests/unit/log/test_log_damage.py::test_a_flipped_bit_in_any_file_is_refused_noticed_or_harmless",
            "tests/unit/log/test_log_damage.py::test_every_lost_byte_at_the_end_of_the_open_segment_is_noticed",
            "tests/unit/log/test_log_recovery.py::test_every_flipped_byte_is_refused_with_file_and_position",
            "tests/unit/log/test_log_recovery.py::test_every_truncation_point_recovers_the_whole_entries_before_it",
            "tests/unit/log/test_log_segment_reader.py::test_every_flipped_byte_is_noticed",
            "tests/unit/log/test_log_group_log.py::test_readers_in_other_threads_see_whole_entries_or_are_told_to_read_again",
        ),
    ),
}


def settings(part: Part) -> str:
    """Return the text of mutmut's settings."""
    lists = {
        "source_paths": part.sources,
        "also_copy": (*ROOMS, "pyproject.toml"),
        "pytest_add_cli_args": tuple(f"--deselect={test}" for test in part.slow),
        "pytest_add_cli_args_test_selection": part.tests,
    }
    shown = {key: values for key, values in lists.items() if values}
    return TIMEOUT + "".join(f"{key}=\n" + "".join(f"    {v}\n" for v in values) for key, values in shown.items())


def prepare(part: Part, folder: Path) -> None:
    """Copy the code into `folder`, which is emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    (folder / "setup.cfg").write_text(settings(part))


def run(folder: Path, *, processes: int, sample: str) -> None:
    """Run mutmut. Raises CalledProcessError when the tests fail without a change."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes)]
    if sample:
        command.append(f"*__mutmut_*[{sample}]")
    environment = os.environ | {"PYTHONPATH": str(folder / "sdk")}
    with (folder / "mutmut.log").open("wb") as output:
        subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=True)


def outcomes(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield (changed file, name of the mutant, what became of it) of each mutant that ran."""
    for meta in sorted((folder / "mutants").rglob("*.py.meta")):
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            if code is not None:
                yield meta.with_suffix(""), name.rsplit(".", 1)[-1], CODES.get(code, "out of time")


@functools.cache
def functions(file: Path) -> dict[str, list[str]]:
    """Return the lines of every function of a changed file, by name, without its head."""
    return {
        node.name: ast.unparse(node).splitlines()[1:]
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def diff(file: Path, name: str) -> str:
    """Return what a mutant changes, as removed and added lines."""
    texts = functions(file)
    original = texts.get(re.sub(r"__mutmut_\d+$", "__mutmut_orig", name), [])
    lines = difflib.unified_diff(original, texts.get(name, []), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def report(folder: Path) -> Counter[str]:
    """Print each mutant that nothing noticed, and the numbers per file; return the numbers."""
    files: dict[str, Counter[str]] = {}
    for file, name, what in outcomes(folder):
        path = str(file.relative_to(folder / "mutants"))
        files.setdefault(path, Counter())[what] += 1
        if what in {"survived", "not reached"}:
            print(f"{what}: {path} {name.replace('ǁ', '.')}\n{diff(file, name)}")
    for path, counts in files.items():
        print(f"{path:<42}{counts.total():>6} mutants  " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    return sum(files.values(), Counter())


def main() -> int:
    """Run it. Survivors do not fail it: each has to be judged by a person."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--sample", default="", metavar="DIGITS")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--scratch", type=Path, default=ROOT / "out" / "mutation")
    options = parser.parse_args()
    folder = options.scratch.resolve() / options.part
    prepare(PARTS[options.part], folder)
    run(folder, processes=options.processes, sample=options.sample)
    total = report(folder)
    print(f"{options.part}: {total.total()} mutants, " + ", ".join(f"{n} {what}" for what, n in total.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
