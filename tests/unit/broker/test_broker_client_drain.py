"""Kafka clients of a region that is drained for clients: two regions in this process, and clients of other makers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from georelay.errors import BadRequest, Unavailable
from georelay.fields import FieldError
from georelay.ids import RegionNumber
from mesh.distance import spread_core
from region.broker import client_drain
from region.broker.client_drain import PARTITIONS_PER_QUESTION, pages, read_leaders, serve_leaders
from region.controller.topic import Homes, TopicSpec
from tests.conditions import until
from tests.unit.broker.conftest import Mesh

RECORDS = 30  # of each client before the drain


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, {"us": 1, "eu": 1})
    await made.start()
    await made.running["us", 1].cluster.create_topic(TopicSpec(name="orders", partitions=2, home="us"))
    eu = made.running["eu", 1].cluster
    await until(lambda: eu.topic("orders") and all(eu.leader_of("orders", n) == 2001 for n in range(2)))
    yield made
    await made.stop()


async def sent_away(mesh: Mesh) -> None:
    us = mesh.running["us", 1].core
    us.drain.head_for("eu")
    await until(lambda: us.cluster.drain.is_open)


def taken(mesh: Mesh, region: str) -> int:
    """Return the records that a region's broker took from Kafka clients."""
    return mesh.running[region, 1]._edge.kafka_counters.records_in


async def test_publishers_and_readers_of_other_makers_go_on_in_the_other_region_and_see_no_error(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A consumer makes the coordinators by looking for one, and these stay in us: here nobody keeps a group in them.
    monkeypatch.setattr(mesh.running["us", 1].core.drain, "_keeps_groups", lambda: False)
    monkeypatch.setattr(spread_core, "SPREAD_S", 1.0)
    bootstrap = mesh.at["us", 1]["kafka"]
    errors: list[Any] = []
    acknowledged: list[int] = []
    read: list[int] = []
    other_read: list[int] = []
    sent = before = 0

    def done(error: Any, message: Any) -> None:
        errors.extend([error] if error else [])
        acknowledged.append(int(message.value()))

    ours = {"bootstrap.servers": bootstrap, "error_cb": errors.append, "log_level": 0}
    producer = Producer({**ours, "enable.idempotence": True, "linger.ms": 0})
    consumer = Consumer({**ours, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", number, 0) for number in range(2)])
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as other_producer,
        AIOKafkaConsumer("orders", bootstrap_servers=bootstrap, auto_offset_reset="earliest") as other_consumer,
    ):

        def poll() -> None:
            message = consumer.poll(0)
            if message is not None:
                errors.extend([message.error()] if message.error() else [])
                read.append(int(message.value()))

        async def follow() -> None:
            async for message in other_consumer:
                other_read.append(int(message.value))

        def are_acknowledged() -> bool:
            producer.poll(0)
            return len(acknowledged) == sent

        following = asyncio.create_task(follow())
        have_moved = False
        async with asyncio.timeout(60):
            while not have_moved:
                if sent == RECORDS:
                    await sent_away(mesh)
                    before = taken(mesh, "eu")
                us = taken(mesh, "us")
                producer.produce("orders", str(sent), on_delivery=done)
                await other_producer.send_and_wait("orders", str(-1 - sent).encode())
                sent += 1
                await until(are_acknowledged)
                poll()
                have_moved = sent > RECORDS and taken(mesh, "us") == us

        def are_done() -> bool:
            poll()
            return min(len(read), len(other_read)) >= 2 * sent

        await until(are_done, 60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    consumer.close()
    assert not errors
    assert sorted(acknowledged) == list(range(sent))
    assert sorted(read) == sorted(other_read) == list(range(-sent, sent))
    assert taken(mesh, "eu") >= before + 2
    mesh.running["us", 1].core.drain.head_for("")  # they are let in again; those that went stay where they are
    producer.produce("orders", "last", on_delivery=lambda error, _: errors.extend([error] if error else []))
    await asyncio.to_thread(producer.flush, 10)
    assert (errors, taken(mesh, "us")) == ([], us)


async def test_a_region_that_drains_itself_takes_nobody(mesh: Mesh) -> None:
    us, eu = mesh.running["us", 1].core, mesh.running["eu", 1].core
    eu.drain.head_for("us")
    us.drain.head_for("eu")
    with pytest.raises(Unavailable, match="region eu takes no clients"):
        serve_leaders(eu.cluster, {"topics": []})
    await us.drain.ask_once(RegionNumber(2))
    await eu.drain.ask_once(RegionNumber(1))
    assert not us.cluster.drain.is_open and not eu.cluster.drain.is_open


async def test_a_word_that_names_no_other_region_lets_clients_stay(mesh: Mesh) -> None:
    us = mesh.running["us", 1].core
    for name in ("", "us", "mars"):
        await sent_away(mesh)
        us.drain.head_for(name)
        assert us.cluster.drain.heading is None and not us.cluster.drain.is_open


async def test_clients_stay_while_groups_of_the_region_are_kept_in_it(mesh: Mesh) -> None:
    await sent_away(mesh)
    us = mesh.running["us", 1].core
    await us.coordinators.ready("billing")
    await us.drain.ask_once(RegionNumber(2))
    assert not us.cluster.drain.is_open


async def test_clients_come_back_when_the_other_region_has_been_silent_for_long(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sent_away(mesh)
    us = mesh.running["us", 1].core

    async def silent(**_: Any) -> Any:
        raise Unavailable("region eu cannot be reached")

    monkeypatch.setattr(us.drain, "_request", silent)
    await us.drain.ask_once(RegionNumber(2))
    assert us.cluster.drain.is_open
    monkeypatch.setattr(client_drain, "KEPT_S", -1.0)
    await us.drain.ask_once(RegionNumber(2))
    assert not us.cluster.drain.is_open


async def test_a_question_that_is_none_is_refused(mesh: Mesh) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"topics": [["00" * 16, 1]]},
        {"topics": [{"id": "xx" * 16, "partitions": 1}]},
        {"topics": [{"id": "00" * 16, "partitions": 0}]},
        {"topics": [{"id": "00" * 16, "partitions": 1_000}] * 4},
    ]
    for body in bodies:
        with pytest.raises(BadRequest):
            serve_leaders(mesh.running["eu", 1].cluster, body)


def broker(**changed: Any) -> dict[str, Any]:
    return {"broker": 2001, "host": "eu-1", "port": 9092, **changed}


@pytest.mark.parametrize(
    "answer",
    [
        {"brokers": [broker(broker=1001)], "leaders": [[2001]]},
        {"brokers": [broker(host="")], "leaders": [[2001]]},
        {"brokers": [broker(port=0)], "leaders": [[2001]]},
        {"brokers": [broker()], "leaders": [[2001, 2001]]},
        {"brokers": [broker()], "leaders": []},
        {"brokers": [broker()], "leaders": [2001]},
        {"brokers": [broker()], "leaders": [["2001"]]},
        {"brokers": [broker()]},
    ],
)
def test_an_answer_that_is_none_is_not_believed(answer: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        read_leaders(answer, RegionNumber(2), [1])


async def test_questions_are_bounded_and_leave_out_what_stays(mesh: Mesh) -> None:
    cluster = mesh.running["us", 1].cluster
    await cluster.create_topic(TopicSpec(name="clicks", homes=Homes.EVERY))
    assert [[view.name for view in page] for page in pages(cluster.topics())] == [["orders"]]
    many = [cluster.topic("orders")] * (PARTITIONS_PER_QUESTION + 1)
    assert [len(page) for page in pages(many)] == [500, 500, 500, 500, 1]  # type: ignore[arg-type]
