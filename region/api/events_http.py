"""GET /v1/topics/{topic}/events: records as server-sent events, for who only looks; named consumers' events as well.

Rule 1: the `id` of the last event of a stretch says where the stream stands. Who comes back with it as `Last-Event-ID`,
        as browsers do, goes on behind it; no broker keeps anything of it.
Rule 2: a client that does not read is not read for, and is cut off after SEND_S. While there is no room for what comes
        next (answer_room), a stream says that it lives.
Rule 3: rights and the sign-in are asked for before each stretch, and at least every SILENCE_MS.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web

from georelay.errors import BadRequest, Busy, GeorelayError, Unauthenticated
from mesh.listening.acceptor import cut_off
from region.api.answer_room import AnswerRoom
from region.api.consumer_requests import STARTS, chosen_partitions, event_id, parse_event_id
from region.api.principal import PRINCIPAL
from region.api.problem import problem_of
from region.api.record_answers import SEND_S, RecordTexts
from region.api.records_http import RecordsHttp, checked_query
from region.api.tails import RETRY_S, Tail, Tails
from region.controller.topic import Homes
from region.coordination.shares_core import Room, Shares
from region.kafka.ports import Cluster, TopicView
from region.security.access import Access, Operation, Principal, Resource

log = structlog.get_logger()

EVENT_STREAMS_MAX: Final = 500  # of one broker
EVENT_RECORDS: Final = 100  # written at a time
SILENCE_MS: Final = 15_000  # after so long without a record a stream says that it lives
PARAMETERS: Final = frozenset({"partitions", "offset", "region"})


class EventsHttp:
    """The handler, and what streams of other handlers are served by.

    Args:
        is_still_valid: whether what a principal signed in by still stands, asked while a stream lasts.
    """

    def __init__(
        self,
        tails: Tails,
        records: RecordsHttp,
        *,
        cluster: Cluster,
        access: Access,
        is_still_valid: Callable[[Principal], bool] = lambda _: True,
    ) -> None:
        self._tails = tails
        self._records = records
        self._cluster = cluster
        self._access = access
        self._is_still_valid = is_still_valid
        self._streams = Shares(EVENT_STREAMS_MAX)

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [web.get("/v1/topics/{topic}/events", self._events)]

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send records from `offset` on: earliest, or latest (the default)."""
        topic, principal = request.match_info["topic"], request[PRINCIPAL]

        def check() -> None:
            self._access.check(principal, Operation.READ, Resource.TOPIC, topic)

        check()
        query = checked_query(request.query, self._cluster.region, PARAMETERS)
        at = STARTS.get(query.get("offset", "latest"))
        if at is None:
            raise BadRequest("offset: give earliest or latest; a Last-Event-ID goes on where a stream ended")
        seen, epochs = parse_event_id(request.headers.get("Last-Event-ID", ""))

        def chosen(view: TopicView) -> dict[int, int]:
            return {partition: seen.get(partition, at) for partition in chosen_partitions(query, view)}

        tail = await self._tails.begin(topic, chosen)
        self._tails.check_epochs(tail, {number: epoch for number, epoch in epochs.items() if number in tail.positions})
        is_one = tail.view.homes is Homes.ONE  # else a place here may be another one where the client comes back
        begins = event_id(tail.positions, tail.epochs) if is_one and not seen else ""
        return await self.serve(request, tail, check, begins=begins)

    async def serve(
        self, request: web.Request, tail: Tail, check: Callable[[], None], *, begins: str = ""
    ) -> web.StreamResponse:
        """Send what a tail reads until the client leaves, or an event `error` says why it ended.

        Args:
            check: raises when the client may not read this any more.
            begins: the id that a client comes back with before it has seen an event; "" for none.

        Raises:
            Busy: there are too many streams.
        """
        principal = request[PRINCIPAL]
        self._check_room(principal)
        self._streams.add(principal.name, 1)
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
            await response.prepare(request)
            await response.write(b": georelay\n" + (f"id: {begins}\n".encode() if begins else b"") + b"\n")
            await self._send(response, tail, principal, check)
        except (ConnectionError, TimeoutError) as error:
            log.debug("event_stream.left", topic=tail.view.name, error=repr(error))
            cut_off(request.transport)
        finally:
            self._streams.add(principal.name, -1)
        return response

    def _check_room(self, principal: Principal) -> None:
        room = self._streams.look(principal.name, 1)
        if room is Room.FULL:
            raise Busy(f"this broker has {EVENT_STREAMS_MAX} event streams, its maximum; ask another one or poll")
        if room is Room.OWN_SHARE_FULL:
            held = self._streams.held_by(principal.name)
            raise Busy(f"{principal.name} has {held} event streams here, as many as are free: end some, or poll")

    async def _send(
        self, response: web.StreamResponse, tail: Tail, principal: Principal, check: Callable[[], None]
    ) -> None:
        room = AnswerRoom(principal.name)
        try:
            while True:
                out = RecordTexts(records_max=EVENT_RECORDS, room=room)
                tail.skipped = []
                try:
                    await self._tails.next(tail, out, wait_ms=SILENCE_MS)
                except Busy:  # no room, mostly: the client has not taken other answers. The tail has not moved
                    room.end()
                    out = RecordTexts(records_max=EVENT_RECORDS, room=room)
                    await asyncio.sleep(RETRY_S)  # others that are busy say so at once
                check()
                if not self._is_still_valid(principal):
                    raise Unauthenticated("the sign-in has ended: sign in again")
                for row in tail.skipped:
                    out.say("skipped", json.dumps(row).encode())
                raw = out.events(event_id(tail.positions, tail.epochs))
                del out
                room.keep(size_bytes := len(raw))
                async with asyncio.timeout(SEND_S):
                    await response.write(raw)  # waits for a client that reads slowly
                del raw
                room.end()
                await self._records.pause_for(principal, size_bytes)
        except GeorelayError as error:
            await response.write(b"event: error\ndata: " + problem_of(error) + b"\n\n")
        finally:
            room.end()
