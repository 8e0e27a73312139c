"""In which region clients land that know one address: every client, from every place, by every way in.

Each publishes one record to a topic that has a stream in every region. The stream that has it names the region; nobody
is asked what it believes. The clients' end is `python -m loadtest.wan.landing`, with an Errand as JSON on its input.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import grpc
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

import georelay
from loadtest.http_body import body_of
from loadtest.load.wires import GRPC_PATH, PublishRequest
from loadtest.login import Login
from loadtest.wan.gateway_bed import EDGE, GRPC_PORT, HTTP_PORT, KAFKA_PORT, REGIONS, SHARED, GatewayBed, Lost

TOPIC: Final = "where"
CLIENT_S: Final = 40
PLACE_S: Final = 400
OWN, ONE, FAR = "its region's gateway", "the shared address", "the gateway of us"
FIRST: Final = "us"
NOT_FOUND: Final = "NOT FOUND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand(Login):
    """What the clients of one place do: `values` by the kind of client."""

    host: str
    jars: str
    values: Mapping[str, str]

    @property
    def kafka(self) -> str:
        """Return the bootstrap server."""
        return f"{self.host}:{KAFKA_PORT}"


def _kcat(errand: Errand, value: str) -> None:
    words = [word for name, setting in errand.rdkafka.items() for word in ("-X", f"{name}={setting}")]
    command = ["kcat", "-P", "-t", TOPIC, "-p", "0", "-b", errand.kafka, *words]
    subprocess.run(command, input=value, text=True, check=True, capture_output=True, timeout=CLIENT_S)


def _confluent(errand: Errand, value: str) -> None:
    producer = Producer({**errand.rdkafka, "bootstrap.servers": errand.kafka})
    producer.produce(TOPIC, value, partition=0)
    if producer.flush(CLIENT_S):
        raise TimeoutError


def _java(errand: Errand, value: str) -> None:
    with errand.java_file({}) as settings:
        program = ["org.apache.kafka.tools.ConsoleProducer", "--command-config", settings]
        place = ["--topic", TOPIC, "--bootstrap-server", errand.kafka]
        command = ["java", "-Xmx200m", "-cp", f"{errand.jars}/*", *program, *place]
        subprocess.run(command, input=value, text=True, check=True, capture_output=True, timeout=CLIENT_S)


def _aiokafka(errand: Errand, value: str) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=errand.kafka, **errand.aiokafka) as producer:
            await producer.send_and_wait(TOPIC, value.encode(), partition=0)

    asyncio.run(send())


def _sdk(errand: Errand, value: str) -> None:
    async def send() -> None:
        name, url = value.replace(" ", "-"), f"https://{errand.host}:{HTTP_PORT}"
        async with georelay.connect(url, **errand.sdk, client=name) as mesh, mesh.producer() as producer:
            await producer.publish(TOPIC, value.encode())

    asyncio.run(send())


def _grpc(errand: Errand, value: str) -> None:
    trusted = grpc.ssl_channel_credentials(Path(errand.ca).read_bytes())
    with grpc.secure_channel(f"{errand.host}:{GRPC_PORT}", trusted) as channel:
        publish = channel.unary_unary(GRPC_PATH, request_serializer=PublishRequest.SerializeToString)
        login = [("authorization", errand.basic)]
        publish(PublishRequest(topic=TOPIC, body=value.encode()), metadata=login, timeout=CLIENT_S)


def _rest(errand: Errand, value: str) -> None:
    request = urllib.request.Request(
        f"https://{errand.host}:{HTTP_PORT}/v1/topics/{TOPIC}/records",
        data=json.dumps([{"value": value}]).encode(),
        headers={"Authorization": errand.basic, "Content-Type": "application/json"},
    )
    trusted = ssl.create_default_context(cafile=errand.ca)
    body_of(request, timeout_s=CLIENT_S, context=trusted)


CLIENTS: Final[Mapping[str, Callable[[Errand, str], None]]] = {
    "kcat": _kcat,
    "confluent-kafka": _confluent,
    "Java": _java,
    "aiokafka": _aiokafka,
    "SDK": _sdk,
    "gRPC": _grpc,
    "REST": _rest,
}


async def measure(bed: GatewayBed, *, jars: str) -> AsyncIterator[str]:
    """Tell the table: a row for each place and way in, a column for each client. Raises Lost."""
    kinds = [kind for kind in CLIENTS if jars or kind != "Java"]
    await asyncio.to_thread(bed.ask, "/v1/topics", {"name": TOPIC, "partitions": 1, "homes": "every"})
    trips = [(place, way) for way in (OWN, ONE) for place in REGIONS] + [(place, FAR) for place in (*REGIONS, EDGE)]
    for place, way in trips:
        host = SHARED if way == ONE else bed.address(FIRST if way == FAR else place)
        values = {kind: f"{place} {way} {kind}" for kind in kinds}
        errand = Errand(**asdict(bed.login), host=host, jars=jars, values=values)
        await asyncio.to_thread(_do, bed, place, errand)
    found = {value: region for region in REGIONS for value in _stored(bed, region)}
    missing = 0
    yield f"{'at':5} {'by':22} {' '.join(f'{kind:15}' for kind in kinds)}".rstrip()
    for place, way in trips:
        landed = [found.get(f"{place} {way} {kind}", NOT_FOUND) for kind in kinds]
        missing += landed.count(NOT_FOUND)
        yield f"{place:5} {way:22} {' '.join(f'{region:15}' for region in landed)}".rstrip()
    if missing:
        raise Lost(f"{missing} records that were published are in no region")


def _do(bed: GatewayBed, place: str, errand: Errand) -> None:
    process = bed.inside(place, sys.executable, "-m", "loadtest.wan.landing", stdin=subprocess.PIPE)
    _, said = process.communicate(json.dumps(asdict(errand)), timeout=PLACE_S)
    if process.returncode:
        raise RuntimeError(f"clients at {place}: {said[-1000:]}")


def _stored(bed: GatewayBed, region: str) -> Iterable[str]:
    records = bed.ask(f"/v1/topics/{TOPIC}/records?partition=0&offset=earliest&max=500&wait_ms=1000&region={region}")
    return [record["value"] for record in records["records"]]


def main() -> None:
    """Run the errand of one place."""
    errand = Errand(**json.load(sys.stdin))
    for kind, value in errand.values.items():
        CLIENTS[kind](errand, value)


if __name__ == "__main__":
    main()
