"""What is done with Kafka's own programs: each step takes bootstrap servers and says in a few words what it saw."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.free_ports import free_ports
from tests.interop.java.programs import Java, StepFailed, until

TOPICS = "org.apache.kafka.tools.TopicCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
MIRROR = "org.apache.kafka.connect.mirror.MirrorMaker"
LINES = 200
RECORDS = 100
SECONDS = 90


def fresh(word: str) -> str:
    """Return a name that nobody has used."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


async def clients(java: Java, servers: str) -> str:
    """Every call of the client, the consumer groups and transactions."""
    said = await java.run("KafkaClients", servers, uuid.uuid4().hex[:8], may_fail=True)
    failed = [line for line in said.splitlines() if line.startswith("FAIL")]
    if failed:
        raise StepFailed("; ".join(failed))
    return f"{sum(line.startswith('OK') for line in said.splitlines())} calls"


async def tools(java: Java, servers: str) -> str:
    """kafka-topics, kafka-configs and kafka-leader-election."""
    name = fresh("tools")
    where, topic = ("--bootstrap-server", servers), ("--topic", name)
    entity = ("--entity-type", "topics", "--entity-name", name)
    calls: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
        (TOPICS, ("--create", *topic, "--partitions", "2", "--config", "cleanup.policy=compact"), ("Created topic",)),
        (TOPICS, ("--alter", *topic, "--partitions", "4"), ()),
        (TOPICS, ("--describe", *topic), ("PartitionCount: 4", "cleanup.policy=compact")),
        (TOPICS, ("--list", "--exclude-internal"), (name,)),
        (CONFIGS, ("--alter", *entity, "--add-config", "retention.ms=60000,message.timestamp.type=LogAppendTime"), ()),
        (CONFIGS, ("--alter", *entity, "--delete-config", "retention.ms"), ()),
        (CONFIGS, ("--describe", *entity), ("message.timestamp.type=LogAppendTime",)),
        (CONFIGS, ("--alter", *entity, "--add-config", "remote.storage.enable=true"), ("There is no tiered storage",)),
        (CONFIGS, ("--describe", "--entity-type", "brokers", "--entity-name", "1002", "--all"), ("node.id=1002",)),
        (ELECTION, ("--election-type", "preferred", *topic, "--partition", "0"), ("replica already elected",)),
        (TOPICS, ("--delete", *topic), ()),
    )
    for program, arguments, expected in calls:
        said = await java.run(program, *where, *arguments, may_fail="remote.storage.enable=true" in arguments[-1])
        missing = [text for text in expected if text not in said]
        if missing:
            raise StepFailed(f"{program} {' '.join(arguments)} did not say {missing}: {said[-400:]}")
    return f"{len(calls)} commands"


async def word_count(java: Java, servers: str) -> str:
    """Streams with a compacted changelog, exactly once, and state from the changelog."""
    said = await java.run("WordCount", servers, uuid.uuid4().hex[:8])
    return next(line for line in said.splitlines() if line.startswith("OK")).removeprefix("OK ")


async def connect(java: Java, servers: str) -> str:
    """Connect, distributed, exactly once: a file goes to a topic and comes out as the same file."""
    run, port = fresh("connect"), free_ports(1)[0]
    source, sink = java.scratch / f"{run}.in", java.scratch / f"{run}.out"
    source.write_text("".join(f"line {number}\n" for number in range(LINES)))
    worker = {
        "bootstrap.servers": servers,
        "group.id": run,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **{f"{kind}.storage.topic": f"{run}-{kind}" for kind in ("config", "offset", "status")},
        **{f"{kind}.storage.replication.factor": "-1" for kind in ("config", "offset", "status")},
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
        "offset.flush.interval.ms": "500",
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "only_scan",
        "exactly.once.source.support": "enabled",
    }
    rest = f"http://127.0.0.1:{port}/connectors"
    async with java.serving(CONNECT, str(written(java.scratch / f"{run}.properties", worker))):
        await until(lambda: answers(rest), seconds=SECONDS, what="Connect's REST API")
        plugin = "org.apache.kafka.connect.file.FileStream{}Connector"
        for name, kind, more in (
            ("source", "Source", {"file": str(source), "topic": run}),
            ("sink", "Sink", {"file": str(sink), "topics": run}),
        ):
            post(rest, {"name": name, "config": {"connector.class": plugin.format(kind), "tasks.max": "1", **more}})
        await until(
            lambda: sink.exists() and sink.read_bytes() == source.read_bytes(), seconds=SECONDS, what="the same file"
        )
    return f"{LINES} lines in and out"


async def mirror_maker(java: Java, servers: str, kafka: str) -> str:
    """MirrorMaker 2 from a Kafka broker to the region and back, with the settings of topics."""
    run = uuid.uuid4().hex[:8]
    ways = ((kafka, servers, f"out-{run}", f"java-{run}"), (servers, kafka, f"in-{run}", f"relay-{run}"))
    for origin, _, topic, _ in ways:
        filled(origin, topic)
    internal = [f"{name}.topic.replication.factor" for name in ("checkpoints", "heartbeats", "offset-syncs")]
    internal += [f"{name}.storage.replication.factor" for name in ("offset", "status", "config")]
    java_name, relay_name = f"java-{run}", f"relay-{run}"
    settings = {
        "clusters": f"{java_name},{relay_name}",
        f"{java_name}.bootstrap.servers": kafka,
        f"{relay_name}.bootstrap.servers": servers,
        f"{java_name}->{relay_name}.enabled": "true",
        f"{java_name}->{relay_name}.topics": f"out-{run}",
        f"{relay_name}->{java_name}.enabled": "true",
        f"{relay_name}->{java_name}.topics": f"in-{run}",
        "replication.factor": "1",
        **dict.fromkeys(internal, "1"),
        "refresh.topics.interval.seconds": "3",
        "sync.topic.configs.interval.seconds": "3",
        "emit.checkpoints.interval.seconds": "3",
    }
    async with java.serving(MIRROR, str(written(java.scratch / f"mirror-{run}.properties", settings))):
        for _, target, topic, alias in ways:
            await until(
                lambda target=target, name=f"{alias}.{topic}": is_mirrored(target, name),
                seconds=SECONDS,
                what=f"{RECORDS} records and the settings of {alias}.{topic}",
            )
    return f"{RECORDS} records each way, with settings"


def written(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a Java properties file and return its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def answers(url: str) -> bool:
    """Return whether a REST API answers."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def post(url: str, body: object) -> None:
    """POST a JSON object."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30):
        return


def filled(servers: str, topic: str) -> None:
    """Make a compacted topic with RECORDS records."""
    config = {"cleanup.policy": "compact", "retention.ms": "3600000", "max.message.bytes": "500000"}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(SECONDS)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, f"v{number}".encode(), key=f"k{number}".encode())
    if producer.flush(SECONDS):
        raise StepFailed(f"{topic} could not be filled at {servers}")


def is_mirrored(servers: str, topic: str) -> bool:
    """Return whether a topic has every record once and the settings of its origin."""
    admin = AdminClient({"bootstrap.servers": servers})
    known = admin.list_topics(timeout=SECONDS).topics.get(topic)
    if known is None:
        return False
    resource = ConfigResource("topic", topic)
    settings = admin.describe_configs([resource])[resource].result(SECONDS)
    if (settings["cleanup.policy"].value, settings["max.message.bytes"].value) != ("compact", "500000"):
        return False
    reading = {"bootstrap.servers": servers, "group.id": fresh("look"), "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(reading)
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in known.partitions])
    values: list[bytes] = []
    ended: set[int] = set()
    while len(ended) < len(known.partitions):
        record = consumer.poll(SECONDS)
        if record is None:
            break
        if record.error():
            ended.add(record.partition())
        else:
            values.append(record.value())
    consumer.close()
    return sorted(values) == sorted(f"v{number}".encode() for number in range(RECORDS))
