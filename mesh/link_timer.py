"""`python -m mesh.link_timer`: the link protocol between two processes over each carrier in turn, a JSON line a run.

The other process (`--serve`) is the home: it says OPEN and pushes BATCH parts of a record each; this one is the mirror
and acknowledges what one turn of its loop brought, as brokers do. Both are the shipping LinkEndpoint on the shipping
carriers, with TLS and a certificate each. Nothing is stored. A delay of the network is a third process between them,
whose processor time nobody counts. Of each run: processor time of either process per record in us, time from post
to receipt in us beyond the delay (one machine has one monotonic clock), records per second, and how many records an
acknowledgement answers: the more, the fewer frames.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import grpc.aio
import uvloop

from georelay.clock import SystemClock
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.pki.directory import PkiDirectory
from georelay.tls import ClientAuth, TlsContexts, TlsSettings, call_names
from mesh.listening.dial_patience_core import DialPatience
from mesh.listening.grpc_server import GrpcServer
from mesh.replication.frames import Ack, Batch, Hello, Open, Part, Reset
from mesh.replication.link import Link
from mesh.replication.link_endpoint import LinkEndpoint
from mesh.replication.link_framed import Carriers, FramedLink
from mesh.replication.link_grpc import METHOD, AcceptedLink, DialledGrpcLink
from mesh.replication.link_listener import LinkListener
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from mesh.replication.stream_header import STREAM_HEADER_BYTES

MESH: Final = "bench"
HOME, MIRROR = BrokerId(1001), BrokerId(2001)
CARRIERS: Final = ("grpc", "framed", "framed-2ms")  # the last: parts wait for more of them as they do before gRPC
PUSH_S: Final = 0.001
UNACKNOWLEDGED_MAX: Final = 20_000
KEY: Final = StreamKey(bytes(16), RegionNumber(1), 0)
_STAMP: Final = struct.Struct(">q")
_SETTINGS: Final = LinkSettings(dead_after_ms=20_000)


class _End:
    """What both ends do on an open link."""

    endpoint: LinkEndpoint

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def check_peer(self, _broker: BrokerId) -> str:
        return ""

    def too_old(self, _peer: Open) -> str:
        return ""

    def link_opened(self, _peer: Open) -> None:
        self.is_open.set()

    def link_drained(self) -> None: ...

    def link_lost(self, reason: str) -> None:
        self.lost.set_result(reason)

    def part_received(self, part: Part) -> None:
        raise NotImplementedError

    def begin(self, link: Link, *, me: BrokerId, dials: DialPatience | None) -> None:
        region = RegionNumber(me // 1000)
        identity = MeshIdentity(mesh_id=MESH, region=f"r{region}", region_number=region, broker_id=me)
        self.endpoint = LinkEndpoint(
            link, identity=identity, conversation=self, clock=SystemClock(), settings=_SETTINGS, dials=dials
        )
        self.endpoint.start()


class _Home(_End):
    """Pushes what a HELLO asks for: `epoch` bytes each, `next_offset` of them, `session` per second (0: all it can)."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._posted = self._acknowledged = 0
        self._wanted = Hello(0, KEY, Epoch(0), Offset(0), bytes(16))
        self.begin(link, me=HOME, dials=None)

    def part_received(self, part: Part) -> None:
        if isinstance(part, Hello):
            self._wanted = part
            self._posted = self._acknowledged = 0
            self._began_s, self._began_cpu_ns = time.monotonic(), time.process_time_ns()
            self._push()
        elif isinstance(part, Ack):
            self._acknowledged = part.rows[0][1]
            if self._acknowledged == self._wanted.next_offset:
                cpu_ns = time.process_time_ns() - self._began_cpu_ns
                self.endpoint.post(Reset(self._wanted.session, str(cpu_ns)))
            elif not self._wanted.session:
                self._push_all()

    def link_drained(self) -> None:
        if not self._wanted.session:
            self._push_all()

    def _push(self) -> None:
        rate = self._wanted.session
        if not rate:
            self._push_all()
            return
        due = min(int((time.monotonic() - self._began_s) * rate), self._wanted.next_offset)
        while self._posted < due:
            self._post()
        if self._posted < self._wanted.next_offset:
            asyncio.get_running_loop().call_later(PUSH_S, self._push)

    def _push_all(self) -> None:
        while (
            self._posted < self._wanted.next_offset
            and self._posted - self._acknowledged < UNACKNOWLEDGED_MAX
            and self.endpoint.has_room
        ):
            self._post()

    def _post(self) -> None:
        self._posted += 1
        stamp = _STAMP.pack(time.monotonic_ns())
        self.endpoint.post(Batch(1, Epoch(1), bytes(STREAM_HEADER_BYTES), stamp + bytes(self._wanted.epoch)))


class _Mirror(_End):
    """Asks for records and measures them."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._took_ns: list[int] = []
        self._received = self._acknowledgements = 0
        self._acknowledging = False
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.begin(link, me=MIRROR, dials=DialPatience(_SETTINGS.dead_after_ms))

    async def run(self, *, rate: int, count: int, payload_bytes: int) -> dict[str, float]:
        self._took_ns, self._received, self._acknowledgements = [], 0, 0
        self._over = asyncio.get_running_loop().create_future()
        began_s, began_cpu_ns = time.monotonic(), time.process_time_ns()
        self.endpoint.post(Hello(rate, KEY, Epoch(payload_bytes), Offset(count), bytes(16)))
        home_ns = await self._over
        mirror_ns, seconds = time.process_time_ns() - began_cpu_ns, time.monotonic() - began_s
        took = sorted(self._took_ns)
        return {
            "home_us": home_ns / count / 1000,
            "mirror_us": mirror_ns / count / 1000,
            "p50_us": took[len(took) // 2] / 1000,
            "p99_us": took[len(took) * 99 // 100] / 1000,
            "per_s": count / seconds,
            "per_ack": count / self._acknowledgements,
        }

    def part_received(self, part: Part) -> None:
        if isinstance(part, Batch):
            self._took_ns.append(time.monotonic_ns() - _STAMP.unpack_from(part.payload)[0])
            self._received += 1
            if not self._acknowledging:
                self._acknowledging = True
                asyncio.get_running_loop().call_soon(self._acknowledge)
        elif isinstance(part, Reset):
            self._over.set_result(int(part.reason))

    def _acknowledge(self) -> None:
        self._acknowledging = False
        self._acknowledgements += 1
        self.endpoint.post(Ack(((1, Offset(self._received)),)))


class _GrpcHandler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Accepts links of gRPC."""

    def __init__(self, accept: Callable[[Link], None]) -> None:
        self._accept = accept

    def service(self, handler_call_details: Any) -> Any:
        is_ours = handler_call_details.method == METHOD
        return grpc.stream_stream_rpc_method_handler(self._serve) if is_ours else None

    async def _serve(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        link = AcceptedLink(peer=context.peer(), peer_names=call_names(context.auth_context()))
        self._accept(link)
        await link.serve(context)


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _contexts(pki: Path, broker: BrokerId) -> TlsContexts:
    settings = TlsSettings(
        cert_file=pki / f"broker-{broker}.crt",
        key_file=pki / f"broker-{broker}.key",
        ca_file=pki / "bundle.crt",
        client_auth=ClientAuth.REQUIRED,
    )
    return TlsContexts(settings, name="link")


class _Late:
    """One direction of a connection that goes through a network with a delay."""

    def __init__(self, target: asyncio.StreamWriter, delay_s: float) -> None:
        self._target = target
        self._delay_s = delay_s
        self._waiting: deque[tuple[float, bytes]] = deque()

    async def carry(self, source: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(1 << 18):
            self._waiting.append((loop.time() + self._delay_s, data))
            if len(self._waiting) == 1:
                loop.call_at(self._waiting[0][0], self._pass_on)
        self._target.close()

    def _pass_on(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._waiting[0][0] <= loop.time():
            self._target.write(self._waiting.popleft()[1])
        if self._waiting:
            loop.call_at(self._waiting[0][0], self._pass_on)


async def _delay(port: int, delay_ms: float) -> None:
    """Stand between a dialler and `port` until the input ends."""
    carrying: set[asyncio.Task[None]] = set()

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        for source, target in ((reader, there_writer), (there_reader, writer)):
            carrying.add(asyncio.ensure_future(_Late(target, delay_ms / 1000).carry(source)))

    server = await asyncio.start_server(enter, "127.0.0.1", 0)
    _say(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(sys.stdin.read)


async def _serve(pki: Path) -> None:
    """Be the home, with a listener for each carrier, until the input ends."""
    tls = _contexts(pki, HOME)
    homes: list[_Home] = []

    def accept(link: Link, *, gather_ms: int | None = None) -> None:
        if gather_ms is not None:
            cast("FramedLink", link).gather_ms = gather_ms
        homes.append(_Home(link))

    def made() -> Any:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_GrpcHandler(accept),))
        return server

    with_grpc = GrpcServer(made, "127.0.0.1:0", tls=tls)
    framed = {
        "framed": LinkListener(accept, tls=_contexts(pki, HOME)),
        "framed-2ms": LinkListener(partial(accept, gather_ms=2), tls=_contexts(pki, HOME)),
    }
    ports = {"grpc": await with_grpc.start()}
    for name, listener in framed.items():
        ports[name] = await listener.start("127.0.0.1:0")
    _say(ports)
    await asyncio.to_thread(sys.stdin.read)
    await with_grpc.stop(None)
    for listener in framed.values():
        await listener.stop()


async def _child(*arguments: str) -> tuple[asyncio.subprocess.Process, Any]:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mesh.link_timer", *arguments, stdin=pipe, stdout=pipe
    )
    assert child.stdout is not None
    return child, json.loads(await child.stdout.readline())


async def _measure(options: argparse.Namespace, pki: Path) -> None:
    children = [await _child("--serve", str(pki))]
    ports, tls = children[0][1], _contexts(pki, MIRROR)
    for delay_ms in options.delay_ms:
        dialled = dict(ports)
        if delay_ms:
            for name, port in ports.items():
                children.append(await _child("--between", str(port), "--delay-ms", str(delay_ms)))
                dialled[name] = children[-1][1]
        mirrors = {name: await _opened(name, port, tls) for name, port in dialled.items()}
        for rate in options.rates:
            count = int((rate or options.full_rate_records / options.seconds) * options.seconds)
            for pair in range(options.pairs):
                for name in CARRIERS if pair % 2 else CARRIERS[::-1]:
                    row = await mirrors[name].run(rate=rate, count=count, payload_bytes=options.payload_bytes)
                    row |= {f"p{q}_us": row[f"p{q}_us"] - delay_ms * 1000 for q in (50, 99)}
                    _say({"carrier": name, "delay_ms": delay_ms, "rate": rate, **row})
        for mirror in mirrors.values():
            mirror.endpoint.close("over")
            await mirror.lost
    for child, _ in children:
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()


async def _opened(name: str, port: int, tls: TlsContexts) -> _Mirror:
    target = BrokerAddress(broker_id=HOME, address=f"127.0.0.1:{port}")
    with_grpc = partial(DialledGrpcLink, tls=tls, mesh_id=MESH)
    link = with_grpc(target) if name == "grpc" else Carriers(tls=tls, mesh_id=MESH, otherwise=with_grpc).dial(target)
    mirror = _Mirror(link)
    opening = asyncio.ensure_future(mirror.is_open.wait())
    either: list[asyncio.Future[Any]] = [opening, mirror.lost]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    assert mirror.is_open.is_set(), mirror.lost.result()
    return mirror


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or be one of the other processes."""
    parser = argparse.ArgumentParser(prog="python -m mesh.link_timer", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run at a rate")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each carrier, in turn")
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 0], help="records per second; 0: all it can")
    parser.add_argument("--full-rate-records", type=int, default=100_000)
    parser.add_argument("--payload-bytes", type=int, default=160, help="of a batch: one record of 100 B")
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[0.0], help="of each direction of the network")
    parser.add_argument("--serve", type=Path, metavar="PKI", help=argparse.SUPPRESS)
    parser.add_argument("--between", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        uvloop.run(_serve(options.serve))
    elif options.between:
        uvloop.run(_delay(options.between, options.delay_ms[0]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            pki = PkiDirectory.create(Path(directory) / "pki", mesh_id=MESH)
            for broker in (HOME, MIRROR):
                pki.issue_broker(broker)
            uvloop.run(_measure(options, Path(directory) / "pki"))


if __name__ == "__main__":
    main()
