"""Ranges that are named later than they committed: at the second of their append, without latencies, maybe twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from georelay.trace.files import SPOOL_FOLDER
from georelay.trace.kinds import LedgerKind, Stage, TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from georelay.wire.control_batch import build_marker
from georelay.wire.header import TRANSACTIONAL
from mesh.tracing import recorder_core
from mesh.tracing.aborted_core import ATTRIBUTES_AT
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.offset_run_core import LateRange
from mesh.tracing.open_rows import LATE_ROWS_MAX, DamagedRowsError, OpenRows, read_open_rows
from mesh.tracing.recorder import Recorder, TraceSettings
from mesh.tracing.recorder_core import LATE_AT_ONCE, LATE_NS_MAX, Drained, RecorderCore
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW_NS = 1_700_000_000 * SECOND
HOUR_NS = 3_600 * SECOND
REGIONS = {0: "", 1: "us", 2: "eu"}


def late(first: int, end: int, at_ns: int, *, epoch: int = 1) -> LateRange:
    return LateRange(epoch=epoch, from_offset=first, to_offset=end, first_us=at_ns // 1_000, last_us=at_ns // 1_000 + 7)


def name(core: RecorderCore, *ranges: LateRange, kind: LedgerKind = LedgerKind.COMMIT) -> None:
    core.named_late(kind, ranges, topic="orders", origin=1, partition=3, now_ns=NOW_NS)


def ledger(drained: Drained) -> list[dict[str, Any]]:
    found = drained.finished().get(TraceKind.LEDGER, [])
    return [dict(zip(RECORDED_COLUMNS[TraceKind.LEDGER], row, strict=True)) for row in found]


class Entry:
    """What the recorder asks of a committed entry."""

    def __init__(self, base: int, count: int, *, append_us: int, payload: bytes) -> None:
        self.base_offset, self.record_count = base, count
        self.received_ns, self.append_us, self.entry_region, self.producer_id = 1, append_us, 1, 7
        self.payload = memoryview(payload)

    def header(self) -> Entry:
        return self


def written(base: int, *, append_us: int) -> Entry:
    payload = bytearray(61)
    payload[ATTRIBUTES_AT] = TRANSACTIONAL
    return Entry(base, 10, append_us=append_us, payload=bytes(payload))


def marker(offset: int, *, append_us: int, is_commit: bool = False) -> Entry:
    raw = build_marker(producer_id=7, producer_epoch=0, is_commit=is_commit, coordinator_epoch=0, timestamp_ms=0)
    return Entry(offset, 1, append_us=append_us, payload=bytes(raw))


def abort(core: RecorderCore, *entries: Entry, is_named: bool = False, now_ns: int = 10 * SECOND) -> None:
    core.aborted_late(entries, topic="orders", origin=1, partition=3, epoch=2, is_named=is_named, now_ns=now_ns)


def test_a_late_range_is_a_row_at_once_with_its_append_time(core: RecorderCore) -> None:
    at_ns = NOW_NS - 5 * SECOND
    name(core, late(10, 20, at_ns), late(20, 21, at_ns + SECOND, epoch=2), kind=LedgerKind.REPLICATED)
    drained = core.drain(NOW_NS)
    rows = ledger(drained)
    assert rows[1] == {
        "kind": "replicated", "region": "eu", "broker": "2001", "origin": "us", "topic": "orders", "partition": 3,
        "epoch": 1, "group": None, "from_offset": 10, "to_offset": 20, "first_ns": at_ns, "last_ns": at_ns + 7_000,
        "attempt": 1, "session_epoch": 0, "deliver_seq": 0, "records": None,
    }  # fmt: skip
    assert [(row["epoch"], row["from_offset"]) for row in rows] == [(2, 20), (1, 10)]
    assert drained.cells == []


def test_the_running_row_of_a_stream_goes_on_beside_a_late_one(core: RecorderCore) -> None:
    def commit(first: int) -> None:
        core.log_advanced(
            LedgerKind.COMMIT, topic="orders", origin=1, partition=3, epoch=1, from_offset=first, to_offset=first + 5,
            now_ns=NOW_NS,
        )  # fmt: skip

    commit(20)
    name(core, late(0, 20, NOW_NS - SECOND))
    commit(25)
    rows = ledger(core.drain(0, final=True))
    assert sorted((row["from_offset"], row["to_offset"]) for row in rows) == [(0, 20), (20, 30)]


def test_a_late_range_has_no_commit_time_that_a_reader_could_be_measured_by(core: RecorderCore) -> None:
    name(core, late(0, 10, NOW_NS - SECOND))
    session = core.open_session(topic="orders", origin=1, partition=3, offset=0)
    session.caught_up(0)
    session.delivered(
        epoch=1, base_offset=0, record_count=10, entry_region=1, received_ns=NOW_NS - SECOND, delivered_ns=NOW_NS
    )
    assert [cell.stage for cell in core.drain(0, final=True).cells] == [Stage.TOTAL]


def test_what_a_report_looks_for_no_longer_is_not_named(core: RecorderCore) -> None:
    assert LATE_NS_MAX < 24 * HOUR_NS
    name(core, late(0, 1, NOW_NS - LATE_NS_MAX - 1_000), late(1, 2, NOW_NS - LATE_NS_MAX))
    assert [row["from_offset"] for row in ledger(core.drain(NOW_NS))] == [1]


def opened(directory: Path) -> OpenRows:
    rows = OpenRows(directory, region="eu", broker=2001, boot_id="b0", region_name=REGIONS.__getitem__)
    rows.open()
    return rows


def core_with(rows: OpenRows) -> RecorderCore:
    return RecorderCore(region="eu", broker=2001, first_session=1, region_name=REGIONS.__getitem__, journal=rows)


def kept(directory: Path) -> list[Row]:
    (path,) = (directory / SPOOL_FOLDER).glob("open-2001-b0.rows")
    return read_open_rows(path.read_bytes(), region="eu", broker=2001)


def writer_of(directory: Path, boot_id: str, rows: OpenRows | None = None) -> TraceWriter:
    return TraceWriter(
        directory=directory, identity=Identity(region="eu", broker=2001, boot_id=boot_id), clock_ns=lambda: NOW_NS,
        roll_period_s=1_000, open_rows=rows,
    )  # fmt: skip


@pytest.mark.parametrize("age_s", [0, 1, 8, 3_600, -5], ids=str)
def test_a_kill_leaves_late_rows_of_any_age_to_the_next_run_until_they_are_spooled(tmp_path: Path, age_s: int) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    name(core, late(0, 10, NOW_NS - age_s * SECOND))
    abort(core, written(0, append_us=NOW_NS // 1_000), marker(10, append_us=NOW_NS // 1_000), now_ns=NOW_NS)
    drained = core.drain(NOW_NS)
    assert kept(tmp_path) == drained.finished()[TraceKind.LEDGER]
    writer_of(tmp_path, "b0", rows).take(drained)
    assert kept(tmp_path) == []


def test_the_next_run_writes_the_late_rows_of_a_killed_one_once(tmp_path: Path) -> None:
    core = core_with(opened(tmp_path))
    name(core, late(0, 10, NOW_NS - HOUR_NS), late(10, 20, NOW_NS - HOUR_NS + SECOND))
    writer_of(tmp_path, "b0").take(core.drain(NOW_NS))  # nobody marks them
    name(core, late(20, 30, NOW_NS - HOUR_NS + 2 * SECOND))
    after = writer_of(tmp_path, "b1")
    after.recover()
    after.roll()
    found = [row for path in tmp_path.rglob("ledger-*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted(row["from_offset"] for row in found) == [0, 10, 20]


def test_many_late_rows_leave_half_of_the_room_of_a_second_to_others_and_are_counted(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    for partition in range(LATE_ROWS_MAX + 3):
        core.named_late(
            LedgerKind.COMMIT, [late(0, 1, NOW_NS - SECOND)], topic="orders", origin=1, partition=partition,
            now_ns=NOW_NS,
        )  # fmt: skip
    assert rows.unnoted == 3
    core.log_advanced(
        LedgerKind.COMMIT, topic="orders", origin=1, partition=3, epoch=1, from_offset=9_000, to_offset=9_001,
        now_ns=NOW_NS,
    )  # fmt: skip
    assert rows.unnoted == 3
    assert len(kept(tmp_path)) == LATE_ROWS_MAX + 1
    assert len(ledger(core.drain(NOW_NS))) == LATE_ROWS_MAX + 3  # all of them are spooled in the end


def seconds(count: int) -> list[LateRange]:
    """Return ranges of one record each, the newest of now."""
    return [late(first, first + 1, NOW_NS - (count - 1 - first) * SECOND) for first in range(count)]


def test_a_kill_leaves_the_newest_ranges_of_each_stream_that_was_led_in_the_same_second(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    count = LATE_ROWS_MAX + 50
    streams = LATE_ROWS_MAX // LATE_AT_ONCE
    for partition in range(streams):
        core.named_late(
            LedgerKind.COMMIT, seconds(count), topic="orders", origin=1, partition=partition, now_ns=NOW_NS
        )  # fmt: skip
    left = sorted((row[5], row[8]) for row in kept(tmp_path))
    newest = range(count - LATE_AT_ONCE, count)
    assert left == [(partition, first) for partition in range(streams) for first in newest]
    assert (rows.unnoted, core.late_unnoted) == (0, streams * (count - LATE_AT_ONCE))


def test_ranges_find_room_for_what_a_kill_leaves_from_the_newest_on(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    for partition in range(LATE_ROWS_MAX - 2):
        core.named_late(
            LedgerKind.COMMIT, [late(0, 1, NOW_NS - SECOND)], topic="others", origin=1, partition=partition,
            now_ns=NOW_NS,
        )  # fmt: skip
    name(core, *seconds(10))
    assert [row[8] for row in kept(tmp_path) if row[4] == "orders"] == [9, 8]
    assert rows.unnoted == 8


def test_a_stream_with_many_late_ranges_is_named_in_pieces_the_newest_first(
    core: RecorderCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_core, "LATE_AT_ONCE", 3)
    monkeypatch.setattr(recorder_core, "RUNS_PER_DRAIN", 4)
    name(core, *seconds(9))
    name(core, *seconds(5), kind=LedgerKind.REPLICATED)
    assert len(core._rows[TraceKind.LEDGER]) == 6
    drains = [core.drain(NOW_NS) for _ in range(3)]
    found = [[(row["kind"][0], row["from_offset"]) for row in ledger(drained)] for drained in drains]
    assert found == [
        [("c", 8), ("c", 7), ("c", 6), ("r", 4), ("r", 3), ("r", 2), ("c", 5), ("c", 4), ("c", 3), ("c", 2)],
        [("c", 1), ("c", 0), ("r", 1), ("r", 0)],
        [],
    ]
    assert [drained.has_more for drained in drains] == [True, False, False]
    assert [row["first_ns"] for row in ledger(drains[1])[:2]] == [NOW_NS - 7 * SECOND, NOW_NS - 8 * SECOND]


def test_a_recorder_that_stops_names_all_late_ranges(core: RecorderCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_core, "RUNS_PER_DRAIN", 4)
    name(core, *seconds(LATE_AT_ONCE + 20))
    drained = core.drain(NOW_NS, final=True)
    assert (len(ledger(drained)), drained.has_more) == (LATE_AT_ONCE + 20, False)


def test_a_delivery_that_is_not_of_the_second_it_was_noted_in_makes_no_sense(tmp_path: Path) -> None:
    core = core_with(opened(tmp_path))
    session = core.open_session(topic="orders", origin=1, partition=3, offset=0)
    session.delivered(epoch=1, base_offset=0, record_count=1, entry_region=1, received_ns=1, delivered_ns=NOW_NS)
    path = tmp_path / SPOOL_FOLDER / "open-2001-b0.rows"
    raw = path.read_bytes().replace(NOW_NS.to_bytes(8, "little"), (NOW_NS - SECOND).to_bytes(8, "little"))
    with pytest.raises(DamagedRowsError):
        read_open_rows(raw, region="eu", broker=2001)


def test_a_transaction_that_ends_in_late_entries_is_named_at_the_second_of_its_marker(core: RecorderCore) -> None:
    abort(core, written(0, append_us=5_000_000), marker(10, append_us=6_500_000))
    (row,) = ledger(core.drain(NOW_NS))
    assert (row["kind"], row["from_offset"], row["to_offset"]) == ("aborted", 0, 10)
    assert (row["first_ns"], row["last_ns"], row["epoch"]) == (6_500_000_000, 6_500_000_000, 2)


def test_a_transaction_that_began_in_late_entries_is_named_whole_when_it_ends(core: RecorderCore) -> None:
    abort(core, written(0, append_us=5_000_000))
    entries = [written(10, append_us=7_000_000), marker(20, append_us=7_000_000)]
    core.log_advanced(
        LedgerKind.COMMIT, topic="orders", origin=1, partition=3, epoch=2, from_offset=10, to_offset=21, now_ns=NOW_NS,
        home=1, entries=entries,
    )  # fmt: skip
    rows = [row for row in ledger(core.drain(0, final=True)) if row["kind"] == "aborted"]
    assert [(row["from_offset"], row["to_offset"]) for row in rows] == [(0, 20)]


def test_a_marker_that_a_report_looks_for_no_longer_names_nothing(core: RecorderCore) -> None:
    for first, age_ns in ((0, LATE_NS_MAX + 1_000), (20, LATE_NS_MAX)):
        at_us = (NOW_NS - age_ns) // 1_000
        abort(core, written(first, append_us=at_us), marker(first + 10, append_us=at_us), now_ns=NOW_NS)
    assert [row["from_offset"] for row in ledger(core.drain(NOW_NS))] == [20]


def test_markers_that_were_named_long_ago_end_their_transactions_and_name_nothing(core: RecorderCore) -> None:
    abort(core, written(0, append_us=5_000_000), marker(10, append_us=6_000_000), is_named=True)
    abort(core, written(11, append_us=7_000_000), marker(21, append_us=7_000_000))
    assert [(row["from_offset"], row["to_offset"]) for row in ledger(core.drain(NOW_NS))] == [(11, 21)]


def test_who_leads_no_longer_forgets_transactions_whose_end_others_see(core: RecorderCore) -> None:
    abort(core, written(0, append_us=5_000_000))
    core.left(topic="orders", origin=1, partition=3)
    core.left(topic="unknown", origin=1, partition=3)
    abort(core, written(50, append_us=8_000_000), marker(60, append_us=8_000_000))
    assert [(row["from_offset"], row["to_offset"]) for row in ledger(core.drain(NOW_NS))] == [(50, 60)]


async def test_a_recorder_takes_late_ranges_and_their_transactions(tmp_path: Path) -> None:
    recorder = Recorder(
        region="eu", broker=2001, boot_id="b", region_name=str, settings=TraceSettings(directory=tmp_path),
        clock_ns=lambda: NOW_NS,
    )  # fmt: skip
    where: dict[str, Any] = {"topic": "orders", "origin": 0, "partition": 3}
    now_us = NOW_NS // 1_000
    old = [written(0, append_us=0), marker(10, append_us=0)]
    new = [written(20, append_us=now_us), marker(30, append_us=now_us)]
    recorder.named_late(LedgerKind.COMMIT, [late(0, 31, NOW_NS - 25 * HOUR_NS), late(20, 31, NOW_NS)], **where)
    recorder.aborted_late([*old, *new], epoch=1, is_named=False, **where)
    recorder.left(**where)
    rows = ledger(recorder._core.drain(NOW_NS))
    assert [(row["kind"], row["from_offset"]) for row in rows] == [("commit", 20), ("aborted", 20)]


def recorder_of(directory: Path | None) -> Recorder:
    return Recorder(
        region="eu", broker=2001, boot_id="b", region_name=str, settings=TraceSettings(directory=directory),
        clock_ns=lambda: NOW_NS,
    )  # fmt: skip


def test_ranges_that_no_report_looks_for_are_logged_once_with_their_records_and_the_oldest(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    outdated = [late(0, 20, NOW_NS - 24 * HOUR_NS), late(20, 31, NOW_NS - 30 * HOUR_NS)]
    with capture_logs() as said:
        recorder.named_late(LedgerKind.COMMIT, [*outdated, late(31, 32, NOW_NS)], topic="o", origin=0, partition=3)
        recorder.named_late(LedgerKind.COMMIT, [late(32, 33, NOW_NS)], topic="o", origin=0, partition=3)
    assert said == [
        {
            "event": "trace.late_rows_left_out", "log_level": "warning", "topic": "o", "partition": 3, "records": 31,
            "origin": 0, "kind": "commit", "oldest_age_s": 108_000,
        }
    ]  # fmt: skip


def test_a_broker_that_writes_no_traces_makes_no_late_rows() -> None:
    recorder = recorder_of(None)
    with capture_logs() as said:
        recorder.named_late(LedgerKind.COMMIT, [*seconds(100), late(0, 1, 0)], topic="o", origin=0, partition=3)
    assert (ledger(recorder._core.drain(NOW_NS, final=True)), recorder.stats.rows_unkept, said) == ([], 0, [])


def test_late_ranges_that_only_the_memory_of_a_broker_has_are_counted(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    recorder._open_rows.open()  # type: ignore[union-attr]
    recorder.named_late(LedgerKind.COMMIT, seconds(LATE_AT_ONCE + 5), topic="o", origin=0, partition=3)
    assert recorder.stats.rows_unkept == 5
