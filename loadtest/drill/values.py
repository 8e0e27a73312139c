"""What a drill saw, as values: what was sent and answered, what is stored where, what was read."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.wan.heals_core import Delivery

REGION_LEVEL = 1


class Fate(enum.StrEnum):
    """What a publisher was told at last."""

    STORED = "stored"
    PENDING = "pending"  # stored at its home; not in as many regions as asked for when the deadline passed
    REFUSED = "refused"  # not stored
    UNKNOWN = "unknown"  # never answered


class RecordName(NamedTuple):
    """Names a record for ever: who sent it, and its number there; every publisher counts from 0."""

    publisher: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One record that was sent.

    Args:
        asked: regions that had to have it before it counted, the home included; 1: level `region`.
        due_ns, at_ns: when it should have been sent, and when the outcome came; monotonic.
        epoch, offset: where it was stored, of STORED and PENDING; -1 otherwise.
    """

    name: RecordName
    asked: int
    fate: Fate
    due_ns: int
    at_ns: int
    epoch: int = -1
    offset: int = -1

    @property
    def is_geo_acknowledged(self) -> bool:
        """Return whether more than the home was promised."""
        return self.fate is Fate.STORED and self.asked > REGION_LEVEL

    @property
    def is_region_acknowledged(self) -> bool:
        """Return whether the home, and no more, was promised."""
        return self.fate is Fate.STORED and self.asked == REGION_LEVEL


class StoredRecord(NamedTuple):
    """One record of a log, or of an orphan branch. `name` is None for a value that no drill wrote."""

    offset: int
    epoch: int
    name: RecordName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """An orphan branch: the region that keeps it, the epoch that cut it off, and its records."""

    region: str
    epoch: int
    listed_records: int
    records: tuple[StoredRecord, ...]


@dataclass(slots=True, kw_only=True)
class Reading:
    """What one reader got, in that order.

    Args:
        moved_to: the region in which it went on by its position, "" when it stayed.
        in_flight: records it had in hands and had not saved its position behind, when it moved.
        complaint: why it could not go on.
    """

    region: str
    deliveries: list[Delivery] = field(default_factory=list)
    moved_to: str = ""
    in_flight: int = 0
    complaint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a run saw, once the mesh was whole again.

    Args:
        fault_ns: just before the first thing was broken.
        streams: region -> its log of the topic, by offset.
        old_epoch: of the home before the fault.
        away: publishers outside of what was broken; they say when the mesh worked again.
    """

    sent: Sequence[Sent]
    streams: Mapping[str, Sequence[StoredRecord]]
    branches: Sequence[Branch]
    readings: Sequence[Reading]
    fault_ns: int
    old_epoch: int
    away: frozenset[str]
    moves_home: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where partition 0 of a topic is sequenced."""

    region: str
    epoch: int
    start: int
