"""The controller's state machine, by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import DataDirectoryError, InvalidTopic, PolicyViolation, TopicExists, Unavailable, UnknownTopic
from georelay.ids import PRODUCER_COUNTER_BITS, BrokerId, RaftIndex, RegionNumber, StreamKey
from region.controller.commands import (
    AllocateProducerIds,
    Command,
    DefineTopic,
    DropTopic,
    FormRegion,
    RaiseFeatureLevel,
    RegisterBroker,
)
from region.controller.state_core import (
    PRODUCERS_MAX,
    ControllerState,
    Done,
    Effect,
    GroupAssigned,
    GroupDropped,
    MetadataChanged,
    Refused,
)
from region.controller.topic import Homes, Tombstone, TopicDefinition

Make = Callable[..., Any]


class Applying:
    """Applies commands at ascending indexes."""

    def __init__(self) -> None:
        self.state = ControllerState()

    def __call__(self, command: Command) -> list[Effect]:
        return self.state.apply(command, RaftIndex(self.state.applied_index + 1))

    def outcome(self, command: Command) -> Done | Refused:
        self(command)
        outcome = self.state.outcome(self.state.applied_index)
        assert outcome is not None
        return outcome


@pytest.fixture
def apply(topology: Make) -> Applying:
    applying = Applying()
    applying(FormRegion(topology=topology(1)))
    return applying


@pytest.fixture
def apply_mirror(topology: Make) -> Applying:
    applying = Applying()
    applying(FormRegion(topology=topology(2)))
    return applying


def drop(definition: TopicDefinition, index: int = 0) -> DropTopic:
    return DropTopic(tombstone=Tombstone(name=definition.name, topic_id=definition.topic_id, index=index))


def test_topic_with_one_home_has_one_group_per_partition(apply: Applying, definition: Make) -> None:
    effects = apply(DefineTopic(definition=definition(partitions=3)))
    groups = [effect for effect in effects if isinstance(effect, GroupAssigned)]
    assert [group.group_id for group in groups] == [1, 2, 3]
    assert [group.key for group in groups] == [StreamKey((1).to_bytes(16, "big"), RegionNumber(0), p) for p in range(3)]
    assert isinstance(effects[-1], MetadataChanged)


def test_topic_with_every_home_has_one_group_per_region_and_partition(apply_mirror: Applying, definition: Make) -> None:
    effects = apply_mirror(DefineTopic(definition=definition(homes=Homes.EVERY, index=4)))
    keys = [effect.key for effect in effects if isinstance(effect, GroupAssigned)]
    assert [(key.origin, key.partition) for key in keys] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_voters_are_brokers_of_the_own_region_only(apply_mirror: Applying, definition: Make) -> None:
    apply_mirror(DefineTopic(definition=definition(index=1)))
    for assignment in apply_mirror.state.assignments():
        assert sorted(assignment.voters) == [2001, 2002, 2003]


def test_definitions_home_gives_indexes_in_order_of_apply(apply: Applying, definition: Make) -> None:
    for number in (1, 2, 3):
        outcome = apply.outcome(DefineTopic(definition=definition(f"topic-{number}", topic_id=number)))
        assert isinstance(outcome, Done) and outcome.definition is not None
        assert outcome.definition.index == number


def test_second_creation_of_a_name_is_refused(apply: Applying, definition: Make) -> None:
    apply(DefineTopic(definition=definition(topic_id=1)))
    outcome = apply.outcome(DefineTopic(definition=definition(topic_id=2)))
    assert isinstance(outcome, Refused) and outcome.error is TopicExists
    assert apply.state.definitions_index == 1


def test_same_wish_twice_makes_one_topic(apply: Applying, definition: Make) -> None:
    apply(DefineTopic(definition=definition()))
    outcome = apply.outcome(DefineTopic(definition=definition()))
    assert isinstance(outcome, Done) and outcome.definition is not None and outcome.definition.index == 1
    assert apply.state.definitions_index == 1


def test_dropped_id_never_comes_back(apply: Applying, definition: Make) -> None:
    apply(DefineTopic(definition=definition()))
    apply(drop(definition()))
    outcome = apply.outcome(DefineTopic(definition=definition()))
    assert isinstance(outcome, Refused) and outcome.error is InvalidTopic


def test_drop_closes_every_group_and_frees_the_name(apply: Applying, definition: Make) -> None:
    apply(DefineTopic(definition=definition(partitions=2)))
    effects = apply(drop(definition()))
    assert [effect.group_id for effect in effects if isinstance(effect, GroupDropped)] == [1, 2]
    assert list(apply.state.assignments()) == []
    outcome = apply.outcome(DefineTopic(definition=definition(topic_id=2)))
    assert isinstance(outcome, Done)


def test_group_ids_are_never_used_again(apply: Applying, definition: Make) -> None:
    apply(DefineTopic(definition=definition(partitions=2)))
    apply(drop(definition()))
    apply(DefineTopic(definition=definition(topic_id=2, partitions=1)))
    assert [assignment.group_id for assignment in apply.state.assignments()] == [3]


def test_dropped_groups_weigh_nothing_on_their_brokers(apply: Applying, definition: Make) -> None:
    apply(DefineTopic(definition=definition(partitions=1, replication_factor=1)))
    apply(drop(definition()))
    apply(DefineTopic(definition=definition(topic_id=2, partitions=1, replication_factor=1)))
    assert [assignment.voters for assignment in apply.state.assignments()] == [(1001,)]


def test_drop_of_an_unknown_topic_is_refused(apply: Applying, definition: Make) -> None:
    outcome = apply.outcome(drop(definition()))
    assert isinstance(outcome, Refused) and outcome.error is UnknownTopic


def test_mirror_applies_only_higher_indexes(apply_mirror: Applying, definition: Make) -> None:
    apply_mirror(DefineTopic(definition=definition("new", topic_id=2, index=7)))
    for index in (6, 7):
        assert apply_mirror(DefineTopic(definition=definition("old", topic_id=1, index=index))) == []
    assert apply_mirror.state.topic_by_name("old") is None
    assert apply_mirror(drop(definition("new", topic_id=2), index=7)) == []
    assert apply_mirror.state.topic_by_name("new") is not None


def test_mirror_does_not_order_definitions(apply_mirror: Applying, definition: Make) -> None:
    outcome = apply_mirror.outcome(DefineTopic(definition=definition(index=0)))
    assert isinstance(outcome, Refused) and outcome.error is PolicyViolation


def test_mirror_that_follows_definitions_since_holds_the_same_topics(
    apply: Applying, apply_mirror: Applying, definition: Make
) -> None:
    apply(DefineTopic(definition=definition("a", topic_id=1)))
    apply(DefineTopic(definition=definition("b", topic_id=2)))
    apply(drop(definition("a", topic_id=1)))
    apply(DefineTopic(definition=definition("a", topic_id=3)))
    while newer := apply.state.definitions_since(apply_mirror.state.definitions_index, limit=1):
        wanted = newer[0]
        apply_mirror(DropTopic(tombstone=wanted) if isinstance(wanted, Tombstone) else DefineTopic(definition=wanted))
    assert list(apply_mirror.state.topics()) == list(apply.state.topics())
    assert [topic.name for topic in apply_mirror.state.topics()] == ["b", "a"]
    assert apply_mirror.state.definitions_index == 4


def test_definitions_since_lists_each_topic_once_with_its_last_change(apply: Applying, definition: Make) -> None:
    for number in range(1, 6):
        apply(DefineTopic(definition=definition(f"t{number}", topic_id=number)))
    apply(drop(definition("t2", topic_id=2)))
    assert [found.index for found in apply.state.definitions_since(0, limit=100)] == [1, 3, 4, 5, 6]
    assert [found.index for found in apply.state.definitions_since(4, limit=1)] == [5]
    assert apply.state.definitions_since(6, limit=100) == []


def test_producer_ids_carry_the_region_and_never_repeat(apply: Applying, apply_mirror: Applying) -> None:
    def block(applying: Applying) -> int:
        outcome = applying.outcome(AllocateProducerIds(broker=BrokerId(1001), count=1000))
        assert isinstance(outcome, Done)
        return outcome.first_producer_id

    assert [block(apply), block(apply)] == [1 << 48, (1 << 48) + 1000]
    assert block(apply_mirror) == 2 << 48


def test_nothing_is_defined_before_the_region_is_formed(definition: Make) -> None:
    applying = Applying()
    outcome = applying.outcome(DefineTopic(definition=definition()))
    assert isinstance(outcome, Refused) and outcome.error is Unavailable


def test_new_region_gets_a_stream_of_each_topic_with_every_home(
    apply: Applying, definition: Make, topology: Make
) -> None:
    apply(DefineTopic(definition=definition(homes=Homes.EVERY, partitions=1)))
    effects = apply(FormRegion(topology=topology(1, regions=3)))
    assert [effect.key.origin for effect in effects if isinstance(effect, GroupAssigned)] == [3]


def test_region_is_not_left_out_of_a_mesh(apply: Applying, topology: Make) -> None:
    outcome = apply.outcome(FormRegion(topology=topology(1, regions=1)))
    assert isinstance(outcome, Refused) and outcome.error is PolicyViolation


def test_forming_the_same_region_again_changes_nothing(apply: Applying, topology: Make) -> None:
    assert apply(FormRegion(topology=topology(1))) == []


def test_broker_with_another_disk_is_refused(apply: Applying, registration: Make) -> None:
    apply(RegisterBroker(registration=registration(1001)))
    outcome = apply.outcome(RegisterBroker(registration=registration(1001, disk="other")))
    assert isinstance(outcome, Refused) and outcome.error is DataDirectoryError
    assert apply.state.brokers[BrokerId(1001)].disk_uuid == "disk-1001"


def test_broker_of_another_region_is_refused(apply: Applying, registration: Make) -> None:
    outcome = apply.outcome(RegisterBroker(registration=registration(2001)))
    assert isinstance(outcome, Refused) and outcome.error is PolicyViolation


def test_metadata_epoch_moves_only_when_an_answer_changed(apply: Applying, registration: Make) -> None:
    apply(RegisterBroker(registration=registration(1001)))
    before = apply.state.metadata_epoch
    assert apply(RegisterBroker(registration=registration(1001))) == []
    apply(AllocateProducerIds(broker=BrokerId(1001), count=1))
    assert apply.state.metadata_epoch == before


def test_outcomes_are_remembered_for_a_bounded_while(apply: Applying) -> None:
    for _ in range(5_000):
        apply(AllocateProducerIds(broker=BrokerId(1001), count=1))
    assert apply.state.outcome(RaftIndex(2)) is None
    assert apply.state.outcome(apply.state.applied_index) is not None


def test_another_mesh_or_region_does_not_take_over_this_one(apply: Applying, topology: Make) -> None:
    for other in (topology(2), replace(topology(1), mesh_id="other")):
        outcome = apply.outcome(FormRegion(topology=other))
        assert isinstance(outcome, Refused) and outcome.error is DataDirectoryError
        assert outcome.text.startswith("this is region 1 of mesh mesh, not")


def test_nothing_is_raised_or_allocated_before_the_region_is_formed() -> None:
    applying = Applying()
    for command in (RaiseFeatureLevel(level=2), AllocateProducerIds(broker=BrokerId(1001), count=1)):
        outcome = applying.outcome(command)
        assert isinstance(outcome, Refused) and outcome.error is Unavailable


def test_producer_ids_end_with_the_last_of_the_region(apply: Applying) -> None:
    given = apply.outcome(AllocateProducerIds(broker=BrokerId(1001), count=1000))
    assert isinstance(given, Done)
    apply.state._ledger.producers_given = PRODUCERS_MAX - 1000
    last = apply.outcome(AllocateProducerIds(broker=BrokerId(1001), count=1000))
    assert isinstance(last, Done) and last.first_producer_id == (1 << PRODUCER_COUNTER_BITS) + PRODUCERS_MAX - 1000
    refused = apply.outcome(AllocateProducerIds(broker=BrokerId(1001), count=1))
    assert isinstance(refused, Refused) and refused.error is PolicyViolation


def test_a_snapshot_with_more_streams_than_may_be_created_is_read(
    topology: Make, definition: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region that joins the mesh brings a stream for every partition that every region is home of."""
    monkeypatch.setattr("region.controller.topic_rules.GROUPS_PER_BROKER_MAX", 8)
    monkeypatch.setattr("region.controller.state_snapshot.GROUPS_READ_MAX", 24)
    applying = Applying()
    applying(FormRegion(topology=topology(1, regions=1)))
    applying(DefineTopic(definition=definition("orders", topic_id=1, partitions=8, homes=Homes.EVERY)))
    applying(FormRegion(topology=topology(1, regions=3)))
    assert len(list(applying.state.assignments())) == 24
    restored = ControllerState.from_snapshot(applying.state.to_snapshot())
    assert restored.to_snapshot() == applying.state.to_snapshot()
