"""What a publish asks for before it counts as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest
from georelay.limits import REGIONS_MAX

GEO_REGIONS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class Durability:
    """`Durability.REGION`: committed on a majority of the home's replicas. `Durability.geo(k)`: in k regions."""

    regions: int = 1

    REGION: ClassVar[Durability]

    @classmethod
    def geo(cls, regions: int) -> Durability:
        """Return the level "committed in `regions` regions, the home included" (2..64; BadRequest otherwise).

        Brokers that cannot give it refuse the publish; it is never lowered.
        """
        if not GEO_REGIONS_MIN <= regions <= REGIONS_MAX:
            raise BadRequest(f"Durability.geo({regions}): regions must be in {GEO_REGIONS_MIN}..{REGIONS_MAX}")
        return cls(regions)

    @property
    def level(self) -> pb.Level:
        """Return the number of the level on the wire."""
        return pb.LEVEL_REGION if self.regions < GEO_REGIONS_MIN else pb.LEVEL_GEO


Durability.REGION = Durability()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a record is stored, in every region.

    Args:
        epoch: of the home. base_offset: the record's own offset (the first one's, of several).
        commit_us: append time at the home, microseconds since 1970.
        regions: names of those that have it, as far as `durability` says.
    """

    topic: str
    partition: int
    epoch: int
    base_offset: int
    commit_us: int
    durability: Durability = Durability.REGION
    regions: tuple[str, ...] = ()

    @property
    def offset(self) -> int:
        """Return the record's offset."""
        return self.base_offset
