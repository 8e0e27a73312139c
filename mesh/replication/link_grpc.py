"""Links over one gRPC bidirectional stream each, frames as raw bytes (no protobuf): with brokers of an older version.

This release dials who takes no framed links with it, and serves it to them (link_listener.py); the next one does not.

Rule 1: a new channel per dial, with its own subchannel pool: gRPC's back-off after failures grows to minutes and
        is shared by address, while a healed link must carry records again within redial_ms.
        A dial that hears nothing is joined by another one every DIAL_AGAIN_S, and the first that is decided is taken:
        a SYN that was lost in a cut is sent again by the kernel after 1 s, 3 s, 7 s only.
Rule 2: one frame is in the carrier's hands at a time; what comes meanwhile is coalesced above it.
Rule 3: errors of the carrier end here: the owner hears `link_closed(reason)` once. Why a call ended is what its reader
        hears; a writer never judges that.
Rule 4: with TLS the accepting end must have the DNS name of the broker that was dialled, whatever its address is; the
        names of the dialling end are handed up, because only its OPEN says which broker it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import structlog

from georelay.limits import KIB, LINK_FRAME_BYTES_MAX
from georelay.tls import TlsContexts, broker_name
from georelay.tls_grpc import channel_credentials
from mesh.listening.admission_core import AdmissionCounters
from mesh.listening.grpc_server import GrpcServer
from mesh.listening.link_ends_core import Endpoint, endpoint_of
from mesh.replication.link import LinkReceiver
from mesh.replication.settings import GATHER_MS, BrokerAddress

log = structlog.get_logger()

METHOD: Final = "/georelay.mesh.v1.Link/Exchange"
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # an http_proxy variable would divert even loopback
    ("grpc.max_send_message_length", LINK_FRAME_BYTES_MAX + KIB),
    ("grpc.max_receive_message_length", LINK_FRAME_BYTES_MAX + KIB),
    ("grpc.enable_retries", 0),
)
_CHANNEL_OPTIONS: Final = (*_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
_SERVER_OPTIONS: Final = (
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 4),  # a link is one
    ("grpc.server_handshake_timeout_ms", 2_000),
    ("grpc.max_allowed_incoming_connections", 1_000),
)
_STOP_GRACE_S: Final = 0.1
DIAL_AGAIN_S: Final = 0.25
DIALS_AT_ONCE_MAX: Final = 6  # beyond it the oldest is given up


class _GrpcLink:
    """Reader and writer of one stream; both ends differ only in where the stream comes from."""

    gather_ms = GATHER_MS

    def __init__(
        self, *, peer: str, peer_names: frozenset[str] | None = None, met: Callable[[], None] | None = None
    ) -> None:
        self._met = met
        self._peer = peer
        self._peer_names = peer_names
        self._receiver: LinkReceiver | None = None
        self._frame: bytes | None = None
        self._wake_writer: asyncio.Future[None] | None = None
        self._reason = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def peer(self) -> str:
        """Return the address of the other end."""
        return self._peer

    @property
    def peer_names(self) -> frozenset[str] | None:
        """Return the names in the certificate of the dialling end."""
        return self._peer_names

    @property
    def is_writable(self) -> bool:
        """Return whether the carrier takes a frame now."""
        return self._frame is None and not self._reason

    def quiet_ns(self) -> int | None:
        """Return None: the link itself says whether the other end lives."""
        return None

    def met(self) -> None:
        """The other end is a broker of the mesh."""
        if self._met is not None:
            self._met()

    def send(self, frame: bytes) -> None:
        """Hand over one frame."""
        assert self._frame is None, "a frame was sent while the one before is still in flight"
        if self._reason:
            return
        self._frame = frame
        if self._wake_writer is not None and not self._wake_writer.done():
            self._wake_writer.set_result(None)

    def close(self, reason: str) -> None:
        """Close at once; `link_closed` follows on the next turn of the loop."""
        if self._reason:
            return
        self._reason = reason or "closed"
        for task in self._tasks:
            task.cancel()

    async def _read_all(self, read: Callable[[], Any]) -> None:
        receiver = self._receiver
        assert receiver is not None
        while True:
            frame = await read()
            if frame is grpc.aio.EOF:
                return
            receiver.frame_received(frame)

    async def _write_all(self, write: Callable[[bytes], Any]) -> None:
        receiver = self._receiver
        assert receiver is not None
        loop = asyncio.get_running_loop()
        while True:
            if self._frame is None:
                self._wake_writer = loop.create_future()
                await self._wake_writer
            frame = self._frame
            assert frame is not None
            await write(frame)
            self._frame = None
            receiver.link_writable()

    async def _exchange(self, read: Callable[[], Any], write: Callable[[bytes], Any]) -> None:
        """Read and write until one of them ends; then both have ended."""
        tasks = {asyncio.ensure_future(self._read_all(read)), asyncio.ensure_future(self._write_all(write))}
        self._tasks = tasks
        try:
            if not self._reason:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._reason = self._reason or _reason_of(ended)
            self._tell_closed()

    def _tell_closed(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.link_closed(self._reason or "the stream ended")


def _reason_of(ended: list[Any]) -> str:
    """Return why the stream ended; a failure that is not the carrier's is our own bug and goes to the log."""
    for error in ended:
        if isinstance(error, grpc.aio.AioRpcError):
            return f"{error.code().name.lower()}: {(error.details() or '')[:200]}"
    for error in ended:
        if isinstance(error, Exception) and not isinstance(error, grpc.RpcError | grpc.aio.BaseError):
            log.error("link.failed", exc_info=error)
            return f"{type(error).__name__}: {error}"
    return "the other end closed the stream"


_DECIDED: Final = (
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)


async def _is_decided(channel: Any) -> None:
    """Return when a channel is connected or failed."""
    state = channel.get_state(try_to_connect=True)
    while state not in _DECIDED:
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def _give_up(waiting: dict[asyncio.Task[None], Any], task: asyncio.Task[None], channels: list[Any]) -> None:
    """Close a channel that another one has overtaken."""
    channel = waiting.pop(task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    channels.remove(channel)
    await channel.close()


async def _write(call: Any, frame: bytes) -> None:
    """Write a frame to a call that lasts; wait beside one that has ended until its reader has heard why.

    The end of a call is known here a turn of the loop before its reader is told, and grpcio answers a write in between
    with InvalidStateError, which says nothing of the reason.
    """
    if call.done():
        await asyncio.get_running_loop().create_future()  # `_exchange` cancels it
    await call.write(frame)


class DialledGrpcLink(_GrpcLink):
    """The dialling end: owns its channel."""

    def __init__(self, target: BrokerAddress, *, tls: TlsContexts | None = None, mesh_id: str = "") -> None:
        super().__init__(peer=target.address)
        self._target = target
        self._tls = tls
        self._mesh_id = mesh_id
        self._run_task: asyncio.Task[None] | None = None

    def start(self, receiver: LinkReceiver) -> None:
        """Dial and begin to receive."""
        self._receiver = receiver
        self._run_task = asyncio.get_running_loop().create_task(self._run(), name=f"link to {self._peer}")

    async def _run(self) -> None:
        channels: list[Any] = []
        self._tasks = {asyncio.ensure_future(self._first_decided(channels))}
        try:
            channel = await self._decided(next(iter(self._tasks)))
            if channel is None:
                self._tell_closed()
                return
            call = channel.stream_stream(METHOD)()
            await self._exchange(call.read, partial(_write, call))
        finally:
            for channel in channels:
                await channel.close()

    async def _decided(self, dialling: asyncio.Task[Any]) -> Any:
        """Return what the dial gave, None when `close` ended it."""
        await asyncio.wait([dialling])
        return None if dialling.cancelled() else dialling.result()

    async def _first_decided(self, channels: list[Any]) -> Any:
        """Return the first channel that is connected, or refused: a call on that one says why.

        Args:
            channels: gets every channel made; whoever gave it closes what is left in it.
        """
        waiting: dict[asyncio.Task[None], Any] = {}
        try:
            while True:
                if len(waiting) == DIALS_AT_ONCE_MAX:
                    await _give_up(waiting, next(iter(waiting)), channels)
                channel = self._channel()
                channels.append(channel)
                waiting[asyncio.ensure_future(_is_decided(channel))] = channel
                done, _ = await asyncio.wait(waiting, timeout=DIAL_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    chosen = waiting.pop(next(iter(done)))
                    for task in list(waiting):
                        await _give_up(waiting, task, channels)
                    return chosen
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _channel(self) -> Any:
        if self._tls is None:
            return grpc.aio.insecure_channel(self._peer, options=_CHANNEL_OPTIONS)
        name = broker_name(self._target.broker_id, self._mesh_id)
        options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(self._peer, channel_credentials(self._tls), options=options)

    async def closed(self) -> None:
        """Wait until the channel is gone."""
        if self._run_task is not None:
            await asyncio.wait([self._run_task])


class AcceptedLink(_GrpcLink):
    """The accepting end: lives as long as the handler of its call."""

    def start(self, receiver: LinkReceiver) -> None:
        """Begin to receive (the handler runs `serve`)."""
        self._receiver = receiver

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Exchange frames until the link ends."""
        await self._exchange(context.read, context.write)


class Caller(NamedTuple):
    """Whose connection is passed on: its far end, and the names in its certificate, None without TLS.

    `met`: told once it has shown that it is a broker of the mesh.
    """

    peer: str
    names: frozenset[str] | None
    met: Callable[[], None]


class GrpcLinks(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """A gRPC server for links of brokers of an older version, whose connections LinkListener passes on to it."""

    def __init__(self, accept: Callable[[AcceptedLink], None], *, counters: AdmissionCounters) -> None:
        self._accept = accept
        self._handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._expected: dict[Endpoint, Caller] = {}
        self._server = GrpcServer(self._made, "127.0.0.1:0", counters=counters)
        self._starting: asyncio.Task[int] | None = None

    async def port(self) -> int:
        """Return where it listens; started with the first question. Raises OSError: it cannot be."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="older links")
        return await asyncio.shield(self._starting)

    async def _start(self) -> int:
        try:
            return await self._server.start()
        except RuntimeError as error:
            self._starting = None
            raise OSError(f"no gRPC for links of older brokers: {error}") from error

    def expect(self, near_end: Endpoint, caller: Caller) -> Endpoint:
        """Serve what comes from this end of a connection; returns what to give to `forget`."""
        self._expected[near_end] = caller
        return near_end

    def forget(self, near_end: Endpoint) -> None:
        """The connection is gone."""
        self._expected.pop(near_end, None)

    async def stop(self) -> None:
        """End every link."""
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
            await self._server.stop(_STOP_GRACE_S)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of our one method."""
        return self._handler if handler_call_details.method == METHOD else None

    async def _serve(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        end = endpoint_of(context.peer())
        caller = None if end is None else self._expected.get(end)
        if caller is None:  # of this machine, past the link listener
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "links go to the link listener")
            return
        link = AcceptedLink(peer=caller.peer, peer_names=caller.names, met=caller.met)
        self._accept(link)
        await link.serve(context)

    def _made(self) -> Any:
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        return server
