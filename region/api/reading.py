"""Reading committed batches for gRPC and REST: from the replica here, or through the cluster from another broker.

Rule 1: waiting is by the stream's wake-ups, never by polling.
Rule 2: a mirror or a follower may be behind: above its high watermark a reader waits; only the home's leader
        knows the end, so only there an offset beyond it is an error.
Rule 3: LATEST is what the leader in this region says: a replica that has just started knows of no commit, and its
        "latest" would be the beginning of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from georelay.errors import OffsetOutOfRange, UnknownTopic
from georelay.ids import Offset
from region.kafka.ports import Cluster, EntryLike, ReadAnswer, Stream

EARLIEST = -2
LATEST = -1
SEARCH_RESTARTS_MAX = 3  # when retention overtakes a search


class StreamReader:
    """Reads any partition of the region."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read(self, name: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> ReadAnswer:
        """Return committed batches from the one that holds `offset` on (EARLIEST, LATEST allowed).

        At the high watermark it waits up to `wait_ms` for the next batch; the answer may be empty.

        Raises:
            UnknownTopic, OffsetOutOfRange, Unavailable, NotLeader.
        """
        topic = self._cluster.topic(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        if partition >= topic.partitions:
            raise UnknownTopic(f"topic {name!r} has partitions 0..{topic.partitions - 1}, not {partition}")
        stream = self._cluster.stream(name, partition)
        if stream is None or (offset == LATEST and not stream.is_leader):
            return await self._cluster.read_records(name, partition, offset, max_bytes, wait_ms)
        return await read_stream(stream, offset, max_bytes=max_bytes, wait_ms=wait_ms)

    async def first_offset_since(self, name: str, partition: int, append_us: int) -> Offset:
        """Return the first offset whose append time is not before `append_us`; the high watermark if none is.

        Append times never go back within a stream, so a binary search over batches finds it.
        """
        for _ in range(SEARCH_RESTARTS_MAX):
            with contextlib.suppress(OffsetOutOfRange):  # retention moved the log start meanwhile
                return await self._search(name, partition, append_us)
        return (await self.read(name, partition, EARLIEST, max_bytes=1, wait_ms=0)).log_start

    async def _search(self, name: str, partition: int, append_us: int) -> Offset:
        answer = await self.read(name, partition, EARLIEST, max_bytes=1, wait_ms=0)
        low, high = answer.log_start, answer.high_watermark
        while low < high:
            middle = Offset((low + high) // 2)
            answer = await self.read(name, partition, middle, max_bytes=1, wait_ms=0)
            if not answer.entries:  # another replica that has less: what it lacks is newer
                high = middle
                continue
            entry = answer.entries[0]
            if entry.header().append_us >= append_us:
                high = Offset(max(low, entry.base_offset))
            else:
                low = Offset(entry.base_offset + entry.record_count)
        return low


async def read_stream(stream: Stream, offset: int, *, max_bytes: int, wait_ms: int) -> ReadAnswer:
    """Read a hosted stream; see `StreamReader.read`. NotLeader: LATEST is asked of another replica than the leader."""
    if offset == EARLIEST:
        offset = stream.log_start
    elif offset == LATEST:
        offset = await stream.confirmed_end()
    _check_range(stream, offset)
    if offset >= stream.high_watermark and wait_ms > 0:
        await _wait_for(stream, offset, wait_ms / 1000)
        _check_range(stream, offset)
    entries: Sequence[EntryLike] = ()
    if offset < stream.high_watermark:
        found = stream.read(Offset(offset), max_bytes)
        entries = await stream.read_cold(Offset(offset), max_bytes) if found is None else found
    return ReadAnswer(entries=entries, log_start=stream.log_start, high_watermark=stream.high_watermark)


def _check_range(stream: Stream, offset: int) -> None:
    if offset < stream.log_start:
        raise OffsetOutOfRange(f"offset {offset} is below the log start {stream.log_start}")
    if offset > stream.next_offset and stream.is_leader and stream.is_home:
        raise OffsetOutOfRange(f"offset {offset} is beyond the log end {stream.next_offset}")


async def _wait_for(stream: Stream, offset: int, seconds: float) -> None:
    """Return when the high watermark passes `offset` or the time is over."""
    loop = asyncio.get_running_loop()
    moved: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if stream.high_watermark > offset and not moved.done():
            moved.set_result(None)

    def time_is_over() -> None:
        if not moved.done():
            moved.set_result(None)

    handle = stream.add_waiter(wake)
    timer = loop.call_later(seconds, time_is_over)
    try:
        await moved
    finally:
        timer.cancel()
        stream.remove_waiter(handle)
