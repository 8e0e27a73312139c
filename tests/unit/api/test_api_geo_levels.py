"""Publishing at a level, over REST and gRPC: what was reached, what is pending, what it resolves to."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from georelay.durability import Durability
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.api._pb import broker_pb2
from region.api.coalescer import NewRecord
from tests.unit.api.edge_in_memory import Edge


async def test_rest_publishes_at_a_level_and_says_what_it_reached(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    path = "/v1/topics/orders/records?durability=geo:2&deadline_ms=700"
    answer = await http.post(path, json={"value": "a"})
    assert answer.status == 200
    (row,) = (await answer.json())["records"]
    assert (row["outcome"], row["level"], row["regions"], row["offset"]) == ("stored", 3, ["1", "2", "3"], 0)
    cluster.regions_reached = 1
    answer = await http.post(path, json=[{"value": "b"}, {"value": "c"}])
    assert answer.status == 202
    assert [(row["outcome"], row["offset"]) for row in (await answer.json())["records"]] == [
        ("pending", 1),
        ("pending", 2),
    ]
    assert {(str(level.durability), level.deadline_ms) for level in cluster.levels} == {("geo:2", 704)}


@pytest.mark.parametrize("query", ["durability=geo:1", "durability=all", "durability=geo:2&deadline_ms=0", "level=2"])
async def test_rest_refuses_a_level_that_is_none_and_stores_nothing(http: Any, cluster: Any, query: str) -> None:
    cluster.add_topic("orders")
    answer = await http.post(f"/v1/topics/orders/records?{query}", json={"value": "a"})
    assert answer.status == 400
    assert cluster.published == []


async def test_rest_resolves_a_record_by_its_position(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    path = "/v1/topics/orders/resolve?partition=0&epoch={}&offset=0&durability=geo:2"
    answer = await (await http.get(path.format(1))).json()
    assert (answer["outcome"], answer["level"]) == ("stored", 3)
    cluster.regions_reached = 1
    assert (await (await http.get(path.format(1))).json())["outcome"] == "pending"
    assert (await (await http.get(path.format(7))).json())["outcome"] == "lost"


async def test_records_of_different_levels_take_lanes_of_their_own(edge: Edge, cluster: Any) -> None:
    cluster.add_topic("orders")
    geo = AskedLevel(durability=Durability(2))
    for level in (geo, REGION_LEVEL, geo):
        await edge.publisher.publish("orders", [(NewRecord(b"v"), None)], level)
    assert [level.durability for level in cluster.levels] == [Durability(2), Durability.REGION, Durability(2)]
    producers = [publish.header.producer_id for _, _, publish in cluster.published]
    assert producers[0] == producers[2] != producers[1]


async def test_deadlines_of_nearly_the_same_length_share_a_lane(edge: Edge, cluster: Any) -> None:
    cluster.add_topic("orders")
    for deadline_ms in range(1_900, 2_000):
        level = AskedLevel(durability=Durability(2), deadline_ms=deadline_ms)
        await edge.publisher.publish("orders", [(NewRecord(b"v"), None)], level)
    assert {level.deadline_ms for level in cluster.levels} == {1_920, 2_048}  # never earlier than asked
    assert len({publish.header.producer_id for _, _, publish in cluster.published}) == 2


async def test_the_small_contract_takes_a_level_as_metadata_and_tells_in_the_trailers(stub: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    asked = (("georelay-durability", "geo:3"), ("georelay-deadline-ms", "700"))
    call = stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"v"), metadata=asked)
    assert (await call).id == "orders/0/0"
    told = dict(await call.trailing_metadata())
    assert (told["georelay-epoch"], told["georelay-offset"], told["georelay-regions"]) == ("1", "0", "1,2,3")
    cluster.regions_reached = 2
    with pytest.raises(grpc.aio.AioRpcError) as pending:
        await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"v"), metadata=asked)
    assert pending.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    told = dict(pending.value.trailing_metadata())
    assert (told["georelay-code"], told["georelay-outcome"]) == ("DURABILITY_PENDING", "pending")
    assert (told["georelay-id"], told["georelay-regions"]) == ("orders/0/1", "1,2")
    for wrong in (("georelay-durability", "geo:x"), ("georelay-deadline-ms", "soon")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"v"), metadata=(wrong,))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(cluster.published) == 2
