"""Bindings at one broker: which streams are copied, and when the publisher of a record is answered.

Rule 1: a publish to a topic that a binding takes is acknowledged when its batch and all its copies are committed. A
        copy that cannot be made now delays the acknowledgement: it is never left out, nor answered as if it were there.
        A batch that cannot be read has no copies where header rules choose (copier, rule 6).
Rule 2: the binding is looked up before a batch is appended, and until the coordinator has recorded where the copies
        begin nothing is appended: whoever leads the stream next begins there too, and misses nothing.
Rule 3: a topic that a binding takes refuses transactional batches: what a transaction wrote would have to be copied
        after its end, which nobody waits for.
Rule 4: when the home of a stream has moved, its old home makes the copies that are left, and answers who waits for
        them. What it may have that the new home does not is answered as unknown.
Rule 5: what waits for copies is bounded: beyond it publishes are refused before they are stored.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from georelay.cadence import pause_s
from georelay.errors import Busy, OutcomeUnknown, PolicyViolation, Unavailable
from georelay.ids import StreamKey
from georelay.wire.batch import BatchHeader
from region.coordination.coordinators import Coordinators
from region.kafka.ports import Published
from region.routing.binding import Binding
from region.routing.copier import Copier
from region.routing.ports import CopyCluster, SourceStream
from region.routing.table_core import BindingTable

log = structlog.get_logger()

WAITING_MAX: Final = 2_000  # publishes of one stream
WAIT_S: Final = 30.0  # then the publisher is told that it does not know
SWEEP_S: Final = 0.25
INTERNAL_PREFIX: Final = "__georelay"


@dataclass(order=True, slots=True)
class _Waiting:
    end: int
    number: int
    published: Published = field(compare=False)
    answer: asyncio.Future[Published] = field(compare=False)
    since_ns: int = field(compare=False)


class StreamCopies:
    """The copiers of one stream, and the publishes that wait for them."""

    def __init__(self, stream: SourceStream) -> None:
        self.stream = stream
        self.copiers: dict[tuple[str, int], Copier] = {}
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.waiting: list[_Waiting] = []
        self.draining_since_ns = -1  # the home of the stream is elsewhere since
        self.is_lost = False  # another broker leads, or this one stops: what is copied is not known here any more
        self._numbers = itertools.count()

    @property
    def copied(self) -> int:
        """Return the offset below which every copier is done."""
        return min((copier.copied for copier in self.copiers.values()), default=2**63 - 1)

    def wait(self, end: int, published: Published, answer: asyncio.Future[Published], now_ns: int) -> None:
        """Answer when everything below `end` is copied."""
        heapq.heappush(self.waiting, _Waiting(end, next(self._numbers), published, answer, now_ns))
        self.moved()

    def moved(self) -> None:
        """Answer who has waited long enough."""
        copied = self.copied
        while self.waiting and self.waiting[0].end <= copied:
            row = heapq.heappop(self.waiting)
            if not row.answer.done():
                row.answer.set_result(row.published)

    def give_up(self, before_ns: int, why: str) -> None:
        """Tell those who wait since then or longer that their copies may be there or not."""
        late: list[_Waiting] = []
        waiting: list[_Waiting] = []
        for row in self.waiting:
            (late if row.since_ns <= before_ns or row.answer.done() else waiting).append(row)
        if not late:
            return
        self.waiting = waiting
        heapq.heapify(self.waiting)
        for row in late:
            if not row.answer.done():
                row.answer.set_exception(OutcomeUnknown(why))
                row.answer.exception()

    def stop(self, key: tuple[str, int]) -> None:
        """End one copier."""
        del self.copiers[key]
        self.tasks.pop(key).cancel()

    def close(self) -> None:
        """End all; who waits does not know."""
        self.is_lost = True
        for key in list(self.copiers):
            self.stop(key)
        self.give_up(2**63, "the broker stopped leading the stream before all copies were known to be made")


class Routing:
    """Args:
    definitions: bindings and a version that changes with them. streams: those hosted here.
    """

    def __init__(
        self,
        *,
        cluster: CopyCluster,
        coordinators: Coordinators,
        definitions: Callable[[], tuple[int, Iterable[Binding]]],
        version: Callable[[], int],
        streams: Callable[[], Iterable[SourceStream]],
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._definitions = definitions
        self._version = version
        self._streams = streams
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._table = BindingTable()
        self._copies: dict[StreamKey, StreamCopies] = {}
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look after the streams led here."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="routing")

    async def close(self) -> None:
        """End every copier."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        tasks = [task for copies in self._copies.values() for task in copies.tasks.values()]
        for copies in self._copies.values():
            copies.close()
        self._copies.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self.sweep()
            await asyncio.sleep(pause_s(SWEEP_S))

    def sweep(self) -> None:
        """Have a copier for every binding of every stream led here at its home, and no other."""
        table = self._current()
        led = {}
        if len(table):
            led = {stream.key: stream for stream in self._streams() if stream.is_leader and stream.is_home}
            for stream in led.values():
                if table.of(stream.topic):
                    self._follow(stream)
        for key, copies in list(self._copies.items()):
            if not table.of(copies.stream.topic) or (led.get(key) is not copies.stream and not self._drains(copies)):
                self._end(key, copies, is_led=copies.stream.is_leader and copies.stream.is_home)
            elif copies.waiting:
                reasons = {copier.failing for copier in copies.copiers.values() if copier.failing}
                why = f"stored, but not all of its copies are: {'; '.join(sorted(reasons)) or 'they take long'}"
                copies.give_up(self._monotonic_ns() - round(WAIT_S * 1e9), why)

    def _drains(self, copies: StreamCopies) -> bool:
        """Return whether the old home of a stream still makes copies of what it sequenced."""
        if not copies.stream.is_leader or all(copier.is_done for copier in copies.copiers.values()):
            return False
        now_ns = self._monotonic_ns()
        if copies.draining_since_ns < 0:
            copies.draining_since_ns = now_ns
        for copier in copies.copiers.values():
            copier.wake()
        return now_ns - copies.draining_since_ns < round(WAIT_S * 1e9)

    def _end(self, key: StreamKey, copies: StreamCopies, *, is_led: bool) -> None:
        del self._copies[key]
        if not is_led:
            copies.close()
            return
        for name in list(copies.copiers):  # its last binding was removed: there is nothing to wait for
            copies.stop(name)
        copies.moved()

    def _current(self) -> BindingTable:
        version = self._version()
        if version != self._table.version:
            _, bindings = self._definitions()
            self._table = BindingTable(bindings, version=version)
        return self._table

    def _follow(self, stream: SourceStream) -> StreamCopies:
        """Return the copies of a stream that a binding takes, with a copier for each."""
        wanted = {(binding.name, binding.index): binding for binding in self._table.of(stream.topic)}
        copies = self._copies.get(stream.key)
        if copies is None or copies.stream is not stream:
            if copies is not None:
                copies.close()
            copies = self._copies[stream.key] = StreamCopies(stream)
        for key in [key for key in copies.copiers if key not in wanted]:
            copies.stop(key)
            copies.moved()
        copies.draining_since_ns = -1
        table = stream.decided_table
        has_begun = not table or stream.epoch >= table[-1][0]
        for key, binding in wanted.items():
            if key in copies.copiers:
                copies.copiers[key].wake()
            if not has_begun:
                continue  # nothing can be published yet
            is_recorded = False
            if key in copies.tasks and copies.tasks[key].done():
                is_recorded = copies.copiers[key].is_recorded
                copies.stop(key)  # its epoch is over; or a defect of ours ended it, then its line is in the log
            if key not in copies.copiers:
                self._begin(copies, key, binding, is_recorded=is_recorded)
        return copies

    def _begin(self, copies: StreamCopies, key: tuple[str, int], binding: Binding, *, is_recorded: bool) -> None:
        stream = copies.stream
        copier = Copier(
            binding,
            stream,
            cluster=self._cluster,
            coordinators=self._coordinators,
            wall_ns=self._wall_ns,
            begin_at=stream.next_offset,
            moved=copies.moved,
            is_recorded=is_recorded,
        )
        copies.copiers[key] = copier
        task = asyncio.get_running_loop().create_task(copier.run(), name=f"binding {binding.name} {stream.key}")
        task.add_done_callback(_say_why)
        copies.tasks[key] = task

    # --- publishing -------------------------------------------------------------------------------

    def admit(self, stream: SourceStream, header: BatchHeader) -> StreamCopies | None:
        """Look a publish at the home leader over before it is appended; None when no binding takes it.

        Raises:
            PolicyViolation: a transactional batch. Busy: too much waits for copies. Unavailable: it is not recorded
            yet where the copies begin. Nothing was stored.
        """
        if stream.topic.startswith(INTERNAL_PREFIX) or not self._current().of(stream.topic):
            return None
        if header.is_transactional:
            text = f"a binding takes records of {stream.topic!r}"
            raise PolicyViolation(f"{text}: it can be written without transactions only")
        copies = self._follow(stream)
        for binding in self._current().of(stream.topic):
            copier = copies.copiers.get((binding.name, binding.index))
            if copier is None or not copier.is_recorded:
                why = f": {copier.failing}" if copier is not None and copier.failing else ""
                text = f"copies of {stream.topic!r} for binding {binding.name} have not begun yet"
                raise Unavailable(f"{text}, publish again in a moment{why}")
        if len(copies.waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} publishes to {stream.topic!r} wait for their copies already")
        return copies

    def gate(
        self, copies: StreamCopies, header: BatchHeader, stored: asyncio.Future[Published]
    ) -> asyncio.Future[Published]:
        """Return what is answered when a batch and all its copies are committed."""
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        stored.add_done_callback(partial(self._stored, copies, header.record_count, answer))
        return answer

    def _stored(
        self, copies: StreamCopies, count: int, answer: asyncio.Future[Published], stored: asyncio.Future[Published]
    ) -> None:
        if stored.cancelled():
            answer.cancel()
            return
        error = stored.exception()
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
            answer.exception()
            return
        published = stored.result()
        if copies.is_lost:
            answer.set_exception(OutcomeUnknown("the broker stopped leading the stream before its copies were made"))
            answer.exception()
            return
        copies.wait(published.base_offset + count, published, answer, self._monotonic_ns())

    # --- looking ----------------------------------------------------------------------------------

    def state(self) -> list[tuple[str, int, int]]:
        """Return (binding, records that are not copied yet, records copied since this broker leads) of streams here."""
        rows: dict[str, tuple[int, int]] = {}
        for copies in self._copies.values():
            for copier in copies.copiers.values():
                behind, copied = rows.get(copier.binding.name, (0, 0))
                lag = max(0, copies.stream.visible_end - max(copier.copied, 0)) if copier.copied >= 0 else 0
                rows[copier.binding.name] = behind + lag, copied + copier.records_copied
        return [(name, behind, copied) for name, (behind, copied) in sorted(rows.items())]


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("binding.task_failed", task=task.get_name(), error=repr(task.exception()))
