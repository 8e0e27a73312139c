"""What one connection is subscribed to, and how far it is. Pure.

Rule 1: numbers are never used again on one connection.
Rule 2: only what was delivered on this connection can be consumed, and only of partitions that it still has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from georelay.errors import BadRequest, Busy

SUBSCRIPTIONS_MAX: Final = 16
PARTITIONS_MAX: Final = 256  # of all subscriptions of one connection


@dataclass(slots=True)
class Subscription:
    """One SUBS. `next_offsets`: by partition that is delivered here, the first offset that was not delivered yet."""

    number: int
    topic: str
    group: str
    next_offsets: dict[int, int] = field(default_factory=dict)

    def token(self, partition: int) -> str:
        """Return how DONE names one partition of it."""
        return f"{self.number}.{partition}"


class Place(NamedTuple):
    """Where a group goes on: `next_offset` is the first record that is not consumed."""

    subscription: Subscription
    partition: int
    next_offset: int


class Subscriptions:
    """The subscriptions of one connection."""

    def __init__(self) -> None:
        self._open: dict[int, Subscription] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self._open.values()))

    def open(self, topic: str, group: str) -> Subscription:
        """Return a new subscription without partitions (Busy: there are too many)."""
        if len(self._open) >= SUBSCRIPTIONS_MAX:
            raise Busy(f"this connection has {SUBSCRIPTIONS_MAX} subscriptions, its maximum; end one with UNSB")
        self._number += 1
        self._open[self._number] = made = Subscription(self._number, topic, group)
        return made

    def get(self, number: int) -> Subscription:
        """Return an open subscription (BadRequest: there is none of that number)."""
        found = self._open.get(number)
        if found is None:
            raise BadRequest(f"there is no subscription {number}")
        return found

    def close(self, number: int) -> None:
        """Forget a subscription."""
        self._open.pop(number, None)

    def check_room(self, subscription: Subscription, partitions: int) -> None:
        """Raise Busy if the connection cannot have so many partitions of a subscription."""
        others = sum(len(other.next_offsets) for other in self if other is not subscription)
        if others + partitions > PARTITIONS_MAX:
            raise Busy(f"{others + partitions} partitions on one connection are over {PARTITIONS_MAX}")

    def consumed(self, topic: str, number: int, partition: int, offset: int) -> Place:
        """Return the place behind `offset`; partition -1 stands for the only one.

        Raises:
            BadRequest: not what was delivered here.
        """
        found = self.get(number)
        if found.topic != topic:
            raise BadRequest(f"subscription {number} is of topic {found.topic!r}")
        if partition < 0:
            if len(found.next_offsets) != 1:
                raise BadRequest(
                    f"subscription {number} has {len(found.next_offsets)} partitions; name one: {number}.0"
                )
            (partition,) = found.next_offsets
        if partition not in found.next_offsets:
            raise BadRequest(f"partition {partition} is not delivered to subscription {number} now")
        if offset >= found.next_offsets[partition]:
            raise BadRequest(f"offset {offset} was not delivered yet to subscription {found.token(partition)}")
        return Place(found, partition, offset + 1)
