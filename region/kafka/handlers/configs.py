"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs for topics; what a broker says of itself, read-only.

Rule 1: AlterConfigs replaces: a setting that is not named goes back to its default. IncrementalAlterConfigs changes
        what it names. Both carry the settings that result to the definitions home, in one definition per topic.
Rule 2: a topic or broker twice in one request, or a setting twice in one topic, is refused, as Apache Kafka does.
Rule 3: brokers are configured by their files: no request changes them.
Rule 4: an answer has documentation for its first DOCUMENTED_MAX resources, and no resource twice: a small request makes
        no answer of many megabytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from georelay.errors import BadRequest, GeorelayError, InvalidTopic, PolicyViolation, UnknownTopic
from georelay.limits import PRODUCE_FRAME_BYTES_MAX, RECORD_BATCH_BYTES_MAX
from georelay.wire.api import ErrorCode
from georelay.wire.requests import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from georelay.wire.responses import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsResponse,
)
from region.controller.topic import TopicView
from region.controller.topic_settings import TOPIC_SETTINGS, SettingType
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.patience import within
from region.kafka.ports import Cluster
from region.kafka.services import KafkaServices
from region.kafka.topic_settings import (
    SET,
    Source,
    changed,
    check_alteration,
    described_rows,
    replaced,
    values_of,
)
from region.security.access import Access, Operation, Resource
from region.security.change_details import shown_settings

TOPIC: Final = 2
BROKER: Final = 4
RESOURCES_PER_REQUEST_MAX: Final = 1_000
DOCUMENTED_MAX: Final = 100
# The defaults of topics under the names that they have as a broker's settings.
TOPIC_DEFAULTS: Final[Mapping[str, str]] = {
    "compression.type": "compression.type",
    "log.cleanup.policy": "cleanup.policy",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.segment.bytes": "segment.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
ALTER_TIMEOUT_MS: Final = 30_000  # these requests carry no patience of their own


class _Asked(NamedTuple):
    """What a DescribeConfigs wants to see of each setting."""

    keys: Sequence[str] | None
    synonyms: bool
    documentation: bool


class DescribeConfigsHandler:
    """Answers DescribeConfigs."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access
        self._region_name = services.region_name

    def handle(self, slot: Slot, request: DescribeConfigsRequest) -> None:
        """Answer from what this broker knows."""
        results: list[DescribeConfigsResult] = []
        for resource in {(each.resource_type, each.resource_name): each for each in request.resources}.values():
            documented = request.include_documentation and len(results) < DOCUMENTED_MAX
            asked = _Asked(resource.configuration_keys, request.include_synonyms, documented)
            try:
                _check_count(request.resources)
                _check_access(self._access, slot, Operation.DESCRIBE_CONFIGS, resource)
                rows = self._rows(resource, asked)
            except GeorelayError as error:
                failure = DescribeConfigsResult(
                    error_code=_code(error),
                    error_message=str(error),
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                results.append(failure)
            else:
                results.append(
                    DescribeConfigsResult(
                        error_code=ErrorCode.NONE,
                        error_message=None,
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                        configs=rows,
                    )
                )
        slot.answer(DescribeConfigsResponse(results=results))

    def _rows(self, resource: DescribeConfigsResource, asked: _Asked) -> list[DescribeConfigsResourceResult]:
        if resource.resource_type == TOPIC:
            view = _topic(self._cluster, resource.resource_name)
            values = values_of(view.definition, self._region_name)
            rows = described_rows(values, synonyms=asked.synonyms, documentation=asked.documentation)
        elif resource.resource_type == BROKER:
            rows = _broker_rows(self._cluster, resource.resource_name)
        else:
            raise BadRequest(f"resource type {resource.resource_type} is not served; 2 is a topic, 4 a broker")
        return rows if asked.keys is None else [row for row in rows if row.name in asked.keys]


class AlterConfigsHandler:
    """Answers AlterConfigs and IncrementalAlterConfigs."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._access = services.access
        self._region_name = services.region_name

    def replace(self, slot: Slot, request: AlterConfigsRequest) -> None:
        """Give topics exactly the settings that the request names."""

        async def answer() -> AlterConfigsResponse:
            return AlterConfigsResponse(
                responses=await self._each(slot, request.resources, replaced, validate_only=request.validate_only)
            )

        slot.spawn(answer())

    def change(self, slot: Slot, request: IncrementalAlterConfigsRequest) -> None:
        """Change the settings of topics that the request names."""

        async def answer() -> IncrementalAlterConfigsResponse:
            return IncrementalAlterConfigsResponse(
                responses=await self._each(slot, request.resources, changed, validate_only=request.validate_only)
            )

        slot.spawn(answer())

    async def _each(
        self,
        slot: Slot,
        resources: Sequence[AlterConfigsResource] | Sequence[IncrementalAlterConfigsResource],
        settings_of: Callable[[Mapping[str, str], list[tuple[str, int, str | None]]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> list[AlterConfigsResourceResponse]:
        """Alter one resource after the other; each has its own outcome."""
        times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        named = {(resource.resource_type, resource.resource_name): resource for resource in resources}
        rows = []
        for (kind, name), resource in named.items():
            try:
                _check_count(resources)
                _check_access(self._access, slot, Operation.ALTER_CONFIGS, resource)
                if times[kind, name] > 1:
                    raise BadRequest("the resource stands twice in the request")
                view = self._alterable_topic(kind, name)
                settings = settings_of(values_of(view.definition, self._region_name), _named_once(resource))
                check_alteration(settings)
                if settings and not validate_only:
                    about = {"topic": name, "settings": shown_settings(settings)}
                    with self._access.noted(slot.connection.principal, "topic.altered", **about):
                        await within(ALTER_TIMEOUT_MS, self._alter(name, settings))
            except GeorelayError as error:
                rows.append(AlterConfigsResourceResponse(_code(error), str(error), kind, name))
            else:
                rows.append(AlterConfigsResourceResponse(ErrorCode.NONE, None, kind, name))
        return rows

    def _alter(self, name: str, settings: Mapping[str, str]) -> Awaitable[TopicView]:
        return self._cluster.alter_topic(name, settings)

    def _alterable_topic(self, kind: int, name: str) -> TopicView:
        if kind == BROKER:
            raise PolicyViolation("brokers are configured by their files; see docs/config.md")
        if kind != TOPIC:
            raise BadRequest(f"resource type {kind} is not served; 2 is a topic")
        view = _topic(self._cluster, name)
        if view.is_mirror_name or view.internal:
            raise PolicyViolation(f"{name!r} has the settings of its plain name; alter that one")
        return view


def _named_once(resource: AlterConfigsResource | IncrementalAlterConfigsResource) -> list[tuple[str, int, str | None]]:
    """Return (name, operation, value) of every setting (BadRequest: one is named twice)."""
    named = [(row.name, getattr(row, "config_operation", SET), row.value) for row in resource.configs]
    twice = next((name for name, times in Counter(name for name, *_ in named).items() if times > 1), None)
    if twice is not None:
        raise BadRequest(f"setting {twice[:64]} stands twice in the request")
    return named


def _check_access(
    access: Access,
    slot: Slot,
    operation: Operation,
    resource: DescribeConfigsResource | AlterConfigsResource | IncrementalAlterConfigsResource,
) -> None:
    """Raise AccessDenied unless settings of the topic, or of brokers, may be seen or changed."""
    if resource.resource_type == TOPIC:
        access.check(slot.connection.principal, operation, Resource.TOPIC, resource.resource_name)
    else:
        access.check(slot.connection.principal, operation, Resource.CLUSTER)


def _check_count(resources: Sequence[object]) -> None:
    if len(resources) > RESOURCES_PER_REQUEST_MAX:
        raise BadRequest(f"{len(resources)} resources in one request: use at most {RESOURCES_PER_REQUEST_MAX}")


def _topic(cluster: Cluster, name: str) -> TopicView:
    view = cluster.topic(name)
    if view is None:
        raise UnknownTopic(f"there is no topic {name[:64]!r}")
    return view


def _code(error: GeorelayError) -> ErrorCode:
    """Return Kafka's code; a value that is not allowed is INVALID_CONFIG where settings are the subject."""
    return ErrorCode.INVALID_CONFIG if isinstance(error, InvalidTopic) else kafka_code(error)


def _broker_rows(cluster: Cluster, name: str) -> list[DescribeConfigsResourceResult]:
    """Return what is known of a broker of this region; nothing for "", which means the defaults of all brokers.

    What stands in the file of another broker only that one says.
    """
    if not name:
        return []
    ids = {str(broker.id) for broker in cluster.brokers()} | {str(cluster.broker_id)}
    if name not in ids:
        raise BadRequest(
            f"there is no broker {name[:20]!r} in region {cluster.region}; there are {', '.join(sorted(ids))}"
        )
    rows = [
        ("broker.id", name, SettingType.INT, Source.BROKER_FILE),
        ("broker.rack", cluster.region, SettingType.TEXT, Source.BROKER_FILE),
        ("message.max.bytes", str(RECORD_BATCH_BYTES_MAX), SettingType.INT, Source.DEFAULT),
        ("node.id", name, SettingType.INT, Source.BROKER_FILE),
        ("socket.request.max.bytes", str(PRODUCE_FRAME_BYTES_MAX), SettingType.INT, Source.DEFAULT),
    ]
    for key, setting in TOPIC_DEFAULTS.items():
        row = TOPIC_SETTINGS[setting]
        rows.append((key, row.default, row.type, Source.DEFAULT))
    if name == str(cluster.broker_id):
        creates, defaults = str(cluster.auto_create_topics).lower(), cluster.topic_defaults
        rows += [
            ("auto.create.topics.enable", creates, SettingType.BOOLEAN, Source.BROKER_FILE),
            ("default.replication.factor", str(defaults.replication_factor), SettingType.INT, Source.BROKER_FILE),
            ("num.partitions", str(defaults.partitions), SettingType.INT, Source.BROKER_FILE),
        ]
    return [
        DescribeConfigsResourceResult(name=key, value=value, read_only=True, config_source=source, config_type=kind)
        for key, value, kind, source in sorted(rows)
    ]
