"""Topics over HTTP: list, create, describe, alter, reassign, delete records, delete.

Rule: reassign begins something and answers at once; the topic's description shows how far it is.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from georelay.errors import BadRequest, UnknownTopic
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX, SEGMENT_BYTES_MAX
from region.api.bodies import read_wish
from region.api.principal import PRINCIPAL
from region.api.record_json import integer_field, parse_json
from region.api.records_http import json_response
from region.api.topic_changes import parse_alteration, parse_deletion, parse_reassignment, parse_settings
from region.controller.topic import Homes
from region.controller.topic_settings import SEGMENT_BYTES
from region.kafka.ports import Cluster, PartitionReplicas, TopicSpec, TopicView
from region.security.access import Access, Operation, Resource
from region.security.change_details import shown_before, shown_numbers, shown_settings

INT64_MAX: Final = 2**63 - 1
TOPIC_FIELDS: Final = frozenset(
    {
        "name",
        "partitions",
        "replication_factor",
        "homes",
        "home",
        "retention_ms",
        "retention_bytes",
        "segment_bytes",
        "settings",
    }
)


class TopicsHttp:
    """Handlers of /v1/topics that are not about publishing and reading."""

    def __init__(self, cluster: Cluster, access: Access) -> None:
        self._cluster = cluster
        self._access = access

    def _check(self, request: web.Request, operation: Operation) -> str:
        """Return the topic's name, which the caller may do this with (AccessDenied)."""
        name = request.match_info["topic"]
        self._access.check(request[PRINCIPAL], operation, Resource.TOPIC, name)
        return name

    async def list(self, request: web.Request) -> web.Response:
        """Answer GET /v1/topics with those that the caller may describe."""
        principal, allows = request[PRINCIPAL], self._access.allows
        shown = [v for v in self._cluster.topics() if allows(principal, Operation.DESCRIBE, Resource.TOPIC, v.name)]
        return json_response({"topics": [topic_json(view) for view in shown]})

    async def create(self, request: web.Request) -> web.Response:
        """Answer POST /v1/topics."""
        principal = request[PRINCIPAL]
        if not self._access.allows(principal, Operation.CREATE, Resource.CLUSTER):
            self._access.check_any(principal, Operation.CREATE, Resource.TOPIC)
        spec = await read_wish(request, parse_topic)
        self._access.check_create_topic(principal, spec.name)
        with self._access.noted(principal, "topic.created", topic=spec.name):
            view = await self._cluster.create_topic(spec, by=self._access.share_of(principal))
        return json_response(topic_json(view), status=201)

    async def describe(self, request: web.Request) -> web.Response:
        """Answer GET /v1/topics/{topic}."""
        return json_response(await self._described(self._check(request, Operation.DESCRIBE)))

    async def delete(self, request: web.Request) -> web.Response:
        """Answer DELETE /v1/topics/{topic}."""
        name = self._check(request, Operation.DELETE)
        with self._access.noted(request[PRINCIPAL], "topic.deleted", topic=name):
            await self._cluster.delete_topic(name)
        return web.Response(status=204)

    async def alter(self, request: web.Request) -> web.Response:
        """Answer PATCH /v1/topics/{topic}: fields that are not named stay, null is the default."""
        name = self._check(request, Operation.ALTER_CONFIGS)
        settings = await read_wish(request, parse_alteration)
        with self._access.noted(request[PRINCIPAL], "topic.altered", topic=name, settings=shown_settings(settings)):
            view = await self._cluster.alter_topic(name, settings)
        return json_response(topic_json(view))

    async def reassign(self, request: web.Request) -> web.Response:
        """Answer POST /v1/topics/{topic}/reassign with the description of the topic."""
        self._access.check(request[PRINCIPAL], Operation.ALTER, Resource.CLUSTER)
        name = request.match_info["topic"]
        wanted = await read_wish(request, parse_reassignment)
        view = self._cluster.topic(name)
        if view is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        partitions = range(view.partitions) if wanted.partition is None else (wanted.partition,)
        about = {"partitions": shown_numbers(partitions), "replicas": shown_numbers(wanted.replicas)}
        with self._access.noted(request[PRINCIPAL], "topic.reassigned", topic=name, **about):
            for partition in partitions:
                await self._cluster.reassign(name, partition, wanted.replicas)
        return json_response(await self._described(name), status=202)

    async def delete_records(self, request: web.Request) -> web.Response:
        """Answer POST /v1/topics/{topic}/delete-records with the log start that resulted."""
        name = self._check(request, Operation.DELETE)
        wanted = await read_wish(request, parse_deletion)
        about = {"partition": str(wanted.partition), "before": shown_before(wanted.before)}
        with self._access.noted(request[PRINCIPAL], "records.deleted", topic=name, **about):
            log_start = await self._cluster.delete_records(name, wanted.partition, wanted.before)
        return json_response({"topic": name, "partition": wanted.partition, "log_start": log_start})

    async def _described(self, name: str) -> dict[str, Any]:
        view = self._cluster.topic(name)
        if view is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        replicas = {row.partition: row for row in await self._cluster.replicas_status(name)}
        rows = [self._partition_json(view.name, index, replicas.get(index)) for index in range(view.partitions)]
        for stored in self._cluster.storage().replicas:
            if stored.topic == view.name and stored.partition < len(rows):
                rows[stored.partition]["size_bytes"] = stored.size_bytes
        return {**topic_json(view), "partition_states": rows}

    def _partition_json(self, name: str, index: int, status: PartitionReplicas | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "partition": index,
            "leader": self._cluster.leader_of(name, index),
            "replicas": list(self._cluster.replicas_of(name, index)),
            "epoch": self._cluster.epoch_of(name, index),
            "home": self._cluster.home_of(name, index),
        }
        stream = self._cluster.stream(name, index)
        if stream is not None:
            row |= {"log_start": stream.log_start, "high_watermark": stream.high_watermark}
        if status is not None:
            row |= {
                "group": status.group,
                "wanted": list(status.target),
                "learners": list(status.learners),
                "is_settled": status.is_settled,
            }
            if status.behind_entries:
                row["behind_entries"] = {str(broker): entries for broker, entries in status.behind_entries}
        return row


def topic_json(view: TopicView) -> dict[str, Any]:
    """Return what the API says of a topic."""
    return {
        "name": view.name,
        "topic_id": view.topic_id.hex(),
        "partitions": view.partitions,
        "replication_factor": view.replication_factor,
        "homes": str(view.homes),
        "home": view.home,
        "is_mirror_name": view.is_mirror_name,
        "retention_ms": view.definition.retention_ms,
        "retention_bytes": view.definition.retention_bytes,
        "segment_bytes": view.definition.segment_bytes,
        "settings": view.definition.shown_settings,
    }


def parse_topic(body: bytes) -> TopicSpec:
    """Return the spec of a POST /v1/topics body (BadRequest, InvalidTopic: the text names the field)."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    unknown = value.keys() - TOPIC_FIELDS
    if unknown:
        raise BadRequest(f"topic.{min(unknown)}: unknown field; known are {', '.join(sorted(TOPIC_FIELDS))}")
    homes = value.get("homes", "one")
    if homes not in ("one", "every"):
        raise BadRequest('topic.homes: must be "one" or "every"')
    segment_bytes = integer_field(value, "topic", "segment_bytes", low=1, high=SEGMENT_BYTES_MAX)
    spec = TopicSpec(
        name=_text(value, "name", required=True),
        partitions=_integer(value, "partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX),
        replication_factor=_integer(value, "replication_factor", low=1, high=REPLICATION_FACTOR_MAX),
        homes=Homes(homes),
        home=_text(value, "home", required=False),
        retention_ms=_integer(value, "retention_ms", low=-1, high=INT64_MAX),
        retention_bytes=_integer(value, "retention_bytes", low=-1, high=INT64_MAX),
    )
    spec = spec if segment_bytes is None else spec.with_settings({SEGMENT_BYTES: str(segment_bytes)})
    return spec.with_settings(parse_settings(value))


def _integer(value: dict[str, Any], name: str, *, low: int, high: int) -> int:
    number = integer_field(value, "topic", name, low=low, high=high)
    return -1 if number is None else number


def _text(value: dict[str, Any], name: str, *, required: bool) -> str:
    text = value.get(name, "")
    if not isinstance(text, str) or (required and not text):
        raise BadRequest(f"topic.{name}: must be a string{' that is not empty' if required else ''}")
    return text
