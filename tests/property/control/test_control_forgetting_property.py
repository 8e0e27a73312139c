"""Nothing that was deleted comes back, in any order of pulls, forgetting, crashes, backups put back, and joins."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from georelay.errors import GeorelayError, Unavailable
from georelay.fields import JsonObject, dump_object, parse_object
from georelay.ids import BrokerId, RaftIndex, RegionNumber, StreamKey
from region.control.definitions_part import DefinitionsPart, command_to_json
from region.control.forgetting_core import KEPT_S, ForgettingDeletions
from region.control.founding import founding_snapshot
from region.control.pulling import ControlBooks
from region.control.recovery import recovered_snapshot, remembered_snapshot
from region.control.regions_part import RegionsPart
from region.control.state_core import BEGIN, ControlState, encode, pieces_of
from region.controller import mesh_pull, security_pull
from region.controller.command_kinds import FORGET_LEVEL
from region.controller.commands import (
    AlterTopic,
    Command,
    DefineSecurity,
    DefineTopic,
    DropTopic,
    FormRegion,
    RaiseFeatureLevel,
    decode,
)
from region.controller.commands import encode as encoded
from region.controller.effects import Done
from region.controller.forgotten_pull import ForgottenPull
from region.controller.mesh_rows import Charter, VoterRow
from region.controller.state_core import ControllerState
from region.controller.topic import Homes, Tombstone, TopicDefinition
from region.controller.topology import RegionInfo, Topology
from region.security.definition import Grave, Kind
from region.security.user import User

FOUNDED = (1, 2, 3)
NAMES = ("us", "eu", "ap", "sa", "af")
REPLICAS = 3
ID = "a" * 32
VERBS = (
    "create",
    "delete",
    "alter",
    "put_user",
    "delete_user",
    "apply",
    "pull",
    "pull",
    "forget",
    "crash",
    "back_up",
    "put_back",
    "join",
    "remove",
    "elect",
    "recover",
)
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5), st.integers(0, 5)), max_size=80)


def done(coroutine: Coroutine[Any, Any, bool]) -> bool:
    """Run what waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return bool(end.value)
    raise AssertionError("it waited")


def topology_of(region: int) -> Topology:
    return Topology(
        mesh_id="mesh",
        region=RegionNumber(region),
        definitions_home=RegionNumber(1 if region <= len(FOUNDED) else 0),
        regions=tuple(info_of(number) for number in sorted({*FOUNDED, region})),
    )


def info_of(number: int) -> RegionInfo:
    return RegionInfo(number=RegionNumber(number), name=NAMES[number - 1], brokers=(BrokerId(number * 1000 + 1),))


class Region:
    def __init__(self, number: int) -> None:
        self.number = number
        self.state = ControllerState()
        self.follower = ForgottenPull()
        self.apply(FormRegion(topology=topology_of(number)))
        self.apply(RaiseFeatureLevel(level=FORGET_LEVEL))
        self.backup = self.state.to_snapshot()

    def apply(self, command: Command) -> Done:
        index = RaftIndex(self.state.applied_index + 1)
        self.state.apply(decode(encoded(command)), index)
        outcome = self.state.outcome(index)
        assert isinstance(outcome, Done), outcome
        return outcome

    def begin_again(self, snapshot: bytes) -> None:
        self.state, self.follower = ControllerState.from_snapshot(snapshot), ForgottenPull()

    def pull(self, replica: Replica, other: Replica) -> bool:
        async def ask(question: JsonObject) -> JsonObject:
            return other.books.give(question)

        async def commit(command: Command) -> Done:
            return self.apply(command)

        async def pulled() -> bool:
            answer = replica.books.give(mesh_pull.question(self.state))
            await self.follower.follow(answer, self.state, ask, commit)
            return await mesh_pull.take(answer, self.state, commit)

        return done(pulled())

    @property
    def topics(self) -> dict[str, bytes]:
        return {topic.name: topic.topic_id for topic in self.state.topics()}


class Replica:
    """One replica of control: what it has applied of the log."""

    me = BrokerId(1001)
    replica = object()

    def __init__(self, beginning: list[bytes]) -> None:
        self.regions = RegionsPart()
        self.definitions = DefinitionsPart(self.regions.topology)
        self.state = ControlState([self.definitions, self.regions])
        self.books = ControlBooks(self)  # type: ignore[arg-type]
        self.applied = 0
        for raw in beginning:
            self.take(raw)

    def take(self, raw: bytes) -> JsonObject | GeorelayError:
        self.applied += 1
        self.state.apply(raw, RaftIndex(self.applied))
        outcome = self.state.outcome(RaftIndex(self.applied))
        assert outcome is not None
        return outcome

    def crash(self) -> None:
        raw = self.state.to_snapshot()
        self.state.reset()
        self.state.restore(raw)
        assert self.state.to_snapshot() == raw


class World:
    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.regions = {number: Region(number) for number in FOUNDED}
        charter = Charter(control_id=ID, founder=BrokerId(1001), disk="disk")
        snapshot = founding_snapshot(self.regions[1].state, charter=charter, links={}, at_us=1)
        self.generation(snapshot)
        self.append("begin", {"open": ID})
        self.live: dict[str, bytes] = {}
        self.users: set[str] = set()
        self.dead: set[bytes] = set()
        self.made = 0
        self.now_s = 0.0
        self.marks = ForgettingDeletions()
        for number in FOUNDED:
            self.report(number)

    def generation(self, snapshot: bytes) -> None:
        self.log = []
        self.replicas = [Replica([]) for _ in range(REPLICAS)]
        for piece in pieces_of(snapshot):
            self.append(BEGIN, piece)

    @property
    def leader(self) -> Replica:
        return self.replicas[0]

    def append(self, part: str, command: JsonObject) -> JsonObject:
        raw = encode(part, command, at_us=1)
        self.log.append(raw)
        outcome = self.leader.take(raw)
        assert isinstance(outcome, dict), outcome
        return outcome

    def report(self, number: int) -> None:
        if self.leader.regions.row(number).level != FORGET_LEVEL:  # type: ignore[union-attr]
            said = {"number": number, "brokers": [number * 1000 + 1], "level": FORGET_LEVEL, "seeds": []}
            self.append("regions", {"do": "report", **said})
        state = self.regions[number].state
        self.marks.heard(RegionNumber(number), (state.definitions_index, state.security.index))

    def step(self, verb: str, which: int, other: int) -> None:
        getattr(self, f"_{verb}")(which, other)
        by_place: dict[int, bytes] = {}
        for replica in self.replicas:
            raw = replica.state.to_snapshot()
            assert by_place.setdefault(replica.applied, raw) == raw

    def define(self, command: Command) -> None:
        self.append("definitions", command_to_json(command))

    def _create(self, which: int, other: int) -> None:
        name = f"t{which}"
        if name in self.live:
            return
        self.made += 1
        self.live[name] = self.made.to_bytes(16, "big")
        topic = TopicDefinition(
            name=name,
            topic_id=self.live[name],
            partitions=1,
            replication_factor=1,
            homes=Homes.ONE,
            home=RegionNumber(1),
            retention_ms=-1,
            retention_bytes=-1,
            config=(),
            index=0,
        )
        self.define(DefineTopic(definition=topic))

    def _alter(self, which: int, other: int) -> None:
        topic = self.leader.definitions.topic_by_name(f"t{which}")
        if topic is not None:
            self.define(AlterTopic(definition=replace(topic, retention_ms=topic.retention_ms + 1_000)))

    def _delete(self, which: int, other: int) -> None:
        topic_id = self.live.pop(f"t{which}", None)
        if topic_id is not None:
            self.dead.add(topic_id)
            self.define(DropTopic(tombstone=Tombstone(name=f"t{which}", topic_id=topic_id, index=0)))

    def _replaces(self, name: str) -> int:
        known = self.leader.definitions.security.find(Kind.USER, name)
        return 0 if known is None else known.index

    def _put_user(self, which: int, other: int) -> None:
        name = f"u{which}"
        self.users.add(name)
        self.define(DefineSecurity(definition=User(name=name, expires_s=other), replaces=self._replaces(name)))

    def _delete_user(self, which: int, other: int) -> None:
        name = f"u{which}"
        if name in self.users:
            self.users.discard(name)
            self.define(DefineSecurity(definition=Grave(kind=Kind.USER, key=name), replaces=self._replaces(name)))

    def _apply(self, which: int, other: int) -> None:
        replica = self.replicas[which % REPLICAS]
        for raw in self.log[replica.applied :][: other + 1]:
            replica.take(raw)

    def _region(self, which: int) -> int:
        numbers = sorted(self.regions)
        return numbers[which % len(numbers)]

    def _pull(self, which: int, other: int) -> None:
        number = self._region(which)
        replica = self.replicas[other % REPLICAS]
        if not replica.state.is_open:
            return
        try:
            self.regions[number].pull(replica, self.replicas[(other + which) % REPLICAS])
        except Unavailable:
            return  # it asks again later
        self.report(number)

    def _forget(self, which: int, other: int) -> None:
        self.now_s += KEPT_S
        known = self.leader.definitions
        due = self.marks.due(self.now_s, self.leader.regions.rows(), known.deleted, known.forgotten_to)
        if due is not None:
            self.define(due)

    def _elect(self, which: int, other: int) -> None:
        self.marks.clear()

    def _crash(self, which: int, other: int) -> None:
        self.replicas[other % REPLICAS].crash()
        region = self.regions[self._region(which)]
        before = mesh_pull.question(region.state)
        region.begin_again(region.state.to_snapshot())
        assert mesh_pull.question(region.state) == before

    def _back_up(self, which: int, other: int) -> None:
        region = self.regions[self._region(which)]
        region.backup = region.state.to_snapshot()

    def _put_back(self, which: int, other: int) -> None:
        region = self.regions[self._region(which)]
        region.begin_again(region.backup)

    def _join(self, which: int, other: int) -> None:
        number = 4 + which % 2
        if self.leader.regions.row(number) is None:
            said = {"number": number, "name": NAMES[number - 1], "seeds": [], "witness": which > 3}
            self.append("regions", {"do": "add", **said})
            self.regions[number] = Region(number)

    def _remove(self, which: int, other: int) -> None:
        number = 4 + which % 2
        if number in self.regions:
            self.append("regions", {"do": "drain", "number": number})
            self.append("regions", {"do": "remove", "number": number})
            del self.regions[number]

    def _recover(self, which: int, other: int) -> None:
        """Begin anew from a replica that has all, or from what a region that has all has pulled."""
        survivor = VoterRow(replica=1, broker=BrokerId(1001), disk="disk", address="")
        row = self.leader.state.row()
        assert row is not None
        if which % 2:
            snapshot = recovered_snapshot(self.leader.state, survivor, control_id=ID)
        else:
            region = self.regions[self._region(other)]
            self.catch_up(region)
            raw = parse_object(remembered_snapshot(region.state, row, survivor, control_id=ID, at_us=1))
            del raw["parts"]["homes"]  # type: ignore[attr-defined]  # this world moves no homes
            snapshot = dump_object(raw)
        self.generation(snapshot)
        self.marks.clear()

    def catch_up(self, region: Region) -> None:
        while region.pull(self.leader, self.leader):
            continue

    def settle(self) -> None:
        for replica in self.replicas:
            for raw in self.log[replica.applied :]:
                replica.take(raw)
        for region in self.regions.values():
            self.catch_up(region)
            assert region.topics == self.live
            assert {user.name for user in region.state.security.users()} == self.users
            assert not {group.key.topic_id for group in region.state.assignments()} & self.dead
            topology = region.state.topology
            assert topology is not None
            for topic_id in () if topology.own.witness else self.live.values():
                assert region.state.assignment(StreamKey(topic_id, RegionNumber(0), 0)) is not None
            raw = region.state.to_snapshot()
            assert ControllerState.from_snapshot(raw).to_snapshot() == raw
        assert len({replica.state.to_snapshot() for replica in self.replicas}) == 1
        assert {topic.name: topic.topic_id for topic in self.leader.definitions.topics()} == self.live


@contextmanager
def small_pages() -> Iterator[None]:
    with (
        patch("region.controller.mesh_pull.DEFINITIONS_PER_PULL", 2),
        patch.object(security_pull, "ROWS_PER_PULL", 2),
        patch("region.controller.forgotten_pull.TOPICS_PER_PAGE_MAX", 2),
        patch("region.controller.forgotten_pull.PLACES_PER_PAGE_MAX", 2),
        patch("region.control.forgetting_core.REMEMBERED_MAX", 0),
    ):
        yield


BACKUP_OF_WHAT_IS_FORGOTTEN = [
    ("create", 0, 0),
    ("put_user", 0, 0),
    ("pull", 0, 0),
    ("pull", 1, 0),
    ("pull", 2, 0),
    ("back_up", 1, 0),
    ("delete", 0, 0),
    ("delete_user", 0, 0),
    ("create", 1, 0),
    ("put_user", 1, 0),
    ("pull", 0, 0),
    ("pull", 1, 0),
    ("pull", 2, 0),
    ("forget", 0, 0),
    ("forget", 0, 0),
    ("put_back", 1, 0),
]


@given(STEPS)
@example(BACKUP_OF_WHAT_IS_FORGOTTEN)
@example([*BACKUP_OF_WHAT_IS_FORGOTTEN, ("pull", 1, 0), ("recover", 0, 1), ("join", 0, 0), ("pull", 3, 0)])
def test_no_deleted_thing_comes_back_and_replicas_stay_equal(steps: list[tuple[str, int, int]]) -> None:
    with small_pages():
        world = World()
        for verb, which, other in steps:
            world.step(verb, which, other)
        world.settle()


def test_the_world_forgets_what_every_region_has_followed() -> None:
    with small_pages():
        world = World()
        for verb, which, other in BACKUP_OF_WHAT_IS_FORGOTTEN[:-1]:
            world.step(verb, which, other)
        assert world.leader.definitions.deleted == (0, 0)
        assert world.leader.definitions.forgotten_to > (0, 0)


def test_a_region_that_did_not_follow_holds_deletions_back() -> None:
    with small_pages():
        world = World()
        for verb, which, other in BACKUP_OF_WHAT_IS_FORGOTTEN[:-1]:
            if (verb, which) != ("pull", 2):
                world.step(verb, which, other)
        assert world.leader.definitions.deleted == (1, 1)
        newest = (world.leader.definitions.index, world.leader.definitions.security.index)
        assert world.marks.held_back_by(world.leader.regions.rows(), newest) == ["ap"]
