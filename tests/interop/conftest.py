"""A real mesh and real foreign clients: kcat, confluent-kafka, aiokafka, kafka-python, urllib and generated gRPC stubs.

One mesh without users and one with users serve all tests of a run; every test has topics of its own. Environment:
GEORELAY_INTEROP_RECORDS (2000) records per producer, GEORELAY_INTEROP_BROKERS (1) brokers per region.
`make interop` runs the whole campaign: 10,000 records, three brokers per region.
`new_topic` waits until every region leads the topic, so that no client spends its time on finding out.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import importlib
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import pytest

from georelay.client.broker_connection import BrokerConnection
from georelay.wire.api import ApiKey
from georelay.wire.batch import BatchHeader, parse_header, split_batches
from georelay.wire.requests import FetchPartition, FetchRequest, FetchTopic
from loadtest.mesh_process import MeshProcess

with warnings.catch_warnings():  # kafka-python 3 reads its schemas with a call that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    kafka = importlib.import_module("kafka")
    importlib.import_module("kafka.admin")

REGIONS = ("us", "eu", "ap")
RECORDS = int(os.environ.get("GEORELAY_INTEROP_RECORDS", "2000"))
BROKERS_PER_REGION = int(os.environ.get("GEORELAY_INTEROP_BROKERS", "1"))
USER, PASSWORD = "alice", "s3cret-Wort"
PATIENCE_S = 30.0  # for what another region must hear of first
CLIENT_SECONDS_MAX = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]

Sent = tuple[str, str]  # key, value
Received = tuple[int, int, str, str]  # partition, offset, key, value


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; `document` is its JSON, or None."""

    status: int
    content_type: str
    headers: dict[str, str]
    document: Any


@dataclasses.dataclass(frozen=True, slots=True)
class SignIn:
    """What a client signs in with; None for no credentials at all."""

    user: str
    password: str

    @property
    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def librdkafka(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    @property
    def python_clients(self) -> dict[str, str]:
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


ALICE = SignIn(USER, PASSWORD)


class InteropMesh:
    """Addresses of a running mesh, and plain HTTP to its gateway."""

    def __init__(self, process: MeshProcess, sign_in: SignIn | None) -> None:
        self.process = process
        self.sign_in = sign_in
        self._names = itertools.count(1)

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(self.process.endpoints["regions"])

    @property
    def bootstrap(self) -> str:
        return str(self.process.endpoints["gateway"]["kafka"][0])

    @property
    def gateway_grpc(self) -> str:
        return str(self.process.endpoints["gateway"]["grpc"][0])

    def addresses(self, region: str, kind: str) -> list[str]:
        return list(self.process.endpoints["regions"][region][kind])

    def kafka(self, region: str) -> str:
        return ",".join(self.addresses(region, "kafka"))

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        address: str | None = None,
        sign_in: SignIn | str | None = "own",
        raw: bytes | None = None,
    ) -> Answer:
        """Send one request as curl would; `address` is the gateway's unless given."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        base = self.process.gateway if address is None else f"http://{address}"
        request = urllib.request.Request(base + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        identity = self.sign_in if sign_in == "own" else sign_in
        if isinstance(identity, SignIn):
            request.add_header("Authorization", identity.header)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=CLIENT_SECONDS_MAX) as response:
                return _answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return _answer(refused.code, refused.headers, refused.read())

    def new_topic(self, stem: str, **definition: Any) -> str:
        """Create a topic with a name of its own through the gateway and wait until every region leads it."""
        name = self.new_name(stem)
        wanted = {"name": name, "partitions": 3, "homes": "one", **definition}
        if wanted["homes"] == "one":
            wanted.setdefault("home", "us")
        answer = self.http("POST", "/v1/topics", wanted)
        assert answer.status in (200, 201), answer
        for region in self.regions:
            self.wait_for_topic(name, region=region)
        return name

    def new_name(self, stem: str) -> str:
        """Return a topic name that no other test has."""
        return f"{stem}-{next(self._names)}"

    def wait_for_topic(self, topic: str, *, region: str) -> None:
        """Wait until a region knows a topic and has a leader for every partition."""

        def is_led() -> bool:
            answer = self.http("GET", f"/v1/topics/{topic}?region={region}")
            return answer.status == 200 and all(row["leader"] > 0 for row in answer.document["partition_states"])

        eventually(is_led, lambda: f"{region} has no leaders for {topic}")

    def read(self, topic: str, *, region: str, partition: int = 0, offset: int | str = 0, wait_ms: int = 0) -> Answer:
        query = f"partition={partition}&offset={offset}&wait_ms={wait_ms}&region={region}"
        return self.http("GET", f"/v1/topics/{topic}/records?{query}")

    def wait_for_records(self, topic: str, *, region: str, partitions: int, count: int) -> None:
        """Wait until a region has committed `count` records of the topic, over all partitions."""
        marks: list[int] = []

        def are_there() -> bool:
            answers = [self.read(topic, region=region, partition=p, offset="latest") for p in range(partitions)]
            marks[:] = [-1 if a.status != 200 else a.document["high_watermark"] for a in answers]
            return -1 not in marks and sum(marks) >= count

        eventually(are_there, lambda: f"{region} has {marks} of {count} records of {topic}")

    def raw_batches(self, topic: str, *, region: str, partition: int) -> list[bytes]:
        """Return the stored batches of a partition, byte for byte as its leader in the region serves them."""
        return asyncio.run(self._raw_batches(topic, region, partition))

    async def _raw_batches(self, topic: str, region: str, partition: int) -> list[bytes]:
        batches: list[bytes] = []
        for address in self.addresses(region, "kafka"):
            host, port = address.split(":")
            connection = await BrokerConnection.dial(host, int(port))
            try:
                while found := await _fetch(connection, topic, partition, _end_of(batches)):
                    batches += found
            finally:
                connection.close()
        return batches

    def sdk_environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GEORELAY_")}
        environment["GEORELAY_GATEWAY"] = self.process.gateway
        if self.sign_in is not None:
            environment["GEORELAY_USER"] = f"{self.sign_in.user}:{self.sign_in.password}"
        return environment

    def cli(self, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `georelay` as a user does."""
        ran = subprocess.run(
            [sys.executable, "-m", "georelay.cli", *arguments],
            input=stdin,
            capture_output=True,
            timeout=CLIENT_SECONDS_MAX,
            cwd=self.process.directory,
            env={**self.sdk_environment(), **environment},
            check=False,
        )
        return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def _end_of(batches: list[bytes]) -> int:
    if not batches:
        return 0
    header = parse_header(batches[-1])
    return header.base_offset + header.record_count


async def _fetch(connection: BrokerConnection, topic: str, partition: int, offset: int) -> list[bytes]:
    """Return what one Fetch brings; nothing from a broker that does not lead the partition."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = (FetchTopic(topic=topic, partitions=(wanted,)),)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    answer = await connection.request(ApiKey.FETCH, 11, request)
    (row,) = answer.responses[0].partitions
    return [bytes(batch) for batch in split_batches(b"".join(row.records or ()), partial_tail=True)]


def _answer(status: int, headers: Any, body: bytes) -> Answer:
    content_type = str(headers.get("Content-Type", ""))
    document = json.loads(body) if "json" in content_type else None
    return Answer(status, content_type, dict(headers.items()), document)


def eventually(is_so: Callable[[], bool], describe: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition that another process brings about."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.05)


class ForeignClient(Protocol):
    """One client library: produces in order, reads by assignment from offset 0."""

    name: str

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        """Return when every record is acknowledged."""

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        """Return `count` records, in the order of their arrival."""


class Kcat:
    """The command line tool, idempotent producer on."""

    name = "kcat"

    def run(self, *arguments: str, stdin: str = "", sign_in: SignIn | None = None) -> subprocess.CompletedProcess[str]:
        signing = [] if sign_in is None else [f"-X{name}={value}" for name, value in sign_in.librdkafka.items()]
        return subprocess.run(
            ["kcat", *arguments, *signing],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS_MAX,
            check=False,
        )

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        lines = "".join(f"{key}:{value}\n" for key, value in records)
        settings = ("-Xenable.idempotence=true", "-Xacks=all", "-Xlinger.ms=5", "-Xpartitioner=murmur2_random")
        produced = self.run(
            *("-P", "-b", bootstrap, "-t", topic, "-K:", "-z", compression, *settings), stdin=lines, sign_in=sign_in
        )
        assert (produced.returncode, produced.stderr) == (0, ""), produced

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        """Read to the end: kcat stops there by itself, so the records must be there."""
        read = self.run(
            *("-C", "-b", brokers, "-t", topic, "-o", "beginning", "-e", "-q", "-Xcheck.crcs=true"),
            *("-Xfetch.wait.max.ms=10", "-f", "%p %o %k %s\n"),
            sign_in=sign_in,
        )
        assert read.returncode == 0, read.stderr
        rows = (line.split(" ", 3) for line in read.stdout.splitlines())
        return [(int(partition), int(offset), key, value) for partition, offset, key, value in rows]


class Confluent:
    """confluent-kafka (librdkafka), idempotent producer on."""

    name = "confluent-kafka"

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": compression,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                **(sign_in.librdkafka if sign_in else {}),
            }
        )
        errors: list[str] = []
        acknowledged = 0

        def on_delivery(error: Any, _: Any) -> None:
            nonlocal acknowledged
            if error is None:
                acknowledged += 1
            else:
                errors.append(str(error))

        for key, value in records:
            producer.produce(topic, key=key, value=value, on_delivery=on_delivery)
            producer.poll(0)
        assert producer.flush(CLIENT_SECONDS_MAX) == 0
        assert (errors[:3], acknowledged) == ([], len(records))

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                **(sign_in.librdkafka if sign_in else {}),
            }
        )
        received: list[Received] = []
        deadline = time.monotonic() + CLIENT_SECONDS_MAX
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
            while len(received) < count and time.monotonic() < deadline:
                for record in consumer.consume(1000, timeout=0.2):
                    assert record.error() is None, record.error()
                    place = (record.partition(), record.offset())
                    received.append((*place, record.key().decode(), record.value().decode()))
        finally:
            consumer.close()
        return received


class Aiokafka:
    """aiokafka, idempotent producer on."""

    name = "aiokafka"

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        asyncio.run(self._produce(bootstrap, topic, records, compression, sign_in))

    async def _produce(
        self, bootstrap: str, topic: str, records: list[Sent], compression: str, sign_in: SignIn | None
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=compression,
            linger_ms=5,
            **(sign_in.python_clients if sign_in else {}),
        )
        async with producer, asyncio.timeout(CLIENT_SECONDS_MAX):
            waiting = [await producer.send(topic, key=key.encode(), value=value.encode()) for key, value in records]
            await asyncio.gather(*waiting)

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        return asyncio.run(self._consume(brokers, topic, partitions, count, sign_in))

    async def _consume(
        self, brokers: str, topic: str, partitions: int, count: int, sign_in: SignIn | None
    ) -> list[Received]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=brokers,
            group_id=None,
            auto_offset_reset="none",
            check_crcs=True,
            **(sign_in.python_clients if sign_in else {}),
        )
        received: list[Received] = []
        async with consumer:
            places = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            deadline = time.monotonic() + CLIENT_SECONDS_MAX
            while len(received) < count and time.monotonic() < deadline:
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    received += [(r.partition, r.offset, r.key.decode(), r.value.decode()) for r in batch]
        return received


class KafkaPython:
    """kafka-python, idempotent producer on."""

    name = "kafka-python"

    def produce(
        self, bootstrap: str, topic: str, records: list[Sent], *, compression: str, sign_in: SignIn | None = None
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=compression,
            linger_ms=5,
            **(sign_in.python_clients if sign_in else {}),
        )
        try:
            waiting = [producer.send(topic, key=key.encode(), value=value.encode()) for key, value in records]
            producer.flush(CLIENT_SECONDS_MAX)
            for future in waiting:
                future.get(0)
        finally:
            producer.close()

    def consume(
        self, brokers: str, topic: str, partitions: int, count: int, *, sign_in: SignIn | None = None
    ) -> list[Received]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=brokers.split(","),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=True,
            **(sign_in.python_clients if sign_in else {}),
        )
        received: list[Received] = []
        try:
            places = [kafka.TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            deadline = time.monotonic() + CLIENT_SECONDS_MAX
            while len(received) < count and time.monotonic() < deadline:
                for batch in consumer.poll(timeout_ms=200).values():
                    received += [(r.partition, r.offset, r.key.decode(), r.value.decode()) for r in batch]
        finally:
            consumer.close()
        return received


CLIENTS: tuple[ForeignClient, ...] = (Kcat(), Confluent(), Aiokafka(), KafkaPython())


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    """Every foreign client in turn."""
    chosen: ForeignClient = request.param
    return chosen


@pytest.fixture(scope="session")
def clients() -> dict[str, ForeignClient]:
    """The foreign clients by name."""
    return {client.name: client for client in CLIENTS}


@pytest.fixture(scope="session")
def kafka_python() -> Any:
    """The module `kafka`, imported once with its own warnings off."""
    return kafka


@pytest.fixture(scope="session")
def records_per_producer() -> int:
    """How many records one producer sends."""
    return RECORDS


TALLY: list[tuple[str, str, int, dict[str, int]]] = []  # client, compression, acknowledged, read per region


@pytest.fixture(scope="session")
def tally() -> list[tuple[str, str, int, dict[str, int]]]:
    """Rows that are printed at the end of the run."""
    return TALLY


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many records each client produced and read back in each region."""
    if TALLY:
        terminalreporter.section(f"interop, 3 regions of {BROKERS_PER_REGION}")
    for client, compression, acknowledged, read in TALLY:
        regions = "  ".join(f"{region} {count}" for region, count in read.items())
        terminalreporter.line(f"{client:16} {compression:7} acknowledged {acknowledged:6}  read {regions}")


@pytest.fixture(scope="session")
def header_of() -> Callable[[bytes], BatchHeader]:
    """Read the header of a raw batch."""
    return parse_header


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """`eventually`, for tests."""
    return eventually


@pytest.fixture(scope="session")
def keyed_records() -> Callable[[str, int], list[Sent]]:
    """Build records of 40 keys; values are compressible and all different."""

    def build(stem: str, count: int) -> list[Sent]:
        return [(f"key{number * 7919 % 40}", f"{stem} {number} " + "lorem ipsum " * 8) for number in range(count)]

    return build


@pytest.fixture(scope="session")
def check_received() -> Callable[[list[Sent], list[Received]], None]:
    """Compare what one producer sent with what a region delivered: complete, dense, in order, one partition per key."""

    def check(sent: list[Sent], received: list[Received]) -> None:
        assert len(received) == len(sent)
        partition_of: dict[str, int] = {}
        for partition, _, key, _ in received:
            assert partition_of.setdefault(key, partition) == partition, key
        for partition in set(partition_of.values()):
            here = [(offset, key, value) for number, offset, key, value in received if number == partition]
            wanted = [(key, value) for key, value in sent if partition_of.get(key) == partition]
            assert here == [(offset, key, value) for offset, (key, value) in enumerate(wanted)]

    return check


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteropMesh]:
    """Three regions without users."""
    yield from _run_mesh(tmp_path_factory.mktemp("open"), BROKERS_PER_REGION, None)


@pytest.fixture(scope="session")
def guarded_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteropMesh]:
    """Three regions of one broker that only alice may use."""
    yield from _run_mesh(tmp_path_factory.mktemp("guarded"), 1, ALICE)


def _run_mesh(directory: Path, brokers_per_region: int, sign_in: SignIn | None) -> Iterator[InteropMesh]:
    arguments = () if sign_in is None else ("--user", f"{sign_in.user}:{sign_in.password}")
    process = MeshProcess(
        directory, regions=",".join(REGIONS), brokers_per_region=brokers_per_region, arguments=arguments
    )
    asyncio.run(process.__aenter__())
    try:
        yield InteropMesh(process, sign_in)
    finally:
        process.stop()


@pytest.fixture(scope="session")
def alice() -> SignIn:
    """The one user of the guarded mesh."""
    return ALICE


@pytest.fixture(params=["no credentials", "wrong password", "unknown user", "empty password"])
def stranger(request: pytest.FixtureRequest) -> SignIn | None:
    """Everybody who must stay outside, None for no credentials."""
    strangers = {
        "no credentials": None,
        "wrong password": SignIn(USER, PASSWORD + "x"),
        "unknown user": SignIn("mallory", PASSWORD),
        "empty password": SignIn(USER, ""),
    }
    return strangers[request.param]


@pytest.fixture(scope="session")
def user_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stubs that a user generated from the public contracts, in a process of its own."""
    folder = tmp_path_factory.mktemp("stubs")
    outputs = (f"--python_out={folder}", f"--grpc_python_out={folder}")
    for root, contract in ((REPOSITORY / "proto", "broker.proto"), (REPOSITORY / "proto/georelay/v1", "admin.proto")):
        command = (sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *outputs, contract)
        subprocess.run(command, check=True, timeout=CLIENT_SECONDS_MAX)
    return folder
