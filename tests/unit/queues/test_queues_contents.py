"""Records of a queue's topic are unfolded where that holds up nobody."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from georelay.ids import Offset
from georelay.wire.batch import Compression, build_batch
from region.kafka.ports import ReadAnswer
from region.queues import contents


class Entry:
    """One committed batch; remembers in which thread it was unfolded."""

    def __init__(self, base_offset: int, count: int, *, compression: Compression = Compression.NONE) -> None:
        self.base_offset = base_offset
        self.record_count = count
        records = [(b"value %d" % at, None, ()) for at in range(count)]
        self.payload = memoryview(build_batch(records, timestamps_ms=[1] * count, compression=compression))
        self.threads: list[int] = []

    def header(self) -> Any:
        self.threads.append(threading.get_ident())
        return type("Header", (), {"append_us": 5, "epoch": 1, "received_ns": 1, "entry_region": 1})()


def answer_of(*entries: Entry) -> ReadAnswer:
    end = Offset(entries[-1].base_offset + entries[-1].record_count)
    return ReadAnswer(entries=entries, log_start=Offset(0), high_watermark=end, next_offset=end)


async def test_small_batches_are_read_at_once_on_the_loop() -> None:
    entries = (Entry(0, 2), Entry(2, 3))
    stretch = await contents.read_stretch(answer_of(*entries), 0)
    assert [row.record.offset for row in stretch.records] == [0, 1, 2, 3, 4]
    assert {thread for entry in entries for thread in entry.threads} == {threading.get_ident()}


async def test_a_compressed_batch_is_unfolded_in_a_thread() -> None:
    entry = Entry(7, 3, compression=Compression.GZIP)
    stretch = await contents.read_stretch(answer_of(entry), 8)
    assert [row.record.offset for row in stretch.records] == [8, 9]
    assert stretch.following == 10
    assert threading.get_ident() not in entry.threads


async def test_nothing_is_unfolded_beyond_the_first_heavy_batch() -> None:
    entries = (Entry(0, 1), Entry(1, 2, compression=Compression.GZIP), Entry(3, 2, compression=Compression.GZIP))
    stretch = await contents.read_stretch(answer_of(*entries), 0)
    assert [row.record.offset for row in stretch.records] == [0, 1, 2]
    assert stretch.following == 3
    assert entries[2].threads == []


async def test_a_gap_at_the_end_of_a_whole_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "unfolds_on_loop", lambda _payload: False)
    answer = ReadAnswer(entries=(Entry(0, 2),), log_start=Offset(0), high_watermark=Offset(5), next_offset=5)
    stretch = await contents.read_stretch(answer, 0)
    assert list(stretch.gaps) == [(2, 5)]
