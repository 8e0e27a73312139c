"""Coordinators in one process, in memory: for tests of parts and of what asks them, and for tools. Nothing is durable.

Rule 1: it behaves as the replicated one does: commands of one turn of the event loop commit together, in a later turn,
        futures resolve after `apply`, a deposed leader's proposals have an unknown outcome.
Rule 2: the test says when: clocks stand still until `advance`, and with `hold` nothing commits until `release`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Final

from georelay.errors import CoordinatorUnavailable, NotCoordinator, NotLeader, OutcomeUnknown, TooLarge
from georelay.ids import BrokerId, RaftIndex, RegionNumber
from georelay.wire.murmur2 import partition_for_key
from region.coordination.coordinators import CALL_TIMEOUT_S, COORDINATORS, MOVES_LEVEL, MakePart
from region.coordination.limits import COMMAND_BYTES_MAX
from region.coordination.log import TimerHandle
from region.coordination.part import CoordinatorPart, JsonObject, Part

START_US: Final = 1_700_000_000_000_000
FIRST_REGION: Final = RegionNumber(1)


class HeldTimer:
    """A call of InMemoryClock.call_later; it is due at `at_ns`."""

    __slots__ = ("at_ns", "callback", "cancelled")

    def __init__(self, at_ns: int, callback: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Forget it."""
        self.cancelled = True


class InMemoryClock:
    """Wall and monotonic time that move when they are told to. Implements georelay.clock.Clock."""

    def __init__(self, *, wall_us: int = START_US) -> None:
        self._start_us = wall_us
        self._now_ns = 0
        self._timers: list[tuple[int, int, HeldTimer]] = []
        self._numbers = itertools.count()

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._start_us * 1000 + self._now_ns

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was made."""
        return self._now_ns

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` in the `advance` that reaches it."""
        timer = HeldTimer(self._now_ns + round(delay_s * 1e9), callback)
        heapq.heappush(self._timers, (timer.at_ns, next(self._numbers), timer))
        return timer

    @property
    def timers(self) -> int:
        """Return how many calls are still to come."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due is called in order, each at its time."""
        until = self._now_ns + round(seconds * 1e9)
        while self._timers and self._timers[0][0] <= until:
            at_ns, _, timer = heapq.heappop(self._timers)
            self._now_ns = max(self._now_ns, at_ns)
            if not timer.cancelled:
                timer.callback()
        self._now_ns = until


Pending = tuple[Part, bytes, "asyncio.Future[RaftIndex]"]


class InMemoryCoordinatorLog:
    """Implements CoordinatorLog: one coordinator with one replica, which can stop leading, restart and be copied.

    Attributes:
        parts: the replica's, by kind.
        feature_level: of the region; a test may lower it.
        commands: every committed (index, append_us, part, command), for another replica to follow.
    """

    def __init__(
        self,
        *,
        partition: int = 0,
        clock: InMemoryClock | None = None,
        broker: int = 1001,
        origin: RegionNumber = FIRST_REGION,
    ) -> None:
        self.partition = partition
        self.origin = origin
        self.clock = InMemoryClock() if clock is None else clock
        self.broker = broker
        self.leader = -1
        self.feature_level = MOVES_LEVEL
        self.parts: dict[Part, CoordinatorPart] = {}
        self.commands: list[tuple[RaftIndex, int, Part, bytes]] = []
        self._index = 0
        self._append_us = 0
        self._held = False
        self._pending: list[Pending] = []
        self._scheduled = False

    # --- what a part asks -------------------------------------------------------------------------

    def is_understood(self, level: int) -> bool:
        """Return whether the region is at that feature level; there are no others."""
        return self.feature_level >= level

    @property
    def is_leader(self) -> bool:
        """Return whether `elect` came last."""
        return self.leader == self.broker

    def propose(self, part: Part, command: bytes, *, shrinks: bool = False) -> asyncio.Future[RaftIndex]:
        """Commit one command in a later turn of the event loop, or at `release`; see CoordinatorLog."""
        del shrinks  # no manifest has to hold this state
        if not self.is_leader:
            raise NotLeader(leader=self.leader)
        if len(command) > COMMAND_BYTES_MAX:
            raise TooLarge(f"a command of {len(command)} bytes is over {COMMAND_BYTES_MAX}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RaftIndex] = loop.create_future()
        self._pending.append((part, bytes(command), future))
        if not self._held and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._commit_soon)
        return future

    def now_us(self) -> int:
        """Return the clock's wall time, never behind the newest append time."""
        return max(self.clock.wall_ns() // 1000, self._append_us)

    def monotonic_ns(self) -> int:
        """Return the clock's monotonic time."""
        return self.clock.monotonic_ns()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` in the clock's `advance` that reaches it."""
        return self.clock.call_later(delay_s, callback)

    # --- what a test does -------------------------------------------------------------------------

    def add(self, part: CoordinatorPart) -> None:
        """Have this replica hold a part, from the state before the first command."""
        self.parts[part.part] = part

    def elect(self) -> None:
        """Let this broker lead."""
        self.leader = self.broker
        for part in self.parts.values():
            part.elected()

    def depose(self, *, leader: int = -1) -> None:
        """Let another broker lead; what is not committed is lost and has an unknown outcome."""
        self.leader = leader
        pending, self._pending = self._pending, []
        for _, _, future in pending:
            if not future.done():
                future.set_exception(OutcomeUnknown("the leader changed before the command was committed"))
                future.exception()
        for part in self.parts.values():
            part.deposed()

    def hold(self) -> None:
        """Commit nothing until `release`."""
        self._held = True

    def release(self) -> None:
        """Commit what was proposed meanwhile, now."""
        self._held = False
        self._commit()

    def _commit_soon(self) -> None:
        self._scheduled = False
        if not self._held:
            self._commit()

    def _commit(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        self._index += 1
        index = RaftIndex(self._index)
        self._append_us = self.now_us()
        for part, command, _ in pending:
            self.commands.append((index, self._append_us, part, command))
            if part in self.parts:
                self.parts[part].apply(command, index=index, append_us=self._append_us)
        for _, _, future in pending:
            if not future.done():
                future.set_result(index)

    def replay(self, part: CoordinatorPart, *, above: int = 0) -> None:
        """Let another replica's part follow the commands above an index, as a follower or a restart does."""
        for index, append_us, kind, command in self.commands:
            if kind is part.part and index > above:
                part.apply(command, index=index, append_us=append_us)

    def restart(self, make: MakePart) -> CoordinatorPart:
        """Replace a part by a new one made from its snapshot; returns it, not elected."""
        part = make(self)
        old = self.parts[part.part]
        part.restore(old.snapshot())
        old.close()
        self.parts[part.part] = part
        return part


class InMemoryCoordinators:
    """Implements Coordinators over in-memory logs that this process leads, one for each partition.

    Attributes:
        logs: by partition; `elect` and `depose` them as the test wants.
    """

    def __init__(
        self, *, clock: InMemoryClock | None = None, partitions: int = COORDINATORS, broker: int = 1001
    ) -> None:
        self.clock = InMemoryClock() if clock is None else clock
        self.logs = [
            InMemoryCoordinatorLog(partition=row, clock=self.clock, broker=broker) for row in range(partitions)
        ]
        for log in self.logs:
            log.elect()

    def register(self, part: Part, make: MakePart) -> None:
        """Hold such a part in every coordinator, elected where its log is."""
        for log in self.logs:
            if part in log.parts:
                raise ValueError(f"there is a part {part.name} already")
            made = make(log)
            log.add(made)
            if log.is_leader:
                made.elected()

    def partition_of(self, key: str) -> int:
        """Return the coordinator of a key."""
        return partition_for_key(key.encode(), len(self.logs))

    def leader_of(self, key: str, part: Part = Part.GROUPS) -> BrokerId:
        """Return the broker that leads it, -1 without one."""
        return BrokerId(self.logs[self.partition_of(key)].leader)

    def elsewhere(self, broker: int) -> None:
        """Return None: there are no other regions here."""

    async def ready(self, key: str, part: Part = Part.GROUPS) -> BrokerId:
        """Return the same, without waiting for one."""
        leader = self.leader_of(key)
        if leader < 0:
            raise CoordinatorUnavailable(f"coordinator {self.partition_of(key)} has no leader")
        return leader

    def part_here(self, key: str, part: Part) -> CoordinatorPart:
        """Return the part that answers for a key."""
        log = self.logs[self.partition_of(key)]
        if not log.is_leader:
            raise NotCoordinator(leader=log.leader)
        return log.parts[part]

    def parts_here(self, part: Part) -> Iterable[CoordinatorPart]:
        """Return this part of every coordinator led here."""
        return [log.parts[part] for log in self.logs if log.is_leader and part in log.parts]

    async def call(
        self,
        part: Part,
        key: str,
        operation: str,
        body: JsonObject,
        *,
        principal: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        origin: RegionNumber | None = None,
    ) -> JsonObject:
        """Ask the part that answers for a key; what cannot travel as JSON is refused as between brokers."""
        del timeout_s, origin  # one region's are all there are
        leader = await self.ready(key)
        answering = self.part_here(key, part)
        assert leader > 0
        return _as_json(await answering.call(operation, _as_json(body), principal=principal))

    async def gather(
        self,
        part: Part,
        operation: str,
        body: JsonObject,
        *,
        principal: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[JsonObject]:
        """Ask this part of every coordinator."""
        del timeout_s
        return [
            _as_json(await answering.call(operation, _as_json(body), principal=principal))
            for answering in self.parts_here(part)
        ]


def _as_json(body: JsonObject) -> JsonObject:
    """Return what arrives at another broker. Raises TypeError, ValueError: it cannot travel."""
    arrived = json.loads(json.dumps(body, allow_nan=False))
    assert isinstance(arrived, dict)
    return arrived
