"""Reading committed batches for gRPC and REST: from the replica here, or through the cluster from another broker.

Rule 1: waiting is by the stream's wake-ups, never by polling.
Rule 2: a mirror or a follower may be behind: above its high watermark a reader waits; only the home's leader
        knows the end, so only there an offset beyond it is an error.
Rule 3: LATEST is what the leader in this region says: a replica that has just started knows of no commit, and its
        "latest" would be the beginning of the log.
Rule 4: readers see decided records only, unless they ask for all: they stop at the last stable offset, and batches of
        aborted transactions are left out. A marker is no record and is never shown.
Rule 5: of a topic with min.insync.regions readers see what so many regions have; a replica that does not know that
        passes the question on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from georelay.errors import OffsetOutOfRange, Unavailable, UnknownTopic
from georelay.ids import Offset
from georelay.wire.header import parse_header
from region.kafka.ports import Cluster, EntryLike, ReadAnswer, Stream

EARLIEST = -2
LATEST = -1
SEARCH_RESTARTS_MAX = 3  # when retention overtakes a search
BEHIND_WAIT_MS = 2_000  # how long a replica is waited for that lacks what another one has shown
LEFT_OUT_READS_MAX = 64  # reads of one request that find nothing to show; the next request goes on after them


class StreamReader:
    """Reads any partition of the region."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read(
        self,
        name: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        wait_ms: int,
        read_uncommitted: bool = False,
    ) -> ReadAnswer:
        """Return decided batches from the one that holds `offset` on (EARLIEST, LATEST allowed).

        At the last stable offset it waits up to `wait_ms` for the next batch; the answer may be empty. Read on at its
        `next_offset`.

        Raises:
            UnknownTopic, OffsetOutOfRange, Unavailable, NotLeader.
        """
        topic = self._cluster.topic(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        if partition >= topic.partitions:
            raise UnknownTopic(f"topic {name!r} has partitions 0..{topic.partitions - 1}, not {partition}")
        stream = self._cluster.stream(name, partition)
        knows = stream is not None and (stream.is_leader or (offset != LATEST and stream.is_visible_end_known))
        if stream is None or not knows:
            return await self._cluster.read_records(
                name, partition, offset, max_bytes, wait_ms, read_uncommitted=read_uncommitted
            )
        return await read_stream(
            stream, offset, max_bytes=max_bytes, wait_ms=wait_ms, read_uncommitted=read_uncommitted
        )

    async def first_offset_since(self, name: str, partition: int, append_us: int) -> Offset:
        """Return the first offset whose append time is not before `append_us`; the last stable offset if none is.

        Append times never go back within a stream, so a binary search over batches finds it. That there is none is said
        only after the leader has confirmed the end.

        Raises:
            As `read`.
        """
        for _ in range(SEARCH_RESTARTS_MAX):
            with contextlib.suppress(OffsetOutOfRange):  # retention moved the log start meanwhile
                return await self._search(name, partition, append_us)
        return (await self.read(name, partition, EARLIEST, max_bytes=1, wait_ms=0)).log_start

    async def _search(self, name: str, partition: int, append_us: int) -> Offset:
        known = await self.read(name, partition, EARLIEST, max_bytes=1, wait_ms=0)
        found = await self._first_between(name, partition, append_us, known.log_start, known.end)
        if found < known.end:
            return found
        latest = await self.read(name, partition, LATEST, max_bytes=1, wait_ms=0)
        return await self._first_between(name, partition, append_us, max(found, latest.log_start), latest.end)

    async def _first_between(self, name: str, partition: int, append_us: int, low: int, high: int) -> Offset:
        """Return the first offset in low..high that is not older; readers were shown everything below `high`."""
        while low < high:
            middle = (low + high) // 2
            entry = await self._first_shown(name, partition, middle, high)
            if entry is None or entry.header().append_us >= append_us:
                high = middle if entry is None else min(middle, max(low, entry.base_offset))
            else:
                low = entry.base_offset + entry.record_count
        return Offset(low)

    async def _first_shown(self, name: str, partition: int, offset: int, below: int) -> EntryLike | None:
        """Return the first batch that readers see from the one that holds `offset` on, up to `below`; None: no batch.

        Another replica may answer than the one that knew of `below`: it is waited for.
        """
        while offset < below:
            answer = await self.read(name, partition, offset, max_bytes=1, wait_ms=BEHIND_WAIT_MS)
            if answer.entries:
                return answer.entries[0]
            if answer.next_offset <= offset:
                raise Unavailable(
                    f"offset {offset} of {name}/{partition} is not known yet where it was asked; ask again"
                )
            offset = answer.next_offset
        return None


async def read_stream(
    stream: Stream, offset: int, *, max_bytes: int, wait_ms: int, read_uncommitted: bool = False
) -> ReadAnswer:
    """Read a hosted stream; see `StreamReader.read`. NotLeader: LATEST is asked of another replica than the leader."""
    if offset == EARLIEST:
        offset = stream.log_start
    elif offset == LATEST:
        await stream.confirmed_end()
        offset = _end(stream, read_uncommitted=read_uncommitted)
        if not read_uncommitted and not stream.is_last_stable_known:
            text = f"which records of {stream.key} are decided is not known yet: ask again"
            raise Unavailable(text)
    _check_range(stream, offset)
    if offset >= _end(stream, read_uncommitted=read_uncommitted) and wait_ms > 0:
        await _wait_for(stream, offset, wait_ms / 1000, read_uncommitted=read_uncommitted)
        _check_range(stream, offset)
    entries: Sequence[EntryLike] = ()
    following, epoch = offset, 0
    for _ in range(LEFT_OUT_READS_MAX):
        end = _end(stream, read_uncommitted=read_uncommitted)
        if entries or following >= end:
            break
        found = stream.read(Offset(following), max_bytes)
        raw = await stream.read_cold(Offset(following), max_bytes) if found is None else found
        stable = [entry for entry in raw if entry.base_offset + entry.record_count <= end]
        if not stable:
            break
        entries = _shown(stream, stable, read_uncommitted=read_uncommitted)
        following = Offset(stable[-1].base_offset + stable[-1].record_count)
        epoch = stable[-1].header().epoch
    return ReadAnswer(
        entries=entries,
        log_start=stream.log_start,
        high_watermark=stream.visible_end,
        next_offset=following,
        last_stable_offset=_end(stream, read_uncommitted=read_uncommitted),
        epoch=epoch,
    )


def _end(stream: Stream, *, read_uncommitted: bool) -> Offset:
    return stream.visible_end if read_uncommitted else stream.last_stable_offset


def _shown(stream: Stream, entries: Sequence[EntryLike], *, read_uncommitted: bool) -> list[EntryLike]:
    """Return the entries that hold records for readers: without markers and batches of aborted transactions."""
    first, following = Offset(entries[0].base_offset), Offset(entries[-1].base_offset + entries[-1].record_count)
    gone: dict[int, list[tuple[int, int]]] = {}
    for row in () if read_uncommitted else stream.aborted_between(first, following):
        gone.setdefault(row.producer_id, []).append((row.first_offset, row.last_offset))
    shown = []
    for entry in entries:
        header = parse_header(entry.payload)
        if header.is_control:
            continue
        spans = gone.get(header.producer_id, ()) if header.is_transactional else ()
        if not any(low <= entry.base_offset <= high for low, high in spans):
            shown.append(entry)
    return shown


def _check_range(stream: Stream, offset: int) -> None:
    if offset < stream.log_start:
        raise OffsetOutOfRange(f"offset {offset} is below the log start {stream.log_start}")
    if offset > stream.next_offset and stream.is_leader and stream.knows_end:
        raise OffsetOutOfRange(f"offset {offset} is beyond the log end {stream.next_offset}")


async def _wait_for(stream: Stream, offset: int, seconds: float, *, read_uncommitted: bool) -> None:
    """Return when the end for this reader passes `offset` or the time is over."""
    loop = asyncio.get_running_loop()
    moved: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if _end(stream, read_uncommitted=read_uncommitted) > offset and not moved.done():
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
