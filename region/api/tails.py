"""Reading several partitions of a topic for one client of HTTP: what comes next, of whichever has it.

Rule 1: partitions take turns; one that has no leader holds up no other.
Rule 2: what retention removed before it was handed out is said (`skipped`), never stepped over silently.
Rule 3: waiting is by the streams' wake-ups. Partitions of which only other brokers have a replica are looked at now
        and then: a request that waits there takes a place on the link, which others need, and does not end when nobody
        waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from georelay.errors import Diverged, GeorelayError, NotLeader, OffsetOutOfRange, Unavailable
from region.api.reading import EARLIEST, LATEST, StreamReader
from region.api.record_answers import RecordsOut, StoredBatches
from region.api.records_http import LEADER_WAIT_MS, RecordsHttp, led
from region.api.streams.standing_core import Standing
from region.api.streams.starting import stands
from region.kafka.ports import Cluster, TopicView

RETRY_S: Final = 0.1  # while a partition has no leader
ELSEWHERE_MS: Final = 1_000  # how late a record is noticed in a partition of which this broker has no replica

TailOut = RecordsOut | StoredBatches


@dataclass(slots=True)
class Tail:
    """What one client reads, where each partition goes on (EARLIEST: at the log start), and what was found last.

    `group`: whose deliveries they are in the traces, "" for nobody's. `epochs`: with a position the home epoch of what
    lies before it, where that is known: together they are good in every region.
    """

    view: TopicView
    positions: dict[int, int]
    epochs: dict[int, int] = field(default_factory=dict)
    group: str = ""
    moved: dict[int, int] = field(default_factory=dict)  # by partition where it goes on behind what was found
    skipped: list[dict[str, int]] = field(default_factory=list)
    failure: GeorelayError | None = None  # of a partition that could not be asked
    asked_s: dict[int, float] = field(default_factory=dict)  # of partitions elsewhere that stand at the end
    at_end_ns: dict[int, int] = field(default_factory=dict)  # since when it stands at the end, by partition

    def mark(self) -> Callable[[], None]:
        """Return what puts it back where it is now: for when what was found since is not handed out."""
        before = dict(self.positions), dict(self.epochs), dict(self.moved), list(self.skipped)

        def go_back() -> None:
            self.positions, self.epochs, self.moved, self.skipped = before

        return go_back

    def has_found(self, out: TailOut) -> bool:
        """Return whether there is something to say."""
        return bool(self.skipped) or not out.is_empty


class Tails:
    """Reads them, for all clients of one broker."""

    def __init__(
        self, records: RecordsHttp, *, cluster: Cluster, reader: StreamReader, wall_ns: Callable[[], int]
    ) -> None:
        self._records = records
        self._cluster = cluster
        self._reader = reader
        self._wall_ns = wall_ns
        self._turn = 0

    async def begin(self, topic: str, chosen: Callable[[TopicView], dict[int, int]]) -> Tail:
        """Return a tail of a topic; one that was made a moment ago is waited for, and its leaders too.

        Args:
            chosen: says where partitions begin: an offset, EARLIEST or LATEST.

        Raises:
            UnknownTopic; NotLeader, Unavailable: ask again; what `chosen` raises.
        """
        view = await self._records.existing(topic)
        until_s = asyncio.get_running_loop().time() + LEADER_WAIT_MS / 1_000
        positions = {
            partition: await led(until_s, partial(self.place, view, partition, at)) if at == LATEST else at
            for partition, at in chosen(view).items()
        }
        return Tail(view, positions)

    def check_epochs(self, tail: Tail, epochs: Mapping[int, int]) -> None:
        """Take the epochs of the positions that a client comes back with.

        Raises:
            Diverged: what it has read there is not in the stream of this region; a replica on another broker is not
            looked at.
        """
        for partition, epoch in epochs.items():
            stream, offset = self._cluster.stream(tail.view.name, partition), tail.positions[partition]
            if stream is None:
                continue
            log_start, end = stream.log_start, stream.visible_end
            found = stands(stream, epoch, offset, log_start=log_start, high_watermark=end)
            if found.standing is Standing.DIVERGED:
                raise Diverged(
                    f"partition {partition}: the region's stream parts from what was read at offset {found.offset} "
                    f"(end of epoch {found.epoch})"
                )
        tail.epochs.update(epochs)

    async def next(self, tail: Tail, out: TailOut, *, wait_ms: int) -> None:
        """Find the next records of any partition, waiting up to `wait_ms` for the first.

        Where it raises, the tail stands where it stood: `out` may have been filled by half, and is good for nothing.

        Raises:
            OffsetOutOfRange: a position is beyond the end of its partition. NotLeader, Unavailable: a partition could
            not be asked, and no other one had anything. Busy: there is no room for an answer, or for a question.
        """
        go_back = tail.mark()
        try:
            await self._find(tail, out, wait_ms)
        except GeorelayError:
            go_back()
            raise

    async def _find(self, tail: Tail, out: TailOut, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1_000
        while True:
            await self._look(tail, out)
            if out.lacks_room:
                await out.wait_for_room()
                continue
            left_ms = int((until - loop.time()) * 1_000)
            if tail.has_found(out) or left_ms <= 0:
                break
            await self._news(tail, left_ms)
        if tail.failure is not None and not tail.has_found(out):
            raise tail.failure

    async def _look(self, tail: Tail, out: TailOut) -> None:
        """Take what is there, one partition after the other; another one is the first at each time."""
        tail.failure = None
        partitions = sorted(tail.positions)
        self._turn += 1
        first = self._turn % len(partitions)
        for partition in (*partitions[first:], *partitions[:first]):
            if out.is_full:
                return
            if self._is_asked_too_soon(tail, partition):
                continue
            try:
                await self._take(tail, out, partition)
            except (NotLeader, Unavailable) as error:
                tail.failure = error

    def _is_asked_too_soon(self, tail: Tail, partition: int) -> bool:
        """Return whether another broker would be asked again about a partition that had nothing a moment ago."""
        if partition not in tail.at_end_ns or self._is_here(tail.view.name, partition):
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s < tail.asked_s.get(partition, 0.0) + ELSEWHERE_MS / 1_000:
            return True
        tail.asked_s[partition] = now_s
        return False

    async def _take(self, tail: Tail, out: TailOut, partition: int) -> None:
        view, position = tail.view, tail.positions[partition]
        if position < 0:
            position = tail.positions[partition] = await self.place(view, partition, EARLIEST)
        live_since_ns, before = tail.at_end_ns.get(partition), out.count
        take = partial(self._records.take, out, view, partition, group=tail.group, live_since_ns=live_since_ns)
        try:
            reached = await take(position)
        except OffsetOutOfRange:
            log_start = await self.place(view, partition, EARLIEST)
            if position >= log_start:
                raise
            reached = await take(log_start)
            if not out.lacks_room:  # or the position stays, and it is found and said again
                tail.skipped.append({"partition": partition, "from": position, "to": log_start})
                tail.epochs.pop(partition, None)
        if out.lacks_room:
            return
        if out.count > before:
            tail.at_end_ns.pop(partition, None)
        else:
            tail.at_end_ns.setdefault(partition, self._wall_ns())
        if reached.offset > tail.positions[partition]:
            tail.positions[partition] = tail.moved[partition] = reached.offset
            if reached.epoch:
                tail.epochs[partition] = reached.epoch
            else:  # a broker of an older version does not say
                tail.epochs.pop(partition, None)

    async def _news(self, tail: Tail, wait_ms: int) -> None:
        """Return when a partition may have more, or the time is over (rule 3)."""
        if tail.failure is not None:
            await asyncio.sleep(min(RETRY_S, wait_ms / 1_000))
            return
        name, loop = tail.view.name, asyncio.get_running_loop()
        here = {partition: at for partition, at in tail.positions.items() if self._is_here(name, partition)}
        if len(here) < len(tail.positions):
            wait_ms = min(wait_ms, ELSEWHERE_MS)
        ends = [
            (stream, at) for at, stream in ((at, self._cluster.stream(name, p)) for p, at in here.items()) if stream
        ]
        news: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not news.done() and any(stream.last_stable_offset > at for stream, at in ends):
                news.set_result(None)

        waiters = [(stream, stream.add_waiter(wake)) for stream, _ in ends]
        wake()
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await news
        except TimeoutError:
            return
        finally:
            for stream, waiter in waiters:
                stream.remove_waiter(waiter)

    def _is_here(self, name: str, partition: int) -> bool:
        """Return whether a replica of this broker answers readers of a partition."""
        stream = self._cluster.stream(name, partition)
        return stream is not None and (stream.is_leader or stream.is_visible_end_known)

    async def place(self, view: TopicView, partition: int, at: int) -> int:
        """Return where a partition begins (EARLIEST), or ends for readers (LATEST)."""
        answer = await self._reader.read(view.name, partition, at, max_bytes=1, wait_ms=0)
        return answer.log_start if at == EARLIEST else answer.end
