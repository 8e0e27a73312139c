"""What mesh control says about the mesh itself: its regions and its own replicas. Made by control, cached by regions.

RegionRow   one region: where it is reached, and whether it stays
VoterRow    one replica of control's log: a broker and the disk that it has
ControlRow  which control this is (generation and id) and who its replicas are
Charter     the definitions home hands the definitions over to the control that this names, once and for ever

Rule 1: a region number is never used again, and neither is a replica number: a broker that comes back with an empty
disk gets another one, so it cannot vote twice.
Rule 2: of two controls the one with the higher generation is right; two with one generation and different ids are a
fault that people have to look at.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, integers
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, RegionNumber, region_of
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX
from region.controller.registration import ADDRESS_CHARS_MAX, DISK_UUID_CHARS_MAX
from region.controller.topology import BROKER_ID_MAX, REGION_NAME

SEEDS_MAX: Final = 16
REPLICAS_MAX: Final = 64  # voters, learners, and those on their way out
REPLICA_NUMBER_MAX: Final = 2**31 - 1
GENERATION_MAX: Final = 2**31 - 1
LEVEL_MAX: Final = 1_000
CONTROL_ID: Final = re.compile("[0-9a-f]{32}")
_SEED: Final = re.compile(r"([0-9]{4,8})@(.{1,290}:[0-9]{1,5})")


class RegionState(enum.StrEnum):
    """Whether a region stays."""

    ACTIVE = "active"
    DRAINING = "draining"  # no home moves there any more
    REMOVED = "removed"  # its number is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRow:
    """One region of the mesh.

    Args:
        seeds: link addresses of some of its brokers, "4001@host:port".
        brokers: its brokers as its controller last said; () before it said anything.
        witness: it has a vote in control and stores no topics.
        level: the feature level of the region as its controller last said; 0 before it said anything.
        index: of the newest change of this row.
    """

    number: RegionNumber
    name: str
    state: RegionState = RegionState.ACTIVE
    seeds: tuple[str, ...] = ()
    brokers: tuple[BrokerId, ...] = ()
    witness: bool = False
    level: int = 0
    index: int = 0

    @property
    def holds_topics(self) -> bool:
        """Return whether the region stores topics: it is in the mesh, and no witness."""
        return self.state is not RegionState.REMOVED and not self.witness

    @property
    def has_begun(self) -> bool:
        """Return whether it was there when control was founded, or has said who its brokers are, and did not leave."""
        return bool(self.brokers)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "number": self.number,
            "name": self.name,
            "state": str(self.state),
            "seeds": list(self.seeds),
            "brokers": list(self.brokers),
            "witness": self.witness,
            "level": self.level,
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "region row")
        number = RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX))
        row = cls(
            number=number,
            name=fields.text("name", chars_max=REGION_NAME_CHARS_MAX, pattern=REGION_NAME),
            state=fields.member("state", RegionState),
            seeds=read_seeds(fields, "seeds", number),
            brokers=_read_brokers(fields, number),
            witness=fields.flag("witness"),
            level=fields.integer("level", low=0, high=LEVEL_MAX),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return row


def level_of(rows: Iterable[RegionRow]) -> int:
    """Return the feature level that all regions are at, 0 while one did not say its own.

    Who was let in and said nothing yet does not count, and begins at this level or above; so it never goes down.
    """
    return min((row.level for row in rows if row.has_begun), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterRow:
    """One replica of control's log.

    Args:
        replica: its number in the Raft group; never given out twice.
        disk: uuid of the broker's data directory, "" until the replica was made there.
        address: "host:port" of the broker's link listener.
        retired: it is on its way out.
    """

    replica: int
    broker: BrokerId
    disk: str
    address: str
    retired: bool = False

    @property
    def region(self) -> RegionNumber:
        """Return the region of the broker."""
        return region_of(self.broker)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "replica": self.replica,
            "broker": self.broker,
            "disk": self.disk,
            "address": self.address,
            "retired": self.retired,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "replica of control")
        row = cls(
            replica=fields.integer("replica", low=1, high=REPLICA_NUMBER_MAX),
            broker=BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX)),
            disk=fields.text("disk", chars_max=DISK_UUID_CHARS_MAX),
            address=fields.text("address", chars_max=ADDRESS_CHARS_MAX),
            retired=fields.flag("retired"),
        )
        fields.done()
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """Which control the mesh has, and who holds its log.

    Args:
        voters, learners: replica numbers, as the leader last reported them.
    """

    generation: int
    control_id: str
    members: tuple[VoterRow, ...]
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    index: int = 0

    def replaces(self, other: ControlRow) -> bool:
        """Return whether this row is newer than `other`, of the same control or of a later generation."""
        if self.generation != other.generation:
            return self.generation > other.generation
        return self.control_id == other.control_id and self.index > other.index

    def contradicts(self, other: ControlRow) -> bool:
        """Return whether both claim one generation for different controls."""
        return self.generation == other.generation and self.control_id != other.control_id

    def member(self, replica: int) -> VoterRow | None:
        """Return a replica by its number."""
        return next((row for row in self.members if row.replica == replica), None)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "generation": self.generation,
            "control_id": self.control_id,
            "members": [row.to_json() for row in self.members],
            "voters": list(self.voters),
            "learners": list(self.learners),
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "control")
        row = cls(
            generation=fields.integer("generation", low=1, high=GENERATION_MAX),
            control_id=fields.text("control_id", chars_max=32, pattern=CONTROL_ID),
            members=tuple(VoterRow.from_json(item) for item in fields.items("members", count_max=REPLICAS_MAX)),
            voters=_read_replicas(fields, "voters"),
            learners=_read_replicas(fields, "learners"),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """Who founds mesh control. From its commit on the definitions home orders nothing any more.

    Args:
        founder, disk: the broker whose control may begin to order, and its disk.
        opened: that control has everything; no other founder can be named any more.
        index: the last definition that the definitions home ordered.
    """

    control_id: str
    founder: BrokerId
    disk: str
    opened: bool = False
    index: int = 0

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "control_id": self.control_id,
            "founder": self.founder,
            "disk": self.disk,
            "opened": self.opened,
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "charter")
        charter = cls(
            control_id=fields.text("control_id", chars_max=32, pattern=CONTROL_ID),
            founder=BrokerId(fields.integer("founder", low=1001, high=BROKER_ID_MAX)),
            disk=fields.text("disk", chars_min=1, chars_max=DISK_UUID_CHARS_MAX),
            opened=fields.flag("opened"),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return charter


def parse_seed(seed: str) -> tuple[BrokerId, str]:
    """Return (broker, "host:port") of "4001@host:port". Raises ValueError."""
    match = _SEED.fullmatch(seed)
    if match is None or not 1001 <= int(match[1]) <= BROKER_ID_MAX:
        raise ValueError(f"{seed[:80]!r} is not <broker id>@host:port, as in 4001@10.0.4.1:19095")
    return BrokerId(int(match[1])), match[2]


def read_seeds(fields: Fields, name: str, region: RegionNumber) -> tuple[str, ...]:
    """Read seeds of one region. Raises FieldError."""
    seeds = []
    for item in fields.items(name, count_max=SEEDS_MAX):
        seed = Fields({name: item}, "seed").text(name, chars_max=300)
        try:
            broker, _ = parse_seed(seed)
        except ValueError as error:
            raise FieldError(str(error)) from error
        if region_of(broker) != region:
            raise FieldError(f"seed {seed} is not a broker of region {region}")
        seeds.append(seed)
    return tuple(seeds)


def _read_brokers(fields: Fields, region: RegionNumber) -> tuple[BrokerId, ...]:
    listed = integers(
        fields.items("brokers", count_max=BROKERS_PER_REGION_MAX), "brokers", low=1001, high=BROKER_ID_MAX
    )
    brokers = tuple(BrokerId(value) for value in sorted(set(listed)))
    if len(brokers) != len(listed) or any(region_of(broker) != region for broker in brokers):
        raise FieldError(f"brokers {listed} are repeated or not of region {region}")
    return brokers


def _read_replicas(fields: Fields, name: str) -> tuple[int, ...]:
    return tuple(integers(fields.items(name, count_max=REPLICAS_MAX), name, low=1, high=REPLICA_NUMBER_MAX))


REGION_ROWS_MAX: Final = 4 * REGIONS_MAX  # removed ones keep their number
