"""/v1/traces: rows of one writer's traces over HTTP, for a live view that goes on from where it was.

    GET /v1/traces?kinds=                            per kind the oldest and the latest position
    GET /v1/traces/{kind}/end?from=&rows=&until=     how far that many rows reach: plan first, read then
    GET /v1/traces/{kind}?from=&until=&rows=&bytes=  a page of rows as an Arrow IPC stream, lz4; the schema's metadata
                                                     say in georelay.next where the next page begins

Rule 1: files are read and pages are made in one thread, in turn; they leave in pieces of SEND_BYTES, between which
        everybody else on the event loop has a turn.
Rule 2: whoever asks holds one of READERS_MAX places until the answer has left; who finds them taken is told to come
        again, and who does not take the answer within SEND_S is cut off.
Rule 3: rows that were deleted are an error with the oldest position left, never a page with fewer rows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from aiohttp import web

from georelay.errors import BadRequest, TracesExpired, Unavailable
from georelay.limits import KIB, MIB
from georelay.trace.kinds import TraceKind
from georelay.trace.position import NEXT_KEY, PAGE_CONTENT_TYPE, TracePosition
from mesh.tracing.pages import Page, PositionExpired, PositionsReversed

if TYPE_CHECKING:
    from mesh.tracing.shelf import TraceShelf

PAGE_ROWS: Final = 20_000
PAGE_ROWS_MAX: Final = 100_000
PAGE_BYTES: Final = 4 * MIB
PAGE_BYTES_MAX: Final = 16 * MIB
REACH_ROWS_MAX: Final = 10**9
READERS_MAX: Final = 16
SEND_BYTES: Final = 64 * KIB
SEND_S: Final = 30.0
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)

T = TypeVar("T")
log = structlog.get_logger()


class TracePages:
    """Handlers of /v1/traces.

    Args:
        shelf: what to read from; None where no traces are written.
        writer: what the answer says of whoever writes: `region`, `broker` (the number in its files' names).
        kinds: what is served.
        may_read: refuses who may not read traces, by raising a GeorelayError.
        send_s: see SEND_S.
    """

    def __init__(
        self,
        shelf: TraceShelf | None,
        *,
        writer: Mapping[str, Any],
        kinds: Iterable[TraceKind] = tuple(TraceKind),
        may_read: Callable[[web.Request], None] = lambda _: None,
        send_s: float = SEND_S,
    ) -> None:
        self._shelf = shelf
        self._writer = dict(writer)
        self._kinds = {kind.value: kind for kind in kinds}
        self._may_read = may_read
        self._send_s = send_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace-reader")
        self._readers = 0

    async def positions(self, request: web.Request) -> web.Response:
        """Answer where each kind begins and ends. Raises GeorelayError, like the others."""
        self._may_read(request)
        asked = request.query.get("kinds", ",".join(self._kinds)).split(",")
        kinds = dict.fromkeys(map(self._kind, asked))

        def look(shelf: TraceShelf) -> dict[str, Any]:
            return {
                kind.value: {"oldest": str(shelf.oldest(kind)), "latest": str(shelf.latest(kind))} for kind in kinds
            }

        found: dict[str, Any] = {}
        if self._shelf is not None:
            async with self._place():
                found = await self._in_turn(look)
        return web.json_response(self._writer | {"is_writing": self._shelf is not None, "kinds": found})

    async def end(self, request: web.Request) -> web.Response:
        """Answer how far some rows reach."""
        self._may_read(request)
        kind, start = self._kind(request.match_info["kind"]), _position(request, "from")
        until = _position(request, "until") if "until" in request.query else None
        rows_max = _number(request, "rows", REACH_ROWS_MAX, most=REACH_ROWS_MAX)
        async with self._place():
            reach = await self._in_turn(lambda shelf: shelf.reach(kind, start, rows_max=rows_max, until=until))
        return web.json_response({"end": str(reach.end), "rows": reach.rows, "has_more": reach.has_more})

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Answer with rows."""
        self._may_read(request)
        kind = self._kind(request.match_info["kind"])
        start, until = _position(request, "from"), _position(request, "until")
        rows_max = _number(request, "rows", PAGE_ROWS, most=PAGE_ROWS_MAX)
        bytes_max = _number(request, "bytes", PAGE_BYTES, most=PAGE_BYTES_MAX)

        def read(shelf: TraceShelf) -> memoryview:
            return encode_page(kind, shelf.page(kind, start, until, rows_max=rows_max, bytes_max=bytes_max))

        async with self._place():
            return await self._send(request, await self._in_turn(read))

    async def _send(self, request: web.Request, page: memoryview) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": PAGE_CONTENT_TYPE})
        answer.content_length = len(page)
        try:
            async with asyncio.timeout(self._send_s):
                await answer.prepare(request)
                for begin in range(0, len(page), SEND_BYTES):
                    await answer.write(page[begin : begin + SEND_BYTES])
                    await asyncio.sleep(0)  # a write that finds room returns at once
        except TimeoutError:
            log.warning("trace.reader_cut_off", peer=request.remote, page_bytes=len(page), after_s=self._send_s)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:  # the status has left: there is nobody to tell, and nothing to tell
            log.info("trace.reader_left", peer=request.remote)
        return answer

    def _kind(self, word: str) -> TraceKind:
        if word not in self._kinds:
            raise BadRequest(f"kind: one of {', '.join(self._kinds)}, not {word[:20]!r}")
        return self._kinds[word]

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._readers >= READERS_MAX:
            raise Unavailable(f"{READERS_MAX} readers of traces are served already; try again")
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    async def _in_turn(self, look: Callable[[TraceShelf], T]) -> T:
        shelf = self._shelf
        if shelf is None:
            raise BadRequest("no traces are kept here: set trace_dir in the configuration")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, look, shelf)
        except PositionExpired as error:
            raise TracesExpired(
                f"{error}: its rows were deleted (trace_retention_ms, trace_retention_bytes)"
            ) from error
        except PositionsReversed as error:
            raise BadRequest(f"from: {error}") from error
        except OSError as error:
            raise Unavailable(f"the traces cannot be read: {error.strerror or error}") from error


def encode_page(kind: TraceKind, page: Page) -> memoryview:
    """Return a page as an Arrow IPC stream."""
    import pyarrow as pa  # only where there are traces

    from mesh.tracing.shelf import PAGE_SCHEMAS

    schema = PAGE_SCHEMAS[kind].with_metadata({NEXT_KEY: str(page.next).encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)  # the event loop needs the other cores
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        for batch in page.batches:
            stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _position(request: web.Request, name: str) -> TracePosition:
    try:
        return TracePosition.parse(request.query.get(name, ""))
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error


def _number(request: web.Request, name: str, default: int, *, most: int) -> int:
    text = request.query.get(name, str(default))
    if _NUMBER.fullmatch(text) is None or not 1 <= int(text) <= most:
        raise BadRequest(f"{name}: a whole number 1..{most}, not {text[:20]!r}")
    return int(text)
