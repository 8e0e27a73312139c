"""A running mesh of real processes: its addresses, plain HTTP to it, its command line, its stored batches."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from georelay.client.broker_connection import BrokerConnection
from georelay.wire.api import ApiKey
from georelay.wire.batch import parse_header, split_batches
from georelay.wire.requests import FetchPartition, FetchRequest, FetchTopic
from loadtest.mesh_process import MeshProcess
from tests.interop.sign_in import SignIn

PATIENCE_S = 30.0  # for what another region must hear of first
CLIENT_SECONDS_MAX = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; `document` is its JSON, or None."""

    status: int
    content_type: str
    headers: dict[str, str]
    document: Any


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
