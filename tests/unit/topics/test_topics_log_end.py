"""The log end and the epoch table follow the log, truncations included."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest
from region.log.entry import control_header
from region.topics.log_end_core import EpochTable, LogEnd


def epoch_header(epoch: int, start: int) -> StreamHeader:
    return control_header(EntryType.EPOCH, next_offset=Offset(start), epoch=Epoch(epoch), append_us=0, digest=bytes(16))


def table(*rows: tuple[int, int, int]) -> EpochTable:
    made = EpochTable()
    for index, epoch, start in rows:
        made.appended(index, epoch_header(epoch, start))
    return made


def test_the_end_after_an_entry_is_its_next_offset_digest_time_and_epoch(make_header: Any) -> None:
    end = LogEnd.after(make_header(base=10, count=3, append_us=77))
    assert end == LogEnd(next_offset=Offset(13), digest=bytes(16), append_us=77, epoch=Epoch(1))


def test_the_end_of_an_empty_log_is_offset_zero_before_any_epoch() -> None:
    key = StreamKey(bytes(16), RegionNumber(3), 4)
    assert LogEnd.empty(key) == LogEnd(next_offset=Offset(0), digest=first_digest(key), append_us=0, epoch=Epoch(0))


def test_records_do_not_change_the_epoch_table(make_header: Any) -> None:
    rows = table((1, 1, 0))
    rows.appended(2, make_header(base=0, count=9))
    assert rows.rows() == [(1, 0)]


def test_an_epoch_counts_as_committed_once_its_entry_is() -> None:
    rows = table((2, 1, 0), (9, 4, 30))
    assert [rows.current(index) for index in (0, 1, 2, 8, 9)] == [0, 0, 1, 1, 4]
    assert rows.committed(8) == [(1, 0)]
    assert (rows.newest(), rows.index_of(Epoch(4)), rows.index_of(Epoch(3))) == (4, 9, 0)


def test_the_end_of_an_epoch_is_the_start_of_the_next_committed_one() -> None:
    rows = table((2, 1, 0), (9, 4, 30))
    ends = [rows.end_of(Epoch(epoch), commit_index=9, hwm=Offset(50)) for epoch in (0, 1, 3, 4, 9)]
    assert ends == [(-1, -1), (1, 30), (1, 30), (4, 50), (4, 50)]
    assert rows.end_of(Epoch(1), commit_index=8, hwm=Offset(50)) == (1, 50)


@given(st.lists(st.one_of(st.none(), st.integers(1, 6)), max_size=12))
def test_truncating_leaves_the_table_of_the_shorter_log(steps: list[int | None]) -> None:
    made, log = EpochTable(), list[tuple[int, Epoch, Offset]]()
    epoch = 0
    for index, step in enumerate(steps, 1):
        if step is None:
            epoch += 1
            made.appended(index, epoch_header(epoch, index))
            log.append((index, Epoch(epoch), Offset(index)))
        else:
            made.truncated(step)
            log = [row for row in log if row[0] < step]
    assert made.rows() == [(row[1], row[2]) for row in log]
