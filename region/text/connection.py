"""One connection of the text protocol: lines in, answers out in the order of the lines, records in between.

Rule 1: one task works on lines, one after the other; only PUBS go together, up to PUBLISHES_MAX, because each waits
        for a commit; they are sent in the order of their lines.
Rule 2: with lines that wait, or answers that the client does not read, or commands faster than COMMANDS_PER_S, the
        socket is not read.
Rule 3: nothing of a peer raises anything here; what breaks is logged and closes this connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import structlog

from georelay.errors import GeorelayError
from georelay.limits import KIB
from mesh.listening.line_commands_core import Auth
from mesh.listening.line_core import Line, LineBuffer
from mesh.listening.line_session_core import Action, HangUp, Run, Say, Session, State, ok, refusal
from region.security.access import Operation, Principal, Resource
from region.text.answers import Answers
from region.text.commands_core import (
    LANGUAGE,
    LINE_BYTES_MAX,
    NO_GROUP,
    Consumed,
    CreateTopic,
    Publish,
    Read,
    Resolve,
    Subscribe,
    Unsubscribe,
)
from region.text.delivery import Delivery, Speaker
from region.text.services import TextServices
from region.text.subscriptions_core import Subscriptions

log = structlog.get_logger()

PUBLISHES_MAX: Final = 32
LINES_WAITING_MAX: Final = 64
WAITING_BYTES_MAX: Final = 512 * KIB
COMMANDS_PER_S: Final = 1_000
BURST: Final = 200
SIGN_IN_S_MAX: Final = 30
KEEPALIVE_S: Final = 60
IDLE_S_MAX: Final = 600  # without a line, and without a subscription
LAST_WORDS_S: Final = 10  # for a client to read what was said before it was hung up on
WRITE_BUFFER_BYTES: Final = 256 * KIB

Answer = tuple[Sequence[str], str]  # lines before the OK, and what follows it


class TextConnection(asyncio.Protocol):
    """The protocol object of one TCP connection; see the module docstring."""

    def __init__(
        self,
        services: TextServices,
        *,
        opened: Callable[[TextConnection], None],
        closed: Callable[[TextConnection], None],
        certificate_name: Callable[[Any], str] = lambda _: "",
    ) -> None:
        """`certificate_name`: the principal of a TLS object's verified client certificate, "" without one."""
        self._services = services
        self._answers = Answers(services)
        self._opened = opened
        self._closed = closed
        self._certificate_name = certificate_name
        self._session = self._new_session(sign_in_needed=services.sign_in.required)
        self._subscriptions = Subscriptions()
        self._principal = Principal.of_user("")
        self._buffer = LineBuffer(self._session.line_bytes_max)
        self._lines: deque[Line] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._speaker = Speaker(self._say, self._writable.wait)
        self._publishes: deque[asyncio.Task[Say]] = deque()
        self._deliveries: dict[int, Delivery] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self._worker: asyncio.Task[None] | None = None
        self._is_reading = True
        self._is_ending = False  # members are leaving their groups: nothing may cut that short
        self._hung_up_ns = 0
        self._tokens = float(BURST)
        self._last_line_ns = self._refilled_ns = self._connected_ns = services.monotonic_ns()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        address = stream.get_extra_info("peername")
        host = str(address[0]) if isinstance(address, tuple) and address else ""
        certificate_name = self._certificate_name(stream.get_extra_info("ssl_object"))
        self._principal = Principal.of_user("", host=host)
        certified = Principal(name=certificate_name, host=host)
        if certificate_name and self._services.sign_in.is_still_valid(certified):
            self._principal = certified
            self._session = self._new_session(sign_in_needed=False)
        self._opened(self)
        stream.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        raw_socket = stream.get_extra_info("socket")
        if raw_socket is not None:  # a subscriber may be silent for ever: the kernel notices when it is gone
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        self._worker = asyncio.get_running_loop().create_task(self._work())
        self._act_now(self._session.greeting())

    def data_received(self, data: bytes) -> None:
        """Cut lines; the worker takes them."""
        self._buffer.line_bytes_max = self._session.line_bytes_max
        lines = self._buffer.feed(data)
        if not lines:  # bytes without an end of a line keep no connection open
            return
        self._lines.extend(lines)
        self._waiting_bytes += sum(len(line) for line in lines if isinstance(line, bytes))
        self._last_line_ns = self._services.monotonic_ns()
        self._arrived.set()
        self._control_reading()

    def pause_writing(self) -> None:
        """Stop delivering: the client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything that runs for it."""
        self._session.state = State.OVER
        self._writable.set()
        if self._worker is not None and not self._is_ending:
            self._worker.cancel()
        self._closed(self)

    # --- for the listener ------------------------------------------------------------------------

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Return what must end before the listener has closed."""
        return self._worker

    def sweep(self, now_ns: int) -> None:
        """Close a client that never signs in, whose sign-in has ended, or that is idle."""
        state = self._session.state
        if self._hung_up_ns:
            if now_ns - self._hung_up_ns > LAST_WORDS_S * 1_000_000_000:
                self.abort()
        elif state is State.READY and not self._services.sign_in.is_still_valid(self._principal):
            self._hang_up("* the sign-in has ended: sign in again")
        elif state is State.SIGN_IN and now_ns - self._connected_ns > SIGN_IN_S_MAX * 1_000_000_000:
            self._hang_up("* sign in sooner")
        elif not self._deliveries and now_ns - self._last_line_ns > IDLE_S_MAX * 1_000_000_000:
            self._hang_up("* idle for too long")

    def abort(self) -> None:
        """Close without waiting for the client to read."""
        if self._transport is not None:
            self._transport.abort()

    # --- inside ----------------------------------------------------------------------------------

    def _new_session(self, *, sign_in_needed: bool) -> Session:
        cluster = self._services.cluster
        speaker = f"region {cluster.region} broker {cluster.broker_id}"
        return Session(LANGUAGE, sign_in_needed=sign_in_needed, speaker=speaker, line_bytes_max=LINE_BYTES_MAX)

    async def _work(self) -> None:
        try:
            while self._session.state is not State.OVER:
                line = await self._next_line()
                await self._pace()
                for action in self._session.line(line):
                    await self._act(action)
        except Exception as error:
            log.exception("text_connection.broke", peer=self._principal.host, error=repr(error))
            self.abort()
        finally:
            self._is_ending = True
            for task in self._publishes:
                task.cancel()
            ending = [delivery.close() for delivery in self._deliveries.values()]
            self._deliveries.clear()
            await asyncio.gather(*ending, *self._ending, return_exceptions=True)

    async def _next_line(self) -> Line:
        """Return the next line; meanwhile answer publishes that are done."""
        while not self._lines:
            self._arrived.clear()
            if self._publishes:
                arrived = asyncio.ensure_future(self._arrived.wait())
                try:
                    await asyncio.wait((arrived, self._publishes[0]), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    arrived.cancel()
                self._answer_published()
            else:
                await self._arrived.wait()
        line = self._lines.popleft()
        self._waiting_bytes -= len(line) if isinstance(line, bytes) else 0
        self._control_reading()
        return line

    async def _pace(self) -> None:
        """Wait where commands come faster than they may."""
        now_ns = self._services.monotonic_ns()
        self._tokens = min(float(BURST), self._tokens + (now_ns - self._refilled_ns) / 1e9 * COMMANDS_PER_S) - 1
        self._refilled_ns = now_ns
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / COMMANDS_PER_S)

    def _control_reading(self) -> None:
        wanted = len(self._lines) < LINES_WAITING_MAX and self._waiting_bytes < WAITING_BYTES_MAX
        transport = self._transport
        if wanted is not self._is_reading and transport is not None and not transport.is_closing():
            self._is_reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    async def _act(self, action: Action) -> None:
        if isinstance(action, Run) and isinstance(action.command, Publish):
            if len(self._publishes) >= PUBLISHES_MAX:
                await self._oldest_published()
            work = self._answers.publish(self._principal, action.command)
            self._publishes.append(asyncio.get_running_loop().create_task(work))
            await asyncio.sleep(0)  # it takes its place among the records of its partition now
            return
        while self._publishes:
            await self._oldest_published()
        await self._writable.wait()
        if isinstance(action, Run):
            await self._run(action.command)
        else:
            self._act_now(action)

    def _act_now(self, action: Action) -> None:
        match action:
            case Say(text):
                self._say(text)
            case HangUp():
                self._hang_up("")

    async def _oldest_published(self) -> None:
        await asyncio.wait((self._publishes[0],))
        self._answer_published()

    def _answer_published(self) -> None:
        while self._publishes and self._publishes[0].done():
            self._act_now(self._publishes.popleft().result())

    async def _run(self, command: object) -> None:
        if isinstance(command, Auth):
            await self._sign_in(command)
            return
        try:
            lines, tail = await self._answer(command)
        except GeorelayError as error:
            self._act_now(refusal(error))
            return
        for line in lines:
            self._say(line)
        self._act_now(ok(tail))

    async def _answer(self, command: object) -> Answer:
        match command:
            case CreateTopic():
                return (), await self._answers.create(self._principal, command)
            case Resolve():
                return self._answers.resolve(self._principal, command)
            case Read():
                async with self._speaker.turn:
                    return await self._answers.read(self._principal, command)
            case Subscribe():
                return (), await self._subscribe(command)
            case Consumed():
                return (), await self._consume(command)
            case Unsubscribe():
                return (), await self._unsubscribe(command)
            case _:
                raise TypeError(f"{type(command).__name__} is answered elsewhere")

    async def _sign_in(self, command: Auth) -> None:
        try:
            principal = await self._services.sign_in.password(
                command.user, command.password, host=self._principal.host, how="text"
            )
        except GeorelayError as error:
            for action in self._session.not_signed_in(error):
                self._act_now(action)
            return
        self._principal = principal
        for action in self._session.signed_in(principal.user):
            self._act_now(action)

    async def _subscribe(self, command: Subscribe) -> str:
        access, principal = self._services.access, self._principal
        access.check(principal, Operation.READ, Resource.TOPIC, command.topic)
        group = "" if command.group == NO_GROUP else command.group
        if group:
            access.check(principal, Operation.READ, Resource.GROUP, group)
        book = self._subscriptions
        subscription = book.open(command.topic, group)
        delivery = Delivery(
            self._services,
            subscription=subscription,
            book=book,
            partitions=command.partitions,
            most=command.most,
            principal=principal,
            speaker=self._speaker,
            ended=self._ended,
        )
        try:
            tail = await delivery.open()
        except GeorelayError:
            book.close(subscription.number)
            raise
        self._deliveries[subscription.number] = delivery
        return tail

    def _ended(self, number: int) -> None:
        """Forget a delivery that ended by itself."""
        delivery = self._deliveries.pop(number, None)
        if delivery is not None:
            task = asyncio.get_running_loop().create_task(delivery.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _consume(self, command: Consumed) -> str:
        book = self._subscriptions
        place = book.consumed(command.topic, command.subscription, command.partition, command.offset)
        group = place.subscription.group
        if group:
            self._services.access.check(self._principal, Operation.READ, Resource.GROUP, group)
        await self._deliveries[command.subscription].commit(place)
        return str(place.next_offset)

    async def _unsubscribe(self, command: Unsubscribe) -> str:
        self._subscriptions.get(command.subscription)
        self._subscriptions.close(command.subscription)
        delivery = self._deliveries.pop(command.subscription, None)
        if delivery is not None:
            await delivery.close()
        return str(command.subscription)

    def _say(self, line: str) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(line.encode("utf-8", "replace") + b"\r\n")

    def _hang_up(self, last: str) -> None:
        if last:
            self._say(last)
        self._session.state = State.OVER
        self._hung_up_ns = self._hung_up_ns or self._services.monotonic_ns()
        self._arrived.set()
        if self._transport is not None:
            self._transport.close()
