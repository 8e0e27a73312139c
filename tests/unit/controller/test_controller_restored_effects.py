"""A running broker whose controller state is replaced by a snapshot hears of every difference that matters to it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import BrokerId, RaftIndex, RegionNumber
from region.controller.commands import Command, DefineTopic, DropTopic, FormRegion, RegisterBroker
from region.controller.effects import Effect, GroupDropped, ReplicasWanted, TopicAltered
from region.controller.registration import BrokerRegistration
from region.controller.state_core import ControllerState
from region.controller.topic import Homes, Tombstone, TopicDefinition
from region.controller.topology import RegionInfo, Topology

BROKER = BrokerId(2001)
TOPOLOGY = Topology(
    mesh_id="mesh",
    region=RegionNumber(2),
    definitions_home=RegionNumber(1),
    regions=(
        RegionInfo(number=RegionNumber(1), name="us", brokers=(BrokerId(1001),)),
        RegionInfo(number=RegionNumber(2), name="eu", brokers=(BROKER,)),
    ),
)


def topic(number: int, *, index: int, retention_ms: int = -1, **config: str) -> TopicDefinition:
    return TopicDefinition(
        name=f"topic-{number}", topic_id=number.to_bytes(16, "big"), partitions=2, replication_factor=1,
        homes=Homes.ONE, home=RegionNumber(1), retention_ms=retention_ms, retention_bytes=-1,
        config=tuple(sorted((name.replace("_", "."), value) for name, value in config.items())), index=index,
    )  # fmt: skip


class Replica:
    """One broker's state, and what it was asked to do."""

    def __init__(self) -> None:
        self.state = ControllerState()
        self.effects: list[Effect] = []
        registration = BrokerRegistration(
            broker=BROKER,
            disk_uuid="disk",
            kafka_host="127.0.0.1",
            kafka_port=9092,
            grpc="127.0.0.1:1",
            link="127.0.0.1:2",
            admin="127.0.0.1:3",
        )
        self.follow(FormRegion(topology=TOPOLOGY, feature_level=3), RegisterBroker(registration=registration))

    def follow(self, *commands: Command) -> None:
        for command in commands:
            self.effects += self.state.apply(command, RaftIndex(self.state.applied_index + 1))

    def take(self, snapshot: bytes) -> None:
        self.effects += self.state.restore(snapshot)

    @property
    def altered(self) -> dict[bytes, TopicDefinition]:
        """Return the topics that it was told to follow anew, as it was told last."""
        return {effect.topic.topic_id: effect.topic for effect in self.effects if isinstance(effect, TopicAltered)}

    @property
    def dropped(self) -> set[int]:
        return {effect.group_id for effect in self.effects if isinstance(effect, GroupDropped)}


def beside(earlier: Sequence[Command], later: Sequence[Command]) -> tuple[Replica, Replica]:
    """Return a replica that applied the later commands one by one, and one that got them as a snapshot."""
    replayed, restored = Replica(), Replica()
    for replica in (replayed, restored):
        replica.follow(*earlier)
        replica.effects.clear()
    replayed.follow(*later)
    restored.take(replayed.state.to_snapshot())
    return replayed, restored


def test_a_topic_that_was_altered_meanwhile_is_followed_anew() -> None:
    auto = topic(1, index=5, failover="auto", min_insync_regions="2")
    _, restored = beside([DefineTopic(definition=topic(1, index=3))], [DefineTopic(definition=auto)])
    assert restored.altered == {auto.topic_id: auto}


def test_a_topic_that_is_what_it_was_is_not() -> None:
    same = DefineTopic(definition=topic(1, index=3))
    _, restored = beside([same], [DefineTopic(definition=topic(2, index=4))])
    assert restored.altered == {}


def test_a_topic_that_is_new_is_opened_and_one_that_is_gone_is_dropped() -> None:
    gone = topic(1, index=3)
    replayed, restored = beside(
        [DefineTopic(definition=gone)],
        [
            DefineTopic(definition=topic(2, index=4)),
            DropTopic(tombstone=Tombstone(name=gone.name, topic_id=gone.topic_id, index=5)),
        ],
    )
    assert restored.dropped == replayed.dropped != set()
    wanted = {effect.group_id for effect in restored.effects if isinstance(effect, ReplicasWanted)}
    assert {group.group_id for group in restored.state.assignments()} <= wanted
    assert restored.altered == {}


@given(steps=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=12), cut=st.integers(0, 12))
def test_whatever_happened_meanwhile_is_heard_as_if_it_had_been_applied(steps: list[tuple[int, int]], cut: int) -> None:
    commands: list[Command] = []
    gone: set[int] = set()
    for index, (number, what) in enumerate(steps, start=3):
        if number in gone:
            continue
        if what:
            commands.append(DefineTopic(definition=topic(number, index=index, retention_ms=1000 * what)))
        else:
            named = topic(number, index=index)
            commands.append(DropTopic(tombstone=Tombstone(name=named.name, topic_id=named.topic_id, index=index)))
            gone.add(number)
    replayed, restored = beside(commands[:cut], commands[cut:])
    live = {found.topic_id for found in replayed.state.topics()}
    before = Replica()
    before.follow(*commands[:cut])
    there = {found.topic_id for found in before.state.topics()}
    assert restored.altered == {name: to for name, to in replayed.altered.items() if name in live & there}
    held = {group.group_id for group in before.state.assignments()}
    assert restored.dropped == replayed.dropped & held
