"""What bindings need of the streams that are copied, and of the broker that copies them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.ports import EpochRow
from region.kafka.ports import EntryLike, Publish, Published, TopicView


class SourceStream(Protocol):
    """The stream that is copied: a part of region.kafka.ports.Stream."""

    @property
    def key(self) -> StreamKey:
        """The mesh-wide identity."""

    @property
    def topic(self) -> str:
        """Plain name of its topic."""

    @property
    def partition(self) -> int:
        """0-based."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it."""

    @property
    def is_home(self) -> bool:
        """Whether this region sequences it."""

    @property
    def epoch(self) -> Epoch:
        """Home epoch that has begun in this log."""

    @property
    def decided_table(self) -> Sequence[EpochRow]:
        """Control's history of its home epochs, (epoch, start); () where the home never moved."""

    @property
    def log_start(self) -> Offset:
        """First offset kept."""

    @property
    def visible_end(self) -> Offset:
        """First offset that consumers are not shown: what is not committed, or not in enough regions."""

    @property
    def next_offset(self) -> Offset:
        """End of the log."""

    def read(self, offset: Offset, max_bytes: int) -> Sequence[EntryLike] | None:
        """Return committed entries from memory, None when `read_cold` must be asked."""

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[EntryLike]:
        """Return the same from the disk."""

    async def confirmed_end(self) -> Offset:
        """Return the visible end once a quorum has confirmed that this broker leads (NotLeader, Unavailable)."""

    def add_waiter(self, callback: Callable[[], None]) -> Any:
        """Call back at every move of the high watermark."""

    def remove_waiter(self, handle: Any) -> None:
        """Forget the waiter."""


class CopyCluster(Protocol):
    """What a copier needs of region.kafka.ports.Cluster."""

    @property
    def region_number(self) -> RegionNumber:
        """Number of this broker's region."""

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a local name."""

    async def allocate_producer_id(self) -> int:
        """Return a new producer id."""

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        """Publish one batch."""
