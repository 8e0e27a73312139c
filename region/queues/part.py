"""The queues of one coordinator: replicated state, and at its leader the queues that are served.

Rule 1: commands are applied everywhere; only the leader has LiveQueues, made from the state when it is elected.
Rule 2: the part is served wherever the coordinator is at home. Every epoch of that home ends all leases, on every
        replica at the same place: nobody who has a lease of an old home settles anything at the new one.
Rule 3: an answer that something is done is given after the command was applied here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import structlog

from georelay.errors import GeorelayError, NotLeader, OutcomeUnknown, UnknownTopic
from georelay.ids import RaftIndex
from region.coordination.log import CoordinatorLog, TimerHandle, check_level
from region.coordination.part import JsonObject, Part
from region.coordination.shares_core import Shares
from region.queues.commands_core import CreateQueue, QueueCommand, decode_command, encode_command, needed_level
from region.queues.counters import QueueCounters
from region.queues.dead_letters import publish_letters
from region.queues.delivery_traces import QueueTraces
from region.queues.kept_texts import KeptTexts
from region.queues.live_queue import LiveQueue, gone
from region.queues.operations import Operations
from region.queues.partition_reader import SharedReading, read_partition
from region.queues.ports import QueueCluster
from region.queues.queue_core import QueueState
from region.queues.state_core import Applied, QueuesState
from region.routing.copies_core import COPY_MARK, decode_copy_command
from region.routing.copy_operations import COPY_OPERATIONS, CopyOperations

log = structlog.get_logger()

FOLLOW_S = 2.0  # how often new partitions, and new epochs of those that are waited for, are looked for


class QueuesPart:
    """Implements region.coordination.part.CoordinatorPart.

    Args:
        reading: shared by all coordinators of a broker, as `counters` and `traces` are.
    """

    part = Part.QUEUES

    def __init__(
        self,
        coordinator: CoordinatorLog,
        *,
        cluster: QueueCluster,
        counters: QueueCounters | None = None,
        reading: SharedReading | None = None,
        traces: QueueTraces | None = None,
    ) -> None:
        self.cluster = cluster
        self.counters = QueueCounters() if counters is None else counters
        self.log = coordinator
        self._traces = traces
        self._reading = SharedReading() if reading is None else reading
        self._state = QueuesState()
        self._live: dict[str, LiveQueue] = {}
        self._read: dict[str, int] = {}  # by queue: partitions that are read
        self.making: list[str] = []  # whose are the queues that are being made
        self._leads = False
        self._number = 0
        self._results: dict[int, Applied | None] = {}  # of proposals that are waited for
        self._timer: TimerHandle | None = None
        self.texts = KeptTexts(self._state, coordinator.monotonic_ns)
        self._operations = Operations(self)
        self._copies = CopyOperations(coordinator, self._state.copies)

    # --- replicated state -------------------------------------------------------------------------

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        """Follow one committed command."""
        del index  # the state does not depend on where the log has it
        if command[:1] == COPY_MARK:
            self._state.copies.apply(decode_copy_command(command)[0])
            return
        decoded, number = decode_command(command)
        applied = self._state.apply(decoded, append_us=append_us)
        if self._leads:
            if number in self._results:
                self._results[number] = applied
            self._follow(decoded, applied)

    def snapshot(self) -> bytes:
        """Return the replicated state."""
        return self._state.snapshot()

    def restore(self, raw: bytes) -> None:
        """Replace the replicated state (ValueError: not a snapshot)."""
        self._state.restore(raw)

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        """End every lease: who has one was told so by another home. What is done stays done."""
        del append_us  # the records are free at once
        self._state.fence(epoch)

    def claim(self, name: str) -> int:
        """Return 1 for a queue that is there: of two of one name in two regions, each region's clients keep theirs."""
        return int(self._state.find(name) is not None)

    # --- leading ----------------------------------------------------------------------------------

    def elected(self) -> None:
        """Serve the queues that are there."""
        self._leads = True
        self.texts = KeptTexts(self._state, self.log.monotonic_ns)
        for queue in self._state:
            self._open(queue)
        self._timer = self.log.call_later(FOLLOW_S, self._follow_partitions)
        log.info("queues.loaded", coordinator=self.log.partition, queues=len(self._live))

    def deposed(self) -> None:
        """Tell everybody who waits to ask the new leader."""
        self._stop(NotLeader("this broker does not lead the coordinator any more"))

    def close(self) -> None:
        """End tasks and timers."""
        self._stop(NotLeader("this broker is shutting down"))

    def _stop(self, error: GeorelayError) -> None:
        self._leads = False
        if self._timer is not None:
            self._timer.cancel()
        live, self._live = self._live, {}
        self._read.clear()
        for queue in live.values():
            queue.close(error)

    async def call(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        """Answer one operation; see region.queues.operations."""
        if operation.startswith(COPY_OPERATIONS):
            return await self._copies.answer(operation, body)
        return await self._operations.answer(operation, body, principal=principal)

    def live(self, name: str) -> LiveQueue:
        """Return a queue that is served here (UnknownQueue)."""
        found = self._live.get(name)
        if found is None:
            if not self._leads:
                raise NotLeader("this broker does not lead the coordinator")
            raise gone(name)
        return found

    def find(self, name: str) -> LiveQueue | None:
        """Return a queue, None for one that is not there."""
        return self._live.get(name)

    def queues(self) -> Iterator[LiveQueue]:
        """Return every queue, by name."""
        return iter(sorted(self._live.values(), key=lambda queue: queue.name))

    @property
    def home_epoch(self) -> int:
        """Return the home epoch of the coordinator that leases are given in now."""
        return self._state.epoch

    async def propose(self, command: QueueCommand, *, shrinks: bool = False) -> Applied:
        """Have a command replicated; return what it did here.

        Raises as CoordinatorLog.propose. Unavailable: brokers of this region do not understand it yet.
        """
        check_level(self.log, needed_level(command))
        self._number += 1
        number = self._number
        self._results[number] = None
        try:
            await self.log.propose(Part.QUEUES, encode_command(command, number), shrinks=shrinks)
            applied = self._results[number]
        finally:
            del self._results[number]
        if applied is None:  # applied while this broker was no leader for a moment
            raise OutcomeUnknown("the command was applied while the leader of the coordinator changed")
        return applied

    # --- inside -----------------------------------------------------------------------------------

    def _follow(self, command: QueueCommand, applied: Applied) -> None:
        state = self._state.find(applied.queue)
        live = self._live.get(applied.queue)
        if state is None:
            if live is not None:
                del self._live[applied.queue]
                self._read.pop(applied.queue, None)
                live.close(gone(applied.queue))
        elif live is None or isinstance(command, CreateQueue):
            if live is None:
                self._open(state)
        else:
            live.applied(applied)

    def _open(self, state: QueueState) -> None:
        name = state.definition.name
        live = LiveQueue(
            state,
            coordinator=self.log,
            cluster=self.cluster,
            propose=self.propose,
            rows_left=partial(self._rows_left, state),
            counters=self.counters,
            traces=self._traces,
        )
        self._live[name] = live
        self._read[name] = 0
        live.start([publish_letters(live, self.log)])
        self._read_more(live)

    def queue_shares(self) -> Shares:
        """Return whose are how many queues, those that are being made too."""
        shares = self._state.queue_shares()
        for principal in self.making:
            shares.add(principal, 1)
        return shares

    def _rows_left(self, queue: QueueState) -> int:
        return self._state.row_shares().left(queue.principal)

    def _read_more(self, live: LiveQueue) -> None:
        try:
            view = live.view()
        except UnknownTopic:
            return
        known = self._read[live.name]
        if view.partitions > known:
            self._read[live.name] = view.partitions
            live.start(read_partition(live, partition, self._reading) for partition in range(known, view.partitions))

    def _follow_partitions(self) -> None:
        for live in list(self._live.values()):
            self._read_more(live)
            live.follow_epochs()
        self._timer = self.log.call_later(FOLLOW_S, self._follow_partitions)


def queues_factory(
    cluster: Callable[[], QueueCluster], *, counters: QueueCounters | None = None, traces: QueueTraces | None = None
) -> Callable[[CoordinatorLog], QueuesPart]:
    """Return what Coordinators.register takes for Part.QUEUES."""
    shared, reading = QueueCounters() if counters is None else counters, SharedReading()

    def make(coordinator: CoordinatorLog) -> QueuesPart:
        return QueuesPart(coordinator, cluster=cluster(), counters=shared, reading=reading, traces=traces)

    return make
