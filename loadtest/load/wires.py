"""How records go out over protocols other than Kafka's: each wire is one connection of one client.

| kind | connection | in flight | a record that is refused |
|---|---|---|---|
| native | the SDK's producer, gRPC streams | many | the SDK itself sends it again |
| transactions | the SDK's transactions, one record to each topic | one transaction | the transaction failed |
| grpc | `broker.Broker/Publish`, of programs with stubs of their own | one | is sent again |
| rest | `POST /v1/topics/TOPIC/records` | one | is sent again |
| websocket | `publish` over `/v1/socket` | one | is sent again |
| text | `PUBS TOPIC region {...}` | one | is sent again |

Rule: `publish` returns offsets, or the future of one; or raises Refused (not stored, for sure) or GeorelayError by its
outcome, and what else it raises says nothing about the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import georelay
from georelay.channels import Channels
from georelay.errors import GeorelayError, Outcome
from loadtest.load.engine_values import Plan
from loadtest.load.publisher import GIVE_UP_S, Outgoing

ATTEMPT_S: Final = 3.0
GEO_S: Final = 30.0  # until a record is in as many regions as were asked for
ANSWER_S: Final = 15.0  # a broker waits 10 s for a leader
GRPC_PATH: Final = "/broker.Broker/Publish"
HEARTBEAT_S: Final = 15.0  # a broker cuts off who says nothing for 60 s
CLOSE_S: Final = 1.0
LINE_BYTES_MAX: Final = 1 << 24
Answer = list[int | None] | asyncio.Future[Any]


def _message(name: str, **fields: int) -> Any:
    """Return a message class of the public contract, as a program makes it that knows no more than proto/broker.proto.

    Args:
        fields: their types by name, in the order of their numbers.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="broker", syntax="proto3")
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), start=1):
        message.field.add(name=field, number=number, type=kind, label=1)  # LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"broker.{name}"))


TEXT, BYTES = 9, 12  # FieldDescriptorProto.TYPE_STRING, TYPE_BYTES
PublishRequest = _message("PublishRequest", topic=TEXT, body=BYTES)
PublishResponse = _message("PublishResponse", id=TEXT)


class Refused(ConnectionError):
    """The record is not stored and never will be."""


class Aborted(Exception):
    """The transaction was aborted, as it was meant to be."""


class Wire(ABC):
    """One connection of a client in one region."""

    def __init__(self, plan: Plan, region: str, rng: random.Random) -> None:
        self.plan = plan
        self.region = region
        self.rng = rng
        self.close_all = contextlib.AsyncExitStack()

    @abstractmethod
    async def open(self) -> None:
        """Connect; called again after anything but a refusal has gone wrong."""

    @abstractmethod
    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send records: several only where they belong together."""

    async def close(self) -> None:
        """Let everything go."""
        await self.close_all.aclose()

    def pick(self, listener: str) -> str:
        """Return the address of one of the region's brokers, another one each time."""
        return str(self.rng.choice(self.plan.addresses(self.region, listener)))


class NativeWire(Wire):
    """The SDK."""

    def __init__(self, plan: Plan, region: str, rng: random.Random, *, durability: str = "region") -> None:
        super().__init__(plan, region, rng)
        self._durability = georelay.Durability.parse(durability)

    async def open(self) -> None:
        """Connect."""
        limits = {"deadline_s": GEO_S if self._durability.is_geo else 0.0, "request_timeout_s": ATTEMPT_S}
        self._producer = await self._producer_of({"durability": self._durability} | limits)

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send it; the SDK keeps order and sends again what was lost."""
        (record,) = records
        future: asyncio.Future[Any] = await self._producer.send(
            record.topic, record.value, key=record.key, partition=record.partition
        )
        return future

    async def _producer_of(self, settings: dict[str, Any]) -> Any:
        mesh = await self.close_all.enter_async_context(georelay.connect(**self.plan.connect(self.region)))
        settings = {"linger_ms": 0, "delivery_timeout_s": GIVE_UP_S} | settings
        return await self.close_all.enter_async_context(mesh.producer(**settings))


class TransactionWire(NativeWire):
    """Transactions of the SDK, one after the other; some are aborted on purpose."""

    def __init__(self, plan: Plan, region: str, rng: random.Random, *, name: str, abort_share: float) -> None:
        super().__init__(plan, region, rng)
        self._name = name
        self._abort_share = abort_share

    async def open(self) -> None:
        """Connect; what a transaction of this name left open is aborted by it."""
        self._producer = await self._producer_of({"transactional_id": self._name, "transaction_timeout_s": 20})

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send them in one transaction and return when it is committed."""
        is_kept = self.rng.random() >= self._abort_share
        async with self._producer.transaction():
            futures = [
                await self._producer.send(each.topic, each.value, key=each.key, partition=each.partition)
                for each in records
            ]
            stored = await asyncio.gather(*futures)
            if not is_kept:
                raise Aborted
        return [row.offset for row in stored]


class GrpcWire(Wire):
    """The small public contract; it has no keys, so that the broker chooses partitions."""

    async def open(self) -> None:
        """Connect to one broker."""
        self._channels = Channels(token=None, **self.plan.login.sdk)
        self.close_all.push_async_callback(self._channels.close)
        self._address = self.pick("grpc")

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send it."""
        (record,) = records
        request = PublishRequest(topic=record.topic, body=record.value)
        answer = await self._channels.ask(self._address, GRPC_PATH, request, PublishResponse, timeout_s=ANSWER_S)
        return [int(answer.id.rpartition("/")[2])]


class RestWire(Wire):
    """HTTP of a broker."""

    async def open(self) -> None:
        """Connect to one broker."""
        self._http = await self.close_all.enter_async_context(http_of(self.plan, self.pick("admin")))

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send it."""
        (record,) = records
        async with self._http.post(f"/v1/topics/{record.topic}/records", json=_json_of(record)) as answer:
            told = await answer.json(content_type=None)
        if not answer.ok:
            raise _failure_of(told)
        return [int(told["records"][0]["offset"])]


class SocketWire(Wire):
    """A WebSocket of a broker."""

    async def open(self) -> None:
        """Connect to one broker, which says hello."""
        self._socket = await self.close_all.enter_async_context(socket_of(self.plan, self.pick("admin")))
        said(await self._socket.receive(ANSWER_S))

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send it."""
        (record,) = records
        message = {"type": "publish", "id": 1, "topic": record.topic, "records": _json_of(record)}
        await self._socket.send_json(message)
        told = said(await self._socket.receive(ANSWER_S))
        return [int(told["records"][0]["offset"])]


class TextWire(Wire):
    """Lines over TCP."""

    async def open(self) -> None:
        """Connect to one broker and sign in."""
        self._in, self._out = await text_of(self.plan, self.pick("text"))
        self.close_all.callback(self._out.close)
        await self._in.readline()
        if user := self.plan.login.user:
            await self._ask(" ".join(("AUTH", *user)))

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        """Send it."""
        (record,) = records
        body = json.dumps({"Key": record.key.decode(), "Body": record.value.decode()})
        answer = await self._ask(f"PUBS {record.topic} region {body}")
        return [int(answer.split()[2])]

    async def _ask(self, line: str) -> str:
        async with asyncio.timeout(ANSWER_S):
            self._out.write(line.encode() + b"\n")
            answer = (await self._in.readline()).decode().strip()
        if answer.startswith("OK"):
            return answer
        if answer.startswith("ERR") and "NOT_STORED" in answer.split()[2:3]:
            raise Refused(answer)
        raise ConnectionError(answer or "the broker closed the connection")


SERIAL: Final[dict[str, type[Wire]]] = {
    "grpc": GrpcWire,
    "rest": RestWire,
    "websocket": SocketWire,
    "text": TextWire,
}


def http_of(plan: Plan, address: str) -> aiohttp.ClientSession:
    """Return a session of HTTP with one broker."""
    user, tls = plan.login.user, plan.login.tls
    return aiohttp.ClientSession(
        f"{'https' if tls else 'http'}://{address}",
        auth=aiohttp.BasicAuth(*user) if user else None,
        connector=aiohttp.TCPConnector(ssl=tls.client() if tls else True),
        timeout=aiohttp.ClientTimeout(total=ANSWER_S),
    )


@contextlib.asynccontextmanager
async def socket_of(plan: Plan, address: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a WebSocket with one broker."""
    timeout = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
    async with (
        http_of(plan, address) as http,
        http.ws_connect("/v1/socket", heartbeat=HEARTBEAT_S, timeout=timeout) as socket,
    ):
        yield socket


async def text_of(plan: Plan, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection of the text protocol with one broker."""
    host, _, port = address.rpartition(":")
    tls = plan.login.tls
    return await asyncio.open_connection(host, int(port), ssl=tls.client() if tls else None, limit=LINE_BYTES_MAX)


def said(message: aiohttp.WSMessage) -> dict[str, Any]:
    """Return what a broker says over a WebSocket. Raises ConnectionError: it is closed; Refused: a problem."""
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError(message.extra or "the broker closed the socket")
    told: dict[str, Any] = json.loads(message.data)
    if "problem" in told:
        raise _failure_of(told["problem"])
    return told


def _json_of(record: Outgoing) -> dict[str, Any]:
    return {"key": record.key.decode(), "value": record.value.decode(), "partition": record.partition}


def _failure_of(problem: dict[str, Any]) -> ConnectionError:
    """Return what a problem document says of a record: Refused, or nothing."""
    is_sure = problem["outcome"] == Outcome.NOT_STORED.value
    return (Refused if is_sure else ConnectionError)(problem["detail"])


def is_not_stored(error: Exception) -> bool:
    """Return whether an error promises that the record is not stored."""
    return isinstance(error, Refused) or (isinstance(error, GeorelayError) and error.outcome is Outcome.NOT_STORED)


FAILURES: Final = (GeorelayError, OSError, TimeoutError, aiohttp.ClientError, grpc.RpcError, ValueError)
