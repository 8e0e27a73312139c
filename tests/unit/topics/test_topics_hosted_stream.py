"""Reads come from memory or from disk, never beyond the commit, and survive a truncation under them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import Busy, Diverged, Unavailable
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber
from georelay.wire.batch import HEADER_BYTES, Compression, RecordDraft, build_batch, iterate_records
from georelay.wire.crc import crc32c
from mesh.replication.publish import Publish
from mesh.replication.stream_header import first_digest
from region.log.errors import ReadInterrupted
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.topics import hosted_stream
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import COLD_READ_TRIES, HostedStream


class HostedBench:
    """A hosted stream whose log is written to a real disk at every commit."""

    def __init__(self, bench: Any, path: Path, executor: ThreadPoolExecutor) -> None:
        self.disk = GroupLog.open(path / "1", OsFileSystem())
        self.stream = HostedStream(
            key=bench.stream.key,
            topic="orders",
            group_id=GroupId(1),
            home=RegionNumber(1),
            region=RegionNumber(1),
            clock=bench.clock,
            budget=TailBudget(),
            executor=executor,
            feature_level=lambda: 6,
        )
        self.log = type(bench.log)(self.stream)
        self.stream.attach(self.log, self.disk)

    def publish(self, *, timestamp_ms: int = 1, count: int = 1) -> asyncio.Future[Any]:
        raw = bytearray(build_batch([RecordDraft(b"v")] * count, timestamps_ms=timestamp_ms))
        return self.stream.publish(Publish.built(raw, received_ns=1, entry_region=1))

    def publish_at(
        self, *stamps_ms: int, compression: Compression = Compression.NONE, spoilt: bool = False
    ) -> asyncio.Future[Any]:
        rows = [RecordDraft(b"v")] * len(stamps_ms)
        raw = bytearray(build_batch(rows, timestamps_ms=stamps_ms, compression=compression))
        if spoilt:
            raw[HEADER_BYTES] = 0xFE
            raw[17:21] = crc32c(raw[21:]).to_bytes(4, "big")
        return self.stream.publish(Publish.built(raw, received_ns=1, entry_region=1))

    def store(self, *, commit: bool = True) -> None:
        self.disk.append(self.log.entries[self.disk.last_index :])
        self.disk.sync()
        if commit:
            self.log.commit()

    def truncate(self, index: int) -> None:
        self.disk.truncate_suffix(RaftIndex(index))
        self.log.truncate(index)


@pytest.fixture
async def hosted(make_bench: Any, tmp_path: Path) -> AsyncIterator[HostedBench]:
    executor = ThreadPoolExecutor(1)
    bench = HostedBench(make_bench(), tmp_path, executor)
    bench.log.lead()
    bench.store()
    yield bench
    bench.disk.close()
    executor.shutdown()


def bases(entries: Any) -> list[int]:
    return [entry.base_offset for entry in entries]


async def test_memory_and_disk_answer_the_same_records(hosted: HostedBench) -> None:
    for _ in range(4):
        hosted.publish(count=2)
    hosted.store()
    from_memory, from_disk = (
        hosted.stream.read(Offset(3), 1 << 20),
        await hosted.stream.read_cold(Offset(3), 1 << 20),
    )
    assert from_memory is not None
    assert bases(from_memory) == bases(from_disk) == [2, 4, 6]
    assert [entry.frame for entry in from_memory] == [entry.frame for entry in from_disk]


async def test_neither_shows_what_is_durable_but_not_committed(hosted: HostedBench) -> None:
    hosted.publish()
    hosted.store()
    hosted.publish()
    hosted.store(commit=False)
    assert hosted.stream.read(Offset(1), 1 << 20) == []
    assert bases(await hosted.stream.read_cold(Offset(0), 1 << 20)) == [0]


async def test_what_left_the_memory_is_asked_of_the_disk(hosted: HostedBench) -> None:
    hosted.publish()
    hosted.store()
    hosted.stream.tail.clear()
    assert hosted.stream.read(Offset(0), 1 << 20) is None


async def test_an_interrupted_read_is_repeated_and_then_refused_as_retriable(
    hosted: HostedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted.publish()
    hosted.store()
    calls: list[int] = []
    read = hosted.disk.read_from_offset

    def interrupted(offset: Offset, max_bytes: int, *, up_to_index: RaftIndex | None = None) -> Any:
        calls.append(1)
        if len(calls) < failures:
            raise ReadInterrupted("truncated")
        return read(offset, max_bytes, up_to_index=up_to_index)

    monkeypatch.setattr(hosted.disk, "read_from_offset", interrupted)
    failures = COLD_READ_TRIES
    assert bases(await hosted.stream.read_cold(Offset(0), 1)) == [0]
    calls.clear()
    failures = COLD_READ_TRIES + 1
    with pytest.raises(Unavailable):
        await hosted.stream.read_cold(Offset(0), 1)


async def test_the_digest_before_an_offset_is_known_only_where_a_committed_entry_ends(hosted: HostedBench) -> None:
    hosted.publish(count=2)
    digest = hosted.stream.end_digest
    hosted.store()
    hosted.publish()
    stream = hosted.stream
    assert await stream.digest_before(Offset(0)) == first_digest(stream.key)
    assert [await stream.digest_before(Offset(at)) for at in (1, 2, 3)] == [None, digest, None]
    stream.tail.clear()
    assert await stream.digest_before(Offset(2)) == digest


async def test_the_newest_timestamp_is_a_committed_one(hosted: HostedBench) -> None:
    stream = hosted.stream
    assert await stream.max_timestamp() is None
    hosted.publish(timestamp_ms=500)
    hosted.publish(timestamp_ms=400)
    hosted.store()
    hosted.publish(timestamp_ms=900)
    assert await stream.max_timestamp() == (0, 500)
    hosted.store()
    assert await stream.max_timestamp() == (2, 900)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
async def test_the_newest_timestamp_is_that_of_a_record_and_not_of_its_batch(
    hosted: HostedBench, compression: Compression
) -> None:
    hosted.publish(timestamp_ms=50)
    hosted.publish_at(100, 400, 200, 400, compression=compression)
    hosted.store()
    assert await hosted.stream.max_timestamp() == (2, 400)
    assert [await hosted.stream.offset_for_timestamp(at) for at in (60, 101)] == [(1, 100), (2, 400)]
    hosted.publish_at(500, 100)
    hosted.store()
    assert await hosted.stream.max_timestamp() == (5, 500)


async def test_of_a_batch_that_cannot_be_read_the_times_of_its_header_are_told(hosted: HostedBench) -> None:
    hosted.publish_at(100, 400, 200, spoilt=True)
    hosted.store()
    assert await hosted.stream.max_timestamp() == (0, 400)
    assert await hosted.stream.offset_for_timestamp(300) == (0, 400)


async def test_batches_are_unfolded_for_a_time_off_the_event_loop(
    hosted: HostedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    plain = iterate_records

    def noted(*given: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return plain(*given, **options)

    monkeypatch.setattr(hosted_stream, "iterate_records", noted)
    hosted.publish_at(100, 400, 200)
    hosted.store()
    for _ in range(3):
        assert await hosted.stream.max_timestamp() == (1, 400)
    assert await hosted.stream.offset_for_timestamp(150) == (1, 400)
    assert len(threads) == 2  # the newest one is remembered
    assert threading.get_ident() not in threads


async def test_the_newest_timestamp_forgets_what_was_truncated(make_bench: Any, tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    before = HostedBench(make_bench(), tmp_path, executor)
    before.log.lead()
    for stamp in (500, 600, 900):
        before.publish(timestamp_ms=stamp)
    before.store()
    after = HostedBench(make_bench(), tmp_path / "other", executor)
    after.disk = before.disk
    after.stream.attach(after.log, before.disk)
    for entry in before.log.entries:
        after.log.entries.append(entry)
        after.stream.recovered(entry)
    after.truncate(5)  # the batch of 900 was not committed after all
    after.log.commit()
    assert await after.stream.max_timestamp() == (1, 600)
    before.disk.close()
    executor.shutdown()


async def test_the_first_record_at_or_after_a_timestamp_is_found(hosted: HostedBench) -> None:
    for stamp in (100, 300, 200, 400):
        hosted.publish(timestamp_ms=stamp)
    hosted.store()
    found = [await hosted.stream.offset_for_timestamp(stamp) for stamp in (50, 150, 300, 350, 401)]
    assert found == [(0, 100), (1, 300), (1, 300), (3, 400), None]


async def test_an_epoch_is_refused_when_the_digest_before_it_is_another(hosted: HostedBench) -> None:
    hosted.publish()
    hosted.store()
    with pytest.raises(Diverged):
        await hosted.stream.append_epoch(Epoch(2), start=Offset(1), digest=bytes(16), control_index=1)


async def test_an_epoch_that_starts_beyond_what_is_committed_waits(hosted: HostedBench) -> None:
    with pytest.raises(Busy):
        await hosted.stream.append_epoch(Epoch(2), start=Offset(1), digest=bytes(16), control_index=1)


async def test_an_epoch_below_the_end_continues_the_digest_at_its_start(hosted: HostedBench) -> None:
    hosted.publish()
    digest = hosted.stream.end_digest
    hosted.publish()
    hosted.store()
    raising = asyncio.ensure_future(
        hosted.stream.append_epoch(Epoch(2), start=Offset(1), digest=digest, control_index=1)
    )
    while hosted.stream.epochs.newest() != 2:
        await asyncio.sleep(0)
    hosted.store()
    await raising
    assert (hosted.stream.end_digest, hosted.stream.high_watermark) == (digest, 1)
    assert bases(await hosted.stream.read_cold(Offset(0), 1 << 20)) == [0]


async def test_only_the_home_leader_with_an_epoch_serves_mirrors(hosted: HostedBench) -> None:
    assert hosted.stream.is_serving
    hosted.log.step_down()
    assert not hosted.stream.is_serving
