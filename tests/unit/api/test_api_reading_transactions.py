"""Readers of gRPC, REST and other brokers: decided records only, markers never, and nothing is read twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Unavailable
from georelay.ids import Epoch, Offset
from georelay.wire.batch import build_batch
from georelay.wire.control_batch import build_marker
from region.api import reading
from region.api.reading import EARLIEST, LATEST, StreamReader, read_stream
from region.topics.transaction_table_core import AbortedTransaction


def add(stream: Any, *values: bytes, producer: int = -1) -> None:
    """Append a batch; one of a producer is transactional."""
    if producer < 0:
        stream.add(*values)
        return
    raw = build_batch(
        [(value, None, ()) for value in values],
        timestamps_ms=1,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    stream.add_raw(raw)


def mark(stream: Any, producer: int, *, is_commit: bool) -> None:
    stream.add_raw(
        build_marker(producer_id=producer, producer_epoch=0, is_commit=is_commit, coordinator_epoch=1, timestamp_ms=1)
    )


def offsets(answer: Any) -> list[int]:
    return [entry.base_offset for entry in answer.entries]


@pytest.fixture
def stream(cluster: Any) -> Any:
    """Offsets 0 plain, 1 aborted, 2 plain, 3 its marker, 4 committed, 5 its marker, 6 open, 7 plain."""
    cluster.add_topic("t")
    stream = cluster.streams["t", 0]
    add(stream, b"0")
    add(stream, b"1", producer=8)
    add(stream, b"2")
    mark(stream, 8, is_commit=False)
    add(stream, b"4", producer=9)
    mark(stream, 9, is_commit=True)
    add(stream, b"6", producer=8)
    add(stream, b"7")
    stream.aborted = [AbortedTransaction(8, 0, Offset(1), Offset(3), Offset(4))]
    stream.unstable = Offset(6)
    return stream


async def test_a_reader_gets_decided_records_and_no_markers(stream: Any) -> None:
    answer = await read_stream(stream, 0, max_bytes=2**20, wait_ms=0)
    assert offsets(answer) == [0, 2, 4]
    assert (answer.next_offset, answer.end, answer.high_watermark) == (6, 6, 8)


async def test_the_epoch_of_an_answer_is_that_of_what_lies_before_its_end_also_of_a_marker(stream: Any) -> None:
    assert (await read_stream(stream, 0, max_bytes=2**20, wait_ms=0)).epoch == 1
    stream.epoch, stream.unstable = Epoch(2), None
    mark(stream, 8, is_commit=True)
    answer = await read_stream(stream, 8, max_bytes=2**20, wait_ms=0)
    assert (offsets(answer), answer.next_offset, answer.epoch) == ([], 9, 2)
    assert (await read_stream(stream, 9, max_bytes=1, wait_ms=0)).epoch == 0


async def test_a_reader_that_wants_everything_gets_all_but_the_markers(stream: Any) -> None:
    answer = await read_stream(stream, 0, max_bytes=2**20, wait_ms=0, read_uncommitted=True)
    assert offsets(answer) == [0, 1, 2, 4, 6, 7]
    assert (answer.next_offset, answer.end) == (8, 8)


async def test_a_read_that_finds_nothing_to_show_says_where_to_go_on(stream: Any) -> None:
    answer = await read_stream(stream, 5, max_bytes=2**20, wait_ms=0)
    assert (offsets(answer), answer.next_offset) == ([], 6)


async def test_a_read_of_few_bytes_goes_on_past_what_is_left_out(stream: Any) -> None:
    answer = await read_stream(stream, 1, max_bytes=1, wait_ms=0)
    assert (offsets(answer), answer.next_offset) == ([2], 3)


async def test_latest_is_the_last_stable_offset(stream: Any) -> None:
    assert (await read_stream(stream, LATEST, max_bytes=1, wait_ms=0)).next_offset == 6
    assert (await read_stream(stream, LATEST, max_bytes=1, wait_ms=0, read_uncommitted=True)).next_offset == 8


async def test_latest_is_refused_while_it_is_not_known_which_records_are_decided(stream: Any) -> None:
    stream.unstable, stream.knows_stable = Offset(0), False
    with pytest.raises(Unavailable, match="not known yet"):
        await read_stream(stream, LATEST, max_bytes=1, wait_ms=0)
    assert (await read_stream(stream, LATEST, max_bytes=1, wait_ms=0, read_uncommitted=True)).next_offset == 8
    assert offsets(await read_stream(stream, 0, max_bytes=2**20, wait_ms=0)) == []


async def test_a_reader_at_the_last_stable_offset_waits_for_the_transaction_to_end(stream: Any) -> None:
    reading = asyncio.ensure_future(read_stream(stream, 6, max_bytes=2**20, wait_ms=5_000))
    async with asyncio.timeout(5):
        while not stream.waiter_count:
            await asyncio.sleep(0.001)
    mark(stream, 8, is_commit=True)
    stream.unstable = None
    stream.wake()
    assert offsets(await reading) == [6, 7]


async def test_that_no_record_is_as_new_is_said_only_once_the_end_is_known(cluster: Any) -> None:
    cluster.add_topic("t")
    stream = cluster.streams["t", 0]
    for row in range(4):
        stream.now_us = 1_000 + row
        add(stream, b"x")
    reader = StreamReader(cluster)
    stream.geo_end, stream.geo_end_confirmed = Offset(1), Offset(4)  # a new leader: too few regions were heard yet
    assert await reader.first_offset_since("t", 0, 1_002) == 2
    stream.geo_end, stream.is_cut_off = Offset(1), True
    assert await reader.first_offset_since("t", 0, 1_000) == 0  # what is shown needs nobody's word
    with pytest.raises(Unavailable):
        await reader.first_offset_since("t", 0, 1_002)


@pytest.mark.parametrize("comes", [True, False])
async def test_a_replica_that_lacks_what_another_one_has_shown_is_waited_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    cluster.add_topic("t")
    stream = cluster.streams["t", 0]
    for row in range(4):
        stream.now_us = 1_000 + row
        add(stream, b"x")
    monkeypatch.setattr(reading, "BEHIND_WAIT_MS", 5_000 if comes else 20)
    reader = StreamReader(cluster)
    searching = reader._first_between("t", 0, 1_003, 0, 4)
    stream.geo_end = Offset(1)
    if not comes:
        with pytest.raises(Unavailable, match="ask again"):
            await searching
        return
    task = asyncio.ensure_future(searching)
    async with asyncio.timeout(5):
        while not stream.waiter_count:
            await asyncio.sleep(0.001)
    stream.geo_end = None
    stream.wake()
    assert await task == 3


async def test_a_search_by_append_time_is_not_led_astray_by_what_is_left_out(cluster: Any) -> None:
    cluster.add_topic("t")
    stream = cluster.streams["t", 0]
    for row in range(12):
        stream.now_us = 1_000 + row
        if 4 <= row < 9:
            add(stream, b"x", producer=8)
        else:
            add(stream, b"x")
    stream.now_us = 2_000
    mark(stream, 8, is_commit=False)
    stream.aborted = [AbortedTransaction(8, 0, Offset(4), Offset(12), Offset(13))]
    reader = StreamReader(cluster)
    found = [await reader.first_offset_since("t", 0, 1_000 + row) for row in range(12)]
    shown = [next(at for at in (0, 1, 2, 3, 9, 10, 11) if at >= row) for row in range(12)]
    first_shown = [offsets(await read_stream(stream, at, max_bytes=1, wait_ms=0))[0] for at in found]
    assert first_shown == shown
    assert (await reader.read("t", 0, EARLIEST, max_bytes=1, wait_ms=0)).log_start == 0
