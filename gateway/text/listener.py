"""The text listener of a gateway: lines in, one answer each. It answers RESOLVE; records are for brokers.

Rule 1: one line is worked on at a time. What follows waits in the kernel, also while the client does not read.
Rule 2: who does not end a line in IDLE_S, does not sign in within SIGN_IN_S or does not read for SEND_S is cut off.
Rule 3: a sign-in is asked for again at every question: one that has ended answers nothing any more.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Final

import structlog

from gateway.authentication import SignIn
from gateway.routing.resolving import QUESTION_BYTES_MAX, Asker, Resolving
from gateway.text.commands_core import LANGUAGE, Resolve, regions_of, tail_of
from georelay.errors import GeorelayError
from georelay.limits import KIB
from mesh.distance.tcp_info import sample_of
from mesh.listening.acceptor import Acceptor, cut_off
from mesh.listening.admission_core import AdmissionLimits
from mesh.listening.line_commands_core import Auth
from mesh.listening.line_core import Line, LineBuffer
from mesh.listening.line_session_core import HangUp, Say, Session, State, ok, refusal
from mesh.listening.listeners import ListenerParts

log = structlog.get_logger()

CONNECTIONS_MAX: Final = 1_000
SIGN_IN_S: Final = 30.0
IDLE_S: Final = 60.0
SEND_S: Final = 10.0
PACE_S: Final = 0.001  # between two lines of one connection
LINE_BYTES_MAX: Final = QUESTION_BYTES_MAX + KIB  # a question and the words before it
READ_BYTES: Final = 16 * KIB
WRITE_BUFFER_BYTES: Final = 16 * KIB


class TextListener:
    """Serves one address until `close`. `region`: of this gateway, "" where it has none."""

    def __init__(
        self, resolving: Resolving, sign_in: SignIn, *, region: str = "", parts: ListenerParts | None = None
    ) -> None:
        self._resolving = resolving
        self._sign_in = sign_in
        self._speaker = f"gateway{f' region {region}' if region else ''}"
        self._talks: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(
            self._protocol,
            name="text",
            limits=(AdmissionLimits() if parts is None else parts.limits).within(CONNECTIONS_MAX),
            counters=None if parts is None else parts.counters,
            contexts=None if parts is None else parts.contexts,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (OSError: it is taken)."""
        return await self._acceptor.start(host, port)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self._acceptor.close()
        for task in self._talks:
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def _protocol(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=READ_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="text-connection")
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Talk(self._resolving, self._sign_in, writer, speaker=self._speaker).run(reader)
            writer.close()
        except (TimeoutError, ConnectionError) as error:
            log.debug("text_connection.left", error=repr(error))
            cut_off(writer.transport)
        except Exception as error:
            log.exception("text_connection.broke", error=repr(error))
            writer.transport.abort()
        finally:
            if not writer.is_closing():  # it was cancelled: the gateway ends
                writer.transport.abort()


class _Talk:
    """One connection."""

    def __init__(self, resolving: Resolving, sign_in: SignIn, writer: asyncio.StreamWriter, *, speaker: str) -> None:
        peer = writer.get_extra_info("peername")
        self._resolving = resolving
        self._sign_in = sign_in
        self._writer = writer
        self._asker = Asker(
            name="", address=str(peer[0]) if isinstance(peer, tuple) else "", authorization=None, sample=None
        )
        self._session = Session(
            LANGUAGE, sign_in_needed=sign_in.required, speaker=speaker, line_bytes_max=LINE_BYTES_MAX
        )
        self._buffer = LineBuffer(self._session.line_bytes_max)

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Answer until either side ends it. Raises ConnectionError; TimeoutError: the client is too slow."""
        now = asyncio.get_running_loop().time
        self._say(self._session.greeting())
        began_s = last_line_s = now()
        while self._session.state is not State.OVER:
            is_known = self._session.state is not State.SIGN_IN
            async with asyncio.timeout_at(last_line_s + IDLE_S if is_known else began_s + SIGN_IN_S):
                data = await reader.read(READ_BYTES)
            if not data:
                return
            self._buffer.line_bytes_max = self._session.line_bytes_max
            for line in self._buffer.feed(data):
                await self._take(line)
                last_line_s = now()

    async def _take(self, line: Line) -> None:
        for action in self._session.line(line):
            match action:
                case Say():
                    self._say(action)
                case HangUp():
                    break
                case _:
                    await self._run(action.command)
        async with asyncio.timeout(SEND_S):
            await self._writer.drain()
        await asyncio.sleep(PACE_S)

    async def _run(self, command: object) -> None:
        try:
            if isinstance(command, Auth):
                await self._sign_in_as(command)
                return
            assert isinstance(command, Resolve), f"{type(command).__name__} is answered elsewhere"
            asker = replace(self._asker, sample=sample_of(self._writer.get_extra_info("socket")))
            await self._sign_in.authenticate_header(asker.authorization, asker.address)
            answer = await self._resolving.answer(asker, command.asked)
        except GeorelayError as error:
            self._say(refusal(error))
            return
        for row in regions_of(answer):
            self._say(Say(row))
        self._say(ok(tail_of(answer)))

    async def _sign_in_as(self, command: Auth) -> None:
        given = base64.b64encode(f"{command.user}:{command.password}".encode()).decode()
        authorization = f"basic {given}"
        try:
            user = await self._sign_in.authenticate_header(authorization, self._asker.address)
        except GeorelayError as error:
            actions = self._session.not_signed_in(error)
        else:
            self._asker = replace(self._asker, authorization=authorization)
            actions = self._session.signed_in(user)
        for action in actions:
            if isinstance(action, Say):
                self._say(action)

    def _say(self, said: Say) -> None:
        if not self._writer.is_closing():
            self._writer.write(said.text.encode("utf-8", "replace") + b"\r\n")
