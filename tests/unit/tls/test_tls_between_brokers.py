"""Peers and links: both ends prove which broker of which mesh they are."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from georelay.ids import BrokerId, RegionNumber
from georelay.tls import ClientAuth, TlsContexts, TlsSettings
from georelay.tls_grpc import channel_credentials, server_credentials
from mesh.replication.frames import PROTOCOL_VERSION, Open, encode_frame
from mesh.replication.incoming_link import IncomingLink
from mesh.replication.link_grpc import DialledGrpcLink
from mesh.replication.link_listener import LinkListener
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from region.multiraft.peer_hello import encode_hello
from region.multiraft.peers import FrameKind, Lane, PeerTransport

ME, PEER = BrokerId(1001), BrokerId(1002)
MESH = "test-mesh"


class Heard:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.connected: asyncio.Queue[tuple[BrokerId, Lane]] = asyncio.Queue()
        self.frames: asyncio.Queue[tuple[BrokerId, bytes]] = asyncio.Queue()

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        self.frames.put_nowait((peer, bytes(body)))

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        self.connected.put_nowait((peer, lane))

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None: ...

    def connection_closed(self, connection: object) -> None: ...


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start transports; the port is chosen by the system."""
    started: list[PeerTransport] = []

    async def begin(me: int, tls: TlsContexts, peers: dict[int, int]) -> tuple[PeerTransport, Heard, int]:
        heard = Heard()
        transport = PeerTransport(
            me=BrokerId(me),
            mesh_id=MESH,
            disk=bytes(16),
            listen=("127.0.0.1", 0),
            peers={BrokerId(peer): ("127.0.0.1", port) for peer, port in peers.items()},
            receiver=heard,
            rng=random.Random(1),
            tls=tls,
        )
        await transport.start()
        started.append(transport)
        port = transport._acceptor._sockets[0].getsockname()[1]
        return transport, heard, port

    yield begin
    for transport in started:
        await transport.stop()


def mutual(mesh: Any, name: str) -> TlsContexts:
    contexts: TlsContexts = mesh.contexts(name, ClientAuth.REQUIRED)
    return contexts


async def test_two_brokers_of_one_mesh_hear_each_other(start: Start, mesh: Any) -> None:
    _, heard, port = await start(ME, mutual(mesh, "broker-1001"), {PEER: 1})
    there, dialed, _ = await start(PEER, mutual(mesh, "broker-1002"), {ME: port})
    async with asyncio.timeout(5):
        assert (await dialed.connected.get())[0] == ME
        while not there.send(ME, Lane.CONTROL, FrameKind.RAFT, [b"entries"]):
            await asyncio.sleep(0.01)
        assert await heard.frames.get() == (PEER, b"entries")


async def is_refused(port: int, context: ssl.SSLContext, first: bytes) -> bool:
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="broker-1001.test-mesh"
        )
    except (ssl.SSLError, ConnectionError):
        return True
    writer.write(first)
    try:
        async with asyncio.timeout(5):
            return await reader.read(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True
    finally:
        writer.close()
        with suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()


def introduced(sender: BrokerId) -> bytes:
    hello = encode_hello(lane=Lane.CONTROL, sender=sender, to=ME, disk=bytes(16), mesh_id=MESH)
    return hello + struct.pack(">IB", 2, FrameKind.RAFT) + b"x"


@pytest.mark.parametrize("name", ["broker-1003", "client-alice", "gateway-front", ""])
async def test_a_certificate_of_somebody_else_is_not_heard_as_a_broker(start: Start, mesh: Any, name: str) -> None:
    _, heard, port = await start(ME, mutual(mesh, "broker-1001"), {PEER: 1})
    assert await is_refused(port, mesh.contexts(name).client(), introduced(PEER))
    assert heard.frames.empty()


async def test_the_right_name_from_another_authority_is_not_heard(start: Start, mesh: Any, other_mesh: Any) -> None:
    _, heard, port = await start(ME, mutual(mesh, "broker-1001"), {PEER: 1})
    forged = other_mesh.settings("broker-1002")
    context = TlsContexts(
        TlsSettings(cert_file=forged.cert_file, key_file=forged.key_file, ca_file=mesh.path / "bundle.crt"), name="x"
    ).client()
    assert await is_refused(port, context, introduced(PEER))
    assert heard.frames.empty()


async def test_a_broker_is_not_dialed_under_the_name_of_another(start: Start, mesh: Any) -> None:
    _, heard, port = await start(ME, mutual(mesh, "broker-1003"), {PEER: 1})  # what listens is 1003
    _, dialed, _ = await start(PEER, mutual(mesh, "broker-1002"), {ME: port})
    await asyncio.sleep(0.3)
    assert dialed.connected.empty()
    assert heard.frames.empty()


# --- links --------------------------------------------------------------------------------------------


class Owner:
    """Of accepted links."""

    def __init__(self, tls: TlsContexts | None) -> None:
        self.listener = LinkListener(self.accept, tls=tls)
        self.links: list[IncomingLink] = []
        self.ended = asyncio.Event()

    def accept(self, link: Any) -> None:
        incoming = IncomingLink(
            link,
            identity=identity(1001),
            directory=None,  # type: ignore[arg-type]
            publisher=None,  # type: ignore[arg-type]
            requests=None,  # type: ignore[arg-type]
            owner=self,
            clock=Clock(),
            settings=LinkSettings(),
        )
        self.links.append(incoming)
        incoming.start()

    def session_opened(self, session: Any) -> None: ...

    def session_ended(self, session: Any) -> None: ...

    def raft_received(self, peer: Any, body: bytes) -> None: ...

    def clock_asked(self, ask: Any) -> None: ...

    def too_old(self, _peer: Open) -> str:
        return ""

    def link_ended(self, link: Any) -> None:
        self.ended.set()


class Clock:
    def wall_ns(self) -> int:
        return 0

    def monotonic_ns(self) -> int:
        return 0


def identity(broker: int) -> MeshIdentity:
    region = RegionNumber(broker // 1000)
    return MeshIdentity(mesh_id=MESH, region=f"r{region}", region_number=region, broker_id=BrokerId(broker))


class Receiver:
    """Of a dialled link."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def frame_received(self, frame: bytes) -> None:
        self.frames.put_nowait(frame)

    def link_writable(self) -> None: ...

    def link_closed(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)


def opening(broker: int) -> bytes:
    own = identity(broker)
    return encode_frame(Open(PROTOCOL_VERSION, own.mesh_id, own.region, own.region_number, own.broker_id))


async def dialed(port: int, tls: TlsContexts | None, *, target: int = 1001, says: int = 2001) -> Receiver:
    """Dial a link as broker `says`; returns when it has an answer or is closed."""
    receiver = Receiver()
    link = DialledGrpcLink(
        BrokerAddress(broker_id=BrokerId(target), address=f"127.0.0.1:{port}"), tls=tls, mesh_id=MESH
    )
    link.start(receiver)
    link.send(opening(says))
    async with asyncio.timeout(10):
        answer = asyncio.ensure_future(receiver.frames.get())
        either: list[asyncio.Future[Any]] = [answer, receiver.closed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            receiver.frames.put_nowait(answer.result())
        answer.cancel()
    link.close("done")
    await link.closed()
    return receiver


@pytest.fixture
async def owner(mesh: Any) -> AsyncIterator[tuple[Owner, int]]:
    """Broker 1001 listens for links."""
    owner = Owner(mutual(mesh, "broker-1001"))
    port = await owner.listener.start("127.0.0.1:0")
    yield owner, port
    for link in owner.links:
        link.close("over")
    await owner.listener.stop()


async def test_a_link_of_a_broker_of_the_mesh_is_opened(owner: tuple[Owner, int], mesh: Any) -> None:
    receiver = await dialed(owner[1], mutual(mesh, "broker-2001"))
    assert opening(1001) == receiver.frames.get_nowait()


async def test_a_link_whose_certificate_is_another_brokers_is_refused_with_the_reason(
    owner: tuple[Owner, int], mesh: Any
) -> None:
    receiver = await dialed(owner[1], mutual(mesh, "broker-2002"))
    assert b"not for broker-2001.test-mesh" in receiver.frames.get_nowait()
    assert owner[0].links[0]._endpoint.peer is None


@pytest.mark.parametrize("name", ["", "client-alice"])
async def test_a_link_without_a_brokers_certificate_is_refused(owner: tuple[Owner, int], mesh: Any, name: str) -> None:
    receiver = await dialed(owner[1], mesh.contexts(name))
    assert opening(1001) not in ([] if receiver.frames.empty() else [receiver.frames.get_nowait()])
    assert all(link._endpoint.peer is None for link in owner[0].links)


async def test_a_link_of_another_authority_and_one_in_plain_text_are_refused(
    owner: tuple[Owner, int], other_mesh: Any
) -> None:
    assert "unavailable" in await (await dialed(owner[1], mutual(other_mesh, "broker-2001"))).closed
    assert "unavailable" in await (await dialed(owner[1], None)).closed
    assert owner[0].links == []


async def test_a_link_is_not_dialed_to_a_broker_with_another_name(owner: tuple[Owner, int], mesh: Any) -> None:
    receiver = await dialed(owner[1], mutual(mesh, "broker-2001"), target=1009)
    assert "unavailable" in await receiver.closed
    assert owner[0].links == []


async def test_a_grpc_server_takes_a_renewed_certificate_without_a_restart(mesh: Any) -> None:
    server = grpc.aio.server()
    seen: list[Any] = []

    async def answer(request: bytes, context: Any) -> bytes:
        seen.append(context.auth_context())
        return request

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(mesh.contexts("broker-1001")))
    await server.start()

    async def ask(name: str) -> bytes:
        options = (("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1))
        credentials = channel_credentials(mesh.contexts(""))
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
            answered: bytes = await channel.unary_unary("/t.T/Echo")(b"x", timeout=5)
            return answered

    assert await ask("localhost") == b"x"
    mesh.pki.issue_broker(1001, hosts=("new.example.com",), renew=True)
    assert await ask("new.example.com") == b"x"
    await server.stop(None)
