"""One queue at the leader of its coordinator: reading ahead, handing out, timers.

Rule 1: a record is handed out after its lease was applied; what is acknowledged was applied as done before it is said.
Rule 2: everything here can be lost: the next leader builds it again from the replicated state and the log.
Rule 3: what cannot be proposed (too much waits, a change of the leader) is tried again by the timer.
Rule 4: when the home of the topic has moved, nothing that was read of a branch that is cut off is leased under an
        offset that another record has by then: records leave the index before the epoch is followed, and what is not
        in the index is not leased.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol

import structlog

from georelay.errors import Busy, GeorelayError, Unavailable, UnknownQueue, UnknownTopic
from georelay.wire.records import Record
from mesh.replication.ports import EpochRow
from region.coordination.coordinators import MOVES_LEVEL
from region.coordination.log import CoordinatorLog, TimerHandle
from region.kafka.ports import ReadAnswer, TopicView
from region.queues.commands_core import (
    ANY_EPOCH,
    BeginEpoch,
    Bury,
    Condemn,
    Deliver,
    Drop,
    GiveBack,
    PassOver,
    QueueCommand,
    in_chunks,
)
from region.queues.contents import ReadRecord, read_again, size_bytes
from region.queues.counters import QueueCounters
from region.queues.definition import DELAY_HEADER, TTL_HEADER, Order, read_header_ms
from region.queues.delivery_traces import DeliveryTraces, HandedOut, QueueTraces
from region.queues.dispatch_core import WaitingLine
from region.queues.epochs_core import begun_after, epoch_at, is_cut_off, newest_epoch
from region.queues.index_core import EXPIRED, OpenRecord, QueueIndex
from region.queues.limits import (
    CACHED_BYTES_PER_QUEUE_MAX,
    DELAY_MS_MAX,
    RECEIVE_BYTES_MAX,
    RECORD_BYTES_MAX,
    TTL_MS_MAX,
    WAITING_RECEIVES_PER_QUEUE_MAX,
)
from region.queues.local_names import local_view
from region.queues.ports import QueueCluster
from region.queues.queue_core import FIRST_EPOCH, Claim, Passed, Place, QueueState, RecordState
from region.queues.sessions_core import Sessions
from region.queues.state_core import Applied, Generation

log = structlog.get_logger()

TIMER_S_MIN: Final = 0.002
RETRY_S: Final = 0.2
SESSION_TIMEOUT_MS_DEFAULT: Final = 30_000
ROOM_S: Final = 1.0  # until room is looked for again for the rows of what has expired
TOO_LARGE: Final = "too_large"
UNREADABLE: Final = "unreadable"
EXPIRED_US: Final = 1  # of a record that cannot be handed out: it is over before anybody can have it


class Proposer(Protocol):
    """Has a command replicated and applied."""

    def __call__(self, command: QueueCommand, *, shrinks: bool = False) -> Awaitable[Applied]:
        """Return what it did. Raises as CoordinatorLog.propose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A record that a consumer has a lease of until `until_us`, of a generation."""

    claim: Claim
    generation: Generation
    record: Record
    until_us: int


@dataclass(eq=False, slots=True, kw_only=True)
class Receive:
    """A receive that waits. `left` counts the records that it may still get."""

    consumer: str
    left: int
    answer: asyncio.Future[list[Delivered]]
    timer: TimerHandle | None = None
    given: list[OpenRecord] = field(default_factory=list)
    given_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Return whether nothing more may be added."""
        return self.left <= 0 or self.given_bytes >= RECEIVE_BYTES_MAX


class LiveQueue:
    """Args:
    rows_left: how many records that were never handed out the coordinator has room for.
    """

    def __init__(
        self,
        state: QueueState,
        *,
        coordinator: CoordinatorLog,
        cluster: QueueCluster,
        propose: Proposer,
        rows_left: Callable[[], int],
        counters: QueueCounters,
        traces: QueueTraces | None = None,
    ) -> None:
        self.state = state
        self.cluster = cluster
        self.propose = propose
        self.counters = counters
        self.index = QueueIndex(state)
        self.sessions = Sessions()
        self.traces = DeliveryTraces(state.definition.name, traces or QueueTraces())
        self.line: WaitingLine[Receive] = WaitingLine()
        self.room = asyncio.Event()  # set when something is done: readers look whether they may go on
        self.letters = asyncio.Event()  # set when there may be dead letters to publish
        self.begins: dict[int, int] = {}  # by partition: where its reader has to go back to, for an epoch began there
        self.reading: dict[int, asyncio.Future[ReadAnswer]] = {}  # by partition: what its reader waits for
        self.ends: dict[int, tuple[int, int]] = {}  # by partition: read up to, end of what readers see
        self._log = coordinator
        self._rows_left = rows_left
        self._timer: TimerHandle | None = None
        self._timer_ns = 0
        self._retry_ns = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: set[Receive] = set()
        self._closed = False
        now_ns = coordinator.monotonic_ns()
        for consumer in list(self.index.holders()):
            self.sessions.begin(consumer, SESSION_TIMEOUT_MS_DEFAULT, now_ns)
        if state.letters:
            self.letters.set()

    @property
    def name(self) -> str:
        """Return the name of the queue."""
        return self.state.definition.name

    def view(self) -> TopicView:
        """Return the topic under the name that it has in this region (UnknownTopic: it is not there any more)."""
        definition = self.state.definition
        view = local_view(self.cluster, definition.topic, origin=self._log.origin)
        if view is None or view.topic_id != definition.topic_id:
            raise UnknownTopic(f"the topic {definition.topic!r} of queue {self.name} was deleted")
        return view

    # --- life -------------------------------------------------------------------------------------

    def start(self, tasks: Iterable[Coroutine[Any, Any, None]] = ()) -> None:
        """Begin to serve, with readers and the publisher of dead letters."""
        for task in tasks:
            self._spawn(task)
        self._arm()

    def close(self, error: GeorelayError) -> None:
        """End: everyone who waits gets `error`."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for waiting in [*self.line.clear(), *self._serving]:
            self._fail(waiting, error)  # what one of them was leased meanwhile comes back when the lease is over
        self._serving.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"queue {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("queue.task_failed", queue=self.name, error=repr(task.exception()))

    async def pause(self, seconds: float) -> None:
        """Return after a while on the coordinator's clock."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._log.call_later(seconds, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    # --- following the replicated state -----------------------------------------------------------

    def applied(self, applied: Applied) -> None:
        """Follow a command that was applied to this queue."""
        now_us = self._log.now_us()
        for place in applied.places:
            self.index.refresh(place, now_us)
        if applied.passed >= 0:
            self.index.refresh_partition(applied.passed, now_us)
        self.room.set()
        if self.state.letters:
            self.letters.set()
        self.dispatch()
        self._arm()

    # --- records that were read -------------------------------------------------------------------

    def add(self, partition: int, rows: Sequence[ReadRecord]) -> None:
        """Take in records of a partition, ascending; those that are done already are left out."""
        now_us = self._log.now_us()
        for row in rows:
            place = Place(partition, row.record.offset)
            if self.state.state_of(place) is RecordState.DONE or self.index.find(place) is not None:
                continue
            opened = self._opened(place, row)
            if opened.refused == TOO_LARGE:
                log.error("queue.record_too_large", queue=self.name, place=str(place), bytes=opened.size_bytes)
            elif opened.refused:
                log.error("queue.record_unreadable", queue=self.name, place=str(place), why=row.flaw)
            self.index.add(opened, now_us)
        self.dispatch()
        self._arm()

    def _opened(self, place: Place, row: ReadRecord) -> OpenRecord:
        definition, record, append_us = self.state.definition, row.record, row.batch.append_us
        headers = dict(record.headers)
        delay_ms = read_header_ms(headers.get(DELAY_HEADER), definition.delay_ms, high_ms=DELAY_MS_MAX)
        ttl_ms = read_header_ms(headers.get(TTL_HEADER), definition.ttl_ms, high_ms=TTL_MS_MAX)
        size = size_bytes(record)
        refused = UNREADABLE if row.flaw else TOO_LARGE if size > RECORD_BYTES_MAX else ""
        expires_us = EXPIRED_US if refused else append_us + ttl_ms * 1000 if ttl_ms else 0
        is_kept = self.index.cached_bytes + size <= CACHED_BYTES_PER_QUEUE_MAX
        return OpenRecord(
            place=place,
            key=record.key if definition.order is Order.KEY else None,
            batch=row.batch,
            available_us=append_us + delay_ms * 1000 if delay_ms else 0,  # clocks of two regions differ
            expires_us=expires_us,
            size_bytes=size,
            content=record if is_kept else None,
            refused=refused,
        )

    def _deliveries(self, place: Place) -> int:
        row = self.state.row(place)
        return 0 if row is None else row.deliveries

    # --- handing out ------------------------------------------------------------------------------

    async def receive(self, consumer: str, count: int, *, wait_s: float, session_timeout_ms: int) -> list[Delivered]:
        """Return up to `count` records, leased to the consumer; [] when there are none within `wait_s`.

        Raises:
            Busy: too many consumers or receives. UnknownQueue: deleted meanwhile. As CoordinatorLog.propose.
        """
        if len(self.line) >= WAITING_RECEIVES_PER_QUEUE_MAX:
            raise Busy(f"{WAITING_RECEIVES_PER_QUEUE_MAX} receives wait for records of queue {self.name} already")
        session = self.sessions.begin(consumer, session_timeout_ms, self._log.monotonic_ns())
        waiting = Receive(consumer=consumer, left=count, answer=asyncio.get_running_loop().create_future())
        session.waits += 1
        try:
            self.line.join(waiting)
            self.dispatch()
            if waiting in self.line:
                if wait_s <= 0:
                    self._give_up(waiting)
                else:
                    waiting.timer = self._log.call_later(wait_s, lambda: self._give_up(waiting))
            return await waiting.answer
        finally:
            self.line.leave(waiting)
            if waiting.timer is not None:
                waiting.timer.cancel()
            session.waits -= 1
            self.sessions.heard(consumer, self._log.monotonic_ns())
            self._arm()

    def _give_up(self, waiting: Receive) -> None:
        if waiting in self.line:
            self.line.leave(waiting)
            if not waiting.answer.done():
                waiting.answer.set_result([])

    def dispatch(self) -> None:
        """Give ready records to receives that wait."""
        if self._closed or not len(self.line):
            return
        now_us = self._log.now_us()
        served: dict[Receive, None] = {}
        added: dict[str, int] = {}
        rows_left = self._rows_left()

        def outstanding(consumer: str) -> int:
            return len(self.index.held_by(consumer)) + added.get(consumer, 0)

        while len(self.line):
            record = self.index.take(now_us, only_again=rows_left <= 0)
            if record is None:
                break
            waiting = self.line.next(self.state.definition.dispatch, outstanding)
            waiting.given.append(record)
            waiting.given_bytes += record.size_bytes
            waiting.left -= 1
            rows_left -= 1
            added[waiting.consumer] = added.get(waiting.consumer, 0) + 1
            served[waiting] = None
            if waiting.is_full:
                self.line.leave(waiting)
            else:
                self.line.join(waiting)
        for waiting in served:
            self.line.leave(waiting)
            self._serving.add(waiting)
            self._spawn(self._hand_out(waiting))

    async def _hand_out(self, waiting: Receive) -> None:
        try:
            delivered = await self._lease(waiting)
        except GeorelayError as error:
            now_us = self._log.now_us()
            for record in waiting.given:
                self.index.untake(record.place, now_us)
            self._fail(waiting, error)
            self._serving.discard(waiting)
            self.dispatch()
            return
        self._serving.discard(waiting)
        if not waiting.answer.done():
            waiting.answer.set_result(delivered)
            self._trace(waiting, delivered)
            return
        claims = [row.claim for row in delivered]  # whoever asked has gone
        await self.give_back(claims, due_us=self._log.now_us())

    def _trace(self, waiting: Receive, delivered: Sequence[Delivered]) -> None:
        given = {record.place: record for record in waiting.given}
        rows = [
            HandedOut(
                partition=row.claim.partition,
                offset=row.claim.offset,
                batch=record.batch,
                size_bytes=record.size_bytes,
                attempt=row.claim.deliveries,
                is_delayed=record.available_us > record.append_us,
            )
            for row in delivered
            if (record := given.get(row.claim.place)) is not None
        ]
        view = local_view(self.cluster, self.state.definition.topic, origin=self._log.origin)
        self.traces.delivered(waiting.consumer, view, rows, now_ns=self._log.now_us() * 1000)

    def read_up_to(self, partition: int, following: int, end: int) -> None:
        """Note how far a partition was read, of what readers see."""
        self.ends[partition] = (following, max(end, following))
        if following >= end:
            self.traces.caught_up(partition, self._log.now_us() * 1000)

    async def _lease(self, waiting: Receive) -> list[Delivered]:
        contents = {record.place: record.content for record in waiting.given if record.content is not None}
        missing = {record.place: record for record in waiting.given if record.content is None}
        if missing:
            wanted = {place: record.batch.epoch for place, record in missing.items()}
            found = await read_again(self.cluster, self.view().name, wanted)
            contents |= found
            for place, record in missing.items():
                if place not in found and self.index.find(place) is record:
                    await self.skip([place])
        current = (record for record in waiting.given if self.index.find(record.place) is record)
        places = tuple(record.place for record in current if record.place in contents)
        if not places:
            return []
        until_us = self._log.now_us() + self.state.definition.visibility_timeout_ms * 1000
        applied = await self.propose(
            Deliver(queue=self.name, consumer=waiting.consumer, until_us=until_us, places=places)
        )
        assert isinstance(applied.result, list)
        delivered = [
            Delivered(claim=Claim(*place, int(count)), generation=generation, record=contents[place], until_us=until_us)
            for place, count, generation in zip(places, applied.result, applied.generations, strict=True)
            if count
        ]
        self.counters.delivered += len(delivered)
        self.counters.redelivered += sum(row.claim.deliveries > 1 for row in delivered)
        return delivered

    def _fail(self, waiting: Receive, error: GeorelayError) -> None:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
            waiting.answer.exception()  # that nobody waits for it any more is no error

    # --- what ends leases -------------------------------------------------------------------------

    async def give_back(self, claims: Iterable[Claim], *, due_us: int) -> None:
        """End leases; their records may be delivered again from `due_us` on."""
        await self.end(claims, lambda chunk, _epoch: GiveBack(queue=self.name, due_us=due_us, claims=chunk))

    async def end(self, claims: Iterable[Claim], make: Callable[[tuple[Claim, ...], int], QueueCommand]) -> None:
        """Propose commands about records; what fails is tried again by the timer.

        Args:
            make: a command about claims of partitions that are all in one home epoch, and that epoch, to be written.
        """
        rows = sorted((self.state.epoch(claim.partition), claim) for claim in claims)
        cuts = {claim.partition: self.state.cut_epoch(claim.partition) for _, claim in rows}
        for epoch, same in groupby(rows, key=itemgetter(0)):
            for chunk in in_chunks(claim for _, claim in same):
                if chunk := tuple(claim for claim in chunk if self._may_end(claim, epoch, cuts[claim.partition])):
                    await self._end(chunk, make(chunk, self._written(epoch, {claim.partition for claim in chunk})))

    async def _end(self, claims: Sequence[Claim], command: QueueCommand) -> None:
        try:
            await self.propose(command, shrinks=True)
        except GeorelayError as error:
            log.debug("queue.delayed", queue=self.name, code=error.code)
            now_us = self._log.now_us()
            self._retry_ns = self._log.monotonic_ns() + round(RETRY_S * 1e9)
            for claim in claims:
                self.index.refresh(claim.place, now_us)
            self._arm()

    def _may_end(self, claim: Claim, epoch: int, cut: int) -> bool:
        """Return whether a claim means the record that has the offset now; one that was never leased says nothing."""
        if claim.deliveries:
            return self.state.cut_epoch(claim.partition) == cut
        return self.state.epoch(claim.partition) == epoch and self.index.find(claim.place) is not None

    def _written(self, epoch: int, partitions: Iterable[int]) -> int:
        """Return the epoch that a command about partitions names; it is proposed at once.

        It names none where no home has moved, or in a region of older brokers: older ones of other regions, which
        follow it too, may not understand it. It stands in the log before the command that follows the second epoch,
        which is proposed only after this broker has heard of that epoch.
        """
        if self._log.feature_level < MOVES_LEVEL:
            return ANY_EPOCH
        return epoch if any(self._has_moved(partition) for partition in partitions) else ANY_EPOCH

    def _has_moved(self, partition: int) -> bool:
        try:
            return self.state.epoch(partition) > FIRST_EPOCH or bool(self.epoch_table(partition))
        except UnknownTopic:
            return False

    async def skip(self, places: Iterable[Place]) -> None:
        """Be done with records that retention has deleted."""
        for place, epoch in [(place, self.state.epoch(place.partition)) for place in places]:
            ranges = ((place.offset, place.offset + 1),)
            await self.pass_over(place.partition, ranges, Passed.RETENTION, epoch=epoch)

    async def pass_over(self, partition: int, ranges: Iterable[tuple[int, int]], why: Passed, *, epoch: int) -> int:
        """Be done with offsets of a partition while it is in a home epoch; returns how many were not done before."""
        passed = 0
        for chunk in in_chunks(ranges):
            written = self._written(epoch, [partition])
            applied = await self.propose(
                PassOver(queue=self.name, partition=partition, ranges=chunk, why=why, epoch=written), shrinks=True
            )
            assert isinstance(applied.result, int)
            passed += applied.result
        if passed and why is Passed.RETENTION:
            self.counters.records_skipped += passed
            log.warning("queue.records_skipped", queue=self.name, partition=partition, count=passed)
        return passed

    def epoch_table(self, partition: int) -> Sequence[EpochRow]:
        """Return the home epochs of a partition, as far as this broker knows. Raises UnknownTopic."""
        return self.cluster.epoch_table(self.view().name, partition)

    def begun(self, partition: int) -> tuple[int, int] | None:
        """Return (epoch, start) of what has to be followed before anything else is read.

        Raises:
            UnknownTopic. Unavailable: an earlier leader followed an epoch of which this broker has not heard.
        """
        table, known = self.epoch_table(partition), self.state.epoch(partition)
        if newest_epoch(table) < known:
            raise Unavailable(f"epoch {known} of partition {partition} of queue {self.name} is not known here yet")
        return begun_after(table, known)

    def epoch_of(self, place: Place) -> int:
        """Return the home epoch of a record of which the state knows something.

        Raises:
            UnknownTopic. Unavailable: an epoch has begun below it that is not followed yet, or is not known here.
        """
        epoch = epoch_at(self.epoch_table(place.partition), place.offset)
        begun = self.begun(place.partition)
        if begun is not None and place.offset >= begun[1]:
            text = f"record {place.offset} of partition {place.partition} of queue {self.name}"
            raise Unavailable(f"{text} was lost with the home of the topic")
        return epoch

    def is_lost(self, place: Place, given_in: int) -> bool:
        """Return whether a lease of an epoch of the topic's partition is of a record that has lost its offset.

        Raises as `begun`.
        """
        partition = place.partition
        if not self.state.cut_epoch(partition) <= given_in <= self.state.epoch(partition):
            self.begun(partition)  # this broker knows at least what was followed
            return is_cut_off(self.epoch_table(partition), place.offset, known=given_in)
        return False

    def follow_epochs(self) -> None:
        """Let readers that wait for records look at the epochs that have begun."""
        for partition, reading in list(self.reading.items()):
            try:
                is_begun = self.begun(partition) is not None
            except GeorelayError:
                continue  # the reader says what is wrong
            if is_begun:
                reading.cancel()

    async def begin_epoch(self, partition: int, epoch: int, start: int) -> None:
        """Follow a home epoch of a partition: offsets from `start` on are other records, nobody had them yet."""
        self.index.forget_from(partition, start)
        self.begins[partition] = min(start, self.begins.get(partition, start))
        applied = await self.propose(
            BeginEpoch(queue=self.name, partition=partition, epoch=epoch, start=start), shrinks=True
        )
        log.info("queue.epoch_followed", queue=self.name, partition=partition, epoch=epoch, forgotten=applied.result)

    async def bury(self, places: Sequence[Place]) -> None:
        """Be done with records that are in the dead-letter topic."""
        await self.propose(Bury(queue=self.name, places=tuple(places)), shrinks=True)
        self.counters.dead_lettered += len(places)

    def claims_of(self, consumer: str) -> list[Claim]:
        """Return the leases that a consumer holds."""
        return [Claim(*place, self._deliveries(place)) for place in sorted(self.index.held_by(consumer))]

    # --- time -------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._closed:
            return
        now_ns = self._log.monotonic_ns()
        due_us = self.index.next_due_us()
        times = [] if due_us is None else [now_ns + (due_us - self._log.now_us()) * 1000]
        session_ns = self.sessions.next_due_ns()
        if session_ns is not None:
            times.append(session_ns)
        if not times:
            return
        at_ns = max(min(times), self._retry_ns, now_ns + round(TIMER_S_MIN * 1e9))
        if self._timer is not None:
            if self._timer_ns <= at_ns:
                return
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self._log.call_later((at_ns - now_ns) / 1e9, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_us = self._log.now_us()
        rows_left = self._rows_left() if self.state.definition.dead_letter_topic else None  # a dead letter has a row
        over, expired = self.index.due(now_us, new_max=rows_left)
        if rows_left is not None and (self.index.next_due_us() or now_us + 1) <= now_us:
            self._retry_ns = self._log.monotonic_ns() + round(ROOM_S * 1e9)
        if over:
            self.counters.leases_expired += len(over)
            self._spawn(self.give_back(over, due_us=now_us))
        for reason, claims in self.index.by_reason(expired).items():
            self.counters.records_expired += len(claims) * (reason == EXPIRED)
            self._spawn(self.end(claims, partial(self._give_up_on, reason)))
        for consumer in self.sessions.pop_lost(self._log.monotonic_ns()):
            claims = self.claims_of(consumer)
            if claims:
                self.counters.consumers_lost += 1
                log.info("queue.consumer_lost", queue=self.name, leases=len(claims))
                self._spawn(self.give_back(claims, due_us=now_us))
        self.dispatch()
        self._arm()

    def _give_up_on(self, reason: str, claims: tuple[Claim, ...], epoch: int) -> QueueCommand:
        if self.state.definition.dead_letter_topic:
            return Condemn(queue=self.name, reason=reason, claims=claims, epoch=epoch)
        return Drop(queue=self.name, claims=claims, epoch=epoch)


def gone(name: str) -> UnknownQueue:
    """Return the error of a queue that is not there."""
    return UnknownQueue(f"queue {name!r} does not exist; create it with `georelay queues create {name} --topic TOPIC`")
