"""The groups of one coordinator: what is acknowledged is replicated, and a new leader goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import BadRequest
from georelay.ids import RaftIndex, RegionNumber, StreamKey
from georelay.wire.api import ErrorCode
from georelay.wire.consumer_protocol import Subscription, encode_subscription
from region.coordination.in_memory import InMemoryCoordinatorLog
from region.coordination.limits import PART_SNAPSHOT_BYTES_MAX
from region.coordination.part import IN_USE, CommandError, Part
from region.groups.offsets_core import CommittedOffset
from region.groups.values import Identity, JoinWish, SyncWish
from tests.unit.groups.coordinator_world import (
    KEY,
    World,
    commit,
    committed,
    ignore,
    stable,
    turn,
    wish,
)


async def test_a_commit_is_answered_only_when_it_is_applied(world: World) -> None:
    who = await stable(world)
    world.log.hold()
    done: list[Any] = []
    world.part.commit("g", who, {KEY: CommittedOffset(offset=5)}, done.append)
    await turn()
    assert (done, committed(world)) == ([], -1)
    world.log.release()
    await turn()
    assert (done, committed(world)) == ([{KEY: ErrorCode.NONE}], 5)


async def test_a_new_leader_has_members_assignments_and_offsets_and_begins_sessions_anew(world: World) -> None:
    who = await stable(world)
    assert await commit(world, who, 5) is ErrorCode.NONE
    world.log.clock.advance(9)
    part = world.fail_over()
    world.log.clock.advance(9)
    assert part.heartbeat("g", who) is ErrorCode.NONE
    synced: list[Any] = []
    part.sync("g", SyncWish(member_id=who.member_id, generation=who.generation), synced.append)
    assert (synced[0].assignment, committed(world)) == (b"mine", 5)


async def test_a_member_that_is_silent_after_a_failover_is_removed_by_the_timer(world: World) -> None:
    who = await stable(world)
    part = world.fail_over()
    world.log.clock.advance(10.5)
    await turn()
    assert part.heartbeat("g", who) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_heartbeats_arm_no_timers(world: World) -> None:
    who = await stable(world)
    before = world.log.clock.timers
    for _ in range(100):
        world.part.heartbeat("g", who)
    assert world.log.clock.timers == before
    world.log.clock.advance(9.9)
    world.part.heartbeat("g", who)
    world.log.clock.advance(9.9)
    assert world.part.heartbeat("g", who) is ErrorCode.NONE


async def test_whoever_waits_when_the_leader_is_deposed_is_told_to_look_for_the_coordinator(world: World) -> None:
    await stable(world)
    waiting: list[Any] = []
    world.part.join("g", wish(subscription=b"other"), waiting.append)
    assert waiting == []
    world.log.depose(leader=1002)
    assert waiting[0].error is ErrorCode.NOT_COORDINATOR


async def test_a_sync_whose_store_is_lost_with_the_leader_is_answered_once_and_with_no_assignment(world: World) -> None:
    joined: list[Any] = []
    synced: list[Any] = []
    world.part.join("g", wish(), joined.append)
    world.log.hold()
    member = joined[0].member_id
    world.part.sync("g", SyncWish(member_id=member, generation=1, assignments={member: b"mine"}), synced.append)
    world.log.depose(leader=1002)
    await turn()
    assert [(answer.error, answer.assignment) for answer in synced] == [(ErrorCode.NOT_COORDINATOR, b"")]


async def test_a_static_member_whose_store_is_lost_with_the_leader_is_answered(world: World) -> None:
    static = JoinWish(
        member_id="",
        new_member_id="s1",
        instance_id="s",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=(("range", b"t"),),
    )
    answers: list[Any] = []
    world.part.join("g", static, answers.append)
    world.part.sync("g", SyncWish(member_id="s1", generation=1, assignments={"s1": b"x"}), answers.append)
    await turn()
    world.log.hold()
    world.part.join(
        "g",
        JoinWish(
            member_id="",
            new_member_id="s2",
            instance_id="s",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=(("range", b"t"),),
        ),
        answers.append,
    )
    assert len(answers) == 2
    world.log.depose(leader=1002)
    await turn()
    assert len(answers) == 3
    assert answers[2].error is not ErrorCode.NONE


async def test_an_assignment_that_is_too_large_to_be_replicated_is_refused(world: World) -> None:
    joined: list[Any] = []
    synced: list[Any] = []
    world.part.join("g", wish(), joined.append)
    assignments = {joined[0].member_id: bytes(1 << 20)}
    told = SyncWish(member_id=joined[0].member_id, generation=1, assignments=assignments)
    world.part.sync("g", told, synced.append)
    await turn()
    assert synced[0].error is ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_commit_of_a_generation_of_a_forgotten_group_is_refused(world: World) -> None:
    who = Identity(member_id="m", generation=3)
    assert await commit(world, who, 5) is ErrorCode.ILLEGAL_GENERATION
    assert world.part.group("g") is None


async def test_an_operator_cannot_reset_offsets_while_the_group_has_members(world: World) -> None:
    await stable(world)
    done: list[Any] = []
    world.part.commit("g", Identity(), {KEY: CommittedOffset(offset=0)}, done.append, only_without_members=True)
    assert done == [{KEY: ErrorCode.NON_EMPTY_GROUP}]


async def test_a_group_with_members_is_not_deleted_and_one_without_is_with_its_offsets(world: World) -> None:
    who = await stable(world)
    await commit(world, who, 5)
    codes: list[Any] = []
    world.part.delete("g", codes.append)
    world.part.leave("g", [who])
    await turn()
    world.part.delete("g", codes.append)
    await turn()
    world.part.delete("g", codes.append)
    assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert committed(world) == -1


async def test_a_group_whose_deletion_failed_is_served_again(world: World) -> None:
    await commit(world, Identity(), 5)
    world.log.hold()
    codes: list[Any] = []
    world.part.delete("g", codes.append)
    joined: list[Any] = []
    world.part.join("g", wish(), joined.append)
    assert joined[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.depose(leader=1002)
    await turn()
    world.log.elect()
    assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert committed(world) == 5
    assert world.part.group("g") is not None


async def test_an_offset_is_not_deleted_while_a_member_subscribes_to_its_topic(world: World) -> None:
    other = StreamKey(b"c" * 16, RegionNumber(2), 0)
    who = await stable(world, subscription=encode_subscription(Subscription(topics=("orders",))))
    await commit(world, who, 5)
    await commit(world, who, 6, key=other)
    done: list[Any] = []
    world.part.delete_offsets("g", [KEY, other], lambda *answer: done.append(answer))
    await turn()
    assert done == [(ErrorCode.NONE, {KEY: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, other: ErrorCode.NONE})]
    assert (committed(world), committed(world, key=other)) == (5, -1)


async def test_a_follower_that_replays_the_commands_has_the_leaders_snapshot(world: World) -> None:
    who = await stable(world)
    await commit(world, who, 5)
    world.part.hold_offsets("g", Identity(), 7, 0, 1, {KEY: CommittedOffset(offset=9)}, lambda _: None)
    await turn()
    follower = world.make(world.log)
    world.log.replay(follower)
    assert follower.snapshot() == world.part.snapshot()
    restored = world.make(world.log)
    restored.restore(world.part.snapshot())
    assert restored.snapshot() == world.part.snapshot()


@pytest.mark.parametrize(
    "command", [b"", b"{}", b'{"v":2,"kind":"drop","group":"g"}', b'{"v":1,"kind":"x","group":"g"}']
)
def test_an_unknown_command_stops_the_replica(world: World, command: bytes) -> None:
    with pytest.raises(CommandError):
        world.part.apply(command, index=RaftIndex(1), append_us=0)


async def test_a_plain_name_and_the_qualified_names_of_a_topic_lead_to_the_streams_of_their_regions(
    world: World,
) -> None:
    names = world.part.names
    keys = [names.key_of(name, 1) for name in ("clicks", "us.clicks", "eu.clicks", "clicks")]
    assert [None if key is None else key.origin for key in keys] == [1, 1, 2, 1]
    assert names.name_of(StreamKey(b"c" * 16, RegionNumber(1), 0)) == "clicks"
    assert names.name_of(StreamKey(b"c" * 16, RegionNumber(2), 0)) == "eu.clicks"
    assert names.key_of("clicks", 4) is None
    del world.views["eu.clicks"]
    world.version += 1
    assert names.name_of(StreamKey(b"c" * 16, RegionNumber(2), 0)) is None


# --- operations ------------------------------------------------------------------------------------


@pytest.fixture
def call(world: World) -> Callable[..., Any]:
    """Ask the part as another broker does."""

    async def ask(operation: str, **body: Any) -> Any:
        return await world.part.call(operation, {"group": "g", **body}, principal="User:alice")

    return ask


async def test_a_member_lives_its_life_through_operations(world: World, call: Any) -> None:
    protocols = [{"name": "range", "metadata": "dA=="}]
    joined = await call("join", client_id="sdk", protocols=protocols)
    assert (joined["error"], joined["generation"], joined["leader"]) == ("NONE", 1, joined["member_id"])
    assert joined["members"] == [{"member_id": joined["member_id"], "instance_id": None, "metadata": "dA=="}]
    who = {"member_id": joined["member_id"], "generation": 1}
    synced = await call("sync", **who, assignments=[{"member_id": joined["member_id"], "assignment": "YQ=="}])
    assert (synced["assignment"], synced["protocol"]) == ("YQ==", "range")
    assert (await call("heartbeat", **who))["error_code"] == 0
    offsets = [{"topic": "orders", "partition": 0, "offset": 5}, {"topic": "gone", "partition": 0, "offset": 5}]
    done = await call("commit", **who, offsets=offsets)
    assert [row["error_code"] for row in done["partitions"]] == [0, 3]
    described = await call("describe")
    assert (described["state"], len(described["members"])) == ("Stable", 1)
    left = await call("leave", members=[{"member_id": joined["member_id"]}])
    assert left["members"][0]["error_code"] == 0
    fetched = await call("fetch_offsets", topics=[{"topic": "orders", "partitions": [0, 1]}])
    assert [row["offset"] for row in fetched["partitions"]] == [5, -1]
    everything = await call("fetch_offsets")
    assert [(row["topic"], row["partition"], row["offset"]) for row in everything["partitions"]] == [("orders", 0, 5)]


async def test_offsets_of_a_transaction_are_unstable_until_it_ends(call: Any) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0, "number": 1}
    held = await call("txn_commit", **producer, offsets=[{"topic": "orders", "partition": 0, "offset": 5}])
    assert held["partitions"][0]["error_code"] == 0
    wanted = {"topics": [{"topic": "orders", "partitions": [0]}]}
    unstable = await call("fetch_offsets", **wanted, require_stable=True)
    assert unstable["partitions"][0]["error_code"] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert (await call("fetch_offsets", **wanted))["partitions"][0]["offset"] == -1
    assert (await call("txn_end", **producer, is_commit=True))["error_code"] == 0
    assert (await call("fetch_offsets", **wanted, require_stable=True))["partitions"][0]["offset"] == 5
    late = await call("txn_commit", **producer, offsets=[{"topic": "orders", "partition": 0, "offset": 9}])
    assert late["partitions"][0]["error_code"] == ErrorCode.INVALID_TXN_STATE


async def test_offsets_that_come_while_the_end_of_their_transaction_is_stored_are_refused(world: World) -> None:
    world.log.hold()
    ended: list[ErrorCode] = []
    held: list[Any] = []
    world.part.end_transaction("g", 7, 1, number=1, is_commit=False, done=ended.append)
    world.part.hold_offsets("g", Identity(), 7, 0, 1, {KEY: CommittedOffset(offset=5)}, held.append)
    world.log.release()
    await turn()
    assert (ended, held) == ([ErrorCode.NONE], [{KEY: ErrorCode.INVALID_PRODUCER_EPOCH}])
    assert world.part.fetch("g", [KEY], require_stable=True)[KEY] == (None, ErrorCode.NONE)


async def test_offsets_that_come_when_the_leader_is_deposed_are_sent_to_the_next_one(world: World) -> None:
    who = await stable(world)
    world.log.depose(leader=1002)
    held: list[Any] = []
    world.part.hold_offsets("g", who, 7, 0, 1, {KEY: CommittedOffset(offset=5)}, held.append)
    assert held == [{KEY: ErrorCode.NOT_COORDINATOR}]
    assert await commit(world, who, 5) is ErrorCode.NOT_COORDINATOR


async def test_what_ends_or_deletes_is_stored_also_while_the_coordinator_has_no_room(world: World) -> None:
    shrinking: list[bool] = []
    propose = world.log.propose

    def proposed(part: Part, command: bytes, *, shrinks: bool = False) -> Any:
        shrinking.append(shrinks)
        return propose(part, command, shrinks=shrinks)

    world.log.propose = proposed  # type: ignore[method-assign]
    who = await stable(world)
    await commit(world, who, 5)
    assert shrinking == [False, False]
    shrinking.clear()
    world.part.end_transaction("g", 7, 1, number=1, is_commit=False, done=ignore)
    world.part.leave("g", [who])  # the record of a group without members
    await turn()
    world.part.delete_offsets("g", [KEY], lambda _, __: None)
    world.part.delete("g", ignore)
    assert shrinking == [True] * 4


async def test_a_transaction_ends_in_a_group_for_which_there_is_no_room(
    world: World,
) -> None:
    world.part._state.shares.room = -1
    ended: list[ErrorCode] = []
    world.part.end_transaction("g", 7, 1, number=1, is_commit=False, done=ended.append)
    await turn()
    assert ended == [ErrorCode.NONE]


async def test_ended_transactions_count_as_state(world: World) -> None:
    for producer in range(100):
        world.part.end_transaction("g", producer, 1, number=1, is_commit=False, done=ignore)
    await turn()
    assert world.part._state.size_bytes > len(world.part.snapshot())


async def test_lists_are_filtered_by_state(world: World, call: Any) -> None:
    await stable(world, "busy")
    await commit(world, Identity(), 5, group="idle")
    answer = await world.part.call("list", {"states": ["stable"]}, principal="")
    assert [row["group"] for row in answer["groups"]] == ["busy"]
    assert len((await world.part.call("list", {}, principal=""))["groups"]) == 2


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("dance", {}),
        ("heartbeat", {"member_id": 5}),
        ("heartbeat", {"colour": "red"}),
        ("commit", {"offsets": [{"topic": "orders", "partition": 0}]}),
        ("commit", {"offsets": [{"topic": "orders", "partition": 0, "offset": -2}]}),
        ("join", {"protocols": [{"name": "range", "metadata": "%"}]}),
        ("txn_end", {"producer_id": 1, "producer_epoch": 0}),
    ],
)
async def test_a_malformed_operation_is_refused(call: Any, operation: str, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        await call(operation, **body)


def test_the_part_says_which_it_is(world: World) -> None:
    assert world.part.part is Part.GROUPS


def test_a_state_that_outgrew_its_limit_is_read_back(world: World) -> None:
    padded = b'{"groups":[],' + b" " * PART_SNAPSHOT_BYTES_MAX + b'"v":1}'
    world.part.restore(padded)
    assert world.part.snapshot() == b'{"groups":[],"v":1}'


# --- a new home ---------------------------------------------------------------------------------------------------


async def test_a_new_home_keeps_offsets_and_fences_the_members_of_the_old_one(world: World) -> None:
    member = await stable(world)
    assert await commit(world, member, 7) is ErrorCode.NONE
    world.log.depose(leader=1002)
    world.part.fence(append_us=world.log.now_us(), epoch=2)
    world.log.elect()

    assert world.part.fetch("g", [KEY])[KEY][0].offset == 7  # type: ignore[union-attr]
    assert world.part.heartbeat("g", member) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(world, member, 8) is ErrorCode.UNKNOWN_MEMBER_ID
    again = await stable(world)
    assert again.generation > member.generation + 60_000, "the old home may have given out the next ones unheard"
    assert await commit(world, again, 8) is ErrorCode.NONE


async def test_the_fence_is_a_function_of_the_state(world: World) -> None:
    await stable(world)
    replica = world.make(InMemoryCoordinatorLog())
    replica.restore(world.part.snapshot())
    for part in (replica, world.part):
        part.fence(append_us=5, epoch=2)
    assert replica.snapshot() == world.part.snapshot()


async def test_generations_never_leave_their_range_however_often_the_home_moves(world: World) -> None:
    await stable(world)
    for _ in range(40_000):
        world.part.fence(append_us=5, epoch=2)
    stored = world.part.stored("g")
    assert stored is not None and stored.record is not None
    assert 2**31 - 2**18 < stored.record.generation < 2**31


async def test_a_group_claims_its_name_by_its_members_or_by_its_newest_commit(world: World) -> None:
    assert world.part.claim("g") == 0
    member = await stable(world)
    assert world.part.claim("g") == IN_USE
    await commit(world, member, 7)
    commit_us = world.part.fetch("g", [KEY])[KEY][0].commit_us  # type: ignore[union-attr]
    world.log.depose(leader=1002)
    world.part.fence(append_us=1, epoch=2)
    assert world.part.claim("g") == commit_us
