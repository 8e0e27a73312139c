"""One client connection: frames in, answers out in the order of the requests.

Rule 1: every request takes a Slot; answers wait in their slot until all earlier ones are written. Handlers answer
        at once or later, in any order, from callbacks: there is no task per request.
Rule 2: with `requests_max` slots taken, or while the client does not read, the socket is not read.
Rule 3: a malformed frame closes the connection and is counted; a peer's bytes never raise anything else.
Rule 4: until a required sign-in has succeeded only ApiVersions, SaslHandshake and SaslAuthenticate are answered;
        anything else closes the connection.
Rule 5: a request, once begun, must come whole within `request_s` and BYTES_PER_S_MIN; a sign-in within `sign_in_s`,
        and until then no frame is larger than BEFORE_SIGN_IN_BYTES_MAX.
Rule 6: with `request_bytes_max` unanswered, or the budget of the listener or its principal used up, nothing is read.
Rule 7: with `answer_bytes_max` of answers that the client has not read nothing more is handled, and what is answered
        meanwhile holds no records; see region.kafka.unread_answers.
Rule 8: what overlaps with what is decided by region.kafka.request_order_core.
Never decides what a request means: that is the handlers' part.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import structlog

from georelay.errors import GeorelayError
from georelay.limits import KAFKA_REQUESTS_IN_FLIGHT_MAX, KIB, MIB
from georelay.wire.api import (
    ApiKey,
    RequestHeader,
    WireError,
    decode_request,
    encode_response,
    frame_bytes_max,
    parse_request_header,
    refuse_api_versions,
)
from georelay.wire.calls import Response
from mesh.listening.admission_core import Refusal
from mesh.listening.settings import is_loopback
from region.kafka.counters import KafkaCounters
from region.kafka.frame_buffer import FrameBuffer
from region.kafka.ports import TraceSession
from region.kafka.request_memory import ConnectionMemory, RequestMemory
from region.kafka.request_order_core import RequestOrder
from region.kafka.unread_answers import UnreadAnswers
from region.security.access import ANONYMOUS, Principal
from region.security.scram_core import ScramServer

log = structlog.get_logger()

SIGN_IN_S: Final = 10.0  # from connecting to a successful sign-in
REQUEST_S: Final = 30.0  # from the first byte of a request to its last, and longer for a large one
BYTES_PER_S_MIN: Final = 100 * KIB  # what a large request must come with
REQUEST_BYTES_MAX: Final = 64 * MIB  # unanswered, of one connection
ANSWER_BYTES_MAX: Final = 64 * MIB  # not read by the client, of one connection; and one answer more
BEFORE_SIGN_IN_BYTES_MAX: Final = 64 * KIB
IDLE_SECONDS_MAX: Final = 600  # without a byte from the client while nothing is pending
LAST_WORDS_S: Final = 10.0  # for a client to read what it is sent before the end
BEFORE_SIGN_IN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

Buffers = Sequence[bytes | bytearray | memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may take; see the rules 5 to 7."""

    sign_in_s: float = SIGN_IN_S
    request_s: float = REQUEST_S
    request_bytes_max: int = REQUEST_BYTES_MAX
    answer_bytes_max: int = ANSWER_BYTES_MAX


DEFAULT_LIMITS: Final = ConnectionLimits()


class SignIn(enum.Enum):
    """Where a connection stands with its credentials."""

    NOT_NEEDED = "not_needed"
    HANDSHAKE = "handshake"  # a mechanism must be chosen
    CREDENTIALS = "credentials"  # SaslAuthenticate must follow
    BARE_CREDENTIALS = "bare_credentials"  # SaslHandshake v0: the next frame is the bare token
    CHECKING = "checking"  # nothing is processed meanwhile
    DONE = "done"
    REFUSED = "refused"  # the answer is written, then the connection closes


class Dispatch(Protocol):
    """The table of handlers."""

    def __call__(self, slot: Slot, request: Any) -> None:
        """Handle one request: answer the slot now or later."""


class SaslGate(Protocol):
    """The bare token of SaslHandshake v0, which no API frames."""

    def raw_token(self, connection: KafkaConnection, token: bytes) -> None:
        """Check the token; write the bare answer."""


class Slot:
    """The place of one request's answer in the order of answers."""

    __slots__ = (
        "_connection",
        "_on_cancel",
        "answer_bytes",
        "buffers",
        "deadline_ns",
        "header",
        "on_deadline",
        "received_ns",
        "size_bytes",
        "started_ns",
    )

    def __init__(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        *,
        received_ns: int,
        started_ns: int,
        size_bytes: int = 0,
    ) -> None:
        self.size_bytes = size_bytes
        self.answer_bytes = 0  # of the answer, or reserved for it
        self._connection = connection
        self.header = header
        self.received_ns = received_ns  # wall clock
        self.started_ns = started_ns  # monotonic
        self.buffers: Buffers | None = None
        self.deadline_ns = 0  # monotonic; 0: none
        self.on_deadline: Callable[[], None] | None = None
        self._on_cancel: Callable[[], None] | None = None

    @property
    def connection(self) -> KafkaConnection:
        """Return the connection, which is also the lane of its publishes."""
        return self._connection

    @property
    def api_version(self) -> int:
        """Return the version the answer must have."""
        return self.header.api_version

    @property
    def answered(self) -> bool:
        """Return whether there is an answer already (or none is wanted any more)."""
        return self.buffers is not None

    def answer(self, response: Response) -> None:
        """Give the answer; the second answer of a slot (after a deadline) is dropped."""
        if self.buffers is None:
            header = self.header
            self._finish(
                encode_response(response, api_version=header.api_version, correlation_id=header.correlation_id)
            )

    def answer_encoded(self, buffers: Buffers) -> None:
        """Give an answer that is encoded already."""
        if self.buffers is None:
            self._finish(buffers)

    def no_answer(self) -> None:
        """Finish a request that has no answer (Produce with acks=0)."""
        if self.buffers is None:
            self._finish(())

    def spawn(self, work: Coroutine[Any, Any, Response]) -> None:
        """Answer with what `work` returns; it is cancelled with the connection."""
        self._connection.spawn(self, work)

    def reserve(self, size_bytes: int) -> None:
        """Count what is being read for the answer, in place of what was counted for it before."""
        self._connection.unread.count(size_bytes - self.answer_bytes)
        self.answer_bytes = size_bytes

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the connection ends before there is an answer."""
        self._on_cancel = callback

    def cancel(self) -> None:
        """Drop the request: its connection is gone."""
        callback, self._on_cancel = self._on_cancel, None
        if self.buffers is None:
            self.buffers = ()
            if callback is not None:
                callback()

    def _finish(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.reserve(sum(map(len, buffers)))
        self._on_cancel = self.on_deadline = None
        self._connection.slot_done(self)


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol object of one TCP connection; see the module docstring.

    Args:
        shared: where small frames are received; see region.kafka.frame_buffer.
        memory: the budget of the listener. answers: that of answers that clients have not read.
        peer_name: principal that the client's certificate proves, "" without one.
        refused: told why the connection is cut off.
    """

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        sasl: SaslGate,
        sign_in_needed: bool,
        counters: KafkaCounters,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        opened: Callable[[KafkaConnection], bool],
        closed: Callable[[KafkaConnection], None],
        shared: memoryview,
        requests_max: int = KAFKA_REQUESTS_IN_FLIGHT_MAX,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        memory: RequestMemory | None = None,
        answers: RequestMemory | None = None,
        peer_name: Callable[[asyncio.BaseTransport], str] | None = None,
        refused: Callable[[Refusal], None] | None = None,
    ) -> None:
        self.sign_in = SignIn.HANDSHAKE if sign_in_needed else SignIn.NOT_NEEDED
        self.trace_sessions: dict[tuple[str, int], TraceSession] = {}
        self.peer = ""
        self.next_wide_fetch_ns = 0  # monotonic; see region.kafka.handlers.fetch
        self.principal = ANONYMOUS  # with its host once connected; a sign-in or a client's certificate names it
        self.is_private = True  # nobody between reads along: TLS, or loopback
        self.mechanism = ""  # of SASL, once chosen
        self.exchange: ScramServer | None = None  # begun and not finished
        self._has_certificate = False
        self._muted_until_ns = 0  # monotonic; until then nothing is handled
        self._unmute: asyncio.TimerHandle | None = None
        self._dispatch = dispatch
        self._sasl = sasl
        self._counters = counters
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._opened = opened
        self._closed = closed
        self._requests_max = requests_max
        self._transport: asyncio.Transport | None = None
        self._limits = limits
        self._memory = ConnectionMemory(RequestMemory() if memory is None else memory)
        self.unread = UnreadAnswers(limits.answer_bytes_max, RequestMemory() if answers is None else answers)
        self._peer_name = peer_name
        self._refused = refused
        self._request_bytes = 0  # of requests without an answer
        self._partial_bytes = 0  # of a frame that is not whole yet
        self._partial_since_ns = 0  # 0: there is none
        self._received = FrameBuffer(shared, self._frame_cap, self._memory.has_room)
        self._frames: deque[bytes | memoryview] = deque()  # whole frames, not yet handled
        self._slots: deque[Slot] = deque()
        self._order = RequestOrder()
        self._tasks: set[asyncio.Task[Response]] = set()
        self._is_writable = self._is_reading = True
        self._is_working = self._is_closing = False
        self._last_byte_ns = self._connected_ns = monotonic_ns()

    # --- asyncio.BufferedProtocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register; refuse when the listener is full."""
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        address = stream.get_extra_info("peername")
        self.peer = str(address)
        if isinstance(address, tuple) and address:
            self.principal = Principal(name=self.principal.name, host=str(address[0]))
            self.is_private = is_loopback(str(address[0])) or stream.get_extra_info("sslcontext") is not None
        if self._peer_name is not None and (name := self._peer_name(transport)):
            self.principal = Principal(name=name, host=self.principal.host)
            self.sign_in = SignIn.NOT_NEEDED
            self._has_certificate = True
            self._memory.is_of(name)
        if not self._opened(self):
            self._is_closing = True
            stream.abort()
            return
        raw_socket = transport.get_extra_info("socket")
        if raw_socket is not None and raw_socket.family in (socket.AF_INET, socket.AF_INET6):
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._received.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Cut frames and handle as many as there are free slots."""
        if self._is_closing:
            return
        self._counters.bytes_in += nbytes
        self._last_byte_ns = self._monotonic_ns()
        self._take(nbytes)

    def pause_writing(self) -> None:
        """Stop: the client does not read its answers."""
        self._is_writable = False
        self._control_reading()

    def resume_writing(self) -> None:
        """Continue."""
        self._is_writable = True
        self.unread.note_unsent(0, self._monotonic_ns())
        self._write_ready()
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop everything that is pending."""
        self._is_closing = True
        if self._unmute is not None:
            self._unmute.cancel()
        self._frames.clear()
        self._memory.forget(self._has_room)
        self._received.drop()
        self._memory.close()
        self.unread.close()
        slots, self._slots = self._slots, deque()
        for slot in slots:
            slot.cancel()
        for task in self._tasks:
            task.cancel()
        self.trace_sessions.clear()
        self._closed(self)

    # --- for handlers and the listener -----------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Return whether nothing more is handled."""
        return self._is_closing

    @property
    def tasks(self) -> Iterable[asyncio.Task[Response]]:
        """Return what still runs for this connection."""
        return tuple(self._tasks)

    def spawn(self, slot: Slot, work: Coroutine[Any, Any, Response]) -> None:
        """Run `work` and answer `slot` with its result; see `Slot.spawn`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[Response]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                slot.cancel()
            elif (error := task.exception()) is not None:
                log.error("kafka_request.broke", peer=self.peer, api=slot.header.api_key, error=repr(error))
                self.close()
            else:
                slot.answer(task.result())

        task.add_done_callback(done)

    def slot_done(self, slot: Slot) -> None:
        """Write what is in order now."""
        if slot.size_bytes and self._request_bytes:
            self._request_bytes -= slot.size_bytes
            self._memory.take(-slot.size_bytes)
        self._order.ended(slot.header.api_key)
        self._counters.answered(slot.header.api_key, (self._monotonic_ns() - slot.started_ns) / 1e6)
        if self._slots and self._slots[0] is slot:
            self._write_ready()
            if not self._is_working:
                self._work()

    def write_bare(self, data: bytes) -> None:
        """Write bytes outside the order of slots (the bare answer to a bare SASL token)."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def is_served(self) -> bool:
        """Return whether its principal may ask anything: it has signed in, or does not have to."""
        return self.sign_in in (SignIn.NOT_NEEDED, SignIn.DONE)

    @property
    def may_sign_in(self) -> bool:
        """Return whether SASL may begin: where it is needed, and over a certificate that it then replaces."""
        return self.sign_in is SignIn.HANDSHAKE or (self.sign_in is SignIn.NOT_NEEDED and self._has_certificate)

    def mute(self, pause_ms: int) -> None:
        """Handle nothing for `pause_ms` from now: its principal has used more than its quota."""
        if pause_ms <= 0 or self._is_closing:
            return
        until_ns = self._monotonic_ns() + pause_ms * 1_000_000
        if until_ns <= self._muted_until_ns:
            return
        self._muted_until_ns = until_ns
        if self._unmute is not None:
            self._unmute.cancel()
        self._unmute = asyncio.get_running_loop().call_later(pause_ms / 1_000, self._go_on)
        self._control_reading()

    def _go_on(self) -> None:
        self._unmute, self._muted_until_ns = None, 0
        self._work()

    def await_credentials(self) -> None:
        """Take the next step of a SASL exchange."""
        if self.sign_in is SignIn.CHECKING:
            self.sign_in = SignIn.CREDENTIALS
            self._work()

    def signed_in(self) -> None:
        """Open the gate and go on with what the client sent meanwhile."""
        self.sign_in = SignIn.DONE
        self._memory.is_of(self.principal.name)
        self._work()

    def refuse(self, error: GeorelayError) -> None:
        """Close because of what the peer sent."""
        self._counters.wire_errors += 1
        log.info("kafka_connection.refused", peer=self.peer, error=str(error))
        self.close()

    def close(self) -> None:
        """Write what is buffered, then close; pending requests are dropped."""
        self._is_closing = True
        self._frames.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for the peer to read."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now_ns: int) -> None:
        """Answer requests past their deadline; close an idle client or one that never signs in."""
        for slot in list(self._slots):
            if slot.on_deadline is not None and slot.deadline_ns <= now_ns:
                slot.on_deadline()
        if not self.is_served and now_ns - self._connected_ns > self._limits.sign_in_s * 1e9:
            self._cut_off(Refusal.NO_SIGN_IN)
        elif self._partial_since_ns and self._is_reading:
            patience_s = self._limits.request_s + self._received.buffered_bytes / BYTES_PER_S_MIN
            if now_ns - self._partial_since_ns > patience_s * 1e9:
                self._cut_off(Refusal.TOO_SLOW)
        if not self._is_writable and self._transport is not None:
            self.unread.note_unsent(self._transport.get_write_buffer_size(), now_ns)
            if self.unread.is_stuck(now_ns):
                self._cut_off(Refusal.TOO_SLOW)
        if self._is_closing and now_ns - self._last_byte_ns > LAST_WORDS_S * 1e9:
            self.abort()
        elif not self._slots and now_ns - self._last_byte_ns > IDLE_SECONDS_MAX * 1_000_000_000:
            self.close()

    def _cut_off(self, reason: Refusal) -> None:
        if not self._is_closing:
            log.info("kafka_connection.cut_off", peer=self.peer, reason=reason.value)
            if self._refused is not None:
                self._refused(reason)
        self.abort()

    # --- inside ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Handle waiting frames while there are slots and the client reads."""
        if self._is_working:  # a handler answered at once: the outer loop goes on
            return
        self._is_working = True
        try:
            frames = self._frames
            while frames and self._may_handle() and self._order.may_begin(frames[0]):
                self._handle(frames.popleft())
        finally:
            self._is_working = False
        self._control_reading()

    def _frame_cap(self, api_key: int) -> int:
        cap = frame_bytes_max(api_key)
        return cap if self.is_served else min(cap, BEFORE_SIGN_IN_BYTES_MAX)

    def _take(self, nbytes: int) -> None:
        """Handle the frames that `nbytes` more complete; without any, those of a frame that was held."""
        received = self._received
        try:
            frames = received.received(nbytes) if nbytes else received.retry()
        except WireError as error:
            self.refuse(error)
            return
        self._frames.extend(frames)
        self._note_partial(is_new=bool(frames))
        self._work()
        if self._frames:
            self._frames = deque(bytes(frame) if received.is_shared(frame) else frame for frame in self._frames)

    def _note_partial(self, *, is_new: bool) -> None:
        """Keep the account of a frame that is not whole yet; `is_new`: others were completed before it."""
        partial_bytes = self._received.reserved_bytes
        if partial_bytes != self._partial_bytes:
            self._memory.take(partial_bytes - self._partial_bytes)
            self._partial_bytes = partial_bytes
        if not self._received.buffered_bytes:
            self._partial_since_ns = 0
        elif is_new or not self._partial_since_ns:
            self._partial_since_ns = self._last_byte_ns

    def _may_handle(self) -> bool:
        return (
            len(self._slots) < self._requests_max
            and self._request_bytes < self._limits.request_bytes_max
            and self.unread.room_bytes > 0
            and self._is_writable
            and not self._is_closing
            and self.sign_in not in (SignIn.CHECKING, SignIn.REFUSED)
            and not self._muted_until_ns
        )

    def _has_room(self) -> None:
        """Go on with the frame that was held, and read again."""
        if self._received.is_held and not self._is_closing:
            self._take(0)
        self._control_reading()

    def _control_reading(self) -> None:
        wanted = not self._frames and self._may_handle()
        if wanted and (self._received.is_held or (self._memory.is_full and not self._partial_bytes)):
            wanted = False
            self._memory.wait(self._has_room)
        if wanted is not self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                if self._partial_since_ns:
                    self._partial_since_ns = self._monotonic_ns()  # it could not go on meanwhile
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle(self, frame: bytes | memoryview) -> None:
        if self.sign_in is SignIn.BARE_CREDENTIALS:
            self._sasl.raw_token(self, bytes(frame))
            return
        try:
            header = parse_request_header(frame)
            if not self._is_allowed(header):
                self.close()
                return
            size_bytes = len(frame)
            slot = Slot(
                self,
                header,
                received_ns=self._wall_ns(),
                started_ns=self._monotonic_ns(),
                size_bytes=size_bytes,
            )
            if not header.is_supported:
                self._refuse_version(slot)
                return
            _, request = decode_request(frame, header)
        except WireError as error:
            self.refuse(error)
            return
        self._slots.append(slot)
        self._order.begun(header.api_key)
        self._request_bytes += size_bytes
        self._memory.take(size_bytes)
        self._dispatch(slot, request)

    def _is_allowed(self, header: RequestHeader) -> bool:
        if self.is_served or header.api_key in BEFORE_SIGN_IN:
            return True
        self._counters.sign_ins_refused += 1
        log.info("kafka_connection.not_signed_in", peer=self.peer, api=header.api_key)
        return False

    def _refuse_version(self, slot: Slot) -> None:
        """ApiVersions of an unknown version has an answer that every client understands; others have none."""
        if slot.header.api_key != ApiKey.API_VERSIONS:
            raise WireError(f"API {slot.header.api_key} version {slot.header.api_version} is not served here")
        self._slots.append(slot)
        slot.size_bytes = 0  # never counted
        slot.answer_encoded(refuse_api_versions(slot.header.correlation_id))

    def _write_ready(self) -> None:
        """Write the answers of the oldest slots, up to the first without one."""
        transport, slots = self._transport, self._slots
        if transport is None or transport.is_closing():
            return
        written_bytes = 0
        while slots and (buffers := slots[0].buffers) is not None:
            written_bytes += slots.popleft().answer_bytes
            if buffers:
                transport.writelines(buffers)
        self._counters.bytes_out += written_bytes
        self.unread.count(-written_bytes)
        if not self._is_writable:
            self.unread.note_unsent(transport.get_write_buffer_size(), self._monotonic_ns())
