"""Distinct types for distinct numbers: an offset is never an index, an epoch is never a term.

All are plain integers at run time (NewType costs nothing); mypy keeps them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

Offset = NewType("Offset", int)  # counts records of one stream, dense from 0
Epoch = NewType("Epoch", int)  # numbers the homes of one stream, from 0
Term = NewType("Term", int)  # Raft's, inside one region only
RaftIndex = NewType("RaftIndex", int)  # counts entries of one Raft group, from 1
GroupId = NewType("GroupId", int)  # one Raft group inside a region; 0 is the controller
BrokerId = NewType("BrokerId", int)  # region number * 1000 + broker number
RegionNumber = NewType("RegionNumber", int)  # 1..32767, unique in the mesh, never reused

CONTROLLER_GROUP: Final = GroupId(0)
BROKERS_PER_REGION_MAX: Final = 999
REGION_NUMBER_MAX: Final = 32_767  # 15 bits: it is the high part of a producer id
NO_PRODUCER: Final = -1
PRODUCER_COUNTER_BITS: Final = 48  # low part of a producer id: what its region has counted
_BROKERS_OWN: Final = 1 << (PRODUCER_COUNTER_BITS - 1)  # a region never counts that far


def broker_id(region: RegionNumber, number: int) -> BrokerId:
    """Return the mesh-wide Kafka broker id. `number` is 1..999."""
    if not 1 <= number <= BROKERS_PER_REGION_MAX:
        raise ValueError(f"broker number {number} is outside 1..{BROKERS_PER_REGION_MAX}")
    return BrokerId(region * 1000 + number)


def brokers_own(producer_id: int) -> int:
    """Return the producer id under which a broker publishes by itself, made of one that it was given for that.

    Both name the same region and count; whoever has one of them has no use for the other.
    """
    return producer_id | _BROKERS_OWN


def is_brokers_own(producer_id: int) -> bool:
    """Return whether only brokers publish under this producer id: for callers over REST, gRPC and text, for copies and
    dead letters. -1, no producer, is nobody's.
    """
    return producer_id >= 0 and bool(producer_id & _BROKERS_OWN)


def region_of(broker: BrokerId) -> RegionNumber:
    """Return the number of the region that `broker` belongs to."""
    return RegionNumber(broker // 1000)


@dataclass(frozen=True, slots=True)
class StreamKey:
    """One ordered log of the mesh.

    Args:
        topic_id: 16 bytes, made once when the topic is defined, the same in every region.
        origin: number of the region whose stream this is; 0 for a topic with homes=one.
        partition: 0-based.
    """

    topic_id: bytes
    origin: RegionNumber
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:8]}/{self.origin}/{self.partition}"
