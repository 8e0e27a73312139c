"""Mutated bytes at every listener of a real broker, from somebody who has not signed in: no crash, bounded memory.

    python -m tests.fuzz.fuzz_listeners --inputs 1000000 --seed 1 [--surface kafka]

One input is all that one connection sends. Surfaces: kafka (frames before a sign-in), sasl (tokens), http, peers,
links and grpc. All but grpc are fed where their sockets would feed them; gRPC parses in C, so it gets a share of the
inputs (one in GRPC_SHARE) over real connections. The text protocol has a driver of its own, fuzz_text.py.

Exit code 0: no violation. 1: an exception that is nobody's, a slow input or memory that grew; printed with the bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import errno
import logging
import random
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
import uvloop

from georelay.credentials import write_users_file
from georelay.errors import Unauthenticated
from georelay.ids import BrokerId, Offset, RegionNumber
from georelay.wire.api import ApiKey, encode_request
from georelay.wire.requests import ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from mesh.replication.frame_reader import HEAD
from mesh.replication.frames import Heartbeat, Open, encode_frame
from mesh.replication.link_proof_core import PROOF_SINCE_VERSION
from region.app import Broker
from region.config import BrokerConfig
from region.kafka.handlers.sasl import parse_plain
from region.multiraft.peer_hello import encode_hello
from region.multiraft.peer_incoming import IncomingConnection
from region.multiraft.transport import FrameKind, Lane
from region.security.scram_core import ScramClient
from region.security.user import Mechanism
from tests.free_ports import free_ports
from tests.fuzz.judging import Report, ResidentMemory, flags, verdict

INPUT_MS_MAX = 250.0  # processor time; the machine is shared
RSS_GROWTH_MAX_BYTES = 192 * 1024 * 1024
TURN_EVERY = 50  # inputs; then the loop runs what they left behind
GRPC_SHARE = 100
MESH = "fuzz"
ME, PEER = BrokerId(1001), BrokerId(1002)
INTERESTING = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\r\n\r\n", b"\0", b"9" * 20, b"A" * 300)

Feed = Callable[[bytes], Awaitable[str]]


class Wire(asyncio.Transport):
    """A connection that swallows what is written."""

    def __init__(self, protocol: Any, **extra: Any) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), **extra})
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self.written_bytes = 0
        self.ended = False

    def write(self, data: Any) -> None:
        self.written_bytes += len(data)

    def writelines(self, buffers: Any) -> None:
        for buffer in buffers:
            self.write(buffer)

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._loop.call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        protocol, self._protocol = self._protocol, None  # as the loops do: no cycle keeps its buffers
        protocol.connection_lost(None)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


def feed_buffered(protocol: Any, raw: bytes) -> None:
    """Give bytes to a BufferedProtocol as a loop would."""
    view = memoryview(raw)
    while view:
        room = protocol.get_buffer(-1)
        size = min(len(room), len(view))
        room[:size] = view[:size]
        protocol.buffer_updated(size)
        view = view[size:]


def mutate(rng: random.Random, raw: bytes, other: bytes) -> bytes:
    """Return `raw` with a few wounds."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.randrange(256)
            case 2:
                data[at:at] = rng.choice(INTERESTING)
            case 3:
                del data[at : at + rng.choice((1, 2, 4, 30))]
            case 4:
                wound = rng.choice(INTERESTING)
                data[at : at + len(wound)] = wound
            case 5:
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                data = data[:at]
    return bytes(data)


class Surfaces:
    """What is fed, and with what valid bytes it begins."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._edge: Any = broker._edge
        self.grpc_port = int(broker.config.listen.grpc.rpartition(":")[2])
        self.all: dict[str, tuple[list[bytes], Feed]] = {
            "kafka": (kafka_inputs(), self.kafka),
            "sasl": (sasl_inputs(), self.sasl),
            "http": (http_inputs(), self.http),
            "peers": (peer_inputs(), self.peers),
            "links": (link_inputs(), self.links),
            "grpc": (grpc_inputs(), self.grpc),
        }

    async def kafka(self, raw: bytes) -> str:
        """Feed one Kafka connection."""
        connection = self._edge._kafka._connection()
        wire = Wire(connection)
        connection.connection_made(wire)
        feed_buffered(connection, raw)
        outcome = "closed" if wire.ended else "answered" if wire.written_bytes else "waits"
        wire.close()
        return outcome

    async def sasl(self, raw: bytes) -> str:
        """Read one token in every way that SASL has."""
        outcome = "refused"
        with suppress(Unauthenticated):
            parse_plain(raw)
            outcome = "plain"
        service = self._edge._kafka._sasl.sign_in
        with suppress(Unauthenticated):
            exchange = service.scram(Mechanism.SCRAM_SHA_256, raw)
            outcome = "scram"
            exchange.finish(raw)
            outcome = "let in"
        with suppress(Unauthenticated):
            service.scram(Mechanism.SCRAM_SHA_512, b"n,,n=user,r=abcdefgh").finish(raw)
            outcome = "let in"
        if outcome == "let in":
            raise AssertionError("somebody without a password was let in")
        return outcome

    async def http(self, raw: bytes) -> str:
        """Feed one HTTP connection."""
        connection = self._edge._http._site._connection()
        wire = Wire(connection)
        connection.connection_made(wire)
        connection.data_received(raw)
        for _ in range(4):
            await asyncio.sleep(0)
        outcome = "closed" if wire.ended else "answered" if wire.written_bytes else "waits"
        wire.close()
        return outcome

    async def peers(self, raw: bytes) -> str:
        """Feed one connection of a broker that has not said who it is, or that says it is 1002."""
        transport: Any = self._broker.core.host.transport
        connection = IncomingConnection(transport)
        wire = Wire(connection, socket=SimpleNamespace(setsockopt=lambda *_: None))
        connection.connection_made(wire)
        feed_buffered(connection, raw)
        outcome = "closed" if wire.ended else "heard" if connection.peer is not None else "waits"
        wire.close()
        await asyncio.sleep(0)  # a broker has one connection per lane: the next hello ends this one
        return outcome

    async def links(self, raw: bytes) -> str:
        """Feed one link with one frame."""
        links: Any = self._broker.core.links
        link = Link()
        links._accept(link)
        link.receiver.frame_received(raw)
        outcome = "closed" if link.closed else "open" if link.sent else "waits"
        link.close("over")
        return outcome

    async def grpc(self, raw: bytes) -> str:
        """Send bytes to the gRPC port and see that the connection ends, or is ended."""
        reader, writer = await self._dial_grpc()
        try:
            writer.write(raw)
            writer.write_eof()
            async with asyncio.timeout(20):
                while await reader.read(65_536):
                    pass
        except ConnectionError:
            return "reset"
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # it was quicker than our end of writing
                raise
            return "reset"
        finally:
            writer.close()
        return "closed"

    async def _dial_grpc(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect; the server may be starting again (see mesh.listening.grpc_server), for a moment only."""
        for _ in range(40):
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", self.grpc_port)
            await asyncio.sleep(0.05)
        raise AssertionError("the gRPC listener is gone for 2 s")


class Link:
    """A carrier of one link."""

    peer = "127.0.0.1:1"
    peer_names = None
    is_writable = True
    gather_ms = 0

    def __init__(self) -> None:
        self.receiver: Any = None
        self.sent = 0
        self.closed = False

    def quiet_ns(self) -> int | None:
        return None

    def met(self) -> None: ...

    def start(self, receiver: Any) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None:
        self.sent += 1

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.receiver.link_closed, reason)


def kafka_inputs() -> list[bytes]:
    """Return requests that are allowed before a sign-in, and one that is not."""
    rows: list[tuple[Any, int]] = [
        *((ApiVersionsRequest(), version) for version in range(6)),
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"\0user\0pass"), 1),
        (MetadataRequest(), 5),
    ]
    frames = [
        b"".join(encode_request(request, api_version=version, correlation_id=7, client_id="fuzz"))
        for request, version in rows
    ]
    return [*frames, frames[0] + frames[3], frames[4] + frames[6], struct.pack(">ih", 65_536, ApiKey.PRODUCE)]


def sasl_inputs() -> list[bytes]:
    """Return tokens of PLAIN and of both messages of SCRAM."""
    client = ScramClient(mechanism=Mechanism.SCRAM_SHA_256, user="user", password="pass", nonce="abcdefghijkl")
    return [
        b"\0user\0password",
        b"user\0user\0password",
        client.first,
        b"n,,n=us=2Cer=3D,r=fyko+d2lbbFgONRv9qkxdawL",
        b"y,,n=user,r=1234",
        b"p=tls-unique,,n=user,r=1234",
        b"c=biws,r=abcdefgh3rfcNHYJY1ZVvWVs7j,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ]


def http_inputs() -> list[bytes]:
    """Return requests of every kind."""
    signed = b"authorization: basic " + base64.b64encode(b"user:wrong") + b"\r\n"
    return [
        b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nhost: a\r\n\r\nGET /metrics HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /v1/topics/t/records?partition=0&offset=0 HTTP/1.1\r\nhost: a\r\nauthorization: bearer x\r\n\r\n",
        b"POST /v1/topics/t/records HTTP/1.1\r\nhost: a\r\ncontent-length: 13\r\n\r\n" + b'{"records":[]',
        b'POST /v1/topics HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\n0\r\n\r\n',
        b"PATCH /v1/topics/%2e%2e/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
        b"DELETE /v1/brokers/1001 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nhost: a\r\n" + signed.replace(b"basic", b"Basic", 1)[:24] + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


def peer_inputs() -> list[bytes]:
    """Return hellos, alone and with frames behind them."""
    hello = encode_hello(lane=Lane.APPEND, sender=PEER, to=ME, disk=uuid.UUID(int=1).bytes, mesh_id=MESH)
    frames = b"".join(HEAD.pack(1 + 40, kind) + bytes(range(40)) for kind in FrameKind)
    stranger = encode_hello(lane=Lane.BULK, sender=BrokerId(2001), to=ME, disk=bytes(16), mesh_id="other")
    link = encode_hello(lane=Lane.LINK, sender=PEER, to=ME, disk=bytes(16), mesh_id=MESH)
    links = [link + HEAD.pack(1 + len(frame), FrameKind.LINK) + frame for frame in link_inputs()]
    return [hello, hello + frames, stranger, frames, HEAD.pack(60 << 20, FrameKind.RAFT), link + frames, *links]


def link_inputs() -> list[bytes]:
    """Return frames of links."""
    opening = Open(PROOF_SINCE_VERSION - 1, MESH, "eu", RegionNumber(2), BrokerId(2001))
    return [
        encode_frame(opening),
        encode_frame(opening, Heartbeat(1)),
        encode_frame(Heartbeat(1, ((1, Offset(2), 3),))),
    ]


def grpc_inputs() -> list[bytes]:
    """Return the begin of HTTP/2 connections."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\x0c\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\0\xff\xff"
    block = b"\x83\x86D\x17/broker.Broker/PublishXA\x01a_\x10application/grpc@\x02te\x08trailers"
    headers = struct.pack(">I", len(block))[1:] + b"\x01\x04\0\0\0\x01" + block
    data = b"\0\0\x0b\0\x01\0\0\0\x01\0\0\0\0\x06\n\x01t\x12\x01x"
    return [preface, preface + settings, preface + settings + headers + data, preface + settings + data * 20]


def config_of(directory: Path, ports: list[int]) -> BrokerConfig:
    """Return a broker that wants clients to sign in."""
    users = directory / "users.json"
    write_users_file(users, {"user": "a password that is in no input"})
    secret = directory / "mesh.secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret that is in no input")
    names = ("kafka", "grpc", "peers", "link", "admin")
    rows = [
        {"number": number, "peers": f"127.0.0.1:{ports[5 + number]}", "link": f"127.0.0.1:{ports[7 + number]}"}
        for number in (1, 2)
    ]
    rows[0] |= {"peers": f"127.0.0.1:{ports[2]}", "link": f"127.0.0.1:{ports[3]}"}
    return BrokerConfig.model_validate(
        {
            "mesh_id": MESH,
            "region": "us",
            "broker": 1,
            "data_dir": str(directory / "data"),
            "definitions_home": "us",
            "users_file": str(users),
            "mesh_secret_file": str(secret),
            "mesh_secret_required": False,  # inputs come from older brokers, which prove nothing
            "listen": {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)},
            "regions": [{"name": "us", "number": 1, "brokers": rows}],
        }
    )


async def feed(name: str, valid: list[bytes], feeder: Feed, *, inputs: int, seed: int, report: Report) -> None:
    """Feed one surface."""
    rng = random.Random(f"{seed}/{name}")
    for raw in valid:
        await feeder(raw)
    for number in range(inputs):
        raw = mutate(rng, rng.choice(valid), rng.choice(valid))
        started_s = time.process_time()
        try:
            report.outcomes[await feeder(raw)] += 1
        except Exception as error:
            report.violations.append(f"{name}: {error!r} for {raw[:400]!r}")
            if len(report.violations) > 10:
                return
        report.judge_time(name, raw, (time.process_time() - started_s) * 1e3)
        if number % TURN_EVERY == 0:
            await asyncio.sleep(0)


def note(broken: list[str], _: object, context: dict[str, Any]) -> None:
    """Note what the loop complains about; that grpcio's server task died is known, and answered by a new server."""
    if not (isinstance(context.get("exception"), UnicodeDecodeError) and "never retrieved" in context["message"]):
        broken.append(str(context)[:2000])


async def run(options: argparse.Namespace) -> int:
    """Feed all surfaces of one broker; return the exit code."""
    broken: list[str] = []
    asyncio.get_running_loop().set_exception_handler(partial(note, broken))
    with tempfile.TemporaryDirectory(prefix="georelay-fuzz-") as scratch:
        broker = Broker(config_of(Path(scratch), free_ports(10)))
        await broker.start()
        failed: list[str] = []
        try:
            surfaces = Surfaces(broker)
            for name in options.surface or surfaces.all:
                valid, feeder = surfaces.all[name]
                inputs = max(100, options.inputs // GRPC_SHARE) if name == "grpc" else options.inputs
                memory = ResidentMemory()
                report, started_s = Report(input_ms_max=INPUT_MS_MAX), time.monotonic()
                await feed(name, valid, feeder, inputs=inputs, seed=options.seed, report=report)
                await asyncio.sleep(0.2)
                report.violations += [f"{name}: the loop says {text}" for text in broken]
                broken.clear()
                report.violations += [f"{name}: {text}" for text in memory.violations(RSS_GROWTH_MAX_BYTES)]
                print(
                    f"{name:6} {inputs:8} inputs, {time.monotonic() - started_s:6.1f} s, {dict(report.outcomes)}, "
                    f"slowest {report.slowest_ms:.1f} ms, memory +{memory.grown_bytes // 1024} KiB"
                )
                failed += report.violations
            if broker.failed.done():
                failed.append(f"the broker stopped: {broker.failed.result()}")
        finally:
            await broker.stop()
    return verdict(failed)


def main() -> int:
    """Run and judge; see the module text for the exit codes."""
    parser = flags(__doc__, each="inputs per surface")
    parser.add_argument("--surface", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=True
    )
    logging.disable(logging.CRITICAL)
    return uvloop.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
