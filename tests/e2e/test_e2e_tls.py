"""A whole region with TLS everywhere: a foreign client, strangers refused, the authority changed under traffic."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from georelay.ids import BrokerId
from georelay.pki.directory import PkiDirectory
from georelay.tls import CHECK_S, ClientAuth, client_contexts
from loadtest.mesh_process import MeshProcess
from mesh.listening.settings import TlsSection
from region.log.filesystem import OsFileSystem

if TYPE_CHECKING:
    from region.config import BrokerConfig
    from tests.e2e.conftest import RegionBed

SECONDS_MAX = 30.0
BROKERS: Final = 3


@dataclass(frozen=True)
class SecureRegion:
    """A running region and what a client of it needs."""

    pki: PkiDirectory
    kafka: list[str]
    peers: str  # address of broker 1001's listener
    mesh_id: str

    def client(self, **changed: Any) -> dict[str, Any]:
        """Return the configuration of a librdkafka client."""
        return {
            "bootstrap.servers": ",".join(self.kafka),
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.pki.path / "bundle.crt"),
            "log_level": 0,
            **changed,
        }

    def create_topic(self, topic: str) -> None:
        admin = AdminClient(self.client())
        for created in admin.create_topics([NewTopic(topic, 1, 3)]).values():
            created.result(SECONDS_MAX)


async def _metrics(region: SecureRegion, admin: str) -> str:
    tls = client_contexts(ca=region.pki.path / "bundle.crt").client()
    try:
        async with aiohttp.ClientSession() as http, http.get(f"https://{admin}/metrics", ssl=tls) as answer:
            return await answer.text()
    except aiohttp.ClientConnectorError:
        return ""  # it is starting


async def wait_for_metric(region: SecureRegion, admins: list[str], row: str) -> None:
    """Wait until every broker shows a line that begins like this expression."""
    async with asyncio.timeout(SECONDS_MAX):
        for admin in admins:
            while re.search(f"^{row}", await _metrics(region, admin), re.MULTILINE) is None:
                await asyncio.sleep(0.2)


@pytest.fixture
async def region(region_bed: RegionBed, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SecureRegion]:
    """Three brokers in this process, TLS everywhere."""
    pki = PkiDirectory.create(region_bed.directory / "pki", mesh_id=region_bed.config(0).mesh_id)
    pki.issue_client("dev")
    plain = region_bed.config

    def secure(number: int) -> BrokerConfig:
        config = plain(number)
        cert = certs.get(config.broker_id) or certs.setdefault(config.broker_id, pki.issue_broker(config.broker_id))
        tls = TlsSection(
            cert_file=str(cert),
            key_file=str(cert.with_suffix(".key")),
            ca_file=str(pki.path / "bundle.crt"),
            client_auth=ClientAuth.OPTIONAL,
        )
        return config.model_copy(update={"tls": tls})

    certs: dict[BrokerId, Path] = {}
    monkeypatch.setattr(region_bed, "config", secure)
    async with region_bed.running([OsFileSystem() for _ in range(BROKERS)]):
        config = region_bed.config(0)
        yield SecureRegion(pki, region_bed.kafka, config.listen.peers, config.mesh_id)


def read_all(region: SecureRegion, topic: str, count: int) -> list[bytes]:
    """Read `count` records from the start."""
    consumer = Consumer(region.client(**{"group.id": "e2e", "auto.offset.reset": "earliest"}))
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(values) < count and time.monotonic() < deadline:
        record = consumer.poll(0.2)
        if record is not None and record.error() is None:
            values.append(record.value())
    consumer.close()
    return values


def first_error(configuration: dict[str, Any]) -> str:
    """Return the name of the first error that a client with this configuration meets; "" when it gets metadata."""
    met: list[KafkaError] = []
    client = AdminClient({**configuration, "error_cb": met.append})
    try:
        client.list_topics(timeout=3)
    except KafkaException:
        client.poll(0)
        return next((error.name() for error in met if error.name() in ("_SSL", "_TRANSPORT")), "_TIMED_OUT")
    return ""


async def test_a_foreign_client_writes_and_reads_over_tls(region: SecureRegion) -> None:
    await asyncio.to_thread(region.create_topic, "orders")
    cert, key = (str(region.pki.path / f"client-dev.{kind}") for kind in ("crt", "key"))
    sent = [f"record {number}".encode() for number in range(200)]

    def send() -> int:
        producer = Producer(region.client(**{"ssl.certificate.location": cert, "ssl.key.location": key}))
        for value in sent:
            producer.produce("orders", value, partition=0)
        return int(producer.flush(SECONDS_MAX))

    assert await asyncio.to_thread(send) == 0
    assert await asyncio.to_thread(read_all, region, "orders", len(sent)) == sent


async def test_strangers_are_refused_at_every_door(region: SecureRegion, tmp_path: Path) -> None:
    other = PkiDirectory.create(tmp_path / "stranger", mesh_id="stranger")
    forged = other.issue_broker(1002)
    forger = {"ssl.certificate.location": str(forged), "ssl.key.location": str(forged.with_suffix(".key"))}
    strangers = ({"ssl.ca.location": str(other.path / "bundle.crt")}, forger, {"security.protocol": "plaintext"})
    tried = (asyncio.to_thread(first_error, region.client(**changed)) for changed in (*strangers, {}))
    *refused, trusted = await asyncio.gather(*tried)
    assert "" not in refused, refused
    assert trusted == ""

    # The client's certificate is of the right authority; brokers want a broker's.
    contexts = [
        client_contexts(ca=region.pki.path / "bundle.crt", cert=path, key=path.with_suffix(".key"))
        for path in (region.pki.path / "client-dev.crt", forged)
    ]
    peers = int(region.peers.rpartition(":")[2])
    for context, reaches_hello in zip(contexts, (True, False), strict=True):
        answer = await _knock(peers, context.client(), hello_first=reaches_hello, mesh_id=region.mesh_id)
        assert answer == b""


async def _knock(port: int, context: ssl.SSLContext, *, hello_first: bool, mesh_id: str) -> bytes:
    """Connect to a peers listener as broker 1002 would; return what comes back before the end."""
    from region.multiraft.peer_hello import encode_hello
    from region.multiraft.transport import Lane

    hello = encode_hello(lane=Lane.CONTROL, sender=BrokerId(1002), to=BrokerId(1001), disk=bytes(16), mesh_id=mesh_id)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except (ssl.SSLError, ConnectionError):
        return b""
    try:
        writer.write(hello if hello_first else b"")
        async with asyncio.timeout(10):
            return await reader.read()
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        writer.close()


@pytest.mark.slow
async def test_the_authority_is_changed_under_traffic_without_a_failed_publish(tmp_path: Path) -> None:
    async with MeshProcess(tmp_path, regions="us", brokers_per_region=3, arguments=("--tls", "--restart")) as mesh:
        await _change_the_authority(mesh)


async def _change_the_authority(mesh: MeshProcess) -> None:
    addresses = mesh.endpoints["regions"]["us"]
    region = SecureRegion(
        PkiDirectory.open(mesh.directory / "mesh" / "pki"), addresses["kafka"], "", mesh.endpoints["mesh"]
    )
    await asyncio.to_thread(region.create_topic, "renewed")
    failed: list[str] = []
    acknowledged = 0
    stop = asyncio.Event()

    def told(error: KafkaError | None, _: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            failed.append(str(error))
        else:
            acknowledged += 1

    async def send() -> int:
        # A new client each second: every one shakes hands with the files of that moment.
        sent = 0
        while not stop.is_set():
            producer = Producer(region.client(**{"enable.idempotence": True, "linger.ms": 5}))
            for _ in range(20):
                producer.produce("renewed", f"{sent}".encode(), partition=0, on_delivery=told)
                sent += 1
                producer.poll(0)
                await asyncio.sleep(0.05)
            left = await asyncio.to_thread(producer.flush, SECONDS_MAX)
            assert left == 0
        return sent

    sending = asyncio.ensure_future(send())
    await asyncio.sleep(1)
    for step in (region.pki.rotate, region.pki.reissue, region.pki.finish):
        step()
        await asyncio.sleep(CHECK_S + 1.5)
    mesh.kill("us-2")  # comes back and shakes hands with everybody
    await asyncio.sleep(4)
    stop.set()
    sent = await sending
    assert failed == []
    assert acknowledged == sent > 200
    values = await asyncio.to_thread(read_all, region, "renewed", sent)
    assert values == [f"{number}".encode() for number in range(sent)]
    # Two lanes of two brokers, and the links of those that have asked this one something.
    await wait_for_metric(region, addresses["admin"], r'georelay_listener_connections\{listener="peers"\} [4-6]\.0')
    await wait_for_metric(region, addresses["admin"], r'georelay_tls_reload_failures_total\{listener="kafka"\} 0\.0')
