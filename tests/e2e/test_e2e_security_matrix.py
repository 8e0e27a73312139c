"""The security matrix: every listener, with every kind of credentials, for producing, consuming and administering.

The table in docs/operate/security.md is what this test sees; GEORELAY_WRITE_TABLES=1 writes it there. For everything
that is refused the words are the same whether the topic exists or not, and no password is in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import grpc
import pytest

from georelay._pb import admin_pb2
from georelay.credentials import basic
from georelay.wire.api import ApiKey, ErrorCode, decode_response, encode_request
from georelay.wire.records import build_batch
from georelay.wire.requests import (
    CreatableTopic,
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    PartitionProduceData,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    TopicProduceData,
)
from loadtest.mesh_process import MeshProcess
from region.api._pb import broker_pb2
from region.security.scram_core import ScramClient
from region.security.user import Mechanism

pytestmark = pytest.mark.slow

ROOT, PASSWORD, WRONG = "root", "correct-horse-9", "battery-staple-7"
EXISTING, MISSING = "orders", "nowhere"
ACTIONS = ("produce", "consume", "admin")
SECONDS_MAX = 20.0
PAGE = Path(__file__).resolve().parents[2] / "docs/operate/security.md"
BEGIN, END = "<!-- matrix: written by tests/e2e/test_e2e_security_matrix.py -->", "<!-- end of matrix -->"
NAMES = itertools.count(1)
ADDRESSES = itertools.count(1)


class Credentials(NamedTuple):
    """A row of the matrix."""

    row: str
    user: str | None
    password: str = PASSWORD


CREDENTIALS = (
    Credentials("none", None),
    Credentials("wrong", "ann", WRONG),
    Credentials("expired", "late"),
    Credentials("wrong principal", "bob"),
    Credentials("right", "ann"),
)
Outcome = tuple[str, str]  # what happened in a word or two, and everything that was said
Try = Callable[[str, Credentials, str, str], Awaitable[Outcome]]


class Mesh:
    """A running mesh with TLS everywhere, and clients of each of its listeners."""

    def __init__(self, process: MeshProcess) -> None:
        self.process = process
        assert process.ca is not None
        self.roots = process.ca.read_bytes()
        self.tls = ssl.create_default_context(cafile=str(process.ca))

    def address(self, place: str, kind: str) -> str:
        if place == "gateway":
            return str(self.process.endpoints["gateway"][kind][0])
        return str(self.process.endpoints["regions"]["us"]["admin" if kind == "http" else kind][0])

    async def ask(self, method: str, path: str, body: Any, *, user: str = ROOT) -> tuple[int, str]:
        return await self._http("gateway", method, path, body, basic(user, PASSWORD))

    async def _http(self, place: str, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, str]:
        url = f"https://{self.address(place, 'http')}{path}"
        headers = {} if authorization is None else {"Authorization": authorization}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=stranger())) as session,
            session.request(method, url, json=body, headers=headers, ssl=self.tls) as answer,
        ):
            return answer.status, await answer.text()

    # --- one attempt per listener -------------------------------------------------------------------------------------

    async def http(self, place: str, who: Credentials, action: str, topic: str) -> Outcome:
        authorization = None if who.user is None else basic(who.user, who.password)
        path, body = f"/v1/topics/{topic}/records", {"value": "x"}
        if action == "produce":
            status, text = await self._http(place, "POST", path, body, authorization)
        elif action == "consume":
            status, text = await self._http(place, "GET", path, None, authorization)
        else:
            status, text = await self._http(place, "POST", "/v1/topics", {"name": fresh()}, authorization)
        return ("done" if status < 300 else f"{status} {json.loads(text)['code']}"), text

    async def grpc(self, place: str, who: Credentials, action: str, topic: str) -> Outcome:
        metadata = () if who.user is None else (("authorization", basic(who.user, who.password)),)
        credentials = grpc.ssl_channel_credentials(self.roots)
        address = self.address(place, "grpc")
        async with grpc.aio.secure_channel(address, credentials, options=(("grpc.enable_http_proxy", 0),)) as channel:
            try:
                if action == "consume":
                    call = channel.unary_stream("/broker.Broker/Subscribe", *_coders(broker_pb2.SubscribeRequest))
                    stream = call(broker_pb2.SubscribeRequest(topics={topic: 0}), metadata=metadata)
                    async for _ in stream:
                        break
                    stream.cancel()
                elif action == "produce":
                    call = channel.unary_unary("/broker.Broker/Publish", *_coders(broker_pb2.PublishRequest))
                    await call(broker_pb2.PublishRequest(topic=topic, body=b"x"), metadata=metadata)
                else:
                    call = channel.unary_unary("/georelay.v1.Admin/CreateTopic", *_coders(admin_pb2.CreateTopicRequest))
                    await call(admin_pb2.CreateTopicRequest(name=fresh()), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                return error.code().name, str(error.details())
        return "done", ""

    async def kafka(self, place: str, who: Credentials, action: str, topic: str) -> Outcome:
        host, port = self.address(place, "kafka").split(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=self.tls, server_hostname="localhost", local_addr=stranger()
        )
        client = _Kafka(reader, writer)
        try:
            refused = await client.sign_in(who)
            if refused is not None:
                return refused
            outcome: Outcome = await getattr(client, action)(topic)
            return outcome
        except (asyncio.IncompleteReadError, ConnectionError):
            return "closed", ""
        finally:
            await closed(writer)

    async def text(self, place: str, who: Credentials, action: str, topic: str) -> Outcome:
        host, port = self.address(place, "text").split(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=self.tls, server_hostname="localhost", local_addr=stranger()
        )
        said = []
        lines = [] if who.user is None else [f"AUTH {who.user} {who.password}"]
        commands = {"produce": f'PUBS {topic} {{"Body":"x"}}', "consume": f"SUBS {topic} g", "admin": f"CRTP {fresh()}"}
        try:
            await reader.readline()
            for line in (*lines, commands[action]):
                writer.write(f"{line}\n".encode())
                said.append((await reader.readline()).decode().strip())
                if not said[-1].startswith("OK"):
                    break
        finally:
            await closed(writer)
        return ("done" if said[-1].startswith("OK") else " ".join(said[-1].split()[:2]) or "closed"), said[-1]


class _Kafka:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, key: ApiKey, version: int, request: Any) -> Any:
        buffers = encode_request(request, api_version=version, correlation_id=1, client_id="matrix")
        self._writer.write(b"".join(buffers))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(key, version, await self._reader.readexactly(size))[1]

    async def sign_in(self, who: Credentials) -> Outcome | None:
        if who.user is None:
            await self.call(ApiKey.METADATA, 9, MetadataRequest())
            return None
        await self.call(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        client = ScramClient(mechanism=Mechanism.SCRAM_SHA_256, user=who.user, password=who.password, nonce="n0nce")
        first = await self.call(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=client.first))
        final = client.final(bytes(first.auth_bytes))
        last = await self.call(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=final))
        return None if last.error_code == 0 else _code(last.error_code, last.error_message)

    async def produce(self, topic: str) -> Outcome:
        batch = build_batch([(b"x", None, ())], timestamps_ms=int(time.time() * 1000))
        request = ProduceRequest(None, -1, 5000, [TopicProduceData(topic, [PartitionProduceData(0, batch)])])
        row = (await self.call(ApiKey.PRODUCE, 9, request)).responses[0].partition_responses[0]
        return _code(row.error_code, row.error_message)

    async def consume(self, topic: str) -> Outcome:
        request = FetchRequest(topics=[FetchTopic(topic, [FetchPartition(partition=0)])])
        return _code((await self.call(ApiKey.FETCH, 11, request)).responses[0].partitions[0].error_code, "")

    async def admin(self, _: str) -> Outcome:
        request = CreateTopicsRequest(topics=[CreatableTopic(fresh(), -1, -1)], timeout_ms=10_000)
        row = (await self.call(ApiKey.CREATE_TOPICS, 5, request)).topics[0]
        return _code(row.error_code, row.error_message)


def _code(code: int, text: str | None) -> Outcome:
    return ("done" if code == 0 else ErrorCode(code).name), str(text)


def _coders(request: Any) -> tuple[Any, None]:
    del request
    return (lambda message: message.SerializeToString()), None


def fresh() -> str:
    """Return the name of a topic that nobody has made."""
    return f"made-{next(NAMES)}"


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is."""
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()


def stranger() -> tuple[str, int]:
    """Return an address of loopback to connect from: wrong sign-ins from one make the next ones from there slow."""
    number = next(ADDRESSES)
    return f"127.0.{1 + number // 250}.{1 + number % 250}", 0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One broker and a gateway with TLS; `root` of the users file has made the others."""
    arguments = ("--tls", "--user", f"{ROOT}:{PASSWORD}")
    process = MeshProcess(tmp_path_factory.mktemp("matrix"), regions="us", brokers_per_region=1, arguments=arguments)
    asyncio.run(process.__aenter__())
    try:
        mesh = Mesh(process)
        asyncio.run(prepare(mesh))
        yield mesh
    finally:
        process.stop()


async def prepare(mesh: Mesh) -> None:
    """Make the users, their rights and the topic."""
    deadline = time.monotonic() + SECONDS_MAX
    while (await mesh.ask("POST", "/v1/users", {"name": "ann", "password": PASSWORD}))[0] != 201:
        assert time.monotonic() < deadline, "the region did not come to the level at which it knows users"
        await asyncio.sleep(0.2)
    for user in ({"name": "bob"}, {"name": "late", "expires_s": 1}):
        assert (await mesh.ask("POST", "/v1/users", {**user, "password": PASSWORD}))[0] == 201
    rights = [("topic", EXISTING, "read"), ("topic", EXISTING, "write"), ("group", "*", "read")]
    entries = [
        {"principal": "User:ann", "resource": resource, "name": name, "operation": operation}
        for resource, name, operation in rights
    ]
    entries.append({"principal": "User:ann", "resource": "cluster", "operation": "create"})
    assert (await mesh.ask("POST", "/v1/acls", {"entries": entries}))[0] == 201
    assert (await mesh.ask("POST", "/v1/topics", {"name": EXISTING}))[0] == 201
    assert (await mesh.ask("POST", f"/v1/topics/{EXISTING}/records", {"value": "first"}))[0] == 200
    await asyncio.sleep(1)  # now `late` has expired


async def test_the_security_matrix_is_the_one_in_the_manual(mesh: Mesh) -> None:
    listeners: list[tuple[str, str, Try]] = [
        ("broker", "kafka", mesh.kafka),
        ("gateway", "kafka", mesh.kafka),
        ("broker", "http", mesh.http),
        ("gateway", "http", mesh.http),
        ("broker", "grpc", mesh.grpc),
        ("gateway", "grpc", mesh.grpc),
        ("broker", "text", mesh.text),
    ]
    lines = ["| listener | credentials | produce | consume | create a topic |", "|---|---|---|---|---|"]
    for place, kind, attempt in listeners:
        tries = [(who, action) for who in CREDENTIALS for action in ACTIONS]  # fewer than may wait behind an address
        found = await asyncio.gather(*(_outcome(attempt, place, who, action) for who, action in tries))
        for row, who in enumerate(CREDENTIALS):
            cells = found[row * len(ACTIONS) : (row + 1) * len(ACTIONS)]
            assert (set(cells) == {"done"}) is (who.row == "right"), (place, kind, who.row, cells)
            assert who.row == "right" or "done" not in cells, (place, kind, who.row, cells)
            lines.append(f"| {place} {kind} | {who.row} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    page = PAGE.read_text()
    if os.environ.get("GEORELAY_WRITE_TABLES") == "1":
        whole = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", f"{BEGIN}\n{table}\n{END}", page, flags=re.S)
        PAGE.write_text(whole)
        page = whole
    assert f"{BEGIN}\n{table}\n{END}" in page


async def _outcome(attempt: Try, place: str, who: Credentials, action: str) -> str:
    """Return what happens with a topic that exists, having seen that one that does not makes no difference."""
    async with asyncio.timeout(SECONDS_MAX):
        outcome, said = await attempt(place, who, action, EXISTING)
        if outcome != "done":
            again, said_again = await attempt(place, who, action, MISSING)
            assert again == outcome
            assert _plain(said) == _plain(said_again)
    for secret in (PASSWORD, WRONG):
        assert secret not in said
    return outcome


def _plain(said: str) -> str:
    return re.sub(rf"{EXISTING}|{MISSING}|made-\d+", "TOPIC", said)


@pytest.mark.parametrize("listener", ["peers", "link"])
async def test_brokers_listeners_take_no_client_without_a_brokers_certificate(mesh: Mesh, listener: str) -> None:
    config = next((mesh.process.directory / "mesh" / "config").glob("us-1*.toml")).read_text()
    found = re.search(rf'^{listener} = "([^"]+)"', config, flags=re.M)
    assert found is not None
    host, port = found[1].split(":")
    assert await _is_cut_off(host, int(port), mesh.tls)


async def _is_cut_off(host: str, port: int, tls: ssl.SSLContext) -> bool:
    """Return whether nothing is answered: the handshake fails, or the connection ends without a byte."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname="localhost")
    except (ssl.SSLError, ConnectionError):
        return True
    writer.write(bytes(64))
    try:
        async with asyncio.timeout(SECONDS_MAX):
            return await reader.read(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True
    finally:
        writer.transport.abort()
