"""/v1/traces: rows of this broker's traces over HTTP, for a live view that goes on from where it was.

    GET /v1/traces?kinds=                            per kind the oldest and the latest position
    GET /v1/traces/{kind}/end?from=&rows=&until=     how far that many rows reach: plan first, read then
    GET /v1/traces/{kind}?from=&until=&rows=&bytes=  a page of rows as an Arrow IPC stream, lz4; the schema's metadata
                                                     say in georelay.next where the next page begins

Rule 1: traces name every topic and group: they need DESCRIBE of the cluster, as metrics do.
Rule 2: files are read in one thread, in turn; who finds READERS_MAX others waiting is told to come again.
Rule 3: rows that were deleted are an error with the oldest position left, never a page with fewer rows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import pyarrow as pa
from aiohttp import web

from georelay.errors import BadRequest, TracesExpired, Unavailable
from georelay.limits import MIB
from georelay.trace.position import NEXT_KEY, PAGE_CONTENT_TYPE, TracePosition
from georelay.trace.schema import TraceKind
from mesh.tracing.shelf import PAGE_SCHEMAS, Page, PositionExpired, TraceShelf
from region.api.principal import PRINCIPAL
from region.api.records_http import json_response
from region.security.access import Access, Operation, Resource

PAGE_ROWS: Final = 20_000
PAGE_ROWS_MAX: Final = 100_000
PAGE_BYTES: Final = 4 * MIB
PAGE_BYTES_MAX: Final = 16 * MIB
REACH_ROWS_MAX: Final = 10**9
READERS_MAX: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_KINDS: Final = {kind.value: kind for kind in TraceKind}

T = TypeVar("T")


class TracesHttp:
    """Handlers of /v1/traces.

    Args:
        shelf: what to read from; None at a broker that writes no traces.
        region, broker: of this broker.
    """

    def __init__(self, shelf: TraceShelf | None, *, access: Access, region: str, broker: int) -> None:
        self._shelf = shelf
        self._access = access
        self._region = region
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace-reader")
        self._readers = 0

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/traces", self._positions),
            web.get("/v1/traces/{kind}/end", self._end),
            web.get("/v1/traces/{kind}", self._page),
        ]

    async def _positions(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        asked = request.query.get("kinds", ",".join(_KINDS)).split(",")
        kinds = [_kind(word) for word in asked] if self._shelf is not None else []

        def look(shelf: TraceShelf) -> dict[str, Any]:
            return {
                kind.value: {"oldest": str(shelf.oldest(kind)), "latest": str(shelf.latest(kind))} for kind in kinds
            }

        found = {} if self._shelf is None else await self._in_turn(look)
        return json_response(
            {"region": self._region, "broker": self._broker, "is_writing": self._shelf is not None, "kinds": found}
        )

    async def _end(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        kind, start = _kind(request.match_info["kind"]), _position(request, "from")
        until = _position(request, "until") if "until" in request.query else None
        rows_max = _number(request, "rows", REACH_ROWS_MAX, most=REACH_ROWS_MAX)
        reach = await self._in_turn(lambda shelf: shelf.reach(kind, start, rows_max=rows_max, until=until))
        return json_response({"end": str(reach.end), "rows": reach.rows, "has_more": reach.has_more})

    async def _page(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        kind, start, until = _kind(request.match_info["kind"]), _position(request, "from"), _position(request, "until")
        rows_max = _number(request, "rows", PAGE_ROWS, most=PAGE_ROWS_MAX)
        bytes_max = _number(request, "bytes", PAGE_BYTES, most=PAGE_BYTES_MAX)

        def read(shelf: TraceShelf) -> bytes:
            return encode_page(kind, shelf.page(kind, start, until, rows_max=rows_max, bytes_max=bytes_max))

        return web.Response(body=await self._in_turn(read), content_type=PAGE_CONTENT_TYPE)

    async def _in_turn(self, look: Callable[[TraceShelf], T]) -> T:
        shelf = self._shelf
        if shelf is None:
            raise BadRequest("this broker keeps no traces: set trace_dir in its configuration")
        if self._readers >= READERS_MAX:
            raise Unavailable(f"{READERS_MAX} readers of traces wait already; try again")
        self._readers += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, look, shelf)
        except PositionExpired as error:
            raise TracesExpired(
                f"{error}: its rows were deleted (trace_retention_ms, trace_retention_bytes)"
            ) from error
        except OSError as error:
            raise Unavailable(f"the traces cannot be read: {error.strerror or error}") from error
        finally:
            self._readers -= 1


def encode_page(kind: TraceKind, page: Page) -> bytes:
    """Return a page as an Arrow IPC stream."""
    schema = PAGE_SCHEMAS[kind].with_metadata({NEXT_KEY: str(page.next).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        for batch in page.batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _kind(word: str) -> TraceKind:
    if word not in _KINDS:
        raise BadRequest(f"kind: one of {', '.join(_KINDS)}, not {word[:20]!r}")
    return _KINDS[word]


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
