"""The shape of the mesh as one region sees it: regions in configuration order and their brokers.

It comes from the configuration and is replicated by FormRegion, so that applying a definition gives the
same groups and voters on every broker, whatever file that broker was started with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from georelay.fields import FieldError, Fields, JsonObject, integers
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, RegionNumber, region_of
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX

REGION_NAME: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")
MESH_ID_CHARS_MAX: Final = 64
BROKER_ID_MAX: Final = REGION_NUMBER_MAX * 1000 + BROKERS_PER_REGION_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo:
    """One region of the mesh.

    Args:
        brokers: () for another region that mesh control named and that has said nothing yet.
        witness: it has a vote in mesh control and stores no topics.
        removed: it left the mesh; the streams that began there stay.

    Invariants: brokers ascend and carry the region's number.
    """

    number: RegionNumber
    name: str
    brokers: tuple[BrokerId, ...]
    witness: bool = False
    removed: bool = False

    @property
    def holds_topics(self) -> bool:
        """Return whether topics are stored there."""
        return not self.witness and not self.removed

    def to_json(self) -> JsonObject:
        """Return the JSON form; what came with feature level 4 is left out at its default."""
        said: JsonObject = {"number": self.number, "name": self.name, "brokers": list(self.brokers)}
        return said | {name: True for name in ("witness", "removed") if getattr(self, name)}

    @classmethod
    def from_json(cls, value: object) -> RegionInfo:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "region")
        number = RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX))
        name = fields.text("name", chars_max=REGION_NAME_CHARS_MAX, pattern=REGION_NAME)
        listed = integers(
            fields.items("brokers", count_max=BROKERS_PER_REGION_MAX), "region.brokers", low=1, high=BROKER_ID_MAX
        )
        witness = fields.has("witness") and fields.flag("witness")
        removed = fields.has("removed") and fields.flag("removed")
        fields.done()
        brokers = tuple(BrokerId(value) for value in sorted(set(listed)))
        if len(brokers) != len(listed) or any(region_of(broker) != number for broker in brokers):
            raise FieldError(f"brokers {listed} of region {name} are repeated or of another region")
        return cls(number=number, name=name, brokers=brokers, witness=witness, removed=removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The mesh seen from one region.

    Args:
        mesh_id: the Kafka cluster id, the same in every region.
        region: number of the region this controller belongs to.
        definitions_home: number of the region that orders all definitions until mesh control does; 0 in a region
            that joined a mesh that has it.
        regions: in configuration order, own region included, then those that mesh control named later; names and
            numbers are unique.
    """

    mesh_id: str
    region: RegionNumber
    definitions_home: RegionNumber
    regions: tuple[RegionInfo, ...]

    @property
    def own(self) -> RegionInfo:
        """Return the region this controller belongs to."""
        found = self.by_number(self.region)
        assert found is not None, self.region
        return found

    @property
    def is_definitions_home(self) -> bool:
        """Return whether this region orders the definitions."""
        return self.region == self.definitions_home

    @property
    def data_regions(self) -> tuple[RegionInfo, ...]:
        """Return the regions that store topics now."""
        return tuple(region for region in self.regions if region.holds_topics)

    def by_number(self, number: int) -> RegionInfo | None:
        """Return the region with that number."""
        return next((region for region in self.regions if region.number == number), None)

    def by_name(self, name: str) -> RegionInfo | None:
        """Return the region with that name."""
        return next((region for region in self.regions if region.name == name), None)

    @property
    def own_brokers_known(self) -> bool:
        """Return whether the own region is there, with a broker."""
        own = self.by_number(self.region)
        return own is not None and bool(own.brokers)

    def check(self) -> None:
        """Raise FieldError unless names and numbers are unique and both named regions are in the list."""
        numbers = [region.number for region in self.regions]
        names = [region.name for region in self.regions]
        if len(set(numbers)) != len(numbers) or len(set(names)) != len(names):
            raise FieldError(f"regions {names} with numbers {numbers} are not unique")
        if not self.own_brokers_known or self.definitions_home not in (0, *numbers):
            raise FieldError(
                f"region {self.region} or definitions home {self.definitions_home} is not one of {numbers}"
            )

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "mesh_id": self.mesh_id,
            "region": self.region,
            "definitions_home": self.definitions_home,
            "regions": [region.to_json() for region in self.regions],
        }

    @classmethod
    def from_json(cls, value: object) -> Topology:
        """Read and check the JSON form. Raises FieldError."""
        fields = Fields(value, "topology")
        topology = cls(
            mesh_id=fields.text("mesh_id", chars_min=1, chars_max=MESH_ID_CHARS_MAX),
            region=RegionNumber(fields.integer("region", low=1, high=REGION_NUMBER_MAX)),
            definitions_home=RegionNumber(fields.integer("definitions_home", low=0, high=REGION_NUMBER_MAX)),
            regions=tuple(RegionInfo.from_json(item) for item in fields.items("regions", count_max=REGIONS_MAX)),
        )
        fields.done()
        topology.check()
        return topology
