"""Compaction: fewer files, the same rows, and no moment at which a crash loses or doubles one."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from georelay.trace.kinds import SCHEMA_VERSION, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.errors import JobFailed, NoTraces
from sla.jobs import compact
from sla.jobs.compact import Compacted, CompactRequest, run_compact
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.layout import HOUR_S, Period
from sla.sources.location import Location
from sla.sources.manifest import TraceFiles, hour_inputs
from sla.sources.verify import Depth
from tests.tiers import first

TraceWriter = Callable[..., str]
T0 = 1_700_000_000 // 3_600 * 3_600
CLOSED_NS = (T0 + 100 * HOUR_S) * 10**9


def verified(directory: Path) -> TraceFiles:
    return run_verify(VerifyRequest(traces=directory, depth=Depth.ALL))


def compacted(directory: Path, **changes: Any) -> Compacted:
    request: dict[str, Any] = {"traces": directory, "clock_ns": lambda: CLOSED_NS} | changes
    return run_compact(CompactRequest(**request))


def rows(files: TraceFiles, kind: TraceKind = TraceKind.LEDGER) -> list[dict[str, Any]]:
    tables = [pq.read_table(path, partitioning=None).select(SCHEMAS[kind].names) for path in files.paths(kind)]
    found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return sorted(found, key=repr)


@pytest.fixture
def traces(tmp_path: Path, write_trace: TraceWriter) -> Path:
    """One hour of two brokers: five consecutive files, two behind a gap, a lone one; and a file of the next hour."""
    directory = tmp_path / "traces"
    for row in range(0, 50, 10):
        write_trace(directory, 10, first=row, dropped=row // 20)
    for row in (60, 62):
        write_trace(directory, 2, first=row, dropped=10)
    write_trace(directory, 3, broker=2002)
    write_trace(directory, 4, first=64, dropped=12, hour_s=T0 + HOUR_S)
    for row in (0, 1):
        write_trace(directory, [{}], first=row, kind=TraceKind.LATENCY_HIST)
    return directory


def test_files_become_few_and_everything_a_report_reads_stays(traces: Path) -> None:
    before = verified(traces)
    rows_before = rows(before)
    done = compacted(traces)
    after = verified(traces)
    assert (done.files_before, done.files_after, done.rows, done.hours, done.bad_files) == (9, 3, 56, 1, 0)
    names = [file.relative.rpartition("/")[2] for file in after.good]
    assert names == [
        "latency_hist-2001-b0-000000000000.parquet",
        "ledger-2001-b0-000000000000.parquet",
        "ledger-2001-b0-000000000060.parquet",
        "ledger-2002-b0-000000.parquet",
        "ledger-2001-b0-000064.parquet",
    ]
    assert [file.metadata.dropped for file in after.good if file.kind is TraceKind.LEDGER] == [2, 10, 0, 12]
    assert (after.bad, after.superseded) == ((), ())
    assert rows(after) == rows_before
    assert after.input_hash() == before.input_hash()
    assert after.rows_missing(TraceKind.LEDGER) == before.rows_missing(TraceKind.LEDGER) == 10
    assert after.rows_dropped() == before.rows_dropped() == 12
    assert [(row.rows, row.missing_rows, row.writers) for row in hour_inputs(after)] == [
        (row.rows, row.missing_rows, row.writers) for row in hour_inputs(before)
    ]
    assert sum(file.input_files for file in after.good) == len(before.good)
    assert [path for path in traces.rglob(".*") if path.name != ".compact.lock"] == []


def test_what_a_killed_run_had_begun_to_write_is_removed(traces: Path) -> None:
    begun = next(traces.glob("date=*/hour=22/region=eu")) / ".ledger-2001-b0-000000000000.parquet.77.tmp"
    begun.write_bytes(b"half")
    compacted(traces)
    assert not begun.exists()


def test_a_second_run_finds_nothing_to_do_and_later_files_join(traces: Path, write_trace: TraceWriter) -> None:
    compacted(traces)
    assert compacted(traces) == Compacted()
    write_trace(traces, 10, first=50)  # rolled late, fills the gap
    before = verified(traces)
    rows_before = rows(before)
    done = compacted(traces)
    after = verified(traces)
    assert (done.files_before, done.files_after, done.rows) == (3, 1, 64)
    assert (after.input_hash(), rows(after)) == (before.input_hash(), rows_before)


def test_the_file_that_broke_off_is_made_as_brokers_make_them(traces: Path) -> None:
    newest_ns = max(path.stat().st_mtime_ns for path in traces.rglob("ledger-2001-b0-0000[0-4]0.parquet"))
    compacted(traces)
    (path,) = traces.rglob("ledger-2001-b0-000000000000.parquet")
    file = pq.ParquetFile(path, page_checksum_verification=True)
    names = [field.name for field in SCHEMAS[TraceKind.LEDGER]]
    column = file.metadata.row_group(0).column(names.index("from_offset"))
    assert (column.compression, "DELTA_BINARY_PACKED" in column.encodings) == ("ZSTD", True)
    assert file.schema_arrow.equals(SCHEMAS[TraceKind.LEDGER])
    assert path.stat().st_mtime_ns == newest_ns  # retention counts from there


class Crash(BaseException):
    """The process ends here."""


def steps() -> Iterator[tuple[str, int]]:
    yield from (("writing", 0), ("writing", 2), ("delete", 1), ("delete", 5))
    yield from (("writing", 1), ("delete", 0), ("delete", 8))


@pytest.mark.parametrize(("step", "number"), first(4, steps()))
def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(
    traces: Path, step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = verified(traces)
    rows_before = rows(before)
    real, calls = getattr(Location, step), iter(range(100))

    def crashing(self: Location, *arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            raise Crash
        return real(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Location, step, crashing)
        with pytest.raises(Crash):
            compacted(traces)
    after = verified(traces)
    assert (after.input_hash(), after.bad, rows(after)) == (before.input_hash(), (), rows_before)
    compacted(traces)
    finished = verified(traces)
    assert (finished.input_hash(), finished.superseded, len(finished.good)) == (before.input_hash(), (), 5)


@pytest.mark.parametrize("wrong", ["damaged", "other rows"])
def test_an_old_file_is_kept_while_the_new_one_does_not_hold_its_very_rows(
    traces: Path, write_trace: TraceWriter, wrong: str
) -> None:
    (old,) = traces.rglob("ledger-2001-b0-000010.parquet")
    raw = old.read_bytes()
    compacted(traces)
    old.write_bytes(raw)
    if wrong == "damaged":
        (new,) = traces.rglob("ledger-2001-b0-000000000000.parquet")
        flipped = bytearray(new.read_bytes())
        flipped[pq.read_metadata(new).row_group(0).column(0).data_page_offset - 1] ^= 0x10
        new.write_bytes(flipped)
    else:
        write_trace(traces, [{"topic": "others"}] * 10, first=10)
    compacted(traces)
    assert old.exists()
    old.write_bytes(raw)
    if wrong == "other rows":
        assert compacted(traces).files_before == 1
        assert not old.exists()


def test_what_does_not_read_back_as_written_deletes_nothing(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in traces.rglob("*.parquet")}
    real = compact._write

    def forgetful(table: Any, sink: Any, kind: TraceKind) -> None:
        real(table.slice(0, table.num_rows - 1), sink, kind)

    monkeypatch.setattr(compact, "_write", forgetful)
    with pytest.raises(JobFailed, match="does not read back"):
        compacted(traces)
    assert {path: path.read_bytes() for path in traces.rglob("*.parquet")} == before


def test_open_hours_other_hours_and_bad_files_are_left_alone(traces: Path, write_trace: TraceWriter) -> None:
    def untouched(**changes: Any) -> bool:
        before = sorted(traces.rglob("*.parquet"))
        done = compacted(traces, **changes)
        return (done.files_before, sorted(traces.rglob("*.parquet"))) == (0, before)

    def at(hours: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(T0 + hours * HOUR_S, tz=datetime.UTC)

    assert untouched(clock_ns=lambda: (T0 + 3 * HOUR_S) * 10**9 - 1)
    assert untouched(period=Period(start=at(0.1)))
    assert untouched(period=Period(end=at(0.9)))
    torn = traces / write_trace(traces, 10, first=20)
    torn.write_bytes(torn.read_bytes()[:-1])
    done = compacted(traces, clock_ns=lambda: (T0 + 3 * HOUR_S) * 10**9)
    assert (done.bad_files, done.rows) == (1, 46)
    assert torn.exists()


def test_files_around_a_damaged_page_are_compacted_and_it_is_left_to_verification(traces: Path) -> None:
    (path,) = traces.rglob("ledger-2001-b0-000020.parquet")
    raw = bytearray(path.read_bytes())
    raw[pq.read_metadata(path).row_group(0).column(0).data_page_offset - 1] ^= 0x10
    path.write_bytes(raw)
    before = verified(traces)
    rows_before = rows(before)
    done = compacted(traces)
    after = verified(traces)
    assert (done.files_before, done.files_after, done.rows) == (8, 4, 46)
    assert path.exists()
    assert (rows(after), [bad.relative for bad in after.bad]) == (rows_before, [bad.relative for bad in before.bad])


def test_a_compacted_file_stays_within_its_rows(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "COMPACTED_ROWS_MAX", 25)
    compacted(traces)
    sizes = [file.metadata.rows for file in verified(traces).good]
    assert sizes == [2, 20, 20, 4, 10, 3, 4]


def test_files_of_an_older_schema_get_the_newest_columns(tmp_path: Path, write_trace: TraceWriter) -> None:
    ours = SCHEMAS[TraceKind.LEDGER]
    older = ours.remove(ours.get_field_index("schema_version"))
    write_trace(tmp_path, 2, schema=older, schema_version=1)
    write_trace(tmp_path, 2, first=2)
    compacted(tmp_path)
    after = verified(tmp_path)
    assert [file.metadata.schema_version for file in after.good] == [SCHEMA_VERSION]
    table = pq.read_table(after.paths(TraceKind.LEDGER)[0], partitioning=None)
    assert table["schema_version"].to_pylist() == [None, None, SCHEMA_VERSION, SCHEMA_VERSION]


def test_two_runs_at_once_are_refused(traces: Path) -> None:
    refused: list[JobFailed] = []

    def again(_: str) -> None:
        if not refused:
            with pytest.raises(JobFailed, match="at work") as caught:
                compacted(traces)
            refused.append(caught.value)

    run_compact(CompactRequest(traces=traces, clock_ns=lambda: CLOSED_NS), again)
    assert len(refused) == 1


def test_an_own_file_that_comes_back_torn_is_told_and_nothing_of_the_group_is_deleted(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(table: Any, sink: Any, kind: TraceKind) -> None:
        whole = pa.BufferOutputStream()
        write(table, whole, kind)
        sink.write(whole.getvalue().to_pybytes()[:-9])

    before = rows(verified(traces))
    write = compact._write
    monkeypatch.setattr(compact, "_write", torn)
    with pytest.raises(JobFailed, match="does not read back as it was written"):
        compacted(traces)
    assert rows(verified(traces)) == before


def test_nothing_to_compact_is_no_traces(tmp_path: Path) -> None:
    with pytest.raises(NoTraces):
        compacted(tmp_path / "nowhere")


@pytest.mark.parametrize("store", ["uri", "subtree"])
def test_a_store_is_compacted_like_a_directory(traces: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = verified(traces)
    rows_before = rows(before)
    uri = traces.as_uri()
    if store == "subtree":  # no local filesystem: no locks, no renames, no times
        filesystem = pa.fs.SubTreeFileSystem(str(traces.parent), pa.fs.LocalFileSystem())
        there = Location(uri=uri, filesystem=filesystem, root="traces")
        monkeypatch.setattr(Location, "open", lambda where: there)
    done = compacted(traces, traces=uri)
    monkeypatch.undo()
    after = verified(traces)
    assert (done.files_after, after.input_hash()) == (3, before.input_hash())
    assert rows(after) == rows_before
