"""One connection to the RPC of a `serf agent`: msgpack objects back to back, answers matched by `Seq` (serf-wire 2.9).

An answer is a header {Seq, Error}, then a body where the command has one. Rule: what is buffered is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

READ_BYTES: Final = 64 * 1024
BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
QUEUE_MAX: Final = 10_000


class RpcFault(Exception):
    """The agent refused, or is not one; the text is its own. `body`: what it said beside, {} for nothing."""

    def __init__(self, text: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.body = body or {}


@dataclass(slots=True)
class _Waiting:
    """`has_body`: a body follows each header. `many`: headers come until the end. `fault`: of its header."""

    has_body: bool
    many: bool
    fault: str = ""
    answers: asyncio.Queue[dict[str, Any] | RpcFault] = field(default_factory=lambda: asyncio.Queue(QUEUE_MAX))
    started: bool = False


class RpcConnection:
    """An open connection; `open` makes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._seq = 0
        self._waiting: dict[int, _Waiting] = {}
        self._body_for: int | None = None
        self.is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._read(), name="gossip-rpc-read")

    @classmethod
    async def open(cls, host: str, port: int) -> RpcConnection:
        """Connect. Raises OSError."""
        return cls(*await asyncio.open_connection(host, port))

    def close(self) -> None:
        """Close it; who waits hears RpcFault."""
        if self.is_closed:
            return
        self.is_closed = True
        self._task.cancel()
        self._writer.close()
        self._fail(RpcFault("the connection is closed"))

    def post(self, command: str, arguments: Mapping[str, object] | None) -> int:
        """Send a request whose answer nobody waits for; returns its number."""
        self._seq += 1
        self._waiting.setdefault(self._seq, _Waiting(has_body=False, many=False))
        self._send(self._seq, command, arguments)
        return self._seq

    async def call(
        self, command: str, arguments: Mapping[str, object] | None, *, has_body: bool = True
    ) -> dict[str, Any]:
        """Send a request and return the body of its answer, {} without one. Raises RpcFault."""
        waiting = self._ask(command, arguments, _Waiting(has_body=has_body, many=False))
        return _checked(await waiting.answers.get())

    async def stream(self, command: str, arguments: Mapping[str, object]) -> AsyncIterator[dict[str, Any]]:
        """Send a request and yield the body of every answer to it. Raises RpcFault."""
        waiting = self._ask(command, arguments, _Waiting(has_body=True, many=True))
        number = self._seq
        try:
            while True:
                yield _checked(await waiting.answers.get())
        finally:
            self._waiting.pop(number, None)

    def _ask(self, command: str, arguments: Mapping[str, object] | None, waiting: _Waiting) -> _Waiting:
        if self.is_closed:
            raise RpcFault("the connection is closed")
        self._seq += 1
        self._waiting[self._seq] = waiting
        self._send(self._seq, command, arguments)
        return waiting

    def _send(self, number: int, command: str, arguments: Mapping[str, object] | None) -> None:
        raw: bytes = msgpack.packb({"Command": command, "Seq": number}, use_bin_type=False)
        if arguments is not None:
            raw += msgpack.packb(dict(arguments), use_bin_type=False)
        self._writer.write(raw)

    async def _read(self) -> None:
        unpacker: Any = msgpack.Unpacker(
            raw=False,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            max_buffer_size=BUFFER_BYTES_MAX,
            max_ext_len=0,
        )
        try:
            while data := await self._reader.read(READ_BYTES):
                unpacker.feed(data)
                for value in unpacker:
                    self._take(value)
            self._fail(RpcFault("the agent closed the connection"))
        except (OSError, ValueError, msgpack.exceptions.UnpackException) as error:
            self._fail(RpcFault(f"the agent's answer cannot be read: {error}"))
        finally:
            self.is_closed = True
            self._writer.close()

    def _take(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError("an answer that is no map")  # noqa: TRY004 - the family that `_read` knows
        awaited, self._body_for = self._body_for, None
        is_header = "Seq" in value and "Error" in value
        if awaited is not None and not is_header:
            told = self._waiting[awaited].fault if awaited in self._waiting else ""
            self._deliver(awaited, RpcFault(told, value) if told else value)
            return
        if awaited is not None and awaited in self._waiting and self._waiting[awaited].fault:
            self._deliver(awaited, RpcFault(self._waiting[awaited].fault))
        if not is_header:
            return  # a body beside a refusal that was told already
        number, fault = value.get("Seq"), value.get("Error")
        if not isinstance(number, int):
            raise ValueError("an answer without a number")  # noqa: TRY004
        waiting = self._waiting.get(number)
        if waiting is None:
            # A stream that nobody reads any more: its bodies go on coming.
            self._body_for = number
            return
        if fault and waiting.has_body and not waiting.many:
            waiting.fault, self._body_for = str(fault), number
        elif fault:
            self._deliver(number, RpcFault(str(fault)))
        elif waiting.many and not waiting.started:
            waiting.started = True  # the first header only says that the stream began
        elif waiting.has_body:
            self._body_for = number
        else:
            self._deliver(number, {})

    def _deliver(self, number: int, answer: dict[str, Any] | RpcFault) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        if not waiting.many:
            del self._waiting[number]
        if waiting.answers.full():
            raise ValueError("the agent sends faster than it is read")
        waiting.answers.put_nowait(answer)

    def _fail(self, fault: RpcFault) -> None:
        for waiting in self._waiting.values():
            if not waiting.answers.full():
                waiting.answers.put_nowait(fault)
        self._waiting.clear()


def _checked(answer: dict[str, Any] | RpcFault) -> dict[str, Any]:
    if isinstance(answer, RpcFault):
        raise answer
    return answer
