"""Groups over the wire, in every version that is advertised: what members, consumers and operators are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest

from georelay.errors import CoordinatorLoading
from georelay.wire.api import SUPPORTED, ApiKey, ErrorCode
from georelay.wire.consumer_protocol import Subscription, encode_subscription
from georelay.wire.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from georelay.wire.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from georelay.wire.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from region.controller.topic import Homes
from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.coordination.part import Part
from region.groups.factory import groups_factory
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames
from region.kafka.handlers import group_admin
from region.kafka.handlers.group_offsets import GROUPS_PER_REQUEST_MAX
from region.security.access import Access, Principal

SUBSCRIPTION = encode_subscription(Subscription(topics=("orders",)))


@pytest.fixture
def groups(bed: Any) -> Any:
    """A broker that coordinates every group; the first rebalance of a group does not wait."""
    cluster = bed.cluster
    cluster.add_topic("orders", 4)
    names = TopicNames(
        topic=cluster.topic, topics=cluster.topics, version=lambda: cluster.metadata_epoch, is_deleted=lambda _: False
    )
    settings = GroupSettings(initial_rebalance_delay_ms=0)
    bed.services.coordinators.register(Part.GROUPS, groups_factory(names, settings, rng=random.Random(1)))
    return bed


def joining(member_id: str = "", *, instance_id: str | None = None, **more: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        **more,
    )


async def join(client: Any, version: int = 9, member_id: str = "", **more: Any) -> Any:
    """Join as clients do: again with the id when it is required."""
    answer = await client.call(joining(member_id, **more), ApiKey.JOIN_GROUP, version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await client.call(joining(answer.member_id, **more), ApiKey.JOIN_GROUP, version)
    return answer


async def sync(client: Any, joined: Any, version: int = 5, **assignments: bytes) -> Any:
    rows = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=raw) for raw in assignments.values()]
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=rows,
    )
    return await client.call(request, ApiKey.SYNC_GROUP, version)


async def commit(client: Any, offset: int, version: int = 8, *, topic: str = "orders", **who: Any) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="text")
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])], **who
    )
    answer = await client.call(request, ApiKey.OFFSET_COMMIT, version)
    return int(answer.topics[0].partitions[0].error_code)


async def fetch(client: Any, version: int = 8, *, topic: str | None = "orders") -> dict[tuple[str, int], int]:
    if version < 8:
        topics = None if topic is None else [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        answer = await client.call(OffsetFetchRequest(group_id="g", topics=topics), ApiKey.OFFSET_FETCH, version)
    else:
        wanted = None if topic is None else [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
        (answer,) = (await client.call(request, ApiKey.OFFSET_FETCH, version)).groups
    assert answer.error_code == 0
    return {(row.name, p.partition_index): p.committed_offset for row in answer.topics for p in row.partitions}


def versions(key: ApiKey) -> list[int]:
    return list(SUPPORTED[key])


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_a_member_joins_and_is_assigned_in_every_version(groups: Any, version: int) -> None:
    client = await groups.client()
    joined = await join(client, version)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert joined.protocol_name == "range"
    assert [bytes(row.metadata) for row in joined.members] == [SUBSCRIPTION]
    synced = await sync(client, joined, min(version, 5), mine=b"all of it")
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"all of it")


async def test_from_version_4_on_a_member_without_an_id_is_told_one_first(groups: Any) -> None:
    client = await groups.client()
    old = await client.call(joining(), ApiKey.JOIN_GROUP, 3)
    new = await client.call(joining(), ApiKey.JOIN_GROUP, 4)
    static = joining(instance_id="s")
    client.send(static, 5)
    assert (old.error_code, new.error_code) == (0, ErrorCode.MEMBER_ID_REQUIRED)
    assert new.member_id.startswith("test-")


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
async def test_a_heartbeat_says_whether_the_member_has_to_join_again(groups: Any, version: int) -> None:
    client, other = await groups.client(), await groups.client()
    joined = await join(client)
    await sync(client, joined, mine=b"x")
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await client.call(beat, ApiKey.HEARTBEAT, version)).error_code == 0
    other.send(joining(), 3)
    for _ in range(100):
        code = (await client.call(beat, ApiKey.HEARTBEAT, version)).error_code
        if code:
            break
        await asyncio.sleep(0.01)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    stranger = HeartbeatRequest(group_id="g", generation_id=1, member_id="nobody")
    assert (await client.call(stranger, ApiKey.HEARTBEAT, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_client_that_disconnects_stays_a_member(groups: Any) -> None:
    client = await groups.client()
    joined = await join(client)
    await sync(client, joined, mine=b"x")
    client.writer.close()
    again = await groups.client()
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await again.call(beat, ApiKey.HEARTBEAT, 4)).error_code == 0


async def test_a_join_whose_client_is_gone_still_counts_and_its_answer_is_dropped(groups: Any) -> None:
    client, gone = await groups.client(), await groups.client()
    joined = await join(client)
    await sync(client, joined, mine=b"x")
    gone.send(joining(), 3)
    await gone.writer.drain()
    while (await _describe(client)).group_state != "PreparingRebalance":
        await asyncio.sleep(0.01)
    gone.writer.close()
    rejoined = await join(client, 9, joined.member_id)
    assert (rejoined.generation_id, len(rejoined.members)) == (2, 2)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
async def test_members_leave_one_by_one_or_many_at_once(groups: Any, version: int) -> None:
    client = await groups.client()
    joined = await join(client)
    who = [MemberIdentity(member_id=joined.member_id), MemberIdentity(member_id="nobody")]
    request = LeaveGroupRequest(group_id="g", member_id=joined.member_id, members=who)
    answer = await client.call(request, ApiKey.LEAVE_GROUP, version)
    assert answer.error_code == 0
    if version >= 3:
        assert [row.error_code for row in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert (await _describe(client)).group_state == "Empty"


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_a_consumer_without_membership_commits_in_every_version(groups: Any, version: int) -> None:
    client = await groups.client()
    assert await commit(client, 7, version) == 0
    assert await fetch(client) == {("orders", 0): 7}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
async def test_offsets_are_fetched_for_named_topics_and_for_all(groups: Any, version: int) -> None:
    client = await groups.client()
    assert await fetch(client, version) == {("orders", 0): -1}
    await commit(client, 7)
    assert await fetch(client, version) == {("orders", 0): 7}
    if version >= 2:
        assert await fetch(client, version, topic=None) == {("orders", 0): 7}
    assert await fetch(client, version, topic="gone") == {("gone", 0): -1}


async def test_only_members_of_the_generation_commit(groups: Any) -> None:
    client = await groups.client()
    joined = await join(client)
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert await commit(client, 7, **member) == ErrorCode.REBALANCE_IN_PROGRESS
    await sync(client, joined, mine=b"x")
    assert await commit(client, 7, **member) == 0
    assert await commit(client, 7) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(client, 7, member_id=joined.member_id, generation_id_or_member_epoch=0) == (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert await commit(client, 7, topic="gone", **member) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_plain_name_and_the_own_regions_name_are_one_stream_and_another_regions_is_not(groups: Any) -> None:
    groups.cluster.add_topic("clicks", 1, homes=Homes.EVERY)
    for name in ("us.clicks", "eu.clicks"):
        groups.cluster.add_topic(name, 1, homes=Homes.EVERY, mirror_of="clicks")
    client = await groups.client()
    assert await commit(client, 7, topic="clicks") == 0
    found = [(await fetch(client, topic=name))[name, 0] for name in ("clicks", "us.clicks", "eu.clicks")]
    assert found == [7, 7, -1]


async def test_a_topic_that_was_made_again_under_its_old_name_begins_without_offsets(groups: Any) -> None:
    client = await groups.client()
    await commit(client, 7)
    view = groups.cluster.views.pop("orders")
    groups.cluster.add_topic("orders2", 4)
    again = groups.cluster.views.pop("orders2")
    assert again.topic_id != view.topic_id
    groups.cluster.views["orders"] = again
    assert await fetch(client) == {("orders", 0): -1}


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_a_group_is_described_with_members_and_their_bytes(groups: Any, version: int) -> None:
    client = await groups.client()
    joined = await join(client)
    await sync(client, joined, mine=b"assigned")
    group = await _describe(client, version)
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (SUBSCRIPTION, b"assigned")
    assert (await _describe(client, version, group="nobody's")).group_state == "Dead"


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_groups_are_listed_and_filtered_by_state(groups: Any, version: int) -> None:
    client = await groups.client()
    await join(client)
    answer = await client.call(ListGroupsRequest(states_filter=[]), ApiKey.LIST_GROUPS, version)
    assert [(row.group_id, row.protocol_type) for row in answer.groups] == [("g", "consumer")]
    if version >= 4:
        answer = await client.call(ListGroupsRequest(states_filter=["Empty"]), ApiKey.LIST_GROUPS, version)
        assert not answer.groups


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_a_group_is_deleted_once_it_is_empty(groups: Any, version: int) -> None:
    noted: list[tuple[str, str, str]] = []

    def note(_: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
        noted.append((detail["group"], what, outcome))

    groups.services = dataclasses.replace(groups.services, access=Access.open(changed=note))
    client = await groups.client()
    await commit(client, 7)
    request = DeleteGroupsRequest(groups_names=["g", "nobody's"])
    answer = await client.call(request, ApiKey.DELETE_GROUPS, version)
    codes = {row.group_id: row.error_code for row in answer.results}
    assert codes == {"g": 0, "nobody's": ErrorCode.GROUP_ID_NOT_FOUND}
    assert sorted(noted) == [("g", "group.deleted", "done"), ("nobody's", "group.deleted", "GROUP_ID_NOT_FOUND")]
    assert await fetch(client) == {("orders", 0): -1}
    await join(client)
    answer = await client.call(request, ApiKey.DELETE_GROUPS, version)
    assert answer.results[0].error_code == ErrorCode.NON_EMPTY_GROUP


async def test_offsets_are_deleted_unless_a_member_subscribes_to_the_topic(groups: Any) -> None:
    client = await groups.client()
    await commit(client, 7)
    partitions = [OffsetDeleteRequestPartition(partition_index=0), OffsetDeleteRequestPartition(partition_index=9)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="orders", partitions=partitions)])
    answer = await client.call(request, ApiKey.OFFSET_DELETE, 0)
    assert [row.error_code for row in answer.topics[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await fetch(client) == {("orders", 0): -1}
    joined = await join(client)
    await sync(client, joined, mine=b"x")
    answer = await client.call(request, ApiKey.OFFSET_DELETE, 0)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


async def test_a_broker_that_is_not_the_coordinator_says_so(groups: Any) -> None:
    client = await groups.client()
    for log in groups.services.coordinators.logs:
        log.depose(leader=1002)
    assert (await client.call(joining(), ApiKey.JOIN_GROUP, 9)).error_code == ErrorCode.NOT_COORDINATOR
    assert await commit(client, 7) == ErrorCode.NOT_COORDINATOR
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert (await client.call(beat, ApiKey.HEARTBEAT, 4)).error_code == ErrorCode.NOT_COORDINATOR
    assert not (await client.call(ListGroupsRequest(), ApiKey.LIST_GROUPS, 4)).groups


@pytest.mark.parametrize("group_id", ["", "x" * 256])
async def test_a_group_id_that_nobody_can_have_is_refused(groups: Any, group_id: str) -> None:
    client = await groups.client()
    request = JoinGroupRequest(group_id=group_id, session_timeout_ms=10_000, protocol_type="consumer")
    assert (await client.call(request, ApiKey.JOIN_GROUP, 9)).error_code == ErrorCode.INVALID_GROUP_ID


async def test_a_sync_without_its_protocol_is_inconsistent_from_version_5_on(groups: Any) -> None:
    client = await groups.client()
    joined = await join(client)
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    answer = await client.call(request, ApiKey.SYNC_GROUP, 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_coordinator_that_was_just_elected_is_waited_for_by_who_describes_and_deletes(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators, looks = groups.services.coordinators, []
    part_here = coordinators.part_here

    def loading(key: str, part: Any) -> Any:
        looks.append(key)
        if len(looks) % 3:
            raise CoordinatorLoading("elected, not caught up yet")
        return part_here(key, part)

    monkeypatch.setattr(coordinators, "part_here", loading)
    client = await groups.client()
    assert (await _describe(client, group="nobody's")).error_code == 0
    response = await client.call(DeleteGroupsRequest(["nobody's"]), ApiKey.DELETE_GROUPS, 2)
    assert response.results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    monkeypatch.setattr(group_admin, "LOADING_WAIT_S", 0)
    assert (await _describe(client, group="nobody's")).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def _describe(client: Any, version: int = 5, *, group: str = "g") -> Any:
    answer = await client.call(DescribeGroupsRequest(groups=[group]), ApiKey.DESCRIBE_GROUPS, version)
    return answer.groups[0]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
async def test_no_version_takes_a_broker_that_is_no_coordinator_for_one_that_knows_no_offset(
    groups: Any, version: int
) -> None:
    client = await groups.client()
    for log in groups.services.coordinators.logs:
        log.depose(leader=1002)
    if version < 8:
        wanted = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])]
        answer = await client.call(OffsetFetchRequest(group_id="g", topics=wanted), ApiKey.OFFSET_FETCH, version)
    else:
        asked = [OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="orders")])]
        (answer,) = (await client.call(OffsetFetchRequest(groups=asked), ApiKey.OFFSET_FETCH, version)).groups
    if version < 2:
        codes = [(row.partition_index, row.error_code) for topic in answer.topics for row in topic.partitions]
        assert codes == [(0, ErrorCode.NOT_COORDINATOR), (1, ErrorCode.NOT_COORDINATOR)]
    else:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR


async def test_a_coordinator_that_may_not_know_all_topics_does_not_say_that_nothing_was_committed(groups: Any) -> None:
    client = await groups.client()
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="new", partition_indexes=[0])])
    groups.cluster.is_ready = False
    assert (await client.call(request, ApiKey.OFFSET_FETCH, 7)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.cluster.is_ready = True
    answer = await client.call(request, ApiKey.OFFSET_FETCH, 7)
    assert (answer.error_code, answer.topics[0].partitions[0].committed_offset) == (0, -1)


async def test_every_group_that_was_asked_for_is_answered_also_those_that_are_too_many(groups: Any) -> None:
    client = await groups.client()
    asked = [OffsetFetchRequestGroup(group_id=f"g{row}", topics=None) for row in range(GROUPS_PER_REQUEST_MAX + 1)]
    answer = await client.call(OffsetFetchRequest(groups=asked), ApiKey.OFFSET_FETCH, 8)
    codes = {row.group_id: row.error_code for row in answer.groups}
    assert codes == {**dict.fromkeys(codes, 0), f"g{GROUPS_PER_REQUEST_MAX}": ErrorCode.INVALID_REQUEST}
    assert len(codes) == len(asked)


async def test_a_group_that_is_asked_for_again_and_again_is_answered_once(groups: Any) -> None:
    client = await groups.client()
    asked = [OffsetFetchRequestGroup(group_id="g", topics=None)] * GROUPS_PER_REQUEST_MAX
    answer = await client.call(OffsetFetchRequest(groups=asked), ApiKey.OFFSET_FETCH, 8)
    assert [(row.group_id, row.error_code) for row in answer.groups] == [("g", 0)]


async def test_what_members_and_consumers_keep_counts_for_their_principal(groups: Any) -> None:
    client = await groups.client()
    coordinators = groups.services.coordinators
    log = coordinators.logs[coordinators.partition_of("g")]
    log.feature_level = PRINCIPALS_LEVEL
    assert await commit(client, 5) == 0
    shares = log.parts[Part.GROUPS]._state.shares
    assert shares.held_by(Principal.of_user("").name) == shares.used > 0
    shares.room = shares.used
    joined = await join(client)
    assert (await sync(client, joined, mine=b"x" * 500)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
