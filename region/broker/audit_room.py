"""Joins the audit to the rest of a broker: which streams there are, and how regions are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from georelay.clock import Clock
from georelay.errors import UnknownTopic
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey, region_of
from mesh.replication.mesh_links import MeshLinks
from region.audit.agent import AuditAgent
from region.audit.auditor import Auditor, NamedStream, StreamName
from region.controller.service import ControllerService
from region.controller.topic import Homes, TopicDefinition
from region.topics.hosted_stream import HostedStream


class AuditRoom:
    """One broker's part in audits: it answers for its streams, and compares those of all regions when it is asked.

    Args:
        hosted: the stream when a replica of it is on this broker.
        leader_of: the broker of this region that leads a stream, -1 while unknown.
    """

    def __init__(
        self,
        me: BrokerId,
        controller: ControllerService,
        links: MeshLinks,
        clock: Clock,
        *,
        hosted: Callable[[StreamKey], HostedStream | None],
        leader_of: Callable[[StreamKey], int],
    ) -> None:
        self._own = region_of(me)
        self._controller = controller
        self._links = links
        self.agent = AuditAgent(
            me=me,
            hosted=hosted,
            leader_of=leader_of,
            replicas_of=self._replicas_of,
            ask=self._ask_broker,
            clock=clock,
        )
        self.auditor = Auditor(
            own=self._own, agent=self.agent, streams=self.streams, regions=self.regions, ask=self._ask_region
        )

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
