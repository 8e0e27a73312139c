"""Carries one HTTP request to a broker of the nearest ready region and its answer back.

Rule 1: another broker is tried only when the first surely did not process the request (no connection came
about) or when doing it twice changes nothing (GET).
Rule 2: when the answer to anything else is lost, the client is told exactly that: 504 OUTCOME_UNKNOWN.
Rule 3: request bodies are streamed, HTTP_BODY_BYTES_MAX at most, whether or not they declare a length.
Rule 4: long polls never take the connections that publishes need: reads have a pool of their own. In neither pool does
one caller take the connections of all others (gateway.routing.places), and who gets none in time was surely not
processed.
Rule 5: records are read in one region per request, the nearest unless `?region=` names another: the plain name of a
homes=every topic is another stream in every region, so an offset of one means nothing in the next.
Rule 6: answers to GET are streamed; others are small and read whole, so that a broken one falls under rule 2.
Rule 7: event streams last as long as the broker says at least every EVENTS_SILENCE_S that it is there. One of records
that did not name its region ends when that is drained for clients: whoever reads it comes back with its Last-Event-ID.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Final

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from gateway.metrics import GatewayMetrics
from gateway.rest.caller import authorization_of, client_of
from gateway.rest.leaving import LeavingClients
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.places import Callers, Places
from gateway.routing.router import Router
from georelay.credentials import CLIENT_HEADER
from georelay.errors import OutcomeUnknown, TooLarge, Unavailable
from georelay.limits import HTTP_BODY_BYTES_MAX

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 30.0  # on top of the wait the client asked for
GEO_DEADLINE_MS: Final = 30_000  # of a publish at a geo level without one
GEO_DEADLINE_MS_MAX: Final = 300_000
WAIT_MS_MAX: Final = 60_000  # how much asked-for waiting is believed
WAIT_DIGITS_MAX: Final = 19  # Python refuses to read thousands of them
ANSWER_BYTES_MAX: Final = 4 * HTTP_BODY_BYTES_MAX  # REST_RECORDS_MAX records as base64 text, with room
EVENTS_SILENCE_S: Final = 45.0  # three times what a broker is silent for
EVENTS_SUFFIX: Final = "/events"
REQUEST_HEADERS: Final = ("Content-Type", "Accept", "Last-Event-ID")
RESPONSE_HEADERS: Final = ("Content-Type", "Cache-Control", "WWW-Authenticate", "Retry-After", "Location", "Allow")
BUSY_STATUS: Final = 503
UNAUTHENTICATED_STATUS: Final = 401
NOT_LET_IN: Final = frozenset({UNAUTHENTICATED_STATUS, BUSY_STATUS})  # a busy broker has not looked at the password
LEAVES: Final = web.RequestKey("leaves", asyncio.Future[None])  # done when the stream has to leave its region

log = structlog.get_logger()


class _Body:
    """The client's body, counted while it is streamed."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.over_limit = False
        if (request.content_length or 0) > HTTP_BODY_BYTES_MAX:
            raise TooLarge(f"a body of {request.content_length} bytes is over the limit of {HTTP_BODY_BYTES_MAX}")

    def stream(self) -> AsyncIterator[bytes] | None:
        """Return the chunks, or None when the request has no body."""
        return self._chunks() if self._request.body_exists else None

    async def _chunks(self) -> AsyncIterator[bytes]:
        size_bytes = 0
        async for chunk in self._request.content.iter_any():
            size_bytes += len(chunk)
            if size_bytes > HTTP_BODY_BYTES_MAX:
                self.over_limit = True
                raise aiohttp.ClientPayloadError("body over the limit")  # breaks off the request to the broker
            yield chunk


class Proxy:
    """Forwards requests; the sessions have neither cookies nor a total timeout of their own."""

    def __init__(
        self,
        router: Router,
        *,
        reads: aiohttp.ClientSession,
        writes: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        callers: Callers,
        connections_max: int,
        scheme: str = "http",
    ) -> None:
        """`connections_max`: of each of the two sessions."""
        self._scheme = scheme
        self._callers = callers
        self._read_places, self._write_places = Places(connections_max), Places(connections_max)
        self._router = router
        self._leaving = LeavingClients(router)
        self._reads = reads
        self._writes = writes
        self._metrics = metrics

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Answer `request` with what a broker says; `?region=` restricts the choice to one region.

        Raises:
            BadRequest: unknown region. TooLarge: body over the limit. Unavailable: no broker took it, nothing
            was stored. OutcomeUnknown: it was sent and the answer was lost.
        """
        region = request.query.get("region")
        return await self._forward(
            request,
            self._router.candidates(region, client=client_of(request)),
            none_ready=f"region {region} is not ready" if region else "no region is ready; try again",
            advice="try again",
        )

    async def read_records(self, request: web.Request) -> web.StreamResponse:
        """Answer a GET of records from one region (rule 5). Raises as `forward`."""
        if "region" in request.query:
            return await self.forward(request)
        client = client_of(request)
        nearest = self._router.first_for(client)
        with self._leaving.watched(client, nearest or "") if _is_tail(request) else nullcontext() as leaves:
            if leaves is not None:
                request[LEAVES] = leaves
            return await self._forward(
                request,
                self._router.candidates(nearest) if nearest is not None else (),
                none_ready="no region is ready; try again",
                advice=f"try again, or give region= to read elsewhere than in the nearest region, {nearest}:"
                " there the offsets of a homes=every topic are other records",
            )

    async def in_one_region(self, request: web.Request) -> web.StreamResponse:
        """Answer what is about something that one region has, such as a consumer group; raises as `forward`.

        In another region than the one asked for (`?region=`, else the nearest) it is another thing or none.
        """
        region = request.query.get("region") or self._router.first_for(client_of(request))
        return await self._forward(
            request,
            self._router.candidates(region) if region is not None else (),
            none_ready=f"region {region} is not ready" if region else "no region is ready; try again",
            advice=f"try again; only region {region} was asked",
        )

    async def _forward(
        self, request: web.Request, candidates: Sequence[BrokerEndpoints], *, none_ready: str, advice: str
    ) -> web.StreamResponse:
        """Try the candidates in turn; without any the client reads `none_ready`, when none takes it `advice`."""
        if not candidates:
            raise Unavailable(none_ready)
        places = self._read_places if _is_patient(request) else self._write_places
        caller = self._callers.of(authorization_of(request), request.remote or "")
        async with places.of(caller, patience_s=CONNECT_TIMEOUT_S):
            return await self._ask_in_turn(request, candidates, advice)

    async def _ask_in_turn(
        self, request: web.Request, candidates: Sequence[BrokerEndpoints], advice: str
    ) -> web.StreamResponse:
        body = _Body(request)
        repeatable = request.method == "GET"
        for position, broker in enumerate(candidates):
            last = position == len(candidates) - 1
            try:
                answer = await self._attempt(request, body, broker, pass_busy=last or not repeatable)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                answer = None  # no connection: surely not processed
            except (aiohttp.ClientError, TimeoutError) as error:
                if body.over_limit:
                    raise TooLarge(f"the body is over the limit of {HTTP_BODY_BYTES_MAX} bytes") from error
                if not repeatable:
                    log.warning("answer.lost", broker=broker.id, method=request.method, error=type(error).__name__)
                    raise OutcomeUnknown(
                        f"the connection to broker {broker.id} was lost before it answered:"
                        " the request may have taken effect"
                    ) from error
                answer = None
            if answer is not None:
                return answer
            self._metrics.failovers.labels("http").inc()
        raise Unavailable(f"none of {len(candidates)} brokers took the request; {advice}")

    async def _attempt(
        self, request: web.Request, body: _Body, broker: BrokerEndpoints, *, pass_busy: bool
    ) -> web.StreamResponse | None:
        """Ask one broker; None when it is busy and another may be asked."""
        session = self._reads if _is_patient(request) else self._writes
        async with session.request(
            request.method,
            _broker_url(self._scheme, request, broker),
            headers=_headers(request),
            data=body.stream(),
            allow_redirects=False,
            timeout=_timeout(request),
        ) as answer:
            if answer.status not in NOT_LET_IN:
                self._callers.let_in(authorization_of(request))
            if answer.status == BUSY_STATUS and not pass_busy:
                return None
            headers = {name: answer.headers[name] for name in RESPONSE_HEADERS if name in answer.headers}
            if request.method != "GET":
                return web.Response(status=answer.status, headers=headers, body=await read_bounded(answer))
            return await _stream_back(request, answer, headers)


async def read_bounded(answer: aiohttp.ClientResponse) -> bytes:
    """Return a whole answer (aiohttp.ClientPayloadError: over ANSWER_BYTES_MAX)."""
    whole = bytearray()
    async for chunk in answer.content.iter_any():
        whole += chunk
        if len(whole) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"an answer over {ANSWER_BYTES_MAX} bytes")
    return bytes(whole)


async def _stream_back(
    request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
) -> web.StreamResponse:
    """Copy the answer as it comes. Once it has begun, a break can only be shown by breaking off as well."""
    chunks = answer.content.iter_any()
    first = await anext(chunks, b"")  # before that, another broker can still be asked
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = answer.content_length
    await response.prepare(request)
    leaves = request.get(LEAVES)
    if leaves is not None:
        leaves.add_done_callback(lambda _: answer.close())
    try:
        await response.write(first)
        async for chunk in chunks:
            await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        if leaves is not None and leaves.done():  # an event that is half sent is none: its end has not come
            await response.write_eof()
            return response
        log.warning("answer.broken_off", path=request.path, error=type(error).__name__)
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def _headers(request: web.Request) -> dict[str, str]:
    """Return what of the client's headers a broker gets, and who asks."""
    headers = {name: request.headers[name] for name in REQUEST_HEADERS if name in request.headers}
    authorization = authorization_of(request)
    if authorization is not None:
        headers["Authorization"] = authorization
    return headers | {"Accept-Encoding": "identity", CLIENT_HEADER: request.remote or ""}


def _broker_url(scheme: str, request: web.Request, broker: BrokerEndpoints) -> URL:
    """Return the same path and query at the broker, without `region`, which only the gateway reads."""
    kept = [(name, value) for name, value in request.query.items() if name != "region"]
    return URL(f"{scheme}://{broker.admin}{request.rel_url.raw_path}", encoded=True).with_query(kept)


def _timeout(request: web.Request) -> aiohttp.ClientTimeout:
    """Return how long a broker may take; `connect` counts the wait for a free connection too."""
    if _is_tail(request):
        return aiohttp.ClientTimeout(total=None, sock_read=EVENTS_SILENCE_S, connect=CONNECT_TIMEOUT_S)
    return aiohttp.ClientTimeout(total=_wait_s(request) + ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)


def _is_tail(request: web.Request) -> bool:
    return request.method == "GET" and request.path.endswith(EVENTS_SUFFIX)


def _is_patient(request: web.Request) -> bool:
    """Return whether a request reads, or may wait for long."""
    return request.method == "GET" or _wait_s(request) > 0


def _wait_s(request: web.Request) -> float:
    """Return how long a broker may wait before it answers: for records, or for other regions to have a publish."""
    if "durability" in request.query:
        return _seconds(request.query.get("deadline_ms", str(GEO_DEADLINE_MS)), GEO_DEADLINE_MS_MAX)
    return _seconds(request.query.get("wait_ms", ""), WAIT_MS_MAX)


def _seconds(given_ms: str, most_ms: int) -> float:
    is_number = given_ms.isascii() and given_ms.isdigit() and len(given_ms) <= WAIT_DIGITS_MAX
    return min(int(given_ms), most_ms) / 1000 if is_number else 0.0
