"""Who hears how a transaction ends, and what else its coordinator asks of the broker around it."""

from __future__ import annotations

from typing import Protocol

from georelay.ids import StreamKey
from region.transactions.transaction_core import TransactionEnd


class Participants(Protocol):
    """Partitions and groups of this region (region.broker.transaction_port; fakes in tests)."""

    def resolve(self, topic: str, partition: int) -> StreamKey:
        """Return the stream that a producer writes to under a local topic name.

        Raises:
            UnknownTopic. PolicyViolation: its home is another region, or it is written by brokers only.
        """

    def name_of(self, key: StreamKey) -> str | None:
        """Return the local name that resolves to a stream, None for a topic that was deleted."""

    async def is_gone(self, key: StreamKey) -> bool:
        """Return whether the topic was deleted; what this broker knows is first brought up to date.

        Raises:
            GeorelayError: not known at the moment.
        """

    async def end_partition(self, key: StreamKey, end: TransactionEnd) -> None:
        """Return once the marker is committed in the stream. Safe to repeat.

        Raises:
            GeorelayError: try again.
        """

    async def end_group(self, group_id: str, end: TransactionEnd) -> None:
        """Return once the group's coordinator has committed or dropped the offsets of the transaction.

        Safe to repeat.

        Raises:
            GeorelayError: try again.
        """

    async def allocate_producer_id(self) -> int:
        """Return a producer id that no one in the mesh has had. Raises GeorelayError."""
