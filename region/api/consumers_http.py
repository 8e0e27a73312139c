"""Named consumers over HTTP: who reads without keeping an offset. The position is a consumer group's committed offset.

Rule 1: handing records out moves no position; only an acknowledgement does, and never back. So delivery is at least
        once, and every broker of the region goes on where the last acknowledgement was.
Rule 2: a name has one reader at a time: two of them are handed the same records. Work that is shared is for queues.
Rule 3: a name is a group without members; positions of a group that has some are theirs and refused.
Rule 4: what retention removed before it was handed out is said (`skipped`), never stepped over silently.
Rule 5: nothing is created by a GET; without a kept position reading begins at the log start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest, OffsetOutOfRange
from georelay.limits import REST_RECORDS_MAX
from region.api.answer_room import AnswerRoom
from region.api.bodies import read_wish
from region.api.consumer_requests import (
    INT64_MAX,
    chosen_partitions,
    parse_event_id,
    parse_positions,
    parse_start,
    positions_json,
)
from region.api.events_http import EventsHttp
from region.api.permits import existing_topic
from region.api.principal import PRINCIPAL
from region.api.reading import LATEST
from region.api.record_answers import RecordsAnswer
from region.api.records_http import (
    RECORDS_DEFAULT,
    WAIT_MS_MAX,
    RecordsHttp,
    checked_query,
    json_response,
    query_number,
)
from region.api.tails import Tail, Tails
from region.coordination.coordinators import Coordinators
from region.groups.group_client import GroupClient
from region.groups.settings import GROUP_ID_CHARS_MAX
from region.kafka.ports import Cluster, TopicView
from region.security.access import Access, Operation, Principal, Resource

PARAMETERS: Final = frozenset({"partitions", "max", "wait_ms", "region"})
EVENT_PARAMETERS: Final = frozenset({"partitions", "region"})


class ConsumersHttp:
    """Handlers of /v1/topics/{topic}/consumers/{consumer}."""

    def __init__(
        self,
        records: RecordsHttp,
        *,
        tails: Tails,
        events: EventsHttp,
        coordinators: Coordinators,
        cluster: Cluster,
        access: Access,
    ) -> None:
        self._records = records
        self._tails = tails
        self._event_streams = events
        self._coordinators = coordinators
        self._cluster = cluster
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.post("/v1/topics/{topic}/consumers/{consumer}", self._start),
            web.get("/v1/topics/{topic}/consumers/{consumer}/records", self._read),
            web.get("/v1/topics/{topic}/consumers/{consumer}/events", self._events),
            web.post("/v1/topics/{topic}/consumers/{consumer}/acknowledge", self._acknowledge),
        ]

    # --- handlers ---------------------------------------------------------------------------------

    async def _start(self, request: web.Request) -> web.Response:
        """Keep a position for every partition that has none: the log start, or the end of now."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        at = await read_wish(request, parse_start)
        client = self._client(consumer, principal)
        kept = await self._kept(client, view.name, range(view.partitions))
        began = {
            partition: await self._tails.place(view, partition, at)
            for partition, position in kept.items()
            if position < 0
        }
        if began:
            await client.commit(view.name, began)
        return json_response(_kept_json(view, consumer, {**kept, **began}))

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """Hand out what comes next; 204 when nothing comes within `wait_ms`."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        query = checked_query(request.query, self._cluster.region, PARAMETERS)
        most = query_number(query, "max", default=RECORDS_DEFAULT, low=1, high=REST_RECORDS_MAX)
        wait_ms = query_number(query, "wait_ms", default=0, high=WAIT_MS_MAX)
        tail = await self._begin(view, consumer, principal, chosen_partitions(query, view))
        head, room = {"topic": view.name, "consumer": consumer}, AnswerRoom(principal.name)
        out = RecordsAnswer(request, head, records_max=most, room=room)
        try:
            await self._tails.next(tail, out, wait_ms=wait_ms)
            self._checked(request)  # it may have waited for long
            if not tail.has_found(out):
                return web.Response(status=204)
            room.keep(out.held_bytes)
            await self._records.pause_for(principal, out.size_bytes)
            skipped = {"skipped": tail.skipped} if tail.skipped else {}
            return await out.end({"positions": positions_json(tail.moved), **skipped})
        finally:
            room.end()

    async def _acknowledge(self, request: web.Request) -> web.Response:
        """Let the consumer go on at these positions; one that is behind what is kept changes nothing."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        asked = await read_wish(request, lambda body: parse_positions(body, view))
        client = self._client(consumer, principal)
        kept = await self._kept(client, view.name, asked)
        ahead = {partition: offset for partition, offset in asked.items() if offset > kept[partition]}
        for partition, offset in ahead.items():
            await self._check_reached(view, partition, offset)
        if ahead:
            await client.commit(view.name, ahead)
        return json_response(_kept_json(view, consumer, {**kept, **ahead}))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send records as server-sent events until the client leaves, or an event `error` says why it ended."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        query = checked_query(request.query, self._cluster.region, EVENT_PARAMETERS)
        tail = await self._begin(view, consumer, principal, chosen_partitions(query, view))
        seen, epochs = parse_event_id(request.headers.get("Last-Event-ID", ""))
        ahead = {
            number: offset for number, offset in seen.items() if offset >= tail.positions.get(number, INT64_MAX + 1)
        }
        tail.positions.update(ahead)
        self._tails.check_epochs(tail, {number: epoch for number, epoch in epochs.items() if number in ahead})
        return await self._event_streams.serve(request, tail, lambda: self._check(principal, view.name, consumer))

    # --- reading ----------------------------------------------------------------------------------

    async def _begin(self, view: TopicView, consumer: str, principal: Principal, partitions: list[int]) -> Tail:
        kept = await self._kept(self._client(consumer, principal), view.name, partitions)
        return Tail(view, kept, group=consumer)

    async def _check_reached(self, view: TopicView, partition: int, offset: int) -> None:
        end = await self._tails.place(view, partition, LATEST)
        if offset > end:
            raise OffsetOutOfRange(f"partition {partition} ends at {end}: {offset} was handed out to nobody")

    # --- positions --------------------------------------------------------------------------------

    def _client(self, consumer: str, principal: Principal) -> GroupClient:
        return GroupClient(self._coordinators, consumer, principal.name)

    @staticmethod
    async def _kept(client: GroupClient, topic: str, partitions: Any) -> dict[int, int]:
        return await client.offsets(topic, sorted(partitions))

    def _checked(self, request: web.Request) -> tuple[Principal, str]:
        """Return who asks and for which consumer (AccessDenied, BadRequest)."""
        principal, consumer = request[PRINCIPAL], request.match_info["consumer"]
        if len(consumer) > GROUP_ID_CHARS_MAX:
            raise BadRequest(f"consumer: {len(consumer)} characters are over {GROUP_ID_CHARS_MAX}")
        self._check(principal, request.match_info["topic"], consumer)
        return principal, consumer

    def _check(self, principal: Principal, topic: str, consumer: str) -> None:
        self._access.check(principal, Operation.READ, Resource.TOPIC, topic)
        self._access.check(principal, Operation.READ, Resource.GROUP, consumer)

    def _view(self, request: web.Request) -> TopicView:
        return existing_topic(self._cluster, request.match_info["topic"])


def _kept_json(view: TopicView, consumer: str, positions: Mapping[int, int]) -> dict[str, Any]:
    return {"topic": view.name, "consumer": consumer, "positions": positions_json(positions)}
