"""Static members (KIP-345, KIP-814): a place in the group that outlives the process that holds it."""

from __future__ import annotations

from typing import Any

from georelay.wire.api import ErrorCode
from region.groups.group_core import GroupState


def two_static(scene: Any, **more: Any) -> tuple[str, str]:
    calls = [scene.join(instance_id=name, **more) for name in ("a", "b")]
    scene.pass_ms(200)
    first, second = (call.answer.member_id for call in calls)
    scene.sync(first, {first: b"for a", second: b"for b"})
    scene.sync(second)
    assert scene.group.state is GroupState.STABLE
    return first, second


def test_a_static_member_that_comes_back_gets_its_assignment_without_a_rebalance(scene: Any) -> None:
    _, old = two_static(scene)
    back = scene.join(instance_id="b")
    assert scene.group.state is GroupState.STABLE
    assert back.answer.generation == 1
    assert back.answer.member_id != old
    assert scene.sync(back.answer.member_id, instance_id="b").answer.assignment == b"for b"


def test_the_new_id_of_a_static_member_is_stored_before_the_member_hears_of_it(scene: Any) -> None:
    two_static(scene)
    scene.hold_stores = True
    back = scene.join(instance_id="b")
    assert not back.answer
    scene.stored(scene.held[0])
    assert back.answer.member_id in {member.member_id for member in scene.records[-1].members}
    assert {member.assignment for member in scene.records[-1].members} == {b"for a", b"for b"}


def test_a_static_member_whose_new_id_could_not_be_stored_keeps_the_old_one(scene: Any) -> None:
    _, old = two_static(scene)
    scene.hold_stores = True
    back = scene.join(instance_id="b")
    scene.stored(scene.held[0], ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert back.answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.heartbeat(old, instance_id="b") == ErrorCode.NONE


def test_the_id_that_was_replaced_is_fenced(scene: Any) -> None:
    _, old = two_static(scene)
    scene.join(instance_id="b")
    assert scene.heartbeat(old, instance_id="b") == ErrorCode.FENCED_INSTANCE_ID
    assert scene.sync(old, instance_id="b").answer.error == ErrorCode.FENCED_INSTANCE_ID
    assert scene.join(old, instance_id="b").answer.error == ErrorCode.FENCED_INSTANCE_ID
    assert scene.leave(old, instance_id="b") == ErrorCode.FENCED_INSTANCE_ID
    assert scene.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_id_that_nobody_has_is_unknown(scene: Any) -> None:
    first, _ = two_static(scene)
    assert scene.heartbeat(first, instance_id="c") == ErrorCode.UNKNOWN_MEMBER_ID


def test_whoever_waits_under_an_id_that_is_replaced_hears_that_it_is_fenced(scene: Any) -> None:
    first, second = two_static(scene)
    scene.join(first, instance_id="a")  # the leader wants a rebalance
    waiting = scene.join(second, instance_id="b", protocols=(("range", b"new"),))
    assert waiting.answer.generation == 2
    lost = scene.sync(second, instance_id="b")
    scene.join(instance_id="b")
    assert lost.answer.error == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_before_the_assignment_is_stored_begins_the_rebalance_anew(scene: Any) -> None:
    calls = [scene.join(instance_id=name) for name in ("a", "b")]
    scene.pass_ms(200)
    assert all(call.answer.generation == 1 for call in calls)
    scene.join(instance_id="b")
    assert scene.group.state is GroupState.PREPARING


def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment_when_its_version_can(scene: Any) -> None:
    two_static(scene)
    back = scene.join(instance_id="a", can_skip=True)
    assert (back.answer.leader, back.answer.skip_assignment) == (back.answer.member_id, True)
    assert len(back.answer.members) == 2


def test_a_static_leader_of_an_older_version_is_not_told_that_it_leads(scene: Any) -> None:
    old, _ = two_static(scene)
    back = scene.join(instance_id="a")
    assert (back.answer.leader, back.answer.skip_assignment, back.answer.members) == (old, False, ())


def test_a_static_member_with_other_protocols_begins_a_rebalance_if_the_choice_changes(scene: Any) -> None:
    both = (("range", b"t"), ("sticky", b"t"))
    two_static(scene, protocols=both)
    scene.join(instance_id="b", protocols=(("sticky", b"t"),))
    assert scene.group.state is GroupState.PREPARING


def test_a_static_member_keeps_its_place_through_a_barrier_until_its_session_ends(scene: Any) -> None:
    first, second = two_static(scene, session_ms=60_000, rebalance_ms=10_000)
    newcomer = scene.join(rebalance_ms=10_000)
    again = scene.join(first, instance_id="a", session_ms=60_000, rebalance_ms=10_000)
    scene.pass_ms(10_000)
    assert again.answer.generation == newcomer.answer.generation == 2
    assert second in {row.member_id for row in again.answer.members}
    for _ in range(12):
        scene.heartbeat(first)
        scene.heartbeat(newcomer.answer.member_id)
        scene.pass_ms(5_000)
    assert second not in scene.group.members


def test_a_group_of_static_members_none_of_which_is_back_waits_for_their_sessions(scene: Any) -> None:
    first, second = two_static(scene, session_ms=20_000, rebalance_ms=5_000)
    newcomer = scene.join(rebalance_ms=5_000, needs_known_id=True)
    assert scene.leave(newcomer.answer.member_id) == ErrorCode.NONE
    scene.join(first, instance_id="a", protocols=(("range", b"x"),), session_ms=20_000, rebalance_ms=5_000)
    scene.leave(first, instance_id="a")
    scene.pass_ms(6_000)
    assert (second in scene.group.members, scene.group.state) == (True, GroupState.PREPARING)
    scene.pass_ms(20_000)
    assert scene.group.state is GroupState.EMPTY


def test_an_operator_removes_a_static_member_by_its_instance_id(scene: Any) -> None:
    two_static(scene)
    assert scene.leave(instance_id="b") == ErrorCode.NONE
    assert scene.leave(instance_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.state is GroupState.PREPARING


def test_an_id_that_was_given_to_a_dynamic_member_does_not_take_a_static_members_place(scene: Any) -> None:
    (holder,) = scene.stable(1, instance_id="i")
    given = scene.join(needs_known_id=True).answer.member_id
    assert scene.join(given, instance_id="i").answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in scene.group.members] == [holder]
    assert scene.heartbeat(holder, instance_id="i") is ErrorCode.NONE
