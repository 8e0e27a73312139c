"""What was read of a queue's topic, in pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from georelay.ids import Offset
from georelay.wire.batch import Compression, build_batch
from region.kafka.ports import ReadAnswer
from region.queues import contents


class Entry:
    """One committed batch."""

    def __init__(self, base_offset: int, count: int, *, compression: Compression = Compression.NONE) -> None:
        self.base_offset = base_offset
        self.record_count = count
        records = [(b"value %d" % at, None, ()) for at in range(count)]
        self.payload = memoryview(build_batch(records, timestamps_ms=[1] * count, compression=compression))

    def header(self) -> Any:
        return type("Header", (), {"append_us": 5, "epoch": 1, "received_ns": 1, "entry_region": 1})()


def answer_of(*entries: Entry) -> ReadAnswer:
    end = Offset(entries[-1].base_offset + entries[-1].record_count)
    return ReadAnswer(entries=entries, log_start=Offset(0), high_watermark=end, next_offset=end)


async def read(answer: ReadAnswer, offset: int) -> list[contents.Stretch]:
    return [stretch async for stretch in contents.stretches(answer, offset, "orders/0")]


def offsets_of(stretch: contents.Stretch) -> list[int]:
    return [row.record.offset for row in stretch.records]


async def test_small_batches_make_one_stretch() -> None:
    (stretch,) = await read(answer_of(Entry(0, 2), Entry(2, 3)), 0)
    assert (offsets_of(stretch), stretch.following) == ([0, 1, 2, 3, 4], 5)


async def test_an_empty_answer_is_one_stretch_that_says_where_to_read_on() -> None:
    empty = ReadAnswer(entries=(), log_start=Offset(0), high_watermark=Offset(9), next_offset=7)
    (stretch,) = await read(empty, 5)
    assert (list(stretch.records), list(stretch.gaps), stretch.following) == ([], [(5, 7)], 7)
    (stretch,) = await read(empty, 7)
    assert (list(stretch.gaps), stretch.following, stretch.end) == ([], 7, 9)


async def test_a_batch_that_is_unfolded_in_a_thread_ends_its_stretch_and_begins_where_it_was_asked_for() -> None:
    entries = (Entry(0, 1), Entry(1, 3, compression=Compression.GZIP), Entry(4, 1))
    first, second = await read(answer_of(*entries), 0)
    assert (offsets_of(first), first.following) == ([0, 1, 2, 3], 4)
    assert offsets_of(second) == [4]
    (last,) = await read(answer_of(entries[1]), 3)
    assert (offsets_of(last), last.gaps) == ([3], [])


async def test_a_gap_is_told_with_what_follows_it() -> None:
    entries = (Entry(0, 2), Entry(5, 1))
    (stretch,) = await read(replace(answer_of(*entries), next_offset=9), 0)
    assert list(stretch.gaps) == [(2, 5), (6, 9)]


async def test_a_stretch_is_cut_into_pieces_that_add_up_to_it() -> None:
    (whole,) = await read(replace(answer_of(Entry(0, 2), Entry(5, 2)), next_offset=9), 0)
    head, tail = contents.split(whole, 1)
    assert (offsets_of(head), list(head.gaps), head.following) == ([0], [], 1)
    assert tail is not None
    middle, end = contents.split(tail, 2)
    assert (offsets_of(middle), list(middle.gaps), middle.following) == ([1, 5], [(2, 5)], 6)
    assert end is not None
    assert (offsets_of(end), list(end.gaps), end.following) == ([6], [(7, 9)], 9)
    assert contents.split(end, 1) == (end, None)
