"""Answers that were lost, and members that go while something is under way for them: who hears what, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.wire.api import ErrorCode
from region.groups.group_core import Group, GroupState
from region.groups.settings import PENDING_MEMBERS_MAX
from region.groups.values import GroupRecord, StoredMember


def static_pair(scene: Any, **more: Any) -> tuple[str, str]:
    """Bring the static members a (it leads) and b into one generation."""
    calls = [scene.join(instance_id=name, **more) for name in ("a", "b")]
    scene.pass_ms(200)
    first, second = (call.answer.member_id for call in calls)
    scene.sync(first, {first: b"for a", second: b"for b"})
    scene.sync(second)
    return first, second


def test_a_member_that_lost_the_answer_to_its_join_gets_it_again_before_the_assignment_is_there(scene: Any) -> None:
    calls = [scene.join() for _ in range(2)]
    scene.pass_ms(200)
    leader, follower = (call.answer.member_id for call in calls)
    again = [scene.join(leader), scene.join(follower)]
    assert [call.answer.generation for call in again] == [1, 1]
    assert [len(call.answer.members) for call in again] == [2, 0]
    assert scene.group.state is GroupState.COMPLETING


def test_the_retry_of_a_lost_join_keeps_the_session_of_its_member(scene: Any) -> None:
    (only,) = (scene.join(session_ms=10_000),)
    scene.pass_ms(100)
    scene.pass_ms(9_000)
    scene.join(only.answer.member_id, session_ms=10_000)
    scene.pass_ms(9_000)
    assert only.answer.member_id in scene.group.members


def test_a_sync_that_is_sent_again_is_answered_and_the_first_one_is_told_to_retry(scene: Any) -> None:
    calls = [scene.join() for _ in range(2)]
    scene.pass_ms(200)
    leader, follower = (call.answer.member_id for call in calls)
    lost, again = scene.sync(follower), scene.sync(follower)
    assert (lost.answer.error, again.answer) == (ErrorCode.REBALANCE_IN_PROGRESS, None)
    scene.sync(leader, {follower: b"mine"})
    assert again.answer.assignment == b"mine"
    assert len(lost.answers) == len(again.answers) == 1


def test_a_member_that_leaves_while_its_sync_waits_hears_that_it_is_unknown(scene: Any) -> None:
    calls = [scene.join() for _ in range(2)]
    scene.pass_ms(200)
    follower = calls[1].answer.member_id
    waiting = scene.sync(follower)
    scene.leave(follower)
    assert waiting.answer.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.state is GroupState.PREPARING


def test_an_id_that_was_given_out_and_is_given_back_holds_the_barrier_no_longer(scene: Any) -> None:
    (first,) = scene.stable(1)
    given = scene.join(needs_known_id=True).answer.member_id
    again = scene.join(first)
    assert not again.answer
    assert scene.leave(given) == ErrorCode.NONE
    assert again.answer.generation == 2


def test_a_group_gives_out_so_many_ids_that_nobody_has_used_yet_and_no_more(scene: Any) -> None:
    calls = [scene.join(needs_known_id=True) for _ in range(PENDING_MEMBERS_MAX + 1)]
    assert [call.answer.error for call in calls[-2:]] == [
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    assert scene.join(calls[0].answer.member_id).answer is None  # who has an id is let in: it waits for the barrier


def test_nobody_leaves_or_syncs_in_a_group_that_is_being_deleted(scene: Any) -> None:
    (only,) = scene.stable(1)
    scene.leave(only)
    scene.perform(scene.group.kill())
    assert scene.leave("m1") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.sync("m1").answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_members_that_wait_are_answered_once_when_the_broker_coordinates_the_group_no_longer(scene: Any) -> None:
    first, second = scene.stable(2)
    joining = scene.join(first)
    scene.perform(scene.group.fail(ErrorCode.NOT_COORDINATOR))
    scene.perform(scene.group.fail(ErrorCode.NOT_COORDINATOR))
    assert [answer.error for answer in joining.answers] == [ErrorCode.NOT_COORDINATOR]
    assert second in scene.group.members


# --- static members -------------------------------------------------------------------------------


def test_a_static_member_that_comes_back_while_its_old_join_waits_fences_that_join(scene: Any) -> None:
    first, second = static_pair(scene)
    scene.join(first, instance_id="a")
    newcomer = scene.join()
    waiting = scene.join(second, instance_id="b")
    assert newcomer.answer.generation == 2
    scene.join(first, instance_id="a")
    waiting = scene.join(second, instance_id="b", protocols=(("range", b"other"),))
    assert not waiting.answer
    back = scene.join(instance_id="b")
    assert (waiting.answer.error, waiting.answer.member_id) == (ErrorCode.FENCED_INSTANCE_ID, second)
    assert not back.answer


def test_the_leadership_goes_to_a_member_that_joined_while_the_static_leader_is_away(scene: Any) -> None:
    first, second = static_pair(scene, session_ms=60_000, rebalance_ms=5_000)
    again = scene.join(second, instance_id="b", protocols=(("range", b"n"),), session_ms=60_000, rebalance_ms=5_000)
    scene.pass_ms(5_000)
    assert again.answer.leader == second
    assert {row.member_id for row in again.answer.members} == {first, second}


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_a_static_member_that_is_removed_while_its_new_id_is_stored_is_not_brought_back(
    scene: Any, error: ErrorCode
) -> None:
    first, _ = static_pair(scene)
    scene.hold_stores = True
    back = scene.join(instance_id="b")
    (store,) = scene.held
    assert scene.leave(instance_id="b") == ErrorCode.NONE
    scene.stored(store, error)
    assert [answer.error for answer in back.answers] == [error or ErrorCode.UNKNOWN_MEMBER_ID]
    assert [member.member_id for member in scene.group.members] == [first]


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
def test_of_two_processes_that_come_back_under_one_instance_id_the_earlier_is_fenced(
    scene: Any, error: ErrorCode
) -> None:
    static_pair(scene)
    scene.hold_stores = True
    earlier, later = scene.join(instance_id="b"), scene.join(instance_id="b")
    stores = list(scene.held)
    scene.stored(stores[0], error)
    scene.stored(stores[1])
    assert earlier.answer.error == (error or ErrorCode.FENCED_INSTANCE_ID)
    assert later.answer.error == ErrorCode.NONE
    assert scene.group.members.holder_of("b") == later.answer.member_id
    assert scene.heartbeat(later.answer.member_id, instance_id="b") == ErrorCode.NONE


# --- records --------------------------------------------------------------------------------------


def test_a_group_whose_record_names_a_leader_that_is_gone_is_led_by_its_oldest_member(scene: Any) -> None:
    rows = tuple(
        StoredMember(
            member_id=name,
            instance_id=None,
            client_id="",
            client_host="",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            metadata=b"t",
            assignment=b"",
        )
        for name in ("old", "young")
    )
    record = GroupRecord(
        group_id="g", generation=3, protocol_type="consumer", protocol="range", leader="gone", members=rows
    )
    assert Group.load(record, scene.settings, 0).leader == "old"


def test_a_loaded_group_without_a_protocol_has_nothing_in_common_to_choose(scene: Any) -> None:
    (only,) = scene.stable(1)
    stored = scene.records[-1]
    record = GroupRecord(
        group_id="g", generation=1, protocol_type="consumer", protocol=None, leader=only, members=stored.members
    )
    group = Group.load(record, scene.settings, 0)
    assert group.members.vote() is None
    assert not group.members.supports((("range", b"t"),))
