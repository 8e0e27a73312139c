"""Foreign clients in consumer groups: sharing, resuming, static members, admin clients, and the operator's commands."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.closing_clients import started

PARTITIONS = 4
RECORDS = 400
PATIENCE_S = 30.0
SESSION_MS = 6_000


@pytest.fixture
def orders(mesh: Any, clients: Any, keyed_records: Any) -> str:
    """A topic of four partitions with 400 records."""
    topic: str = mesh.new_topic("grouped", partitions=PARTITIONS)
    clients["confluent-kafka"].produce(mesh.kafka("us"), topic, keyed_records(topic, RECORDS), compression="lz4")
    return topic


@contextmanager
def consumer(mesh: Any, topic: str, group: str, **settings: Any) -> Iterator[confluent_kafka.Consumer]:
    """A librdkafka consumer that leaves its group at the end."""
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": mesh.kafka("us"),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            **settings,
        }
    )
    made.subscribe([topic])
    try:
        yield made
    finally:
        made.close()


def take(consumers: list[confluent_kafka.Consumer], count: int) -> list[list[tuple[int, int]]]:
    """Consume `count` records with all of them; returns the places of each."""
    taken: list[list[tuple[int, int]]] = [[] for _ in consumers]
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, taken)) < count and time.monotonic() < deadline:
        for places, each in zip(taken, consumers, strict=True):
            for record in each.consume(count, timeout=0.1):
                assert record.error() is None, record.error()
                places.append((record.partition(), record.offset()))
    return taken


def described(mesh: Any, group: str) -> Any:
    return mesh.http("GET", f"/v1/groups/{group}?region=us").document


def positions(mesh: Any, group: str) -> dict[int, int]:
    return {row["partition"]: row["committed"] for row in described(mesh, group)["partitions"]}


@pytest.mark.parametrize(
    "assignor", ["range", pytest.param("roundrobin", marks=pytest.mark.slow), "cooperative-sticky"]
)
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)])
def test_the_members_of_a_group_share_the_partitions(mesh: Any, orders: str, assignor: str, count: int) -> None:
    group = f"{orders}-{assignor}"
    with ExitStack() as stack:
        settings = {"partition.assignment.strategy": assignor}
        members = [stack.enter_context(consumer(mesh, orders, group, **settings)) for _ in range(count)]
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            take(members, 1)
            held = [{row.partition for row in member.assignment()} for member in members]
            if set().union(*held) == set(range(PARTITIONS)) and sum(map(len, held)) == PARTITIONS:
                break
        assert sorted(map(len, held)) == sorted(len(range(n, PARTITIONS, count)) for n in range(count))
        assert len(described(mesh, group)["members"]) == count


def test_a_group_goes_on_where_it_committed_with_whichever_client(mesh: Any, orders: str, kafka_python: Any) -> None:
    with consumer(mesh, orders, orders) as member:
        (first,) = take([member], RECORDS // 2)
        member.commit(asynchronous=False)
    python = kafka_python.KafkaConsumer(
        orders,
        bootstrap_servers=mesh.kafka("us").split(","),
        group_id=orders,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
    )
    second: list[tuple[int, int]] = []
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.closing(python):
        while len(first) + len(second) < RECORDS and time.monotonic() < deadline:
            for place, records in python.poll(timeout_ms=200).items():
                second += [(place.partition, record.offset) for record in records]
        python.commit()
    assert len({*first, *second}) == len(first) + len(second) == RECORDS
    assert sum(positions(mesh, orders).values()) == RECORDS
    kcat = subprocess.run(
        ["kcat", "-b", mesh.kafka("us"), "-G", orders, "-e", "-q", "-X", "auto.offset.reset=earliest", orders],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert kcat.stdout == b""


async def test_aiokafka_commits_and_sees_what_it_committed(mesh: Any, orders: str) -> None:
    member = aiokafka.AIOKafkaConsumer(
        orders,
        bootstrap_servers=mesh.kafka("us"),
        group_id=orders,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with started(member):
        count = 0
        while count < RECORDS:
            count += sum(map(len, (await member.getmany(timeout_ms=500)).values()))
        await member.commit()
        places = [aiokafka.TopicPartition(orders, number) for number in range(PARTITIONS)]
        assert sum([await member.committed(place) or 0 for place in places]) == RECORDS


@pytest.mark.slow
def test_a_static_member_that_restarts_gets_its_partitions_back_without_a_rebalance(mesh: Any, orders: str) -> None:
    with consumer(mesh, orders, orders, **{"group.instance.id": "stays"}) as stays:
        taken = 0
        leaver = confluent_kafka.Consumer(
            {
                "bootstrap.servers": mesh.kafka("us"),
                "group.id": orders,
                "group.instance.id": "restarts",
                "session.timeout.ms": 30_000,
                "auto.offset.reset": "earliest",
            }
        )
        leaver.subscribe([orders])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not (len(stays.assignment()) == len(leaver.assignment()) == 2):
            taken += sum(map(len, take([stays, leaver], 1)))
        before, generation = leaver.assignment(), described(mesh, orders)["generation"]
        leaver.close()  # a static member does not leave: its place stays until its session ends
        with consumer(mesh, orders, orders, **{"group.instance.id": "restarts"}) as back:
            while time.monotonic() < deadline and not back.assignment():
                back.poll(0.1)
                stays.poll(0.01)
            assert back.assignment() == before
            assert described(mesh, orders)["generation"] == generation


def test_the_admin_client_of_confluent_kafka_lists_describes_alters_and_deletes(mesh: Any, orders: str) -> None:
    admin = AdminClient({"bootstrap.servers": mesh.kafka("us")})
    with consumer(mesh, orders, orders) as member:
        take([member], RECORDS)
        member.commit(asynchronous=False)
        listed = {row.group_id: row.state for row in admin.list_consumer_groups().result(PATIENCE_S).valid}
        assert listed[orders] == confluent_kafka.ConsumerGroupState.STABLE
        group = admin.describe_consumer_groups([orders])[orders].result(PATIENCE_S)
        (only,) = group.members
        assert {row.partition for row in only.assignment.topic_partitions} == set(range(PARTITIONS))
        with pytest.raises(confluent_kafka.KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups([orders])[orders].result(PATIENCE_S)
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(
        orders, [confluent_kafka.TopicPartition(orders, 1, 3), confluent_kafka.TopicPartition(orders, 2, 4)]
    )
    admin.alter_consumer_group_offsets([wanted])[orders].result(PATIENCE_S)
    asked = confluent_kafka.ConsumerGroupTopicPartitions(orders)
    found = admin.list_consumer_group_offsets([asked])[orders].result(PATIENCE_S)
    offsets = {row.partition: row.offset for row in found.topic_partitions}
    assert (offsets[1], offsets[2]) == (3, 4)
    admin.delete_consumer_groups([orders])[orders].result(PATIENCE_S)
    assert mesh.http("GET", f"/v1/groups/{orders}?region=us").status == 404


def test_the_admin_client_of_kafka_python_describes_a_group(mesh: Any, orders: str, kafka_python: Any) -> None:
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=mesh.kafka("us").split(","))
    described_member = consumer(mesh, orders, orders, **{"client.id": "described"})
    with contextlib.closing(admin), described_member as member:
        take([member], 1)
        found = json.dumps(admin.describe_groups([orders]), default=str)
        assert "described" in found
        assert orders in json.dumps(admin.list_groups(), default=str)


@pytest.mark.slow
def test_a_group_that_moves_to_another_region_does_not_apply_the_first_regions_offsets(
    mesh: Any, clients: Any, keyed_records: Any
) -> None:
    topic = mesh.new_topic("everywhere", partitions=1, homes="every")
    for region in ("us", "eu"):
        clients["confluent-kafka"].produce(mesh.kafka(region), topic, keyed_records(region, 5), compression="none")
    with consumer(mesh, topic, topic) as member:
        assert take([member], 5) == [[(0, offset) for offset in range(5)]]
        member.commit(asynchronous=False)
        own = confluent_kafka.TopicPartition(f"us.{topic}", 0)
        foreign = confluent_kafka.TopicPartition(f"eu.{topic}", 0)
        found = member.committed([own, foreign], timeout=PATIENCE_S)
        assert [row.offset for row in found] == [5, confluent_kafka.OFFSET_INVALID]
    with consumer(mesh, topic, topic, **{"bootstrap.servers": mesh.kafka("eu")}) as member:
        assert take([member], 5) == [[(0, offset) for offset in range(5)]]


@pytest.mark.slow
def test_operators_list_describe_reset_and_delete_with_the_command_line(mesh: Any, orders: str) -> None:
    with consumer(mesh, orders, orders, **{"client.id": "billing-1"}) as member:
        take([member], RECORDS)
        member.commit(asynchronous=False)
        ran = mesh.cli("groups", "describe", orders, "--region", "us")
        assert "state: Stable" in ran.stdout
        assert "billing-1" in ran.stdout
        told = ("groups", "reset-offsets", orders, "--topic", orders, "--to-earliest", "--execute", "--region")
        refused = mesh.cli(*told, "us")
        assert (refused.returncode, "has members" in refused.stderr) == (1, True)
        elsewhere = mesh.cli(*told, "eu")
        assert (elsewhere.returncode, "does not exist" in elsewhere.stderr) == (1, True)
    before = positions(mesh, orders)
    shown = mesh.cli("groups", "reset-offsets", orders, "--topic", orders, "--shift-by", "-5", "--region", "us")
    assert "nothing was changed" in shown.stdout
    assert positions(mesh, orders) == before
    mesh.cli("groups", "reset-offsets", orders, "--topic", orders, "--shift-by", "-5", "--execute", "--region", "us")
    assert positions(mesh, orders) == {partition: max(0, offset - 5) for partition, offset in before.items()}
    listed = json.loads(mesh.cli("groups", "list", "--region", "us", "--json").stdout)
    row = next(row for row in listed if row["group"] == orders)
    assert (row["state"], row["members"], row["lag"]) == ("Empty", 0, sum(min(5, n) for n in before.values()))
    for way, moment in (("--to-latest", None), ("--to-timestamp", "2020-01-01T00:00:00Z")):
        where = (way,) if moment is None else (way, moment)
        mesh.cli("groups", "reset-offsets", orders, "--topic", orders, *where, "--execute", "--region", "us")
        expected = before if moment is None else dict.fromkeys(before, 0)
        assert positions(mesh, orders) == expected
    assert mesh.cli("groups", "delete", orders, "--region", "us").returncode == 0
    gone = mesh.cli("groups", "describe", orders, "--region", "us")
    assert (gone.returncode, "does not exist" in gone.stderr) == (1, True)
