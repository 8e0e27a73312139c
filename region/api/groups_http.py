"""Consumer groups over HTTP: list, describe with lag, reset offsets, delete.

Rule 1: a group belongs to one region: any broker of it answers, none of another region.
Rule 2: reset-offsets says what it would do; it does so only with "execute": true, and only to a group without members.
Rule 3: of topics that the caller may not describe nothing is shown.
"""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest, UnknownTopic
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from georelay.wire.api import ErrorCode
from region.api.bodies import read_wish
from region.api.group_lag import GroupLag, PartitionLag, raise_refusal
from region.api.principal import PRINCIPAL
from region.api.reading import EARLIEST, LATEST, StreamReader
from region.api.record_json import integer_field, parse_json
from region.api.records_http import json_response
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part
from region.groups.settings import GROUP_ID_CHARS_MAX
from region.groups.subscriptions import assigned_partitions
from region.kafka.ports import Cluster
from region.security.access import Access, Operation, Principal, Resource

LISTED_LAGS_MAX: Final = 500  # groups of one list whose lag is told; the rest have null
INT64_MAX: Final = 2**63 - 1
RESET_FIELDS: Final = frozenset({"topic", "partitions", "to", "offset", "timestamp_ms", "by", "execute", "create"})


class ResetTo(enum.StrEnum):
    """Where offsets are set."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"  # to `offset`, within what the stream holds
    TIMESTAMP = "timestamp"  # to the first record stored at or after `timestamp_ms`
    SHIFT = "shift"  # by `by` records from what is committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A wish to set offsets; `partitions` None for all of the topic."""

    topic: str
    partitions: tuple[int, ...] | None
    to: ResetTo
    offset: int = 0
    timestamp_ms: int = 0
    by: int = 0
    execute: bool = False
    create: bool = False  # a group that nobody knows is made, instead of taken for a typing error or another region's


class GroupsHttp:
    """Handlers of /v1/groups."""

    def __init__(self, *, coordinators: Coordinators, cluster: Cluster, reader: StreamReader, access: Access) -> None:
        self._coordinators = coordinators
        self._cluster = cluster
        self._reader = reader
        self._access = access
        self._lag = GroupLag(coordinators, cluster, reader)

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.get("/v1/groups", self._list),
            web.get("/v1/groups/{group}", self._describe),
            web.delete("/v1/groups/{group}", self._delete),
            web.post("/v1/groups/{group}/reset-offsets", self._reset),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        principal: Principal = request[PRINCIPAL]
        states = [state for state in request.query.get("states", "").split(",") if state]
        answers = await self._coordinators.gather(Part.GROUPS, "list", {"states": states})
        sees_all = self._access.allows(principal, Operation.DESCRIBE, Resource.CLUSTER)
        groups = [
            row
            for answer in answers
            for row in answer["groups"]
            if sees_all or self._access.allows(principal, Operation.DESCRIBE, Resource.GROUP, row["group"])
        ]
        groups.sort(key=lambda row: str(row["group"]))
        lags: dict[str, int] = {}
        if request.query.get("lag") != "false":
            lags = await self._lag.totals([row["group"] for row in groups[:LISTED_LAGS_MAX]])
        rows = [
            {**row, "lag": lags.get(row["group"]), "coordinator": self._coordinators.leader_of(row["group"])}
            for row in groups
        ]
        return json_response({"groups": rows})

    async def _describe(self, request: web.Request) -> web.Response:
        group_id = self._checked(request, Operation.DESCRIBE)
        described, rows = await self._lag.describe(group_id)
        principal: Principal = request[PRINCIPAL]
        shown = [row for row in rows if self._access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, row.topic)]
        lags = [row.lag for row in shown if row.lag is not None]
        return json_response(
            {
                "group": group_id,
                "state": described["state"],
                "protocol_type": described["protocol_type"],
                "protocol": described["protocol"],
                "generation": described["generation"],
                "coordinator": self._coordinators.leader_of(group_id),
                "lag": sum(lags),
                "members": [_member_json(described["protocol_type"], member) for member in described["members"]],
                "partitions": [_partition_json(row) for row in shown],
            }
        )

    async def _delete(self, request: web.Request) -> web.Response:
        group_id = self._checked(request, Operation.DELETE)
        with self._access.noted(request[PRINCIPAL], "group.deleted", group=group_id):
            answer = await self._coordinators.call(Part.GROUPS, group_id, "delete", {"group": group_id})
            raise_refusal(group_id, answer)
        return web.Response(status=204)

    async def _reset(self, request: web.Request) -> web.Response:
        group_id = self._checked(request, Operation.READ)
        wish = await read_wish(request, parse_reset)
        self._access.check(request[PRINCIPAL], Operation.READ, Resource.TOPIC, wish.topic)
        rows = await self._planned(group_id, wish)
        if wish.execute:
            offsets = [
                {"topic": row["topic"], "partition": row["partition"], "offset": row["new_offset"]} for row in rows
            ]
            body: JsonObject = {"group": group_id, "offsets": offsets}
            about = {"topic": wish.topic, "to": str(wish.to), "partitions": str(len(offsets))}
            with self._access.noted(request[PRINCIPAL], "group.offsets_set", group=group_id, **about):
                answer = await self._coordinators.call(Part.GROUPS, group_id, "reset_offsets", body)
                raise_refusal(group_id, answer)
                for row in answer["partitions"]:
                    raise_refusal(group_id, {**row, "error": ErrorCode(row["error_code"]).name})
        return json_response({"group": group_id, "executed": wish.execute, "partitions": rows})

    async def _planned(self, group_id: str, wish: Reset) -> list[dict[str, Any]]:
        view = self._cluster.topic(wish.topic)
        if view is None:
            raise UnknownTopic(f"topic {wish.topic!r} does not exist")
        if not wish.create:
            described = await self._coordinators.call(Part.GROUPS, group_id, "describe", {"group": group_id})
            raise_refusal(group_id, described)
        partitions = tuple(range(view.partitions)) if wish.partitions is None else wish.partitions
        body: JsonObject = {"group": group_id, "topics": [{"topic": wish.topic, "partitions": list(partitions)}]}
        answer = await self._coordinators.call(Part.GROUPS, group_id, "fetch_offsets", body)
        raise_refusal(group_id, answer)
        committed = {int(row["partition"]): int(row["offset"]) for row in answer["partitions"]}
        missing = set(partitions) - committed.keys()
        if missing:
            raise UnknownTopic(f"partition {min(missing)} of topic {wish.topic!r} does not exist")
        return [
            {
                "topic": wish.topic,
                "partition": partition,
                "committed": None if committed[partition] < 0 else committed[partition],
                "new_offset": await self._target(wish, partition, committed[partition]),
            }
            for partition in partitions
        ]

    async def _target(self, wish: Reset, partition: int, committed: int) -> int:
        """Return the new offset, within what the stream holds."""
        if wish.to is ResetTo.TIMESTAMP:
            return await self._reader.first_offset_since(wish.topic, partition, wish.timestamp_ms * 1000)
        which = EARLIEST if wish.to is ResetTo.EARLIEST else LATEST
        bounds = await self._reader.read(wish.topic, partition, which, max_bytes=1, wait_ms=0)
        low, high = bounds.log_start, bounds.high_watermark
        match wish.to:
            case ResetTo.EARLIEST:
                return low
            case ResetTo.LATEST:
                return high
            case ResetTo.OFFSET:
                wanted = wish.offset
            case ResetTo.SHIFT:
                wanted = (committed if committed >= 0 else low) + wish.by
        return min(max(wanted, low), high)

    def _checked(self, request: web.Request, operation: Operation) -> str:
        group_id = request.match_info["group"]
        self._access.check(request[PRINCIPAL], operation, Resource.GROUP, group_id)
        if len(group_id) > GROUP_ID_CHARS_MAX:
            raise BadRequest(f"a group id has at most {GROUP_ID_CHARS_MAX} characters")
        return group_id


def parse_reset(body: bytes) -> Reset:
    """Return the wish of a POST .../reset-offsets body (BadRequest: the text names the field)."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    unknown = value.keys() - RESET_FIELDS
    if unknown:
        raise BadRequest(f"{min(unknown)}: unknown field; known are {', '.join(sorted(RESET_FIELDS))}")
    topic, to = value.get("topic"), value.get("to")
    flags = {name: value.get(name, False) for name in ("execute", "create")}
    if not isinstance(topic, str) or not 0 < len(topic) <= TOPIC_NAME_CHARS_MAX:
        raise BadRequest("topic: must be the name of a topic")
    if to not in tuple(ResetTo):
        raise BadRequest(f"to: must be one of {', '.join(ResetTo)}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise BadRequest(f"{name}: must be true or false")
    needed = {ResetTo.OFFSET: "offset", ResetTo.TIMESTAMP: "timestamp_ms", ResetTo.SHIFT: "by"}.get(ResetTo(to))
    numbers = {
        name: integer_field(value, "reset", name, low=-INT64_MAX if name == "by" else 0, high=INT64_MAX)
        for name in ("offset", "timestamp_ms", "by")
    }
    for name, number in numbers.items():
        if (number is not None) != (name == needed):
            raise BadRequest(f"{name}: is {'missing' if number is None else f'not for to={to}'}")
    return Reset(
        topic=topic,
        partitions=_partitions(value.get("partitions")),
        to=ResetTo(to),
        offset=numbers["offset"] or 0,
        timestamp_ms=numbers["timestamp_ms"] or 0,
        by=numbers["by"] or 0,
        execute=flags["execute"],
        create=flags["create"],
    )


def _partitions(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not 0 < len(value) <= PARTITIONS_PER_TOPIC_MAX:
        raise BadRequest(f"partitions: must be a list of 1..{PARTITIONS_PER_TOPIC_MAX} numbers, or null for all")
    if not all(isinstance(row, int) and not isinstance(row, bool) and row >= 0 for row in value):
        raise BadRequest("partitions: must be numbers from 0 on")
    return tuple(sorted(set(value)))


def _member_json(protocol_type: str, member: JsonObject) -> dict[str, Any]:
    assigned = assigned_partitions(protocol_type, base64.b64decode(member["assignment"]))
    return {
        "member_id": member["member_id"],
        "instance_id": member["instance_id"],
        "client_id": member["client_id"],
        "client_host": member["client_host"],
        "is_leader": member["is_leader"],
        "partitions": {topic: sorted(partitions) for topic, partitions in sorted(assigned.items())},
    }


def _partition_json(row: PartitionLag) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "committed": row.committed,
        "high_watermark": row.high_watermark,
        "lag": row.lag,
        "metadata": row.metadata,
        "committed_ms": None if row.committed_us < 0 else row.committed_us // 1000,
        "member_id": row.member_id or None,
        "client_id": row.client_id or None,
    }
