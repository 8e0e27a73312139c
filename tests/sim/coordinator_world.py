"""The world of coordinators: the region's hosts with coordinator streams above them, and clients that propose commands.

Every command is a number that is sent once. Rules, beside those of the region:

    command-lost     whoever is elected has applied every command that was acknowledged before; so have all in the end
    command-twice    no replica applies a command twice, whatever manifests and restarts came between
    command-order    replicas hold equal states at equal index (the region's rule, over manifests with parts)
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

from georelay.errors import GeorelayError, OutcomeUnknown
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.coordination.coordinator_stream import CoordinatorStream
from region.coordination.part import JsonObject, Part
from region.multiraft import followed_log
from tests.sim.clients import HOP_NS
from tests.sim.clockwork import NS_PER_MS
from tests.sim.patching import replaced
from tests.sim.region_world import RegionSettings, RegionWorld
from tests.sim.violation import Violation

SETTINGS: Final = RegionSettings(groups=2, producers=0)
PROPOSERS: Final = 3  # of each coordinator
RECOVERED_TAIL_BYTES: Final = 2_048


class Numbers:
    """A part that holds the commands it was given, in order."""

    part = Part.GROUPS

    def __init__(self, world: CoordinatorWorld, group_id: GroupId) -> None:
        self.commands: list[int] = []
        self._world = world
        self._group_id = group_id
        self._known: set[int] = set()
        self._serves = False

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        del append_us
        number = int(command)
        if number in self._known:
            raise Violation("command-twice", f"group {self._group_id}: command {number} again at index {index}")
        self._known.add(number)
        self.commands.append(number)

    def snapshot(self) -> bytes:
        return json.dumps(self.commands).encode() if self.commands else b""

    def restore(self, raw: bytes) -> None:
        self.commands = json.loads(raw) if raw else []
        self._known = set(self.commands)
        self._world.mark("coordinator.restored" if raw else "coordinator.restored_empty")

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        del append_us, epoch

    def claim(self, name: str) -> int:
        del name
        return 0

    def elected(self) -> None:
        if self._serves:
            raise Violation("command-lost", f"group {self._group_id}: elected twice")
        self._serves = True
        self.check("the elected")
        self._world.mark("coordinator.elected_with_state" if self.commands else "coordinator.elected_empty")

    def check(self, who: str) -> None:
        """Raise Violation unless everything acknowledged is here."""
        missing = self._world.acknowledged[self._group_id] - self._known
        if missing:
            raise Violation("command-lost", f"group {self._group_id}: {who} lacks {sorted(missing)[:5]}")

    def deposed(self) -> None:
        self._serves = False
        self._world.mark("coordinator.deposed")

    def close(self) -> None:
        self._serves = False

    async def call(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        raise AssertionError(f"nobody calls {operation} for {principal or body}")


class Proposer:
    """Proposes one, or some at once, to whom it takes for the leader."""

    def __init__(self, world: CoordinatorWorld, group_id: GroupId, *, rng: random.Random, period_ns: int) -> None:
        self.stopped = False
        self._world = world
        self._group_id = group_id
        self._rng = rng
        self._period_ns = period_ns
        self._leader = rng.choice(world.brokers)
        world.clockwork.after(rng.randrange(period_ns), self._propose)

    def _propose(self) -> None:
        if self.stopped:
            return
        world, rng = self._world, self._rng
        life = world.lives.get(self._leader)
        if life is None:
            self._leader = rng.choice(world.brokers)
        else:
            at = world.clockwork.now_ns + HOP_NS + rng.randrange(HOP_NS)
            world.clockwork.at(at, life.loop, life.loop.run_now, self._arrive, life, rng.choice((1, 1, 2, 7)))
        world.clockwork.after(int(self._period_ns * (0.5 + rng.random())), self._propose)

    def _arrive(self, life: Any, count: int) -> None:
        stream = life.streams.get(self._group_id) if life.serving else None
        if stream is None:
            self._leader = self._rng.choice(self._world.brokers)
            return
        for _ in range(count):
            number = self._world.next_command()
            command = str(number).encode().ljust(self._rng.choice((8, 300, 1_500)))
            try:
                future = stream.propose(Part.GROUPS, command)
            except GeorelayError as error:
                self._refused(error)
                return
            future.add_done_callback(lambda done, number=number: self._answered(number, done))

    def _answered(self, number: int, future: Any) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._world.acknowledged[self._group_id].add(number)
            self._world.mark("coordinator.acknowledged")
        else:
            self._refused(error)

    def _refused(self, error: BaseException) -> None:
        unknown = isinstance(error, OutcomeUnknown)
        self._world.mark("coordinator.outcome_unknown" if unknown else f"coordinator.{type(error).__name__}")
        hint = getattr(error, "leader", -1)
        brokers = self._world.brokers
        self._leader = BrokerId(hint) if hint in brokers and hint != self._leader else self._rng.choice(brokers)


class CoordinatorWorld(RegionWorld):
    """A region whose groups are coordinators."""

    feature_level = 3

    def __init__(self, seed: int, settings: RegionSettings | None = None) -> None:
        super().__init__(seed, settings or SETTINGS)
        self.acknowledged: dict[GroupId, set[int]] = {group_id: set() for group_id in self.groups}
        self.proposers: list[Proposer] = []
        self._commands = 0

    def next_command(self) -> int:
        """Return a number that was never used."""
        self._commands += 1
        return self._commands

    def make_stream(self, **arguments: Any) -> CoordinatorStream:
        """Return the machine of a coordinator on one broker."""
        group_id = arguments["group_id"]
        return CoordinatorStream(parts={Part.GROUPS: lambda _: Numbers(self, group_id)}, **arguments)

    def run(self) -> None:
        """Play the seed. Raises Violation."""
        # At a start little of the log stays in memory, except for a machine that keeps all of it.
        with replaced(followed_log, "TAIL_BYTES_MAX", RECOVERED_TAIL_BYTES):
            super().run()

    def _make_clients(self) -> None:
        super()._make_clients()
        for group_id in self.groups:
            for _ in range(PROPOSERS):
                self.proposers.append(Proposer(self, group_id, rng=self.fork(), period_ns=self.period_ns))

    def _settle(self) -> None:
        self.clockwork.run_until(self.clockwork.now_ns + 500 * NS_PER_MS)
        for proposer in self.proposers:
            proposer.stopped = True
        super()._settle()
        for group_id in self.groups:
            self._check_members(group_id)

    def _check_members(self, group_id: GroupId) -> None:
        hosts = {life.me: life for life in self.lives.values() if life.host is not None and group_id in life.streams}
        nodes = {broker: life.host.groups[group_id].node for broker, life in hosts.items() if life.host is not None}
        members = next(node.membership.members() for node in nodes.values() if node.is_leader)
        for broker in members:
            if broker == self.exempt:
                continue
            stream = hosts[broker].streams[group_id]
            assert isinstance(stream, CoordinatorStream)
            part = stream.parts[Part.GROUPS]
            assert isinstance(part, Numbers)
            part.check(f"broker {broker} in the end")
