"""The life of a broker: the table, and what each command does to brokers and groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import BadRequest, Busy, DataDirectoryError, GeorelayError, PolicyViolation, UnknownTopic
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.controller.brokers import TRANSITIONS, BrokerEvent, BrokerRecord, BrokerState, after
from region.controller.commands import (
    AddBroker,
    Command,
    DefineTopic,
    DrainBroker,
    DropTopic,
    FormRegion,
    MarkAbsent,
    MarkPresent,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    RemoveBroker,
    ReplaceDisk,
    ReplicaLost,
    ReplicasChanged,
)
from region.controller.effects import BrokersChanged, GroupDropped, GroupReleased, ReplicasWanted
from region.controller.planning_core import plan_moves
from region.controller.state_core import Assignment, ControllerState, Done, Effect, Refused
from region.controller.topic import Tombstone
from tests.tiers import in_one_test

Make = Callable[..., Any]
B1, B2, B3, B4, B5 = (BrokerId(1000 + number) for number in range(1, 6))
A, DG, DD, AB, RM = (
    BrokerState.ACTIVE,
    BrokerState.DRAINING,
    BrokerState.DRAINED,
    BrokerState.ABSENT,
    BrokerState.REMOVED,
)
NO = None
# One row per state; columns in the order of BrokerEvent: ADD DRAIN EMPTIED REMOVE AWAY BACK NEW_DISK
TABLE = {
    A: (A, DG, NO, NO, AB, A, A),
    DG: (A, DG, DD, NO, NO, NO, DG),
    DD: (A, DD, NO, RM, NO, NO, DD),
    AB: (AB, NO, NO, RM, AB, A, A),
    RM: (A, NO, NO, RM, NO, NO, NO),
}


class Region:
    """A region at feature level 2 whose brokers are registered."""

    def __init__(self, topology: Make, registration: Make, brokers: int) -> None:
        self.state = ControllerState()
        self.registration = registration
        self.effects: list[Effect] = []
        self(FormRegion(topology=topology(1, brokers=brokers)))
        self(RaiseFeatureLevel(level=2))
        for number in range(1, brokers + 1):
            self.register(BrokerId(1000 + number))

    def __call__(self, command: Command) -> Done | Refused:
        self.effects = self.state.apply(command, RaftIndex(self.state.applied_index + 1))
        outcome = self.state.outcome(self.state.applied_index)
        assert outcome is not None
        return outcome

    def registered(self, broker: BrokerId, disk: str = "disk") -> Any:
        return replace(self.registration(broker, disk=disk), peers=f"127.0.0.1:{broker}", feature_level_max=2)

    def register(self, broker: BrokerId, disk: str = "disk") -> Done | Refused:
        return self(RegisterBroker(registration=self.registered(broker, disk)))

    def lose_disk(self, broker: BrokerId, disk: str = "new") -> Done | Refused:
        known = self.state.disk_of(broker) or ""
        return self(ReplaceDisk(registration=self.registered(broker, disk), replaces=known))

    def report(
        self, group: int, *voters: BrokerId, learners: tuple[BrokerId, ...] = (), index: int = 0
    ) -> Done | Refused:
        generation = self.group(group).generation
        return self(
            ReplicasChanged(
                group_id=GroupId(group), voters=voters, learners=learners, generation=generation, index=index
            )
        )

    def reassign(self, group: int, *target: BrokerId, pinned: int = 0) -> Done | Refused:
        generation = self.group(group).generation
        return self(Reassign(group_id=GroupId(group), target=target, generation=generation, pinned=pinned))

    def lose_replica(self, group: int, broker: BrokerId, *, generation: int | None = None) -> Done | Refused:
        since = self.group(group).generation if generation is None else generation
        return self(ReplicaLost(group_id=GroupId(group), broker=broker, generation=since))

    def group(self, group: int) -> Assignment:
        found = self.state.group(GroupId(group))
        assert found is not None
        return found

    def life(self, broker: BrokerId) -> BrokerState:
        return self.state.records[broker].state

    def refused(self, command: Command) -> Refused:
        before = self.state.to_snapshot().replace(b'"applied_index":%d' % self.state.applied_index, b"")
        outcome = self(command)
        assert isinstance(outcome, Refused)
        assert self.state.to_snapshot().replace(b'"applied_index":%d' % self.state.applied_index, b"") == before
        assert self.effects == []
        return outcome


@pytest.fixture
def region(topology: Make, registration: Make, definition: Make) -> Region:
    made = Region(topology, registration, 3)
    made(DefineTopic(definition=definition(partitions=1)))
    return made


@in_one_test("state", BrokerState)
@in_one_test("event", BrokerEvent)
def test_table_of_states_is_as_written_down(state: BrokerState, event: BrokerEvent) -> None:
    assert after(state, event) is TABLE[state][list(BrokerEvent).index(event)]


def test_every_state_is_left_by_something_that_an_operator_or_the_broker_does() -> None:
    for state in BrokerState:
        assert any(now is not state for (was, _), now in TRANSITIONS.items() if was is state)


def test_broker_that_nobody_added_is_told_how_to_come_in(region: Region) -> None:
    outcome = region.refused(RegisterBroker(registration=region.registered(B4)))
    assert outcome.error is PolicyViolation and "georelay broker add 4" in outcome.text


def test_added_broker_takes_replicas_only_once_it_is_registered(region: Region, definition: Make) -> None:
    region(AddBroker(broker=B4, peers="10.0.0.4:7000"))
    assert region.state.peer_addresses()[B4] == "10.0.0.4:7000"
    region(DefineTopic(definition=definition("a", topic_id=2, partitions=1)))
    assert B4 not in region.group(2).target
    region.register(B4)
    assert region.state.peer_addresses()[B4] == "127.0.0.1:1004"  # what it says itself counts more
    region(DefineTopic(definition=definition("b", topic_id=3, partitions=1)))
    assert B4 in region.group(3).target


def test_broker_of_another_region_is_not_added(region: Region) -> None:
    assert region.refused(AddBroker(broker=BrokerId(2001))).error is BadRequest


@pytest.mark.parametrize("command", [DrainBroker(broker=B5), RemoveBroker(broker=B5), MarkAbsent(broker=B5)])
def test_unknown_broker_is_a_bad_request(region: Region, command: Command) -> None:
    assert region.refused(command).error is BadRequest


def test_drained_broker_holds_nothing_and_only_then_is_it_removed(region: Region) -> None:
    region(DrainBroker(broker=B3))
    assert region.life(B3) is DG
    refused = region.refused(RemoveBroker(broker=B3))
    assert refused.error is PolicyViolation and "drain it first" in refused.text
    region.reassign(1, B1, B2)
    region.report(1, B1, B2)
    assert GroupReleased(group_id=GroupId(1), key=region.group(1).key, brokers=(B3,)) in region.effects
    assert region.life(B3) is DG  # it still votes in the controller's group
    region.report(0, B1, B2, learners=(B3,))
    assert region.life(B3) is DD
    assert isinstance(region(RemoveBroker(broker=B3)), Done)
    assert region.life(B3) is RM
    assert region.state.disk_of(B3) == ""
    assert B3 not in region.state.brokers and B3 not in region.state.peer_addresses()


def test_broker_is_drained_as_soon_as_the_topics_it_holds_are_dropped(region: Region, definition: Make) -> None:
    region(DrainBroker(broker=B3))
    region.report(0, B1, B2, learners=(B3,))
    region(DropTopic(tombstone=Tombstone(name="orders", topic_id=definition().topic_id, index=0)))
    assert region.life(B3) is DD
    assert BrokersChanged() in region.effects


def test_last_broker_that_takes_replicas_is_not_drained(region: Region) -> None:
    region(DrainBroker(broker=B3))
    region(DrainBroker(broker=B2))
    assert region.refused(DrainBroker(broker=B1)).error is PolicyViolation


def test_drain_is_taken_back_by_adding_the_broker_again(region: Region) -> None:
    region(DrainBroker(broker=B3))
    region(AddBroker(broker=B3))
    assert region.life(B3) is A
    assert B3 in region.group(0).target


def test_removed_broker_comes_back_only_as_a_new_life(region: Region) -> None:
    region(MarkAbsent(broker=B3))
    region(RemoveBroker(broker=B3))
    assert region.group(1).unsafe == {B3} and B3 not in region.group(1).target
    outcome = region.refused(RegisterBroker(registration=region.registered(B3)))
    assert "removed" in outcome.text
    region(AddBroker(broker=B3))
    assert region.state.generation_of(B3) == 2
    assert isinstance(region.register(B3, "other"), Done)
    region.report(1, B1, B2)
    assert region.group(1).unsafe == frozenset()


def test_broker_with_the_only_replica_of_a_stream_is_not_removed(region: Region, definition: Make) -> None:
    region(DefineTopic(definition=definition("one", topic_id=2, partitions=1, replication_factor=1)))
    (holder,) = region.group(2).target
    region(MarkAbsent(broker=holder))
    outcome = region.refused(RemoveBroker(broker=holder))
    assert outcome.error is PolicyViolation and "only replica of 1 streams" in outcome.text


def test_absence_alone_takes_no_vote_away(region: Region) -> None:
    region(MarkAbsent(broker=B3))
    assert region.life(B3) is AB
    assert set(region.group(0).target) == {B1, B2, B3}
    assert set(region.group(1).target) == {B1, B2, B3}
    region(MarkPresent(broker=B3))
    assert region.life(B3) is A


def test_vote_of_an_absent_broker_goes_to_another_one_if_there_is_one(region: Region) -> None:
    region(AddBroker(broker=B4))
    region.register(B4)
    region(MarkAbsent(broker=B3))
    assert set(region.group(0).target) == {B1, B2, B4}
    assert region.group(0).target_learners == (B3,)


def test_registration_never_changes_a_disk(region: Region) -> None:
    outcome = region.refused(RegisterBroker(registration=region.registered(B3, "other")))
    assert outcome.error is DataDirectoryError and "own data directory" in outcome.text


def test_lost_disk_has_to_leave_every_group_before_it_comes_back(region: Region) -> None:
    assert isinstance(region.lose_disk(B3), Done)
    assert region.state.generation_of(B3) == 2
    for group in (0, 1):
        assert region.group(group).unsafe == {B3}
        assert B3 not in region.group(group).target
        assert not region.group(group).hosts(B3)
    assert sum(isinstance(effect, ReplicasWanted) for effect in region.effects) == 2
    refused = region.refused(Reassign(group_id=GroupId(1), target=(B1, B2, B3), generation=region.group(1).generation))
    assert "leave the group first" in refused.text
    region.report(1, B1, B2)
    assert isinstance(region.reassign(1, B1, B2, B3), Done)
    assert region.group(1).base_for(B1) == region.group(1).founders
    assert region.group(1).base_for(B3) == ()  # a blank replica does not count itself as a founder


def test_report_made_before_the_disk_was_lost_clears_nothing(region: Region) -> None:
    old = region.group(1).generation
    region.lose_disk(B3)
    late = ReplicasChanged(group_id=GroupId(1), voters=(B1, B2), learners=(), generation=old)
    region.refused(late)
    assert region.group(1).unsafe == {B3}


def test_lost_disk_of_a_broker_that_may_just_have_been_added_must_be_reported_gone(region: Region) -> None:
    region(AddBroker(broker=B4))
    region.register(B4)
    region.reassign(1, B1, B2, B4)
    region.lose_disk(B4)
    group = region.group(1)
    assert group.unsafe == {B4}
    assert B4 in group.learners  # so that a leader without it sees a difference, and reports
    assert group.recorded != ((B1, B2, B3), ())


def test_vote_comes_back_to_a_new_disk_only_after_its_removal_was_reported(region: Region) -> None:
    region.lose_disk(B3)
    assert set(region.group(0).target) == {B1, B2}
    region.report(0, B1, B2)
    assert set(region.group(0).target) == {B1, B2, B3}


def test_report_that_comes_late_does_not_bring_a_vote_back_earlier(region: Region) -> None:
    group = replace(region.group(1), seed=(B1, B2))
    now, _ = group.reported((B1, B2), (), membership_index=100, index=7)
    late, _ = now.reported((B1, B2), (), membership_index=50, index=8)
    assert late.joins_after(B3) == now.joins_after(B3) == 100


def test_late_report_of_a_membership_that_was_followed_by_another_is_refused(region: Region) -> None:
    region(AddBroker(broker=B4))
    region.register(B4)
    region.reassign(1, B1, B2, B4)
    region.report(1, B1, B2, B3, learners=(B4,), index=40)
    region.report(1, B1, B2, B4, index=50)
    late = ReplicasChanged(
        group_id=GroupId(1), voters=(B1, B2, B3), learners=(B4,), generation=region.group(1).generation, index=40
    )
    assert region.refused(late).error is Busy
    assert region.group(1).is_settled


def test_same_membership_may_be_reported_with_a_lower_index_by_a_leader_that_has_its_entry(region: Region) -> None:
    region.report(1, B1, B2, B3, index=1000)  # it began with a manifest of that index
    assert isinstance(region.report(1, B1, B2, B3, index=20), Done)


def test_new_wish_is_reported_on_by_a_leader_that_knows_a_lower_index_than_the_one_before(region: Region) -> None:
    region.report(1, B1, B2, B3, index=1000)
    region.lose_replica(1, B3)
    assert isinstance(region.report(1, B1, B2, B3, index=20), Done)
    assert isinstance(region.report(1, B1, B2, index=1010), Done)
    assert not region.group(1).unsafe


def test_lost_replica_counts_no_more_and_is_wanted_again_once_its_removal_was_reported(region: Region) -> None:
    assert isinstance(region.lose_replica(1, B3), Done)
    group = region.group(1)
    assert group.unsafe == {B3} and B3 not in group.target and not group.hosts(B3)
    assert region.group(0).unsafe == set() and B3 in region.group(0).target  # only that one group
    assert plan_moves(region.state, 4) == []  # with three brokers nobody else can take it
    region.report(1, B1, B2, index=30)
    (move,) = plan_moves(region.state, 4)
    assert set(move.target) == {B1, B2, B3}
    region.reassign(1, *move.target)
    group = region.group(1)
    assert group.hosts(B3) and group.base_for(B3) == () and group.joins_after(B3) == 30


def test_another_broker_takes_the_place_of_a_lost_replica_at_once(region: Region) -> None:
    region(AddBroker(broker=B4))
    region.register(B4)
    region.lose_replica(1, B3)
    (move,) = plan_moves(region.state, 4)
    assert set(move.target) == {B1, B2, B4}


def test_pinned_group_gets_its_number_of_replicas_back(region: Region) -> None:
    region.reassign(1, B3, B1, B2, pinned=3)
    region.lose_replica(1, B3)
    region.report(1, B1, B2, index=30)
    (move,) = plan_moves(region.state, 4)
    assert set(move.target) == {B1, B2, B3} and move.pinned == 3


def test_lost_replica_is_given_up_once_whatever_is_said_twice(region: Region) -> None:
    old = region.group(1).generation
    region.lose_replica(1, B3)
    before = region.group(1)
    assert isinstance(region.lose_replica(1, B3, generation=old), Done)  # the answer was lost
    assert region.group(1) == before
    region.report(1, B1, B2, index=30)
    region.reassign(1, B1, B2, B3)
    command = ReplicaLost(group_id=GroupId(1), broker=B3, generation=old)
    assert region.refused(command).error is Busy  # it is about the replica before this one
    assert region.group(1).hosts(B3)


def test_replica_is_not_given_up_when_the_others_could_not_remove_it(region: Region, definition: Make) -> None:
    region.lose_replica(1, B3)
    second = ReplicaLost(group_id=GroupId(1), broker=B2, generation=region.group(1).generation)
    assert region.refused(second).error is PolicyViolation
    region(DefineTopic(definition=definition("one", topic_id=2, partitions=1, replication_factor=1)))
    (holder,) = region.group(2).target
    only = ReplicaLost(group_id=GroupId(2), broker=holder, generation=region.group(2).generation)
    assert region.refused(only).error is PolicyViolation


def test_controller_group_and_groups_that_are_gone_have_no_lost_replicas(region: Region) -> None:
    for group in (0, 9):
        assert region.refused(ReplicaLost(group_id=GroupId(group), broker=B1, generation=1)).error is UnknownTopic


def test_second_lost_disk_begins_again(region: Region) -> None:
    region.lose_disk(B3, "second")
    before = region.group(1).generation
    region.lose_disk(B3, "third")
    assert region.group(1).generation > before
    assert region.state.generation_of(B3) == 3


def test_disk_is_replaced_only_for_the_one_that_is_known(region: Region) -> None:
    command = ReplaceDisk(registration=region.registered(B3, "x"), replaces="guess")
    assert region.refused(command).error is DataDirectoryError
    again = ReplaceDisk(registration=region.registered(B3), replaces="whatever")
    assert isinstance(region(again), Done)  # the same wish after a lost answer
    unknown = ReplaceDisk(registration=region.registered(B5, "x"), replaces="")
    assert region.refused(unknown).error is PolicyViolation


def test_only_replica_that_lost_its_disk_leaves_a_group_that_nobody_pretends_to_have(
    region: Region, definition: Make
) -> None:
    region(DefineTopic(definition=definition("one", topic_id=2, partitions=1, replication_factor=1)))
    (holder,) = region.group(2).target
    region.lose_disk(holder)
    assert region.group(2).target == ()
    assert not any(region.group(2).hosts(broker) for broker in (B1, B2, B3))


def test_founding_disk_counts_before_its_broker_registers(topology: Make, registration: Make) -> None:
    state = ControllerState()
    disks = ((B1, "disk-1001"), (B2, "disk-1002"), (B3, "disk-1003"))
    state.apply(FormRegion(topology=topology(1), disks=disks), RaftIndex(1))
    assert state.disk_of(B3) == "disk-1003"
    state.apply(RegisterBroker(registration=registration(1003, disk="blank")), RaftIndex(2))
    outcome = state.outcome(RaftIndex(2))
    assert isinstance(outcome, Refused) and outcome.error is DataDirectoryError


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ((), BadRequest),
        ((B1, B1), BadRequest),
        ((B1, B5), BadRequest),
        ((B1, B4), PolicyViolation),
    ],
    ids=str,
)
def test_wish_for_impossible_voters_is_refused(
    region: Region, target: tuple[BrokerId, ...], error: type[GeorelayError]
) -> None:
    region(AddBroker(broker=B4))
    region.register(B4)
    region(DrainBroker(broker=B4))
    generation = region.group(1).generation
    refused = region.refused(Reassign(group_id=GroupId(1), target=target, generation=generation))
    assert refused.error is error


def test_absent_brokers_are_never_wished_into_a_majority(region: Region) -> None:
    region(MarkAbsent(broker=B2))
    region(MarkAbsent(broker=B3))
    generation = region.group(1).generation
    refused = region.refused(Reassign(group_id=GroupId(1), target=(B1, B3), generation=generation))
    assert "absent" in refused.text
    assert isinstance(region.reassign(1, B3, B1, B2), Done)  # the same brokers in another order


def test_wish_for_a_group_that_changed_meanwhile_is_refused(region: Region) -> None:
    stale = region.group(1).generation
    region.reassign(1, B1, B2)
    assert "ask again" in region.refused(Reassign(group_id=GroupId(1), target=(B1,), generation=stale)).text


@pytest.mark.parametrize(
    ("voters", "learners"), [((), ()), ((B1, B2), (B2,)), ((B1, B5), ())], ids=["nobody", "both", "unknown"]
)
def test_report_that_cannot_be_is_refused(
    region: Region, voters: tuple[BrokerId, ...], learners: tuple[BrokerId, ...]
) -> None:
    generation = region.group(1).generation
    command = ReplicasChanged(group_id=GroupId(1), voters=voters, learners=learners, generation=generation)
    assert region.refused(command).error is BadRequest


def test_same_report_again_changes_nothing(region: Region) -> None:
    region.report(1, B1, B2, B3)
    assert region.effects == []


def test_replica_is_released_only_when_it_is_neither_there_nor_wanted(region: Region) -> None:
    region(AddBroker(broker=B4))
    region.register(B4)
    region.reassign(1, B1, B2, B4)
    region.report(1, B1, B2, B3, learners=(B4,))
    assert not any(isinstance(effect, GroupReleased) for effect in region.effects)
    assert region.group(1).hosts(B3) and region.group(1).hosts(B4)
    region.report(1, B1, B2, B4)
    assert [effect.brokers for effect in region.effects if isinstance(effect, GroupReleased)] == [(B3,)]


def test_founder_that_left_and_comes_back_opens_without_voters(region: Region) -> None:
    region.reassign(1, B1, B2)
    region.report(1, B1, B2)
    region.reassign(1, B1, B2, B3)
    assert region.group(1).hosts(B3) and region.group(1).base_for(B3) == ()
    assert region.group(1).founders == tuple(region.group(1).founders)


@pytest.mark.parametrize(
    ("active", "voters"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (6, 5), (7, 5)], ids=lambda value: str(value)
)
def test_controllers_voters_by_number_of_brokers(topology: Make, registration: Make, active: int, voters: int) -> None:
    region = Region(topology, registration, active)
    assert len(region.group(0).target) == voters
    assert len(region.group(0).target_learners) == active - voters


def test_replica_that_comes_back_has_to_be_named_above_the_membership_that_it_was_missing_from(
    region: Region,
) -> None:
    assert region.group(1).joins_after(B3) == -1  # a founder that never left
    region(AddBroker(broker=B4))
    region.register(B4)
    assert region.group(1).joins_after(B4) == 0  # it was never there
    region.lose_disk(B3)
    region.report(1, B1, B2, index=41)
    assert region.group(1).joins_after(B3) == 41
    region.reassign(1, B1, B2, B3)
    region.report(1, B1, B2, learners=(B3,), index=43)
    region.report(1, B1, B2, B3, index=44)
    assert region.group(1).joins_after(B3) == 41  # it was named above it: that is all it needs
    restored = ControllerState.from_snapshot(region.state.to_snapshot()).group(GroupId(1))
    assert restored is not None and restored.joins_after(B3) == 41


def test_record_without_registration_survives_its_json() -> None:
    record = BrokerRecord(broker=B4, state=DG, generation=3, peers="h:1", founding_disk="d")
    assert BrokerRecord.from_json(record.to_json()) == record
    assert record.disk == "d" and record.peer_address == "h:1"


def test_restored_state_releases_what_left_meanwhile_and_drops_what_is_gone(region: Region, definition: Make) -> None:
    region(DefineTopic(definition=definition("gone", topic_id=2, partitions=1)))
    behind = ControllerState.from_snapshot(region.state.to_snapshot())
    region(DropTopic(tombstone=Tombstone(name="gone", topic_id=(2).to_bytes(16, "big"), index=0)))
    region.reassign(1, B1, B2)
    region.report(1, B1, B2)
    effects = behind.restore(region.state.to_snapshot())
    assert GroupReleased(group_id=GroupId(1), key=region.group(1).key, brokers=(B3,)) in effects
    assert [effect.group_id for effect in effects if isinstance(effect, GroupDropped)] == [2]
    wanted = [effect for effect in effects if isinstance(effect, ReplicasWanted)]
    assert [effect.assignment for effect in wanted] == [region.group(1), region.group(0)]
