"""Rules of groups and their replicas while commands are applied: wishes and reports.

Rule 1: a wish and a report name the generation of the group they were made under; an older one changes nothing, nor
        does a report of a membership that is known to have been followed by another.
Rule 2: nobody unsafe is wished for, and a new member is an active broker.
Rule 3: a wish whose absent members are no minority is refused: the group could not commit any more.
Rule 4: a replica is given up, and its files with it, only while the others are a majority that can commit its removal.
"""

from __future__ import annotations

from georelay.errors import BadRequest, Busy, PolicyViolation, UnknownTopic
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerState
from region.controller.effects import Done, Effect, GroupReleased, Outcome, Refused
from region.controller.ledger import RegionLedger


def replicas_changed(
    ledger: RegionLedger,
    group_id: GroupId,
    *,
    voters: tuple[BrokerId, ...],
    learners: tuple[BrokerId, ...],
    generation: int,
    membership_index: int,
    effects: list[Effect],
) -> Outcome:
    """Record the committed membership that a group's leader reports."""
    assignment = _group(ledger, group_id)
    if assignment is None:
        return Refused(error=UnknownTopic, text=f"there is no group {group_id}")
    if generation != assignment.generation:
        text = f"group {group_id} is wanted otherwise since {assignment.generation}, not since {generation}"
        return Refused(error=Busy, text=text)
    if not voters or set(voters) & set(learners) or not set(voters) | set(learners) <= set(ledger.records):
        return Refused(error=BadRequest, text=f"members {voters} and {learners} of group {group_id} cannot be")
    if assignment.is_outdated(voters, learners, membership_index=membership_index):
        text = f"group {group_id} has changed its members since entry {membership_index}"
        return Refused(error=Busy, text=text)
    now, released = assignment.reported(voters, learners, membership_index=membership_index, index=ledger.applied_index)
    if now == assignment:
        return Done()
    ledger.put_group(now, effects)
    if released and group_id != CONTROLLER_GROUP:
        effects.append(GroupReleased(group_id=group_id, key=assignment.key, brokers=released))
    ledger.settle(effects)
    ledger.metadata_changed(effects)
    return Done()


def reassign(
    ledger: RegionLedger,
    group_id: GroupId,
    *,
    target: tuple[BrokerId, ...],
    generation: int,
    pinned: int,
    effects: list[Effect],
) -> Outcome:
    """Wish for other voters of a data group, the preferred leader first."""
    assignment = ledger.groups.of_id(group_id)
    if assignment is None:
        return Refused(error=UnknownTopic, text=f"there is no group {group_id}")
    if generation != assignment.generation:
        return Refused(error=Busy, text=f"group {group_id} changed meanwhile; ask again")
    refused = _refuse_target(ledger, assignment, target)
    if refused is not None:
        return refused
    if (target, pinned) != (assignment.target, assignment.pinned):
        ledger.put_group(assignment.moved(target, generation=ledger.applied_index, pinned=pinned), effects)
        ledger.settle(effects)
    return Done()


def replica_lost(
    ledger: RegionLedger, group_id: GroupId, *, broker: BrokerId, generation: int, effects: list[Effect]
) -> Outcome:
    """Have the replica of a living broker made anew: first it leaves the group, as if its disk were gone.

    The controller's own group is none of these: a broker that cannot use its log there does not start.
    """
    assignment = ledger.groups.of_id(group_id)
    if assignment is None:
        return Refused(error=UnknownTopic, text=f"there is no group {group_id} of a topic")
    if broker in assignment.unsafe or broker not in assignment.concerned:
        return Done()  # it is given up already
    if generation != assignment.generation:
        return Refused(error=Busy, text=f"group {group_id} changed meanwhile; ask again")
    if not assignment.can_do_without(broker):
        text = f"without broker {broker} the replicas of group {group_id} are no majority that could go on"
        return Refused(error=PolicyViolation, text=text)
    ledger.put_group(assignment.without(broker, generation=ledger.applied_index), effects)
    ledger.settle(effects)
    ledger.metadata_changed(effects)
    return Done()


def _group(ledger: RegionLedger, group_id: GroupId) -> Assignment | None:
    return ledger.control if group_id == CONTROLLER_GROUP else ledger.groups.of_id(group_id)


def _refuse_target(ledger: RegionLedger, assignment: Assignment, target: tuple[BrokerId, ...]) -> Refused | None:
    if not target or len(set(target)) != len(target):
        return Refused(error=BadRequest, text="name at least one broker, and none of them twice")
    unknown = [broker for broker in target if broker not in ledger.brokers]
    if unknown:
        return Refused(error=BadRequest, text=f"brokers {unknown} are not registered in this region")
    unsafe = sorted(assignment.unsafe & set(target))
    if unsafe:
        return Refused(error=Busy, text=f"brokers {unsafe} have to leave the group first; ask again")
    states = {broker: ledger.records[broker].state for broker in target}
    closed = [b for b in target if states[b] is not BrokerState.ACTIVE and b not in assignment.members]
    if closed:
        return Refused(error=PolicyViolation, text=f"brokers {closed} take no replicas; use active ones")
    absent = [broker for broker in target if states[broker] is BrokerState.ABSENT]
    if 2 * len(absent) >= len(target) and set(target) != set(assignment.target):
        text = f"brokers {absent} are absent; without a majority of the others nothing could be committed"
        return Refused(error=PolicyViolation, text=text)
    return None
