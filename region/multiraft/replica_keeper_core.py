"""What the leader of a group does next to bring its members to what the controller wants. Pure.

Rule 1: a broker whose disk was replaced leaves the group before it enters it again: its old vote is not worth the
        log that the new disk lacks.
Rule 2: a broker becomes a voter only after it was a learner that caught up, so a change never costs availability.
Rule 3: one change at a time; the next is decided when the one before it is committed.
Rule 4: a leader that shall leave hands over first, so that the change is finished by somebody who stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from georelay.ids import BrokerId

CAUGHT_UP_ENTRIES: Final = 256  # behind the log end by no more than one window of Appends

Members: TypeAlias = tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]  # voters, learners


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTarget:
    """What the controller wants of one group.

    Args:
        voters: in the order of preference as leaders; empty when nothing is wanted.
        learners: wanted as such; everybody else who is no voter leaves.
        unsafe: brokers that may still be members by a disk that was replaced.
        generation: of this target as the controller counts them; handed back in reports.
        generations: of each broker's disk; one that changes while the broker is a member makes it unsafe.
        recorded: (voters, learners) as the controller knows them, None when it does not say.
    """

    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...] = ()
    unsafe: frozenset[BrokerId] = frozenset()
    generation: int = 0
    generations: Mapping[BrokerId, int] = field(default_factory=dict)
    recorded: Members | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One other member as its leader sees it."""

    alive: bool
    caught_up: bool  # replicating, not repairing, and within CAUGHT_UP_ENTRIES of the log end


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as its leader sees it, all changes of membership committed."""

    me: BrokerId
    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...]
    members: Mapping[BrokerId, MemberView]
    reachable: frozenset[BrokerId]  # those of the wanted brokers that were heard lately


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMembers:
    """Propose this membership."""

    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Transfer the leadership."""

    to: BrokerId


Action: TypeAlias = ChangeMembers | HandOver


def is_moving(view: GroupView, target: ReplicaTarget) -> bool:
    """Return whether a replica is on its way into the group: it counts against the bound on moves."""
    return any(voter in view.learners for voter in target.voters)


def is_reached(view: GroupView, target: ReplicaTarget) -> bool:
    """Return whether the members are exactly what is wanted, so that nothing is to be done whoever is alive."""
    return (
        bool(target.voters)
        and not target.unsafe
        and set(view.voters) == set(target.voters)
        and set(view.learners) == set(target.learners)
    )


def decide(view: GroupView, target: ReplicaTarget, *, may_move: bool) -> Action | None:
    """Return the next step towards the target, None when there is none now.

    Args:
        may_move: whether one more group may begin to copy its log to another broker.
    """
    return _expel(view, target) or _admit(view, target, may_move=may_move) or _swap(view, target)


def _expel(view: GroupView, target: ReplicaTarget) -> Action | None:
    unsafe = target.unsafe - {view.me}  # a leader's own log is beyond doubt
    voters = tuple(voter for voter in view.voters if voter not in unsafe)
    learners = tuple(learner for learner in view.learners if learner not in unsafe)
    if (voters, learners) == (view.voters, view.learners) or not voters:
        return None
    return ChangeMembers(voters=voters, learners=learners)


def _admit(view: GroupView, target: ReplicaTarget, *, may_move: bool) -> Action | None:
    if not target.voters:
        return None
    wanted = (*target.voters, *target.learners)
    missing = [
        broker
        for broker in wanted
        if broker not in view.voters
        and broker not in view.learners
        and broker not in target.unsafe
        and broker in view.reachable
    ]
    if not (may_move or is_moving(view, target)):
        missing = []
    kept = [learner for learner in view.learners if learner in wanted]
    if not missing and len(kept) == len(view.learners):
        return None
    return ChangeMembers(voters=view.voters, learners=(*kept, *missing))


def _swap(view: GroupView, target: ReplicaTarget) -> Action | None:
    wanted = target.voters
    if not wanted or set(wanted) == set(view.voters) or target.unsafe & set(wanted) - {view.me}:
        return None
    if not all(voter in view.voters or _caught_up(view, voter) for voter in wanted):
        return None
    if view.me not in wanted:
        heir = next((voter for voter in wanted if voter in view.voters and _caught_up(view, voter)), None)
        if heir is not None:
            return HandOver(to=heir)
    present = {*view.voters, *view.learners}
    learners = tuple(broker for broker in target.learners if broker in present and broker not in wanted)
    return ChangeMembers(voters=wanted, learners=learners)


def _caught_up(view: GroupView, broker: BrokerId) -> bool:
    member = view.members.get(broker)
    return broker == view.me or (member is not None and member.alive and member.caught_up)


def must_report(members: Members, target: ReplicaTarget, *, reported: Members | None) -> bool:
    """Return whether the controller has to hear of `members`.

    Args:
        members: voters and learners of a committed, not joint membership.
        reported: what it was told last by this leader, None for nothing.
    """
    known = target.recorded if target.recorded is not None else reported
    if known is None or _as_sets(known) != _as_sets(members):
        return True
    expelled = bool(target.unsafe) and not target.unsafe & {*members[0], *members[1]}
    return expelled and target.recorded is not None


def _as_sets(members: Members) -> tuple[frozenset[BrokerId], frozenset[BrokerId]]:
    return frozenset(members[0]), frozenset(members[1])


def still_unsafe(
    target: ReplicaTarget, seen: dict[BrokerId, int], members: tuple[BrokerId, ...]
) -> frozenset[BrokerId]:
    """Return the target's unsafe brokers and the members whose disk changed under this leader's eyes.

    Args:
        seen: generation of each member's disk when it was first seen as a member; kept up to date here.
    """
    for broker in [known for known in seen if known not in members]:
        del seen[broker]
    changed = set()
    for broker in members:
        generation = target.generations.get(broker, 0)
        if seen.setdefault(broker, generation) != generation:
            changed.add(broker)
    return target.unsafe | changed
