"""A reader of traces gets every row once, from files and spools, run after run, or learns that rows are gone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import TraceFileName
from georelay.trace.kinds import TraceKind
from georelay.trace.position import BEGINNING, TracePosition
from mesh.tracing import shelf as shelf_module
from mesh.tracing.pages import PositionExpired
from mesh.tracing.recorder_core import Drained
from mesh.tracing.shelf import TraceShelf
from mesh.tracing.shelf_index import ShelfIndex
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

KIND = TraceKind.PROBE
HOUR_NS = 3_600 * 10**9
NOW_NS = 1_700_000_000 * 10**9


class Broker:
    """The writer of one broker, on a clock that a test moves; probe rows whose `seq` counts on."""

    def __init__(self, directory: Path, broker: int = 2001) -> None:
        self.directory = directory
        self.broker = broker
        self.now_ns = NOW_NS
        self.written = 0
        self.shelf = TraceShelf(directory, region="eu", broker=broker)
        self.boot("a0")

    def boot(self, boot_id: str) -> None:
        self.writer = TraceWriter(
            directory=self.directory,
            identity=Identity(region="eu", broker=self.broker, boot_id=boot_id),
            clock_ns=lambda: self.now_ns,
            roll_period_s=1e6,
            slow_roll_period_s=1e6,
        )
        self.writer.recover()

    def write(self, rows: int, *, dropped: int = 0) -> None:
        made = [("eu", "us", "eu/2001", self.written + i, 1, None, None, "ok", 5_000) for i in range(rows)]
        self.written += rows
        self.writer.take(Drained(rows={KIND: made}, dropped={KIND: dropped}))

    def roll(self) -> None:
        self.writer.roll()

    def read(self, start: TracePosition, until: TracePosition, **limits: int) -> list[int]:
        """Return the `seq` of every row of [start, until), page after page."""
        found: list[int] = []
        position = start
        for _ in range(1_000):
            page = self.shelf.page(
                KIND, position, until, rows_max=limits.get("rows_max", 10**6), bytes_max=limits.get("bytes_max", 10**9)
            )
            found += [seq for batch in page.batches for seq in batch.column("seq").to_pylist()]
            if page.next == until:
                return found
            assert page.rows > 0
            position = page.next
        raise AssertionError("the pages never end")


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_rows_are_read_from_the_spool_before_any_file_exists(broker: Broker) -> None:
    broker.write(5)
    assert broker.shelf.oldest(KIND) == TracePosition("a0", 0)
    assert broker.shelf.latest(KIND) == TracePosition("a0", 5)
    broker.write(2)
    assert broker.shelf.latest(KIND) == TracePosition("a0", 7)
    assert broker.read(TracePosition("a0", 3), TracePosition("a0", 7)) == [3, 4, 5, 6]


def test_a_range_has_the_same_rows_in_the_spool_in_files_and_across_both(broker: Broker) -> None:
    broker.write(5)
    start, until = TracePosition("a0", 1), TracePosition("a0", 8)
    broker.write(4)
    in_spool = broker.read(start, until)
    broker.roll()
    in_file = broker.read(start, until)
    broker.write(3)
    assert in_spool == in_file == broker.read(start, until) == [1, 2, 3, 4, 5, 6, 7]
    assert broker.read(TracePosition("a0", 7), TracePosition("a0", 12), rows_max=1) == [7, 8, 9, 10, 11]


def test_pages_are_bounded_by_rows_and_by_bytes_and_lose_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf_module, "STEP_ROWS", 3)
    for _ in range(4):
        broker.write(7)
        broker.roll()
    until = TracePosition("a0", 28)
    assert broker.shelf.page(KIND, TracePosition("a0", 2), until, rows_max=10, bytes_max=10**9).rows == 10
    assert broker.shelf.page(KIND, TracePosition("a0", 2), until, rows_max=10, bytes_max=1).rows == 3
    assert broker.read(TracePosition("a0", 2), until, rows_max=4) == list(range(2, 28))
    assert broker.read(TracePosition("a0", 2), until, bytes_max=1) == list(range(2, 28))


def test_rows_carry_their_run_and_number(broker: Broker) -> None:
    broker.write(3)
    (batch,) = broker.shelf.page(
        KIND, TracePosition("a0", 1), TracePosition("a0", 3), rows_max=9, bytes_max=999
    ).batches
    assert batch.column("trace_boot").to_pylist() == ["a0", "a0"]
    assert batch.column("trace_row").to_pylist() == [1, 2]


def test_runs_follow_each_other_and_a_spool_that_a_crash_left_counts(broker: Broker) -> None:
    broker.write(3)
    broker.roll()
    broker.write(2)  # stays in the spool: the process is killed
    broker.now_ns += HOUR_NS
    broker.boot("9b")  # names have no order
    broker.write(4)
    assert broker.shelf.latest(KIND) == TracePosition("9b", 4)
    assert broker.read(TracePosition("a0", 4), TracePosition("9b", 2)) == [4, 5, 6]
    assert broker.read(TracePosition("a0", 5), TracePosition("9b", 4)) == [5, 6, 7, 8]
    assert broker.read(BEGINNING, TracePosition("9b", 4)) == list(range(9))


def test_a_run_that_ended_within_the_same_hour_comes_before_the_next(broker: Broker) -> None:
    broker.write(2)
    broker.boot("9b")
    for path in broker.directory.rglob("*.parquet"):
        os.utime(path, ns=(1, 1))
    broker.write(2)
    broker.roll()
    assert broker.read(BEGINNING, broker.shelf.latest(KIND)) == [0, 1, 2, 3]


def test_reach_counts_rows_over_files_and_runs_and_stops_where_it_is_told(broker: Broker) -> None:
    for _ in range(3):
        broker.write(5)
        broker.roll()
    broker.now_ns += HOUR_NS
    broker.boot("b1")
    broker.write(4)
    start = TracePosition("a0", 3)

    def reach(rows_max: int, until: TracePosition | None = None) -> tuple[str, int, bool]:
        found = broker.shelf.reach(KIND, start, rows_max=rows_max, until=until)
        return str(found.end), found.rows, found.has_more

    assert reach(4) == ("a0/7", 4, True)
    assert reach(12) == ("a0/15", 12, True)
    assert reach(13) == ("b1/1", 13, True)
    assert reach(16) == reach(99) == ("b1/4", 16, False)
    assert reach(99, TracePosition("a0", 9)) == ("a0/9", 6, False)
    assert reach(99, TracePosition("b1", 2)) == ("b1/2", 14, False)
    assert reach(2, TracePosition("b1", 2)) == ("a0/5", 2, True)
    assert reach(99, start) == ("a0/3", 0, False)


def test_a_call_looks_at_a_bounded_number_of_files(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        broker.write(2)
        broker.roll()
    monkeypatch.setattr(shelf_module, "SOURCES_PER_CALL_MAX", 3)
    reach = broker.shelf.reach(KIND, BEGINNING, rows_max=99)
    assert (str(reach.end), reach.has_more) == ("a0/6", True)
    assert str(broker.shelf.reach(KIND, reach.end, rows_max=99).end) == "a0/8"


def test_nothing_written_is_the_beginning_and_no_error(broker: Broker) -> None:
    assert broker.shelf.oldest(KIND) == broker.shelf.latest(KIND) == BEGINNING
    assert broker.shelf.reach(KIND, BEGINNING, rows_max=9).end == BEGINNING
    assert broker.read(BEGINNING, BEGINNING) == []


def test_rows_that_retention_deleted_are_an_error_with_the_oldest_position(broker: Broker) -> None:
    for _ in range(3):
        broker.write(4)
        broker.roll()
    first = min(broker.directory.rglob("*.parquet"))
    first.unlink()
    with pytest.raises(PositionExpired) as refused:
        broker.shelf.reach(KIND, TracePosition("a0", 3), rows_max=9)
    assert refused.value.oldest == TracePosition("a0", 4)
    with pytest.raises(PositionExpired):
        broker.read(TracePosition("gone", 3), TracePosition("a0", 9))
    assert broker.read(TracePosition("a0", 4), TracePosition("a0", 6)) == [4, 5]


def test_numbers_of_rows_that_were_given_up_are_skipped_and_not_expired(broker: Broker) -> None:
    broker.write(2, dropped=3)
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 5)) == [0, 1]
    broker.roll()
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 5)) == [0, 1]
    broker.write(2, dropped=4)
    broker.roll()
    assert broker.read(TracePosition("a0", 4), TracePosition("a0", 11)) == [1, 2, 3]
    assert broker.shelf.reach(KIND, TracePosition("a0", 4), rows_max=2).end == TracePosition("a0", 10)


def test_a_frame_that_is_being_written_is_read_when_it_is_whole(broker: Broker) -> None:
    broker.write(2)
    (spool,) = (broker.directory / ".spool").glob("probe-*")
    size_bytes = spool.stat().st_size
    broker.write(1)
    whole = spool.read_bytes()
    os.truncate(spool, size_bytes + 20)
    assert broker.shelf.latest(KIND) == TracePosition("a0", 2)
    spool.write_bytes(whole)
    assert broker.shelf.latest(KIND) == TracePosition("a0", 3)


def test_other_brokers_in_the_same_directory_are_not_read(broker: Broker) -> None:
    broker.write(2)
    other = Broker(broker.directory, broker=2002)
    other.write(7)
    other.roll()
    broker.roll()
    assert broker.shelf.latest(KIND) == TracePosition("a0", 2)
    assert other.shelf.latest(KIND) == TracePosition("a0", 7)


def compact(first: Path, *, rows: int) -> None:
    """Make the file that compaction makes of `rows` rows from the first file on."""
    merged = Broker(first.parent / "merged")
    merged.write(rows)
    merged.roll()
    (made,) = merged.directory.rglob("probe-*.parquet")
    name = TraceFileName.parse(first.name)
    assert name is not None
    made.rename(first.with_name(f"probe-2001-a0-{name.sequence:012d}.parquet"))
    shutil.rmtree(merged.directory)


def test_a_compacted_file_serves_while_what_it_was_made_of_goes(broker: Broker) -> None:
    for _ in range(3):
        broker.write(4)
        broker.roll()
    files = sorted(broker.directory.rglob("probe-*.parquet"))
    compact(files[0], rows=12)
    until = TracePosition("a0", 12)
    assert broker.read(TracePosition("a0", 0), until) == list(range(12))
    files[1].unlink()
    assert broker.read(TracePosition("a0", 0), until) == list(range(12))
    files[0].unlink()
    files[2].unlink()
    assert broker.read(TracePosition("a0", 5), until, rows_max=2) == list(range(5, 12))


def test_a_file_that_cannot_be_read_is_skipped_and_stops_nobody(broker: Broker) -> None:
    for _ in range(3):
        broker.write(2)
        broker.roll()
    files = sorted(broker.directory.rglob("probe-*.parquet"))
    files[1].write_bytes(b"no Parquet")
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 6)) == [0, 1, 4, 5]


def test_a_spool_that_becomes_a_file_while_it_is_read_is_read_from_the_file(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.write(4)
    list_spools = broker.shelf._index.spools
    rolls = iter([True])

    def spools_then_roll(kind: TraceKind) -> object:
        found = list_spools(kind)
        if next(rolls, False):
            broker.roll()
        return found

    monkeypatch.setattr(broker.shelf._index, "spools", spools_then_roll)
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 4)) == [0, 1, 2, 3]
    assert next(rolls, None) is None


@pytest.mark.parametrize("text", ["", "a0", "a0/", "/1", "A0/1", "a0/-1", "a0/1x", "a/b/1", "a0/" + "9" * 16])
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no position"):
        TracePosition.parse(text)


def test_positions_are_read_as_they_are_written() -> None:
    for position in (BEGINNING, TracePosition("54b1c987107e", 10**15 - 1)):
        assert TracePosition.parse(str(position)) == position


def test_a_file_that_comes_within_the_clock_tick_of_a_look_is_seen_by_the_next(broker: Broker) -> None:
    now_ns = 10**18
    index = ShelfIndex(broker.directory, region="eu", broker=2001, now_ns=lambda: now_ns)
    seen = []
    for _ in range(3):
        broker.write(1)
        broker.roll()
        (hour,) = index.hours()
        os.utime(broker.directory / hour / "region=eu", ns=(10**18, 10**18))
        seen.append(len(index.files(hour, KIND)))
        now_ns += 1_500_000_000
    assert seen == [1, 2, 3]


def test_a_compacted_file_that_was_made_anew_with_more_rows_is_read_to_its_end(broker: Broker) -> None:
    broker.write(4)
    broker.roll()
    (plain,) = broker.directory.rglob("probe-*.parquet")
    compacted = plain.with_name(f"probe-2001-a0-{0:012d}.parquet")
    plain.rename(compacted)
    assert broker.shelf.latest(KIND) == TracePosition("a0", 4)
    more = Broker(broker.directory.parent / "more")
    more.write(9)
    more.roll()
    (made,) = more.directory.rglob("probe-*.parquet")
    made.replace(compacted)
    assert broker.read(TracePosition("a0", 2), broker.shelf.latest(KIND)) == list(range(2, 9))


def damage_page(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[30] ^= 0xFF  # in the first page; the footer is whole
    path.write_bytes(raw)


@pytest.mark.parametrize("damaged", [1, 8])
def test_files_with_a_damaged_page_are_skipped_and_stop_nobody(broker: Broker, damaged: int) -> None:
    for _ in range(damaged + 2):
        broker.write(3)
        broker.roll()
    files = sorted(broker.directory.rglob("*.parquet"))
    for path in files[1:-1]:
        damage_page(path)
    until = broker.shelf.latest(KIND)
    rows = 3 * (damaged + 2)
    wanted = [0, 1, 2, rows - 3, rows - 2, rows - 1]
    assert broker.read(TracePosition("a0", 0), until) == wanted
    assert broker.read(TracePosition("a0", 4), until) == wanted[3:]
    assert broker.shelf.reach(KIND, TracePosition("a0", 0), rows_max=100).rows == 6


def test_a_damaged_file_is_read_from_the_compacted_one_that_has_its_rows(broker: Broker) -> None:
    for _ in range(2):
        broker.write(3)
        broker.roll()
    first, _ = sorted(broker.directory.rglob("*.parquet"))
    compact(first, rows=6)
    damage_page(first)
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 6)) == [0, 1, 2, 3, 4, 5]


def test_a_process_without_free_descriptors_takes_no_file_for_damaged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.write(3)
    broker.roll()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    for name in ("ParquetFile", "read_metadata"):
        with monkeypatch.context() as patched:
            patched.setattr(pq, name, refuse)
            with pytest.raises(OSError, match="Too many"):
                broker.read(TracePosition("a0", 0), TracePosition("a0", 3))
        assert broker.read(TracePosition("a0", 0), TracePosition("a0", 3)) == [0, 1, 2]
        broker.shelf = TraceShelf(broker.directory, region="eu", broker=2001)


def test_a_frame_of_a_spool_that_the_disk_damaged_later_is_skipped(broker: Broker) -> None:
    for _ in range(3):
        broker.write(2)
    until = broker.shelf.latest(KIND)
    (spool,) = (broker.directory / ".spool").iterdir()
    raw = bytearray(spool.read_bytes())
    frames = broker.shelf._spools[spool].frames
    raw[frames[1].offset + 40] ^= 0xFF
    spool.write_bytes(raw)
    assert broker.read(TracePosition("a0", 0), until) == [0, 1, 4, 5]


def test_a_damaged_first_file_is_skipped_and_no_expiry(broker: Broker) -> None:
    for _ in range(2):
        broker.write(3)
        broker.roll()
    damage_page(min(broker.directory.rglob("*.parquet")))
    assert broker.read(broker.shelf.oldest(KIND), TracePosition("a0", 6)) == [3, 4, 5]
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 6)) == [3, 4, 5]


def test_more_damage_than_a_call_looks_at_is_left_to_the_next(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "DAMAGED_PER_CALL_MAX", 2)
    for _ in range(4):
        broker.write(1)
        broker.roll()
    for path in sorted(broker.directory.rglob("*.parquet"))[:3]:
        damage_page(path)
    with pytest.raises(OSError, match=r"probe-2001-a0-.*\.parquet"):
        broker.read(TracePosition("a0", 0), TracePosition("a0", 4))
    assert broker.read(TracePosition("a0", 0), TracePosition("a0", 4)) == [3]


def damage_newest(broker: Broker, boot_id: str) -> None:
    newest = max(broker.directory.rglob(f"*-{boot_id}-*.parquet"), key=lambda path: path.name)
    newest.write_bytes(newest.read_bytes()[:-8] + bytes(8))


def test_the_end_is_behind_what_can_be_read_when_the_newest_file_is_damaged(broker: Broker) -> None:
    for rows in (3, 4):
        broker.write(rows)
        broker.roll()
    damage_newest(broker, "a0")
    assert broker.shelf.latest(KIND) == TracePosition("a0", 3)
    assert broker.read(BEGINNING, broker.shelf.latest(KIND)) == [0, 1, 2]
    broker.write(2)
    broker.roll()
    assert broker.read(TracePosition("a0", 3), broker.shelf.latest(KIND)) == [7, 8]


def test_the_end_is_in_an_older_run_or_hour_when_nothing_of_the_newest_can_be_read(broker: Broker) -> None:
    broker.write(3)
    broker.roll()
    broker.now_ns += 2 * HOUR_NS
    for boot_id in ("9b", "9c"):
        broker.boot(boot_id)
        broker.write(4)
        broker.roll()
        damage_newest(broker, boot_id)
    assert broker.shelf.latest(KIND) == TracePosition("a0", 3)
    broker.boot("9d")
    broker.write(1)
    assert broker.shelf.latest(KIND) == TracePosition("9d", 1)
    assert broker.read(TracePosition("a0", 3), TracePosition("9d", 1)) == [11]


def test_a_file_that_turns_out_to_be_damaged_while_it_is_read_moves_the_end_before_it_and_not_to_the_beginning(
    broker: Broker,
) -> None:
    for rows in (3, 3):
        broker.write(rows)
        broker.roll()
    assert broker.shelf.latest(KIND) == TracePosition("a0", 6)
    damage_page(max(broker.directory.rglob("*.parquet")))
    assert broker.read(BEGINNING, TracePosition("a0", 6)) == [0, 1, 2]
    assert broker.shelf.latest(KIND) == TracePosition("a0", 3)
    assert broker.shelf.reach(KIND, TracePosition("a0", 6), rows_max=10).rows == 0
