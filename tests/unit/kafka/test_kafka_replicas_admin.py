"""ElectLeaders and AlterPartitionReassignments: what brokers do by themselves, in Kafka's words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from georelay.errors import BadRequest, Busy
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ReassignablePartition,
    ReassignableTopic,
)

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def orders(bed: Any) -> Any:
    """A bed with a topic of two partitions whose first replica is broker 1002; 1001 leads."""
    bed.cluster.add_topic("orders", 2)
    bed.cluster.others = [1002, 1003]
    for partition in range(2):
        bed.cluster.replicas["orders", partition] = [1002, 1001]
    return bed


async def elect(
    bed: Any, *partitions: int, kind: int = PREFERRED, topic: str = "orders", timeout_ms: int = 0, version: int = 2
) -> Any:
    client = await bed.client()
    topics = (ElectLeadersTopic(topic, partitions),) if partitions else None
    request = ElectLeadersRequest(kind, topics, timeout_ms)
    answer = await client.call(request, ApiKey.ELECT_LEADERS, version)
    assert answer.error_code == 0
    results = answer.replica_election_results
    return [(row.partition_id, row.error_code) for result in results for row in result.partition_result]


@pytest.mark.parametrize("version", range(3))
async def test_an_election_of_the_preferred_leader_is_waited_for(orders: Any, version: int) -> None:
    leader_of, looked = orders.cluster.leader_of, asyncio.Event()

    def watched(name: str, partition: int) -> Any:
        looked.set()
        return leader_of(name, partition)

    orders.cluster.leader_of = watched
    waiting = asyncio.create_task(elect(orders, 0, 1, timeout_ms=10_000, version=version))
    await looked.wait()
    assert not waiting.done()
    orders.cluster.leaders |= {("orders", 0): 1002, ("orders", 1): 1002}
    assert await waiting == [(0, 0), (1, 0)]


async def test_what_cannot_or_need_not_be_elected_has_its_own_outcome(orders: Any) -> None:
    orders.cluster.leaders["orders", 0] = 1002
    assert await elect(orders, 0, 1, 7) == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (1, ErrorCode.REQUEST_TIMED_OUT),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await elect(orders, 0, topic="ghost") == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    orders.cluster.others = [1003]
    assert await elect(orders, 1) == [(1, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]


async def test_of_all_partitions_only_those_that_needed_an_election_are_answered(orders: Any) -> None:
    orders.cluster.leaders["orders", 0] = 1002
    assert await elect(orders) == [(1, ErrorCode.REQUEST_TIMED_OUT)]


async def test_nobody_leads_that_does_not_have_everything(orders: Any) -> None:
    orders.cluster.leaders["orders", 1] = -1
    assert await elect(orders, 0, 1, kind=UNCLEAN) == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ]
    client = await orders.client()
    answer = await client.call(ElectLeadersRequest(9, None, 0), ApiKey.ELECT_LEADERS, 1)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def move(
    bed: Any, replicas: Sequence[int] | None, *, partition: int = 0, topic: str = "orders", may_grow: bool = True
) -> tuple[int, str | None]:
    client = await bed.client()
    topics = (ReassignableTopic(topic, (ReassignablePartition(partition, replicas),)),)
    request = AlterPartitionReassignmentsRequest(5_000, may_grow, topics)
    answer = await client.call(request, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1)
    assert answer.error_code == 0
    (row,) = answer.responses[0].partitions
    return row.error_code, row.error_message


async def test_a_partition_is_moved_and_a_move_is_taken_back(orders: Any) -> None:
    assert await move(orders, [1002, 1003]) == (0, None)
    assert await move(orders, None) == (0, None)  # back to the one that counts now
    assert orders.cluster.changes == [("reassign", "orders", 0, (1002, 1003)), ("reassign", "orders", 0, (1001,))]
    assert (await move(orders, None))[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("replicas", [[], [1001, 1001], [-1], [2**31 - 1]])
async def test_a_wrong_assignment_is_refused_and_nothing_moves(orders: Any, replicas: list[int]) -> None:
    assert (await move(orders, replicas))[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert orders.cluster.changes == []


async def test_refusals_of_a_move_have_their_codes(orders: Any) -> None:
    assert (await move(orders, [1001], partition=7))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await move(orders, [1001], topic="ghost"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await move(orders, [1001, 1002], may_grow=False))[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    orders.cluster.admin_errors += [BadRequest("brokers [1009] are not registered"), Busy("ask again")]
    code, text = await move(orders, [1009])
    assert (code, text) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "brokers [1009] are not registered")
    assert (await move(orders, [1002]))[0] == ErrorCode.NOT_ENOUGH_REPLICAS
