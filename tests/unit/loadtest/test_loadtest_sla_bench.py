"""A benchmark of the report's jobs whose tables or sums differ ends with an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadtest.bench import sla
from loadtest.bench.process_tree import Cost
from loadtest.bench.sla import SlaBench


@pytest.fixture
def rollups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let no job run; DuckDB counts two rows, one of them good, and so do the roll-ups."""
    made = tmp_path / "made"
    (made / "minute").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 1], "n_good": [1, 0]}), made / "minute" / "part-0.parquet")
    told = json.dumps({"version": "2", "seconds": {}, "sums": [2, 1]})

    def measured(*_: object, **__: object) -> Cost:
        return Cost(status=0, output=told, wall_s=1.0, cpu_s=1.0, peak_mib=1.0, peaks_mib={}, load=0.0)

    monkeypatch.setattr(sla, "measure", measured)
    monkeypatch.setattr(SlaBench, "_made", lambda _: tmp_path)
    monkeypatch.setattr(SlaBench, "_on", lambda *_: None)
    return made


def bench(folder: Path, lines: list[str], **more: Any) -> SlaBench:
    return SlaBench(folder=folder, on_line=lines.append, **more)


def test_sums_of_duckdb_are_those_of_the_rollups_or_the_bench_fails(rollups: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    assert bench(tmp_path, lines)._duckdb(tmp_path, rollups)
    pq.write_table(pa.table({"n": [1], "n_good": [1]}), rollups / "minute" / "part-0.parquet")
    assert not bench(tmp_path, lines)._duckdb(tmp_path, rollups)
    assert [line.rpartition("; ")[2] for line in lines] == ["the same sums", "OTHER SUMS: [2, 1] and [1, 1]"]


@pytest.mark.parametrize(
    ("digests", "sums", "are_same"), [("aa", True, True), ("ab", True, False), ("aa", False, False)]
)
@pytest.mark.usefixtures("rollups")
def test_tables_that_differ_from_those_of_the_first_master_and_other_sums_are_told(
    digests: str, sums: bool, are_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(digests)
    monkeypatch.setattr(sla, "digest_of", lambda _: next(found))
    monkeypatch.setattr(SlaBench, "_duckdb", lambda *_: sums)
    lines: list[str] = []
    assert bench(tmp_path, lines, masters=("local[2]", "local[1]")).run() is are_same
    assert any("OTHER THAN" in line for line in lines) is (digests == "ab")


@pytest.mark.parametrize("are_same", [True, False])
def test_a_difference_ends_the_program_with_1_and_its_part_of_the_benchmarks_with_an_error(
    are_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: SlaBench) -> bool:
        self.on_line("OTHER SUMS")
        return are_same

    monkeypatch.setattr(SlaBench, "run", run)
    monkeypatch.setattr(sys, "argv", ["sla", "--directory", str(tmp_path)])
    assert sla.main() == (0 if are_same else 1)
    if are_same:
        assert sla.run(tmp_path) == ["OTHER SUMS"]
    else:
        with pytest.raises(RuntimeError, match="OTHER SUMS"):
            sla.run(tmp_path)
