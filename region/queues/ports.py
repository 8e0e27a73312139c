"""What queues need of the broker that leads their coordinator: a part of region.kafka.ports.Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from georelay.ids import RegionNumber
from mesh.replication.ports import EpochRow
from region.kafka.ports import Publish, Published, ReadAnswer, Stream, TopicSpec, TopicView


class QueueCluster(Protocol):
    """The region and the mesh as queues see them; every method as in region.kafka.ports.Cluster."""

    @property
    def region_number(self) -> RegionNumber:
        """Number of this broker's region."""

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a local name."""

    def stream_names(self, name: str) -> Sequence[str]:
        """Return the local names that hold the topic's records: every origin's for a plain homes=every name."""

    def epoch_table(self, name: str, partition: int) -> Sequence[EpochRow]:
        """Return control's history of a partition's home epochs, (epoch, start); () where the home never moved."""

    def stream(self, name: str, partition: int) -> Stream | None:
        """Return the stream when a replica of it is hosted by this broker."""

    async def create_topic(self, spec: TopicSpec) -> TopicView:
        """Create a topic."""

    async def allocate_producer_id(self) -> int:
        """Return a producer id that nobody else ever gets."""

    async def read_records(
        self, name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, *, read_uncommitted: bool = False
    ) -> ReadAnswer:
        """Read decided records wherever a replica is."""

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        """Publish one batch."""
