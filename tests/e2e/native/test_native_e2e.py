"""The SDK against a real region: leaders and members killed, groups mixed with Kafka clients, transactions."""

from __future__ import annotations

import asyncio
import io
import json
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import georelay
from georelay import Start
from georelay.errors import UnknownTopic
from loadtest.mesh_process import MeshProcess

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).resolve().parents[3]
PER_SECOND = 500
SECONDS = 3  # a third of it before the kill
PARTITIONS = 3  # of a topic, one led by each broker


async def leader_of(connection: Any, topic: str, partition: int) -> str:
    """Return the process name of a partition's leader."""
    for _ in range(200):
        with suppress(UnknownTopic):  # through a gateway another broker may answer, which hears of it later
            leader = (await connection.admin.describe_topic(topic)).details[partition].leader
            if leader:
                return f"us-{leader % 1000}"
        await asyncio.sleep(0.05)
    raise AssertionError(f"{topic}/{partition} has no leader")


async def read_all(connection: Any, topic: str, count: int) -> list[Any]:
    """Return `count` records, and what comes within half a second after them."""
    found: list[Any] = []
    async with connection.consumer([topic], start=Start.EARLIEST) as consumer, asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.get_many()
        found += await consumer.get_many(timeout_s=0.5)
    return found


async def member(url: str, topic: str, name: str, seen: Counter[bytes], log: list[str], stop: asyncio.Event) -> None:
    """Work as one member until told to stop: count each value, commit after every fetch."""
    async with (
        georelay.connect(url) as connection,
        connection.consumer(
            [topic],
            group=topic,
            start=Start.EARLIEST,
            session_timeout_s=6,
            on_assigned=lambda places: log.append(f"{name} {len(places)}"),
        ) as consumer,
    ):
        while not stop.is_set():
            records = await consumer.get_many(timeout_s=0.2)
            if not records:
                continue
            try:
                await consumer.commit()
            except georelay.GeorelayError:
                continue  # the group rebalanced: these will come again, to whoever has them now
            seen.update(record.value or b"" for record in records)


@pytest.mark.slow
async def test_a_group_of_three_goes_on_when_a_member_is_killed(mesh: MeshProcess, topic: str) -> None:
    seen: Counter[bytes] = Counter()
    log: list[str] = []
    stop = asyncio.Event()
    async with georelay.connect(mesh.gateway) as connection:
        await connection.admin.create_topic(topic, partitions=6)
        example = [
            sys.executable,
            str(ROOT / "sdk/examples/group_member.py"),
            mesh.gateway,
            topic,
            topic,
            "9999",
        ]
        victim = subprocess.Popen(example, stdout=subprocess.PIPE)
        tasks = [asyncio.create_task(member(mesh.gateway, topic, f"m{n}", seen, log, stop)) for n in range(2)]
        async with connection.producer() as producer, asyncio.timeout(90):
            while not {"m0 2", "m1 2"} <= set(log):  # three members have two partitions each
                await asyncio.sleep(0.05)
            for number in range(300):
                await producer.send(topic, b"a%d" % number, partition=number % 6)
            await producer.flush()
            victim.kill()
            victim.communicate()
            while log[-2:] != ["m0 3", "m1 3"] and log[-2:] != ["m1 3", "m0 3"]:
                await asyncio.sleep(0.05)
            for number in range(300):
                await producer.send(topic, b"b%d" % number, partition=number % 6)
            await producer.flush()
            while sum(value.startswith(b"b") for value in seen) < 300:
                await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*tasks)
    assert set(Counter(seen).values()) == {1}  # what was committed came to nobody again


async def test_a_group_is_shared_with_a_kafka_client(mesh: MeshProcess, topic: str) -> None:
    async with georelay.connect(mesh.gateway) as connection:
        await connection.admin.create_topic(topic, partitions=4)
        async with connection.producer() as producer:
            for number in range(400):
                await producer.send(topic, b"%d" % number, partition=number % 4)
        seen: Counter[bytes] = Counter()
        log: list[str] = []
        stop = asyncio.Event()
        ours = asyncio.create_task(member(mesh.gateway, topic, "sdk", seen, log, stop))
        theirs = await asyncio.to_thread(
            _confluent_member, ",".join(mesh.endpoints["regions"]["us"]["kafka"]), topic, lambda: log[-1:] == ["sdk 2"]
        )
        async with connection.producer() as producer, asyncio.timeout(60):
            for number in range(400, 800):
                await producer.send(topic, b"%d" % number, partition=number % 4)
            await producer.flush()
            theirs += await asyncio.to_thread(_poll_until, _CONSUMERS[0], 200)
            while sum(int(value) >= 400 for value in seen) < 200:
                await asyncio.sleep(0.05)
        stop.set()
        await ours
        await asyncio.to_thread(_CONSUMERS.pop().close)
    assert not {value for value in theirs if int(value) >= 400} & {value for value in seen if int(value) >= 400}
    assert {int(value) for value in [*seen, *theirs]} == set(range(800))


_CONSUMERS: list[Any] = []


def _confluent_member(bootstrap: str, topic: str, shared: Any) -> list[bytes]:
    """Join with librdkafka and poll until both have two partitions; return what it read meanwhile."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
        }
    )
    _CONSUMERS.append(consumer)
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(consumer.assignment()) != 2 or not shared():
        assert time.monotonic() < deadline, consumer.assignment()
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
    return found


def _poll_until(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while sum(int(value) >= 400 for value in found) < count:
        assert time.monotonic() < deadline, len(found)
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.commit(asynchronous=False)
    return found


async def test_groups_and_queues_are_administered(mesh: MeshProcess, topic: str) -> None:
    async with georelay.connect(mesh.gateway) as connection:
        admin = connection.admin
        await admin.create_topic(topic, partitions=1)
        async with connection.producer() as producer:
            for number in range(5):
                await producer.publish(topic, b"%d" % number)
        async with connection.consumer([topic], group=topic, start=Start.EARLIEST) as consumer:
            await anext(consumer)
            await anext(consumer)
            await consumer.commit()
            assert len((await admin.describe_group(topic)).members) == 1
            with pytest.raises(georelay.GeorelayError, match="members"):
                await admin.delete_group(topic)
        place = georelay.Place(topic, 0)
        group = await admin.describe_group(topic)
        assert (group.state, group.committed[place], group.lag[place]) == ("Empty", 2, 3)
        await admin.set_group_offsets(topic, {place: 4})
        assert (await admin.describe_group(topic)).lag[place] == 1
        assert topic in [row.name for row in await admin.list_groups()]
        await admin.delete_group(topic)
        assert topic not in [row.name for row in await admin.list_groups()]
        await admin.create_queue(topic, topic, start="earliest", max_deliveries=2)
        async with connection.queue(topic) as queue, asyncio.timeout(30):
            jobs = [await anext(queue) for _ in range(5)]
            for job in jobs[1:]:
                await job.acknowledge()
            await jobs[0].reject()
            again = await anext(queue)
            assert (again.offset, again.deliveries) == (jobs[0].offset, 2)
            await again.acknowledge()
        assert topic in await admin.list_queues()
        await admin.delete_queue(topic)
        assert topic not in await admin.list_queues()


EXAMPLES = [
    ("publish_and_read.py", ["shop"], "read 0/9 order 9"),
    ("without_asyncio.py", ["plain"], "4 4"),
    ("group_member.py", ["shop", "readers", "10"], "done 10"),
    ("transfer.py", ["shop", "copy", "movers", "10"], "transferred 10"),
]


async def test_the_examples_run(mesh: MeshProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, arguments, last in EXAMPLES:  # in this process: each would import the SDK anew
        monkeypatch.setattr("sys.argv", [name, mesh.gateway, *arguments])
        said = io.StringIO()
        with redirect_stdout(said):
            await asyncio.to_thread(runpy.run_path, str(ROOT / "sdk/examples" / name), run_name="__main__")
        assert said.getvalue().splitlines()[-1] == last, said.getvalue()


async def test_reflection_describes_every_service_and_health_is_serving(mesh: MeshProcess) -> None:
    code = """
import grpc, json, sys
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
def look(address):
    channel = grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))
    database = ProtoReflectionDescriptorDatabase(channel)
    services = sorted(database.get_services())
    file = database.FindFileContainingSymbol("georelay.v1.Streams")
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="georelay.v1.Streams"))
    return [services, file.name, health.status]
print(json.dumps([look(address) for address in sys.argv[1:]]))
"""
    addresses = (mesh.endpoints["regions"]["us"]["grpc"][0], mesh.endpoints["gateway"]["grpc"][0])
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, *addresses], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for services, file_name, status in json.loads(ran.stdout):
        assert {"broker.Broker", "georelay.v1.Admin", "georelay.v1.Streams", "grpc.health.v1.Health"} <= set(services)
        assert (file_name, status) == ("georelay/v1/streams.proto", 1)


# Tests that kill a broker come last: the others need not wait until it is back.


async def publish_while_killed(connection: Any, topic: str, kill: Callable[[], object]) -> list[Any]:
    """Publish PER_SECOND for SECONDS, the kill after a third of it; return where each record was stored."""
    futures = []
    async with connection.producer(linger_ms=5) as producer:
        began = time.monotonic()
        for number in range(PER_SECOND * SECONDS):
            ahead = began + number / PER_SECOND - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
            if number == PER_SECOND * SECONDS // 3:
                kill()
            futures.append(await producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
        return await asyncio.gather(*futures)


async def assert_all_there_once_in_order(connection: Any, topic: str, stored: list[Any]) -> None:
    records = await read_all(connection, topic, len(stored))
    by_place = {(record.partition, record.offset): record.value for record in records}
    assert len(records) == len(by_place) == len(stored)
    assert all(by_place[at.partition, at.offset] == b"%d" % number for number, at in enumerate(stored))
    for partition in range(PARTITIONS):
        numbers = [int(record.value) for record in records if record.partition == partition]
        assert numbers == sorted(numbers)


async def transact(connection: Any, topic: str, *, until_killed: asyncio.Event) -> dict[int, str]:
    """Make transactions over all partitions, every fifth one aborted, at least 20 of them after the kill."""
    outcomes: dict[int, str] = {}
    after = 0
    async with connection.producer(transactional_id=f"till-{topic}") as producer:
        while after < 20:
            after += until_killed.is_set()
            number = len(outcomes)
            try:
                async with producer.transaction():
                    for partition in range(PARTITIONS):
                        await producer.send(topic, b"%d" % number, partition=partition)
                    if number % 5 == 4:
                        raise KeyError("on purpose")
            except KeyError:
                outcomes[number] = "aborted"
            except georelay.GeorelayError:
                outcomes[number] = "unknown"
            else:
                outcomes[number] = "committed"
    return outcomes


async def assert_whole_or_not_at_all(connection: Any, topic: str, outcomes: dict[int, str]) -> None:
    committed = [number for number, outcome in outcomes.items() if outcome == "committed"]
    records = await read_all(connection, topic, PARTITIONS * len(committed))
    counts = Counter(int(record.value) for record in records)
    assert len(committed) >= 12
    assert all(counts[number] == PARTITIONS for number in committed)
    assert all(counts[number] == 0 for number, outcome in outcomes.items() if outcome == "aborted")
    assert set(counts.values()) == {PARTITIONS}


@pytest.mark.parametrize("way", [pytest.param("direct", marks=pytest.mark.slow), "gateway"])
async def test_a_killed_leader_loses_doubles_and_reorders_nothing_and_halves_no_transaction(
    mesh: MeshProcess, topic: str, way: str
) -> None:
    url = mesh.gateway if way == "direct" else f"grpc://{mesh.endpoints['gateway']['grpc'][0]}"
    till = f"{topic}-till"
    killed = asyncio.Event()
    async with georelay.connect(url, direct=way == "direct") as connection, georelay.connect(mesh.gateway) as another:
        for name in (topic, till):
            await connection.admin.create_topic(name, partitions=PARTITIONS)
        victim = await leader_of(connection, topic, 0)
        assert victim in [await leader_of(another, till, partition) for partition in range(PARTITIONS)]

        def kill() -> None:
            mesh.kill(victim)
            killed.set()

        async with asyncio.TaskGroup() as both:
            publishing = both.create_task(publish_while_killed(connection, topic, kill))
            transacting = both.create_task(transact(another, till, until_killed=killed))
        await assert_all_there_once_in_order(connection, topic, publishing.result())
        await assert_whole_or_not_at_all(another, till, transacting.result())
