"""Clients of a region that operators drain: told of another region's brokers, and refused as by who leads no more."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import RegionNumber
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import RecordDraft, build_batch
from georelay.wire.requests import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from mesh.distance.spread_core import SPREAD_S, client_key, hash_share
from region.controller.topic import Homes
from region.kafka.client_drain_core import ClientDrain
from region.kafka.ports import BrokerInfo

EU = RegionNumber(2)
BROKERS = [BrokerInfo(id=2001, kafka_host="eu-1", kafka_port=1), BrokerInfo(id=2002, kafka_host="eu-2", kafka_port=2)]


def drained(bed: Any, *, leaders: tuple[int, ...] = (2002,)) -> Any:
    """Return the topic of a region whose clients are sent to eu; the turn of all of them has come."""
    view = bed.cluster.add_topic("orders", len(leaders))
    bed.cluster.drain.head_for(EU)
    bed.cluster.drain.took("eu", BROKERS, {view.topic_id: leaders})
    bed.cluster.now_s += SPREAD_S
    return view


async def metadata(bed: Any, *names: str) -> Any:
    client = await bed.client()
    topics = [MetadataRequestTopic(name=name) for name in names]
    return await client.call(MetadataRequest(topics=topics), ApiKey.METADATA, 9)


async def produce(bed: Any, name: str = "orders") -> int:
    client = await bed.client()
    batch = build_batch([RecordDraft(value=b"x")], timestamps_ms=[1])
    data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1_000, topic_data=[data])
    response = await client.call(request, ApiKey.PRODUCE, 9)
    return int(response.responses[0].partition_responses[0].error_code)


async def fetch(bed: Any, name: str = "orders") -> int:
    client = await bed.client()
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=name, partitions=[wanted])])
    response = await client.call(request, ApiKey.FETCH, 11)
    return int(response.responses[0].partitions[0].error_code)


async def test_metadata_of_a_drained_region_is_that_of_the_region_its_clients_go_to(bed: Any) -> None:
    drained(bed, leaders=(2002, 2001))
    said = await metadata(bed, "orders")
    assert [(row.node_id, row.host, row.rack) for row in said.brokers] == [(2001, "eu-1", "eu"), (2002, "eu-2", "eu")]
    rows = said.topics[0].partitions
    assert [(row.error_code, row.leader_id, row.leader_epoch) for row in rows] == [(0, 2002, 1), (0, 2001, 1)]
    assert said.controller_id == 2001
    assert (await metadata(bed)).brokers == said.brokers  # who asks for no topic yet


async def test_who_still_publishes_or_reads_there_is_told_to_look_for_the_leader(bed: Any) -> None:
    drained(bed)
    assert await produce(bed) == await fetch(bed) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not bed.cluster.published


async def test_an_answer_that_was_kept_is_not_given_once_the_drain_has_begun_or_ended(bed: Any) -> None:
    view = bed.cluster.add_topic("orders")
    leaders = []
    for begins in (False, True, False):
        if begins:
            bed.cluster.drain.took("eu", BROKERS, {view.topic_id: [2001]})
            bed.cluster.now_s += SPREAD_S
        else:
            bed.cluster.drain.stay()
        for _ in range(2):
            leaders.append((await metadata(bed, "orders")).topics[0].partitions[0].leader_id)
    assert leaders == [1001, 1001, 2001, 2001, 1001, 1001]
    assert await produce(bed) == 0


async def test_a_regions_own_stream_and_what_the_other_region_does_not_have_are_served_as_before(bed: Any) -> None:
    drained(bed)
    bed.cluster.add_topic("clicks", homes=Homes.EVERY)
    bed.cluster.add_topic("local")
    said = await metadata(bed, "orders", "clicks", "local")
    assert [topic.partitions[0].leader_id for topic in said.topics] == [2002, 1001, 1001]
    assert [row.node_id for row in said.brokers] == [2001, 2002, 1001]
    for name in ("clicks", "local"):
        assert await produce(bed, name) == await fetch(bed, name) == 0


@pytest.mark.parametrize("leaders", [(-1,), (2009,), ()])
async def test_nobody_is_sent_to_a_broker_that_does_not_run_or_lead(bed: Any, leaders: tuple[int, ...]) -> None:
    view = bed.cluster.add_topic("orders")
    bed.cluster.drain.took("eu", BROKERS, {view.topic_id: leaders})
    bed.cluster.now_s += SPREAD_S
    assert (await metadata(bed, "orders")).topics[0].partitions[0].leader_id == 1001
    assert await produce(bed) == 0


async def test_clients_stay_until_the_other_region_has_said_who_leads(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.drain.head_for(EU)
    assert await produce(bed) == 0


async def test_clients_that_are_to_go_to_a_third_region_stay_until_that_one_has_said_who_leads(bed: Any) -> None:
    drained(bed)
    bed.cluster.drain.head_for(RegionNumber(3))
    assert not bed.cluster.drain.is_open


async def test_a_client_is_sent_away_by_every_answer_when_its_turn_has_come_and_by_none_before(bed: Any) -> None:
    drained(bed)
    bed.cluster.now_s -= SPREAD_S
    turn_s = hash_share(client_key("test", "127.0.0.1"), "us") * SPREAD_S
    for later_s, leader, code in ((turn_s - 0.1, 1001, 0), (turn_s + 0.1, 2002, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        bed.cluster.now_s = later_s
        said = await metadata(bed, "orders")
        assert said.topics[0].partitions[0].leader_id == leader
        assert {row.node_id // 1000 for row in said.brokers} == {leader // 1000}
        assert await produce(bed) == await fetch(bed) == code


def test_clients_leave_over_a_minute_and_go_on_where_they_were_when_the_other_region_was_silent_for_a_while() -> None:
    now = [0.0]
    drain = ClientDrain("us", monotonic_s=lambda: now[0])
    clients = [client_key("billing", f"10.0.{number // 250}.{number % 250}") for number in range(1_000)]
    gone = []
    drain.head_for(EU)
    for second in (0, 15, 30, 45, 60):
        drain.stay()
        assert not any(map(drain.sends, clients))
        now[0] = 100.0 + second
        drain.took("eu", BROKERS, {})
        gone.append(sum(map(drain.sends, clients)))
    assert gone[0] == 0 and gone[-1] == 1_000
    assert all(abs(count - 250 * step) < 50 for step, count in enumerate(gone))
    drain.head_for(RegionNumber(3))
    drain.took("ap", BROKERS, {})
    assert not any(map(drain.sends, clients))
