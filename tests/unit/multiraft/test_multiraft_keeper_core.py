"""The next step of a membership, from every situation it can be in."""

from __future__ import annotations

from georelay.ids import BrokerId
from region.multiraft.replica_keeper_core import (
    Action,
    ChangeMembers,
    GroupView,
    HandOver,
    MemberView,
    ReplicaTarget,
    decide,
    is_moving,
    must_report,
    still_unsafe,
)
from tests.tiers import in_one_test

A, B, C, D, X = (BrokerId(1000 + number) for number in range(1, 6))
FINE = MemberView(alive=True, caught_up=True)
BEHIND = MemberView(alive=True, caught_up=False)
DEAD = MemberView(alive=False, caught_up=True)


def view(
    voters: tuple[BrokerId, ...],
    learners: tuple[BrokerId, ...] = (),
    *,
    me: BrokerId = A,
    members: dict[BrokerId, MemberView] | None = None,
    reachable: frozenset[BrokerId] = frozenset({A, B, C, D, X}),
) -> GroupView:
    views = {member: FINE for member in (*voters, *learners) if member != me} | (members or {})
    return GroupView(me=me, voters=voters, learners=learners, members=views, reachable=reachable)


def change(voters: tuple[BrokerId, ...], learners: tuple[BrokerId, ...] = ()) -> ChangeMembers:
    return ChangeMembers(voters=voters, learners=learners)


@in_one_test(
    ("now", "target", "expected"),
    [
        (view((A, B, C)), ReplicaTarget(voters=(A, B, C)), None),
        (view((A, B, C)), ReplicaTarget(voters=(C, B, A)), None),
        (view((A, B, C)), ReplicaTarget(voters=()), None),
        (view((A, B, C), (D,)), ReplicaTarget(voters=()), None),
        (view((A, B, C)), ReplicaTarget(voters=(A, B, D)), change((A, B, C), (D,))),
        (view((A, B, C)), ReplicaTarget(voters=(B, D, X)), change((A, B, C), (D, X))),
        (view((A, B, C), (D,), members={D: BEHIND}), ReplicaTarget(voters=(A, B, D)), None),
        (view((A, B, C), (D,), members={D: DEAD}), ReplicaTarget(voters=(A, B, D)), None),
        (view((A, B, C), (D,)), ReplicaTarget(voters=(A, B, D)), change((A, B, D))),
        (view((A, B, C), (D,)), ReplicaTarget(voters=(B, C, D)), HandOver(to=B)),
        (view((A, B, C), (D,), members={B: BEHIND}), ReplicaTarget(voters=(B, C, D)), HandOver(to=C)),
        (view((A,), (D,)), ReplicaTarget(voters=(D,)), change((D,))),
        (view((A, B, C), (D,)), ReplicaTarget(voters=(A, B, C)), change((A, B, C))),
        (view((A, B, C)), ReplicaTarget(voters=(A, B)), change((A, B))),
        (view((A, B, C)), ReplicaTarget(voters=(A, B, C), unsafe=frozenset({C})), change((A, B))),
        (view((A, B), (C,)), ReplicaTarget(voters=(A, B, C), unsafe=frozenset({C})), change((A, B))),
        (view((A, B)), ReplicaTarget(voters=(A, B, C), unsafe=frozenset({C})), None),
        (view((A, B)), ReplicaTarget(voters=(A, B), unsafe=frozenset({A})), None),
        (view((A, B, C)), ReplicaTarget(voters=(A, B, C), learners=(D,)), change((A, B, C), (D,))),
        (view((A, B, C), (D,)), ReplicaTarget(voters=(A, B, C), learners=(D,)), None),
        (view((A, B, C), (D, X)), ReplicaTarget(voters=(A, B, D), learners=(X,)), change((A, B, D), (X,))),
        (view((A, B, C), reachable=frozenset({A, B, C})), ReplicaTarget(voters=(A, B, D)), None),
    ],
)
def test_the_next_step(now: GroupView, target: ReplicaTarget, expected: Action | None) -> None:
    assert decide(now, target, may_move=True) == expected


def test_no_new_replica_begins_over_the_bound_but_one_on_its_way_is_finished() -> None:
    target = ReplicaTarget(voters=(A, B, D))
    assert decide(view((A, B, C)), target, may_move=False) is None
    assert decide(view((A, B, C), (D,)), target, may_move=False) == change((A, B, D))
    assert (is_moving(view((A, B, C)), target), is_moving(view((A, B, C), (D,)), target)) == (False, True)


def test_a_removal_never_waits_for_the_bound() -> None:
    target = ReplicaTarget(voters=(A, B, C), unsafe=frozenset({C}))
    assert decide(view((A, B, C)), target, may_move=False) == change((A, B))


def test_a_report_is_due_while_the_controller_knows_something_else() -> None:
    told = ReplicaTarget(voters=(A, B), recorded=((A, B), ()))
    silent = ReplicaTarget(voters=(A, B))
    assert not must_report(((B, A), ()), told, reported=None)
    assert must_report(((A, B), (C,)), told, reported=((A, B), (C,)))
    assert must_report(((A, B), ()), silent, reported=None)
    assert not must_report(((A, B), ()), silent, reported=((A, B), ()))


def test_a_report_is_due_when_the_unsafe_have_left() -> None:
    target = ReplicaTarget(voters=(A, B), unsafe=frozenset({C}), recorded=((A, B), ()))
    assert must_report(((A, B), ()), target, reported=None)


def test_a_member_whose_disk_changes_under_the_leaders_eyes_is_unsafe_until_it_left() -> None:
    seen: dict[BrokerId, int] = {}
    before = ReplicaTarget(voters=(A, B), generations={A: 1, B: 1})
    after = ReplicaTarget(voters=(A, B), generations={A: 1, B: 2})
    assert still_unsafe(before, seen, (A, B)) == frozenset()
    assert still_unsafe(after, seen, (A, B)) == {B}
    assert still_unsafe(after, seen, (A, B)) == {B}
    assert still_unsafe(after, seen, (A,)) == frozenset()
    assert still_unsafe(after, seen, (A, B)) == frozenset()
