"""Joins the audit to a broker: which streams there are, how regions are asked; and the audit log of its region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from georelay.clock import Clock
from georelay.errors import PolicyViolation, UnknownTopic
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey, region_of
from mesh.replication.mesh_links import MeshLinks
from region.audit.agent import AuditAgent
from region.audit.auditor import Auditor, NamedStream, StreamName
from region.broker.audit_events import EVENTS_METHOD, RegionAuditEvents
from region.controller.service import ControllerService
from region.controller.topic import Homes, TopicDefinition
from region.topics.hosted_stream import HostedStream


class Logs(Protocol):
    """What is asked of region.broker.mesh_port.MeshPort."""

    def hosted(self, key: StreamKey) -> HostedStream | None:
        """Return the stream when a replica of it is on this broker."""

    def leader_of(self, key: StreamKey) -> int:
        """Return the broker of this region that leads a stream, -1 while unknown."""


class AuditRoom:
    """One broker's part in audits: it answers for its streams, and compares those of all regions when it is asked. And
    its part in reading the audit log.

    Args:
        alive: the other brokers of this region that are heard.
    """

    def __init__(
        self,
        me: BrokerId,
        controller: ControllerService,
        links: MeshLinks,
        clock: Clock,
        *,
        logs: Logs,
        alive: Callable[[], Iterable[BrokerId]],
    ) -> None:
        self._own = region_of(me)
        self._controller = controller
        self._links = links
        self.agent = AuditAgent(
            me=me,
            hosted=logs.hosted,
            leader_of=logs.leader_of,
            replicas_of=self._replicas_of,
            ask=self._ask_broker,
            clock=clock,
        )
        self.auditor = Auditor(
            own=self._own, agent=self.agent, streams=self.streams, regions=self.regions, ask=self._ask_region
        )

        self.events = RegionAuditEvents(me, known=lambda: controller.state.brokers, alive=alive, ask=self._ask_broker)

    async def handle(self, method: str, body: Mapping[str, Any], *, from_broker: BrokerId) -> JsonObject:
        """Answer a request of another broker; errors as AuditAgent.handle."""
        if method != EVENTS_METHOD:
            return await self.agent.handle(method, body, from_broker=from_broker)
        if region_of(from_broker) != self._own:
            raise PolicyViolation("audit logs are of one region: ask a broker there")
        return self.events.serve(body)

    def regions(self) -> tuple[RegionNumber, ...]:
        """Return the regions that store topics: each stores all of them."""
        topology = self._controller.state.topology
        return () if topology is None else tuple(row.number for row in topology.data_regions)

    def streams(self, name: str | None) -> Iterator[NamedStream]:
        """Yield the streams behind a plain or qualified name, with None those of every topic. Raises UnknownTopic."""
        if name is None:
            for topic in list(self._controller.state.topics()):
                yield from self._streams_of(topic, origin=0)
            return
        view = self._controller.catalog.topic(name)
        if view is None:
            raise UnknownTopic(f"topic '{name[:60]}' is unknown")
        is_plain = name == view.definition.name
        yield from self._streams_of(view.definition, origin=0 if is_plain else view.origin)

    def _streams_of(self, topic: TopicDefinition, *, origin: int) -> Iterator[NamedStream]:
        """Yield the streams of one topic; `origin`: only that region's of a topic that every region is home of."""
        every = [RegionNumber(origin)] if origin else self.regions()
        for number in every if topic.homes is Homes.EVERY else (RegionNumber(0),):
            for partition in range(topic.partitions):
                key = StreamKey(topic.topic_id, number, partition)
                home = self._controller.catalog.home_of(key)
                yield NamedStream(
                    name=StreamName(topic=topic.name, origin=number, partition=partition),
                    key=key,
                    home=topic.home if home is None else home,
                )

    def _replicas_of(self, key: StreamKey) -> Iterable[BrokerId]:
        assignment = self._controller.state.assignment(key)
        return () if assignment is None else assignment.members

    async def _ask_broker(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[str, Any]:
        answer = await self._links.request(self._own, method, dict(body), timeout_s=timeout_s, broker=broker)
        return answer.body

    async def _ask_region(
        self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float
    ) -> Mapping[str, Any]:
        answer = await self._links.request(region, method, body, timeout_s=timeout_s)
        return answer.body
