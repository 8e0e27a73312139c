"""Commands that are answered once: CRTP, PUBS, RESOLVE.

Rule: access is checked before anything is looked up, so that a refusal does not tell what exists.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.errors import UnknownTopic
from georelay.wire.batch import RecordDraft
from region.api.coalescer import NewRecord
from region.api.publishing import Asker
from region.controller.topic import TopicSpec, TopicView
from region.kafka.patience import within
from region.security.access import Access, Operation, Principal, Resource
from region.text.commands_core import CreateTopic, Publish, Resolve
from region.text.record_core import parse_body
from region.text.services import TextServices

DECIDE_MS_MAX: Final = 30_000  # for a definition, or a commit at the home


class Answers:
    """Answers commands of any connection with what follows the OK."""

    def __init__(self, services: TextServices) -> None:
        self._services = services

    async def create(self, principal: Principal, command: CreateTopic) -> str:
        """Create a topic; "topic partitions"."""
        _check_create(self._services.access, principal, command.topic)
        spec = TopicSpec(name=command.topic, partitions=command.partitions)
        with self._services.access.noted(principal, "topic.created", topic=command.topic):
            view = await within(DECIDE_MS_MAX, self._services.cluster.create_topic(spec))
        return f"{view.name} {view.partitions}"

    async def publish(self, principal: Principal, command: Publish) -> str:
        """Publish one record; "partition offset" once it is committed at its home."""
        services = self._services
        services.access.check(principal, Operation.WRITE, Resource.TOPIC, command.topic)
        await pause(services.quotas.produce(principal, len(command.body)))
        if services.cluster.topic(command.topic) is None:
            _check_create(services.access, principal, command.topic)
        draft: RecordDraft = parse_body(command.body)
        record = NewRecord(value=draft.value, key=draft.key, headers=tuple(draft.headers))
        published = services.publisher.publish(
            command.topic, [(record, None)], asker=Asker(access=services.access, principal=principal)
        )
        (place,) = await within(DECIDE_MS_MAX, published)
        return f"{place.partition} {place.offset}"

    def resolve(self, principal: Principal, command: Resolve) -> tuple[list[str], str]:
        """Show the brokers of the region, or the leaders of one topic."""
        if not command.topic:
            return self._brokers()
        self._services.access.check(principal, Operation.DESCRIBE, Resource.TOPIC, command.topic)
        view = self._services.cluster.topic(command.topic)
        if view is None:
            raise UnknownTopic(f"topic {command.topic!r} does not exist")
        return self._leaders(view)

    def _brokers(self) -> tuple[list[str], str]:
        cluster = self._services.cluster
        rows = [
            f"broker {row.id} {'up' if row.alive else 'down'} kafka {row.kafka_host}:{row.kafka_port}"
            + (f" grpc {row.grpc}" if row.grpc else "")
            + (f" http {row.admin}" if row.admin else "")
            for row in cluster.brokers()
        ]
        return rows, f"region {cluster.region} brokers {len(rows)}"

    def _leaders(self, view: TopicView) -> tuple[list[str], str]:
        cluster = self._services.cluster
        rows = [
            f"partition {number} leader {cluster.leader_of(view.name, number)} "
            f"replicas {','.join(map(str, cluster.replicas_of(view.name, number)))}"
            for number in range(view.partitions)
        ]
        home = self._services.region_name(view.home) if view.home else "every region"
        return rows, f"topic {view.name} partitions {view.partitions} home {home}"


async def pause(throttle_ms: int) -> None:
    """Let a principal wait that is over its quota."""
    if throttle_ms > 0:
        await asyncio.sleep(throttle_ms / 1000)


def _check_create(access: Access, principal: Principal, topic: str) -> None:
    """As Apache Kafka: who may create on the cluster may create every topic."""
    if not access.allows(principal, Operation.CREATE, Resource.CLUSTER):
        access.check(principal, Operation.CREATE, Resource.TOPIC, topic)
