"""Broken files of every sort: each is set aside whole and named, and nothing else is lost or counted twice."""

from __future__ import annotations

import datetime
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

import pyarrow.parquet as pq

from georelay.trace.kinds import TraceKind
from sla.generate.expected import Expected
from sla.generate.request import Fault, GenerateRequest
from sla.generate.run import run_generate
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.manifest import TraceFiles, hour_inputs
from sla.sources.verify import Depth
from tests.tiers import first

START = datetime.datetime(2026, 11, 20, 9, 59, tzinfo=datetime.UTC)
BROKEN = ("corrupt-file", "torn-file", "empty-file", "wrong-schema")


def generate(out: Path, *faults: str, **values: Any) -> Expected:
    """Generate a minute before a full hour and half a minute behind it, in three files of each writer."""
    wanted: dict[str, Any] = {
        "start": START, "seconds": 90, "rate_per_s": 40, "roll_s": 30, "brokers": 1, "partitions": 1,
    } | values  # fmt: skip
    return run_generate(GenerateRequest(out=out, faults=tuple(Fault.parse(text) for text in faults), **wanted))


def verified(expected: Expected, **values: Any) -> TraceFiles:
    return run_verify(VerifyRequest(traces=expected.traces, depth=Depth.ALL, **values))


def inputs(files: TraceFiles) -> list[dict[str, Any]]:
    """Return the rows of inputs_hour as the pipeline has them, in the words of expected.json."""
    return [
        {
            "ts_s": row.ts_s,
            "kind": row.kind.value,
            "region": row.region,
            "files": row.files,
            "bytes": row.bytes,
            "rows": row.rows,
            "quarantined_files": row.quarantined_files,
            "missing_rows": row.missing_rows,
            "dropped_rows": row.dropped_rows,
            "gone_rows": row.gone_rows,
            "writers": list(row.writers),
            "silent_writers": list(row.silent_writers),
        }
        for row in sorted(hour_inputs(files), key=lambda row: (row.ts_s, row.kind.value, row.region))
    ]


def test_every_broken_file_is_set_aside_and_only_it(tmp_path: Path) -> None:
    faults = [
        f"{name}:region=us,rows={kind.value},at={15 * (index + 1)}"
        for kind in TraceKind
        for index, name in enumerate(BROKEN)
    ]
    expected = generate(tmp_path, *faults, roll_s=15)
    files = verified(expected)
    assert expected.files["broken"] == dict.fromkeys(sorted(BROKEN), len(TraceKind))
    assert Counter((file.kind, file.region) for file in files.bad) == {(kind, "us"): len(BROKEN) for kind in TraceKind}
    assert all(file.reason and "\n" not in file.reason for file in files.bad)
    assert inputs(files) == expected.rows("inputs_hour")


@pytest.mark.parametrize(
    "faults",
    [
        ["dropped-rows:region=ap,rows=delivery,at=50", "dropped-rows:region=ap,rows=clock,count=3"],
        ["silent-region:region=eu,at=0,for=59", "torn-file:region=us,rows=probe"],
        ["late-traces:region=ap,at=15,for=30", "missing-file:region=ap,at=20"],
        *first(
            0,
            [
                ["missing-file:region=eu,at=30"],
                ["silent-region:region=us,at=60,for=30"],
                ["region-outage:region=eu,at=0,for=65"],
                ["old-schema:region=eu", "old-schema:region=us,rows=outcome"],
            ],
        ),
    ],
)
def test_what_is_missing_is_counted_where_it_is_missing(tmp_path: Path, faults: list[str]) -> None:
    expected = generate(tmp_path, *faults)
    files = verified(expected)
    assert inputs(files) == expected.rows("inputs_hour")
    assert files.rows == expected.files["rows"]


def test_files_in_progress_copies_and_strangers_are_counted_nowhere(tmp_path: Path) -> None:
    expected = generate(tmp_path)
    some = sorted(expected.traces.rglob("ledger-*.parquet"))[0]
    shutil.copy(some, expected.traces / f".tmp-{some.name}")
    shutil.copy(some, some.with_name(f".tmp-{some.name}"))
    shutil.copy(some, some.with_name("notes.parquet"))
    (some.parent / "README.txt").write_text("a stranger's")
    later = expected.traces / "date=2026-11-20" / "hour=10" / some.parent.name
    later.mkdir(parents=True, exist_ok=True)
    shutil.copy(some, later / some.name)  # rows that are there already
    files = verified(expected)
    assert [len(files.good), len(files.bad), len(files.superseded)] == [expected.files["readable"], 0, 1]
    assert files.rows == expected.files["rows"]


def test_a_file_cut_off_anywhere_is_bad(tmp_path: Path) -> None:
    expected = generate(tmp_path, seconds=30)
    path = max(expected.traces.rglob("latency_hist-*.parquet"), key=lambda path: path.stat().st_size)
    raw = path.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.9, 0.999):
        path.write_bytes(raw[: int(len(raw) * share)])
        assert [file.relative for file in verified(expected).bad] == [str(path.relative_to(expected.traces))], share


@pytest.mark.parametrize("kind", [TraceKind.LEDGER, TraceKind.LATENCY_HIST])
def test_no_flipped_bit_changes_a_row_that_is_read(tmp_path: Path, kind: TraceKind) -> None:
    expected = generate(tmp_path, seconds=10)
    path = max(expected.traces.rglob(f"{kind.value}-*.parquet"), key=lambda path: path.stat().st_size)
    for other in expected.traces.rglob("*.parquet"):
        if other != path:
            other.unlink()
    whole, rows = path.read_bytes(), pq.read_table(path, partitioning=None)
    rng = random.Random(5)
    found = 0
    for position in range(0, len(whole), len(whole) // 80):
        raw = bytearray(whole)
        raw[position] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(raw))
        files = verified(expected)
        found += len(files.bad)
        if files.good:  # a bit that nothing depends on, such as one of a page's own statistics
            assert pq.read_table(path, partitioning=None).equals(rows), position
            assert files.rows == rows.num_rows
    assert found > 40
