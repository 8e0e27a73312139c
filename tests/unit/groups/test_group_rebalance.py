"""Joining, the barrier, generations and assignments: each rule of the classic protocol as a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.wire.api import ErrorCode
from region.groups.group_core import MAY_FOLLOW, Group, GroupState
from region.groups.settings import GROUP_BYTES_MAX, GroupSettings


def test_the_first_member_of_a_group_waits_for_others_as_long_as_is_configured(scene: Any) -> None:
    first = scene.join()
    scene.pass_ms(99)
    assert not first.answer
    scene.pass_ms(1)
    assert (first.answer.error, first.answer.generation, first.answer.leader) == (0, 1, first.answer.member_id)


def test_without_a_delay_a_single_member_joins_at_once(make_scene: Any) -> None:
    assert make_scene(initial_rebalance_delay_ms=0).join().answer.generation == 1


def test_each_newcomer_puts_the_first_barrier_off_once_more_but_never_beyond_the_rebalance_timeout(
    make_scene: Any,
) -> None:
    scene = make_scene(initial_rebalance_delay_ms=100)
    first = scene.join(rebalance_ms=250)
    for _ in range(2):
        scene.pass_ms(90)
        scene.join(rebalance_ms=250)
        scene.pass_ms(10)
        assert not first.answer
    scene.pass_ms(50)
    assert len(first.answer.members) == 3


def test_the_members_of_one_barrier_get_one_generation_and_only_the_leader_hears_of_the_others(scene: Any) -> None:
    calls = [scene.join(protocols=(("range", bytes([n])),)) for n in range(3)]
    scene.pass_ms(200)
    answers = [call.answer for call in calls]
    assert {answer.generation for answer in answers} == {1}
    assert [len(answer.members) for answer in answers] == [3, 0, 0]
    assert [row.metadata for row in answers[0].members] == [b"\x00", b"\x01", b"\x02"]


def test_everybody_gets_what_the_leader_assigned_and_who_was_forgotten_gets_nothing(scene: Any) -> None:
    calls = [scene.join() for _ in range(3)]
    scene.pass_ms(200)
    ids = [call.answer.member_id for call in calls]
    waiting = scene.sync(ids[1])
    assert not waiting.answer
    leader = scene.sync(ids[0], {ids[0]: b"a", ids[1]: b"b"})
    late = scene.sync(ids[2])
    assert [call.answer.assignment for call in (leader, waiting, late)] == [b"a", b"b", b""]
    assert scene.group.state is GroupState.STABLE


def test_an_assignment_is_handed_out_only_after_it_was_stored(scene: Any) -> None:
    call = scene.join()
    scene.pass_ms(100)
    scene.hold_stores = True
    sync = scene.sync(call.answer.member_id, {call.answer.member_id: b"a"})
    assert not sync.answer
    scene.stored(scene.held[0])
    assert sync.answer.assignment == b"a"
    assert scene.records[-1].members[0].assignment == b"a"


def test_an_assignment_that_could_not_be_stored_is_answered_with_the_error_and_a_new_rebalance(scene: Any) -> None:
    call = scene.join()
    scene.pass_ms(100)
    scene.hold_stores = True
    sync = scene.sync(call.answer.member_id, {call.answer.member_id: b"a"})
    scene.stored(scene.held[0], ErrorCode.NOT_COORDINATOR)
    assert sync.answer.error == ErrorCode.NOT_COORDINATOR
    assert scene.group.state is GroupState.PREPARING


def test_an_assignment_stored_after_somebody_else_joined_is_handed_to_nobody(scene: Any) -> None:
    call = scene.join()
    scene.pass_ms(100)
    scene.hold_stores = True
    sync = scene.sync(call.answer.member_id, {call.answer.member_id: b"a"})
    scene.join()
    assert sync.answer.error == ErrorCode.REBALANCE_IN_PROGRESS
    scene.stored(scene.held[0])
    assert scene.group.state is GroupState.PREPARING
    assert sync.answers == [sync.answer]


def test_a_newcomer_makes_the_members_join_again_and_the_barrier_falls_when_all_have(scene: Any) -> None:
    first, second = scene.stable(2)
    newcomer = scene.join()
    assert scene.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
    again = [scene.join(first)]
    assert not newcomer.answer
    again.append(scene.join(second))
    assert {call.answer.generation for call in (newcomer, *again)} == {2}


def test_a_member_that_does_not_join_again_within_the_rebalance_timeout_is_removed(scene: Any) -> None:
    first, second = scene.stable(2, session_ms=60_000)
    newcomer = scene.join()
    again = scene.join(first, session_ms=60_000)
    scene.pass_ms(30_000)
    assert again.answer.generation == newcomer.answer.generation == 2
    assert scene.heartbeat(second) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_leadership_goes_to_a_member_that_joined_again_when_the_leader_did_not(scene: Any) -> None:
    _, second = scene.stable(2, session_ms=60_000)
    newcomer = scene.join()
    again = scene.join(second, session_ms=60_000)
    scene.pass_ms(30_000)
    assert again.answer.leader == second
    assert newcomer.answer.leader == second


def test_members_that_wait_in_a_join_do_not_lose_their_sessions(scene: Any) -> None:
    first, second = scene.stable(2, session_ms=5_000, rebalance_ms=60_000)
    again = scene.join(first, session_ms=5_000, rebalance_ms=60_000)
    for _ in range(10):
        scene.pass_ms(4_000)
        scene.heartbeat(second)
    assert not again.answer
    scene.join(second, session_ms=5_000, rebalance_ms=60_000)
    assert again.answer.generation == 2


def test_a_new_member_whose_client_went_away_is_forgotten_after_five_minutes(scene: Any) -> None:
    (first,) = scene.stable(1, session_ms=600_000, rebalance_ms=3_600_000)
    newcomer = scene.join(rebalance_ms=3_600_000)
    scene.pass_ms(300_000)
    assert newcomer.answer.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in scene.group.members] == [first]


def test_a_member_that_is_not_heard_of_within_its_session_is_removed_and_the_rest_rebalance(scene: Any) -> None:
    first, second = scene.stable(2)
    scene.pass_ms(9_000)
    assert scene.heartbeat(first) == ErrorCode.NONE
    scene.pass_ms(1_000)
    assert scene.heartbeat(second) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_member_that_leaves_empties_the_group_and_its_generation_goes_on(scene: Any) -> None:
    (only,) = scene.stable(1)
    assert scene.leave(only) == ErrorCode.NONE
    assert (scene.group.state, scene.group.generation) == (GroupState.EMPTY, 2)
    assert scene.records[-1].members == ()


def test_a_member_that_does_not_sync_within_the_rebalance_timeout_is_removed(scene: Any) -> None:
    calls = [scene.join(session_ms=60_000) for _ in range(2)]
    scene.pass_ms(200)
    first, second = (call.answer.member_id for call in calls)
    scene.sync(first, {first: b"a"})
    scene.pass_ms(20_000)
    scene.heartbeat(first)
    scene.heartbeat(second)
    scene.pass_ms(10_000)
    assert scene.heartbeat(second) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS


def test_from_version_4_on_a_member_is_told_its_id_first_and_counts_only_once_it_joins_with_it(scene: Any) -> None:
    told = scene.join(needs_known_id=True)
    assert told.answer.error == ErrorCode.MEMBER_ID_REQUIRED
    assert scene.group.state is GroupState.EMPTY
    joined = scene.join(told.answer.member_id)
    scene.pass_ms(100)
    assert joined.answer.member_id == told.answer.member_id


def test_an_id_that_was_given_out_and_not_used_holds_the_barrier_until_its_session_ends(scene: Any) -> None:
    (first,) = scene.stable(1)
    scene.join(needs_known_id=True, session_ms=6_000)
    again = scene.join(first)
    assert not again.answer
    scene.pass_ms(6_000)
    assert again.answer.generation == 2


def test_a_follower_that_joins_again_with_the_same_subscription_gets_the_generation_as_it_is(scene: Any) -> None:
    _, follower = scene.stable(2)
    again = scene.join(follower)
    assert (again.answer.generation, scene.group.state) == (1, GroupState.STABLE)


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_leader_or_a_member_with_another_subscription_that_joins_again_begins_a_rebalance(
    scene: Any, is_leader: bool
) -> None:
    leader, follower = scene.stable(2)
    if is_leader:
        scene.join(leader)
    else:
        scene.join(follower, protocols=(("range", b"other"),))
    assert scene.group.state is GroupState.PREPARING


def test_a_join_that_is_sent_again_is_answered_once_and_the_first_one_is_told_to_retry(scene: Any) -> None:
    first, second = scene.stable(2)
    lost = scene.join(first)
    again = scene.join(first)
    assert lost.answer.error == ErrorCode.REBALANCE_IN_PROGRESS
    scene.join(second)
    assert again.answer.generation == 2
    assert len(lost.answers) == len(again.answers) == 1


def test_the_protocol_is_the_one_that_most_members_like_best_among_those_that_all_support(scene: Any) -> None:
    wishes = [
        (("sticky", b""), ("range", b""), ("own", b"")),
        (("range", b""), ("sticky", b"")),
        (("range", b""), ("sticky", b"")),
    ]
    calls = [scene.join(protocols=wish) for wish in wishes]
    scene.pass_ms(200)
    assert {call.answer.protocol for call in calls} == {"range"}


@pytest.mark.parametrize(
    "wish",
    [{"protocols": (("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}, {"protocol_type": ""}],
)
def test_who_shares_no_protocol_with_the_members_is_refused(scene: Any, wish: dict[str, Any]) -> None:
    scene.stable(1)
    assert scene.join(**wish).answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.group.state is GroupState.STABLE


def test_an_empty_group_takes_another_protocol_type(scene: Any) -> None:
    (only,) = scene.stable(1)
    scene.leave(only)
    call = scene.join(protocol_type="connect", protocols=(("v1", b""),))
    scene.pass_ms(100)
    assert call.answer.protocol_type == "connect"


@pytest.mark.parametrize("session_ms", [999, 1_800_001, -1])
def test_a_session_timeout_outside_the_bounds_is_refused(scene: Any, session_ms: int) -> None:
    assert scene.join(session_ms=session_ms).answer.error == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_takes_no_more_members_than_its_limit(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.groups.members_core.MEMBERS_MAX", 50)
    calls = [scene.join() for _ in range(51)]
    assert calls[-1].answer.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(scene.group.members) == 50


def test_a_member_whose_subscription_does_not_fit_into_the_group_is_refused(scene: Any) -> None:
    scene.stable(1)
    large = scene.join(protocols=(("range", bytes(GROUP_BYTES_MAX)),))
    assert large.answer.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert scene.group.state is GroupState.STABLE


def test_an_unknown_member_id_is_refused_everywhere(scene: Any) -> None:
    scene.stable(1)
    assert scene.join("nobody").answer.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.sync("nobody").answer.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.leave("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.commit("nobody") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_an_older_generation_is_refused_everything_but_joining(scene: Any) -> None:
    (only,) = scene.stable(1)
    assert scene.sync(only, generation=0).answer.error == ErrorCode.ILLEGAL_GENERATION
    assert scene.heartbeat(only, generation=0) == ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(only, generation=0) == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("told", [{"protocol": "sticky"}, {"protocol_type": "connect"}])
def test_a_sync_that_says_another_protocol_is_refused(scene: Any, told: dict[str, str]) -> None:
    (only,) = scene.stable(1)
    assert scene.sync(only, **told).answer.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_members_commit_until_the_next_generation_begins_and_again_when_it_is_assigned(scene: Any) -> None:
    first, second = scene.stable(2)
    scene.join(first)
    assert scene.commit(second) == ErrorCode.NONE
    scene.join(second)
    assert scene.group.state is GroupState.COMPLETING
    assert scene.commit(first, generation=1) == ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(first) == ErrorCode.REBALANCE_IN_PROGRESS
    scene.sync(first, {})
    assert scene.commit(first) == ErrorCode.NONE


def test_a_consumer_without_membership_commits_to_groups_without_members_only(scene: Any) -> None:
    assert scene.commit(generation=-1) == ErrorCode.NONE
    (only,) = scene.stable(1)
    assert scene.commit(generation=-1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.commit(generation=-1, is_transactional=True) == ErrorCode.NONE
    scene.leave(only)
    assert scene.commit(generation=-1) == ErrorCode.NONE


def test_a_group_that_is_being_deleted_serves_nobody(scene: Any) -> None:
    scene.perform(scene.group.kill())
    assert scene.join().answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.commit(generation=-1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.heartbeat("m1") == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_loaded_group_is_stable_and_the_sessions_of_its_members_begin_anew(scene: Any) -> None:
    ids = scene.stable(2)
    scene.pass_ms(9_999)
    scene.group = Group.load(scene.records[-1], scene.settings, scene.now_ms * 1_000_000)
    assert (scene.group.state, scene.group.generation, scene.group.leader) == (GroupState.STABLE, 1, ids[0])
    scene.pass_ms(9_999)
    assert [scene.heartbeat(member) for member in ids] == [ErrorCode.NONE] * 2
    assert scene.sync(ids[1]).answer.assignment == ids[1].encode()


def test_no_group_leaves_a_state_by_a_way_that_is_not_in_the_table() -> None:
    for state in GroupState:
        for following in GroupState:
            group = Group("g", GroupSettings())
            group.state = state
            if following in MAY_FOLLOW[state]:
                group._move(following)
                assert group.state is following
            else:
                with pytest.raises(AssertionError):
                    group._move(following)
                assert group.state is state
