"""One HTTP connection to a broker, on which it is asked again and again whether it is ready.

Not aiohttp's client: a gateway asks each broker of the mesh once in 0.75 s, for ever, and a request through it takes
several times the CPU of these lines. Answers are those of HTTP/1.1 with a Content-Length; after any other the
connection is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from georelay.limits import KIB
from georelay.tls import TlsContexts
from mesh.listening.link_ends_core import endpoint_of

HEAD_BYTES_MAX: Final = 16 * KIB
BODY_BYTES_MAX: Final = 64 * KIB
_HEAD_END: Final = b"\r\n\r\n"


class NotReached(Exception):
    """Nobody takes connections there."""


class BadAnswer(Exception):
    """What came back is no answer, or none that is read here; or the connection ended first."""


class ProbeAnswer(NamedTuple):
    """What a broker said.

    `headers` by their names in small letters; `rtt_ns` from the request to the head of the answer, a new connection
    included; `warm`: there was no new connection.
    """

    status: int
    headers: dict[str, str]
    rtt_ns: int
    warm: bool


class ProbeLine:
    """Asks one path of one broker.

    Args:
        address: "host:port" of its admin listener.
        path: what is asked for, such as "/readyz".
        tls: its newest context is taken for each connection; None: plain text.
    """

    def __init__(self, address: str, path: str, *, monotonic_ns: Callable[[], int], tls: TlsContexts | None) -> None:
        self._endpoint = endpoint_of(address)
        self._request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\n\r\n".encode()
        self._monotonic_ns = monotonic_ns
        self._tls = tls
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> ProbeAnswer:
        """Ask once, over the connection that there is, or a new one where it has ended meanwhile.

        Raises:
            NotReached, BadAnswer: there was no answer; the next one comes over a new connection. So it does when this
                is cancelled.
        """
        if self._ends is not None:
            try:
                answer = await self._exchange(warm=True)
            except BadAnswer as error:
                if error.__cause__ is None:
                    raise
                # It ended while nobody asked: that says nothing of the broker.
            else:
                return answer
        started_ns = self._monotonic_ns()
        await self._connect()
        answer = await self._exchange(warm=False)
        return answer._replace(rtt_ns=self._monotonic_ns() - started_ns)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None

    async def _connect(self) -> None:
        if self._endpoint is None:
            raise NotReached("the address is not host:port")
        context = None if self._tls is None else self._tls.client()
        try:
            self._ends = await asyncio.open_connection(*self._endpoint, ssl=context, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise NotReached(str(error)) from error

    async def _exchange(self, *, warm: bool) -> ProbeAnswer:
        assert self._ends is not None
        reader, writer = self._ends
        is_whole = False
        started_ns = self._monotonic_ns()
        try:
            writer.write(self._request)
            status, headers = _read_head(await reader.readuntil(_HEAD_END))
            rtt_ns = self._monotonic_ns() - started_ns
            size = _body_bytes(headers)
            await reader.readexactly(size)
            is_whole = headers.get("connection", "").lower() != "close"
        except (OSError, asyncio.IncompleteReadError) as error:
            raise BadAnswer("the connection ended") from error
        except asyncio.LimitOverrunError:
            raise BadAnswer(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes") from None
        finally:
            if not is_whole:
                self.close()
        return ProbeAnswer(status, headers, rtt_ns, warm)


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not (status.isascii() and status.isdigit()):
        raise BadAnswer(f"no HTTP/1.1 answer: {first[:64]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"no header: {line[:64]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(status), headers


def _body_bytes(headers: dict[str, str]) -> int:
    text = headers.get("content-length", "")
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(BODY_BYTES_MAX)) or int(text) > BODY_BYTES_MAX:
        raise BadAnswer(f"an answer of {text[:16] or 'no known'} bytes: {BODY_BYTES_MAX} are read at most")
    return int(text)
