"""Homes over HTTP: show them, move them, force them away from a lost region, follow a move.

    GET  /v1/homes[?topic=T][&region=R]      which region sequences which stream, as this region knows it
    POST /v1/homes/move                      {"to": R, "topic": T, "partitions": [..]}, {"to": R, "from": R}
                                             or {"to": R, "groups_of": R}
    POST /v1/homes/failover                  {"region": R} or {"topic": T, "partitions": [..]}, and "accept_loss"
    GET  /v1/homes/moves/{move}              how far it is

Rule 1: a move is begun by control's leader and answered at once with its id; who asked follows it.
Rule 2: showing works in a region that is cut off; changing needs a majority of mesh control, and so does saying what
        an attempt waits for.
        A topic with failover=auto says whether that is in force: its home is known to need a lease (null: control's
        leader does not answer).
Rule 3: of topics that the caller may not describe nothing is shown.
Rule 4: coordinators (groups, transactions, queues) have homes too, one stream per region and partition: shown with
        their origin where they were moved, and all of them when their topic is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import structlog
from aiohttp import web

from georelay.errors import BadRequest, GeorelayError, UnknownTopic
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import REGION_NUMBER_MAX, RegionNumber, StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from mesh.home.home_row import HomeRow
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import parse_json
from region.api.records_http import json_response
from region.controller.topic import Homes, TopicDefinition
from region.homes.levels import is_coordination, needs_lease
from region.security.access import Access, Operation, Principal, Resource

log = structlog.get_logger()

HOMES_SHOWN_MAX: Final = 10_000  # of one answer
REGION_CHARS_MAX: Final = 40
MOVE_ID: Final = re.compile(r"[a-z]{1,12}-[0-9a-f]{16}")
CALL_TIMEOUT_S: Final = 10.0
WAITING_TIMEOUT_S: Final = 1.5  # homes are shown without it, too
_NUMBER: Final = re.compile(r"[0-9]{1,5}")
_ONE_HOME: Final = RegionNumber(0)
_NO_REGION: Final = RegionNumber(0)


class ControlCall(Protocol):
    """Asks the leader of mesh control."""

    async def __call__(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """Return its answer. Raises ControlUnavailable, or what the leader raised."""


class KnownHomes(Protocol):
    """What this region knows (region.controller.state_core.ControllerState)."""

    def topics(self) -> Iterable[TopicDefinition]:
        """Return the live topics."""

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return a live topic."""

    def home_row(self, key: StreamKey) -> HomeRow | None:
        """Return the row of a stream, None when its home never moved."""


class HomesHttp:
    """Handlers of /v1/homes.

    Args:
        region_names: returns the names of the regions that this one knows, by number.
    """

    def __init__(
        self,
        *,
        known: KnownHomes,
        call: ControlCall,
        region_names: Callable[[], Mapping[RegionNumber, str]],
        access: Access,
    ) -> None:
        self._known = known
        self._call = call
        self._names = region_names
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the admin listener."""
        return [
            web.get("/v1/homes", self._show),
            web.post("/v1/homes/move", self._move),
            web.post("/v1/homes/failover", self._failover),
            web.get("/v1/homes/moves/{move}", self._follow),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        wanted, region = request.query.get("topic", ""), request.query.get("region", "")
        home = self._region(region) if region else None
        principal: Principal = request[PRINCIPAL]
        rows: list[dict[str, Any]] = []
        for topic, key, row in self._rows(wanted):
            if not self._access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, topic.name):
                continue
            if home not in (None, _home(topic, key, row)):
                continue
            if len(rows) == HOMES_SHOWN_MAX:
                await self._add_waiting(rows)
                await self._add_policies(rows)
                return json_response({"homes": rows, "is_all": False})
            rows.append(self._row_json(topic, key, row))
        if wanted and not rows and not region:
            raise UnknownTopic(f"no topic with one home is called {wanted[:TOPIC_NAME_CHARS_MAX]!r} here")
        await self._add_waiting(rows)
        await self._add_policies(rows)
        return json_response({"homes": rows, "is_all": True})

    async def _add_waiting(self, rows: Iterable[dict[str, Any]]) -> None:
        """Say of what is being moved what it waits for, if control's leader answers."""
        moving = {(row["topic"], row["partition"]): row["moving"] for row in rows if row["moving"] is not None}
        if not moving:
            return
        try:
            answer = await self._call("home.waiting", {}, timeout_s=WAITING_TIMEOUT_S)
        except GeorelayError as error:
            log.info("home.waiting_unknown", reason=str(error))
            return
        for row in map(self._named, _rows_of(answer, "rows")):
            shown = moving.get((row["topic"], row["partition"]))
            if shown is not None:
                shown["waits"] = {
                    "stage": row.get("stage"),
                    "regions": self._names_of(row.get("regions")),
                    "promised": self._names_of(row.get("promised")),
                    "needed": row.get("needed"),
                    "fault": row.get("fault"),
                }

    async def _add_policies(self, rows: Iterable[dict[str, Any]]) -> None:
        """Say of topics that fail over by themselves whether their homes are known to need leases."""
        automatic = [row for row in rows if "failover" in row]
        if not automatic:
            return
        try:
            answer = await self._call("home.policies", {}, timeout_s=WAITING_TIMEOUT_S)
        except GeorelayError as error:
            log.info("home.policies_unknown", reason=str(error))
            return
        waiting = {(row["topic"], row["home"]) for row in map(self._named, _rows_of(answer, "waiting"))}
        for row in automatic:
            row["failover"]["in_force"] = (row["topic"], row["home"]) not in waiting

    def _names_of(self, numbers: object) -> list[str]:
        return [self._name(number) for number in numbers] if isinstance(numbers, list) else []

    async def _move(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        fields = await read_wish(request, _fields)
        try:
            target = self._region(fields.text("to", chars_max=REGION_CHARS_MAX))
            streams = self._streams(fields, "from")
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        about = {"to": self._name(target), "streams": str(_count(streams))}
        with self._access.noted(request[PRINCIPAL], "home.moved", **about):
            return await self._begin("home.move", {"streams": streams, "target": target})

    async def _failover(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        fields = await read_wish(request, _fields)
        try:
            lost = (
                self._region(fields.text("region", chars_max=REGION_CHARS_MAX)) if fields.has("region") else _NO_REGION
            )
            streams = [] if lost else self._streams(fields, "")
            accept_loss = fields.flag("accept_loss") if fields.has("accept_loss") else False
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        about = {"region": self._name(lost) if lost else "", "accept_loss": str(accept_loss).lower()}
        with self._access.noted(request[PRINCIPAL], "home.failed_over", streams=str(_count(streams)), **about):
            return await self._begin("home.failover", {"region": lost, "streams": streams, "accept_loss": accept_loss})

    async def _begin(self, method: str, body: JsonObject) -> web.Response:
        return json_response(await self._call(method, body, timeout_s=CALL_TIMEOUT_S), status=202)

    async def _follow(self, request: web.Request) -> web.Response:
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.CLUSTER)
        move = request.match_info["move"]
        if MOVE_ID.fullmatch(move) is None:
            raise BadRequest(f"{move[:40]!r} is no id of a move")
        report = await self._call("home.progress", {"move_id": move})
        rows = {name: [self._named(row) for row in _rows_of(report, name)] for name in ("moved", "refused", "waiting")}
        return json_response({**report, **rows})

    # --- streams and regions ----------------------------------------------------------------------

    def _rows(self, wanted: str) -> Iterator[tuple[TopicDefinition, StreamKey, HomeRow | None]]:
        for topic in sorted(self._known.topics(), key=lambda topic: topic.name):
            if wanted not in ("", topic.name):
                continue
            for origin in self._origins(topic):
                for partition in range(topic.partitions):
                    key = StreamKey(topic.topic_id, origin, partition)
                    row = self._known.home_row(key)
                    if wanted or not origin or row is not None:
                        yield topic, key, row

    def _origins(self, topic: TopicDefinition) -> Iterable[RegionNumber]:
        if topic.homes is Homes.ONE:
            return (_ONE_HOME,)
        return sorted(self._names()) if is_coordination(topic) else ()

    def _streams(self, fields: Fields, region_field: str) -> list[object]:
        """Return [[topic id, [partition, ...]], ...] of what a body names: a topic, or all that a region is home of.

        Coordinators are moved by `groups_of` only; theirs has the origin as a third.
        """
        if region_field and fields.has("groups_of"):
            return self._coordinators_of(self._region(fields.text("groups_of", chars_max=REGION_CHARS_MAX)))
        if region_field and fields.has(region_field):
            home = self._region(fields.text(region_field, chars_max=REGION_CHARS_MAX))
            found: dict[str, list[int]] = {}
            for held, key, row in self._rows(""):
                if not key.origin and _home(held, key, row) == home:
                    found.setdefault(held.topic_id.hex(), []).append(key.partition)
            return [[topic_id, partitions] for topic_id, partitions in found.items()]
        name = fields.text("topic", chars_min=1, chars_max=TOPIC_NAME_CHARS_MAX)
        topic = self._topic(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} is unknown here")
        if topic.homes is not Homes.ONE:
            raise BadRequest(f"every region is home of its own stream of {name}: there is nothing to move")
        partitions = list(range(topic.partitions))
        if fields.has("partitions"):
            partitions = fields.integers(
                "partitions", count_max=PARTITIONS_PER_TOPIC_MAX, low=0, high=topic.partitions - 1
            )
        return [[topic.topic_id.hex(), partitions]]

    def _coordinators_of(self, origin: RegionNumber) -> list[object]:
        topic = next((topic for topic in self._known.topics() if is_coordination(topic)), None)
        if topic is None:
            raise UnknownTopic("there are no groups yet in any region")
        return [[topic.topic_id.hex(), list(range(topic.partitions)), origin]]

    def _topic(self, name: str) -> TopicDefinition | None:
        return next((topic for topic in self._known.topics() if topic.name == name), None)

    def _region(self, named: str) -> RegionNumber:
        names = self._names()
        if _NUMBER.fullmatch(named) is not None and int(named) <= REGION_NUMBER_MAX:
            return RegionNumber(int(named))
        number = next((number for number, name in names.items() if name == named), None)
        if number is None:
            raise BadRequest(f"no region is called {named[:REGION_CHARS_MAX]!r}")
        return number

    # --- what is shown ----------------------------------------------------------------------------

    def _row_json(self, topic: TopicDefinition, key: StreamKey, row: HomeRow | None) -> dict[str, Any]:
        shown: dict[str, Any] = {"topic": self._shown_name(topic, key.origin), "partition": key.partition}
        if needs_lease(topic):
            shown["failover"] = {"policy": str(topic.failover), "in_force": None}
        if row is None:
            return {
                **shown,
                "home": self._name(_home(topic, key, row)),
                "epoch": 1,
                "start": 0,
                "moving": None,
                "accept_loss": False,
            }
        moving = row.moving
        return {
            **shown,
            "home": self._name(row.home),
            "epoch": row.epoch,
            "start": row.start,
            "moving": None
            if moving is None
            else {
                "move_id": moving.move_id,
                "kind": str(moving.kind),
                "epoch": moving.epoch,
                "target": self._name(moving.target) if moving.target else None,
            },
            "accept_loss": row.accept_loss,
            "homes": [
                {"epoch": epoch, "start": start, "home": self._name(home)}
                for (epoch, start), (_, home) in zip(row.table, row.homes, strict=True)
            ],
        }

    def _named(self, row: Mapping[str, Any]) -> dict[str, Any]:
        topic = self._known.topic_by_id(bytes.fromhex(str(row["topic_id"])))
        origin = RegionNumber(int(row.get("origin", 0)))
        shown = {**row, "topic": row["topic_id"] if topic is None else self._shown_name(topic, origin)}
        del shown["topic_id"]
        if isinstance(row.get("home"), int):
            shown["home"] = self._name(RegionNumber(int(row["home"])))
        return shown

    def _shown_name(self, topic: TopicDefinition, origin: RegionNumber) -> str:
        return f"{self._name(origin)}.{topic.name}" if origin else topic.name

    def _name(self, region: RegionNumber) -> str:
        return self._names().get(region, str(region))


def _home(topic: TopicDefinition, key: StreamKey, row: HomeRow | None) -> RegionNumber:
    return key.origin or topic.home if row is None else row.home


def _count(streams: Iterable[object]) -> int:
    """Return how many streams a list [[topic id, [partition, ...]], ...] names."""
    return sum(len(row[1]) for row in streams if isinstance(row, list))


def _rows_of(report: JsonObject, name: str) -> list[Mapping[str, Any]]:
    rows = report.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _fields(body: bytes) -> Fields:
    try:
        return Fields(parse_json(body), "body")
    except FieldError as error:
        raise BadRequest(str(error)) from error
