"""What a publish asks for before it counts as stored, and what it got.

A level is asked per publish and never lowered silently: who cannot give it refuses before anything is stored, and what
is stored but not at the level in time is `PENDING`, with the position that `Connection.resolve` asks about later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest
from georelay.limits import REGIONS_MAX

GEO_REGIONS_MIN: Final = 2
_MAJORITY: Final = -1  # on the wire as `regions` of LEVEL_GEO: a broker of before refuses every LEVEL_GEO
_ALL: Final = -2
_WORDS: Final = {"region": 1, "geo:majority": _MAJORITY, "geo:all": _ALL}
_GEO: Final = re.compile(r"geo:([0-9]{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Durability:
    """`Durability.REGION`: committed on a majority of the home's replicas. `Durability.geo(k)`: in k regions.

    MAJORITY and ALL are of the regions that hold the topic, counted by its home at the moment of the publish.

    Args:
        regions: how many, the home included; -1: more than half of them, -2: all.
    """

    regions: int = 1

    REGION: ClassVar[Durability]
    MAJORITY: ClassVar[Durability]
    ALL: ClassVar[Durability]

    @classmethod
    def geo(cls, regions: int) -> Durability:
        """Return the level "committed in `regions` regions, the home included" (2..64; BadRequest otherwise).

        Brokers that cannot give it refuse the publish; it is never lowered.
        """
        if not GEO_REGIONS_MIN <= regions <= REGIONS_MAX:
            raise BadRequest(f"Durability.geo({regions}): regions must be in {GEO_REGIONS_MIN}..{REGIONS_MAX}")
        return cls(regions)

    @classmethod
    def of_wire(cls, regions: int) -> Durability:
        """Return the level that a number on the wire means: 1, 2..64, -1 or -2 (BadRequest otherwise)."""
        return cls(regions) if regions in (1, _MAJORITY, _ALL) else cls.geo(regions)

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Return the level of "region", "geo:3", "geo:majority" or "geo:all" (BadRequest otherwise)."""
        if text in _WORDS:
            return cls(_WORDS[text])
        found = _GEO.fullmatch(text)
        if found is None:
            raise BadRequest(f"durability {text[:32]!r}: use region, geo:2 (or more), geo:majority or geo:all")
        return cls.geo(int(found[1]))

    @property
    def is_geo(self) -> bool:
        """Return whether more than the home is asked for."""
        return self.regions != 1

    @property
    def level(self) -> pb.Level:
        """Return the number of the level on the wire."""
        return pb.LEVEL_GEO if self.is_geo else pb.LEVEL_REGION

    def regions_of(self, count: int) -> int:
        """Return how many regions it means where `count` regions (1 or more) hold the topic; may be more than those."""
        if self.regions == _MAJORITY:
            return count // 2 + 1
        return count if self.regions == _ALL else self.regions

    def __str__(self) -> str:
        """Return what `parse` reads."""
        return next((word for word, regions in _WORDS.items() if regions == self.regions), f"geo:{self.regions}")


Durability.REGION = Durability()
Durability.MAJORITY = Durability(_MAJORITY)
Durability.ALL = Durability(_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a record is stored, in every region.

    Args:
        epoch: of the home. base_offset: the record's own offset (the first one's, of several).
        commit_us: append time at the home, microseconds since 1970.
        durability: reached, as far as `regions` says.
        regions: names of those that have it, the home first.
    """

    topic: str
    partition: int
    epoch: int
    base_offset: int
    commit_us: int
    durability: Durability = Durability.REGION
    regions: tuple[str, ...] = ()
    is_pending: bool = False  # for brokers and producers only: users get DurabilityPending instead

    @property
    def offset(self) -> int:
        """Return the record's offset."""
        return self.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What became of a record, asked for by its position.

    Args:
        durability: reached now, as far as the home's leader knows: never more than is true.
        regions: names of those that have it.
        is_reached: whether that is the level that was asked about.
        is_lost: the position is another record's by now: the home moved without it. It may be in an orphan branch.
        epoch: of the home now.
    """

    durability: Durability
    regions: tuple[str, ...]
    is_reached: bool
    is_lost: bool
    epoch: int
