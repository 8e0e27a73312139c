"""May a broker with an empty disk vote in a new region? Only if everybody else's disk is as empty. Pure.

A region that is formed for the first time and a broker that lost its disk look alike to that broker. Voting in the
second case loses what was committed, so a fresh broker decides nothing alone:

Rule 1: it proposes a record {founder: disk} once every configured founder, itself included, has said that it is fresh.
Rule 2: it founds (and may vote) once every founder proposes that same record. Founders that decide therefore agree.
Rule 3: a founder that has decided shows its record: who is named in it with this disk is a founder as well.
Rule 4: whoever sees a founded or formed region that does not name this disk joins it: it votes only after it was added.
Rule 5: a disk that was followed by another one of the same broker is never believed again; a proposal that named it
        falls. A proposal is not a promise, the decision is.
Rule 6: a founder of a region of one founds at once.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import BROKERS_PER_REGION_MAX, BrokerId
from region.controller.commands import disks_from_json, disks_to_json
from region.controller.registration import DISK_UUID_CHARS_MAX
from region.controller.topology import BROKER_ID_MAX

RECORD_VERSION: Final = 1


class Standing(enum.StrEnum):
    """How far a broker is."""

    FRESH = "fresh"  # an empty disk, nothing decided
    FOUNDED = "founded"  # a founder by its record; the region may not be formed yet
    FORMED = "formed"  # a member of a region, by whatever way


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundingRecord:
    """The founders of a region and their disks, ascending by broker; the same on every founder, for ever."""

    disks: tuple[tuple[BrokerId, str], ...]

    @property
    def founders(self) -> tuple[BrokerId, ...]:
        """Return the founders, ascending."""
        return tuple(broker for broker, _ in self.disks)

    def names(self, broker: BrokerId, disk: str) -> bool:
        """Return whether that broker founded with that disk."""
        return (broker, disk) in self.disks

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {"v": RECORD_VERSION, "disks": disks_to_json(self.disks)}

    @classmethod
    def from_json(cls, value: object) -> FoundingRecord:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "founding record")
        fields.integer("v", low=RECORD_VERSION, high=RECORD_VERSION)
        record = cls(disks=disks_from_json(fields.child("disks")))
        fields.done()
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What one broker says about itself. `record` is a proposal while it is fresh, a decision later."""

    broker: BrokerId
    disk: str
    standing: Standing
    record: FoundingRecord | None = None

    def to_json(self) -> JsonObject:
        """Return the JSON form: body and answer of the call."""
        return {
            "broker": self.broker,
            "disk": self.disk,
            "standing": str(self.standing),
            "record": None if self.record is None else self.record.to_json(),
        }

    @classmethod
    def from_json(cls, value: object) -> Status:
        """Read the JSON form. Raises FieldError. Fields of a newer version are passed over."""
        fields = Fields(value, "founding status")
        record = fields.value("record")
        return cls(
            broker=BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX)),
            disk=fields.text("disk", chars_min=1, chars_max=DISK_UUID_CHARS_MAX),
            standing=fields.member("standing", Standing),
            record=None if record is None else FoundingRecord.from_json(record),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Decision: vote, as a founder of this record. Store it before the first vote."""

    record: FoundingRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Decision: the region is there; follow it without a vote until it adds this disk."""


Decision: TypeAlias = Found | Join


class Founding:
    """One fresh broker's way to its decision.

    Args:
        founders: as configured, `me` included.
    """

    def __init__(self, *, me: BrokerId, disk: str, founders: tuple[BrokerId, ...]) -> None:
        if me not in founders or len(founders) > BROKERS_PER_REGION_MAX:
            raise FieldError(f"broker {me} is not one of the founders {founders}")
        self.me = me
        self.disk = disk
        self.founders = tuple(sorted(founders))
        self.decision: Decision | None = None
        self._said: dict[BrokerId, Status] = {}
        self._retired: set[tuple[BrokerId, str]] = set()
        self._decide()

    def status(self) -> Status:
        """Return what this broker says about itself now."""
        match self.decision:
            case Found(record=record):
                return Status(broker=self.me, disk=self.disk, standing=Standing.FOUNDED, record=record)
            case _:
                return Status(broker=self.me, disk=self.disk, standing=Standing.FRESH, record=self._proposal())

    def heard(self, status: Status) -> None:
        """Take in what another broker says about itself, asked or not."""
        if self.decision is not None or status.broker == self.me:
            return
        if status.standing is not Standing.FRESH:
            record = status.record
            named = record is not None and record.names(self.me, self.disk)
            self.decision = Found(record=record) if named and record is not None else Join()
            return
        if status.broker not in self.founders or (status.broker, status.disk) in self._retired:
            return
        before = self._said.get(status.broker)
        if before is not None and before.disk != status.disk:
            self._retired.add((status.broker, before.disk))
        self._said[status.broker] = status
        self._decide()

    def missing(self) -> tuple[BrokerId, ...]:
        """Return the founders that were not heard yet."""
        return tuple(broker for broker in self.founders if broker != self.me and broker not in self._said)

    def _proposal(self) -> FoundingRecord | None:
        if self.missing():
            return None
        disks = {broker: said.disk for broker, said in self._said.items()} | {self.me: self.disk}
        return FoundingRecord(disks=tuple(sorted(disks.items())))

    def _decide(self) -> None:
        proposal = self._proposal()
        if proposal is not None and all(said.record == proposal for said in self._said.values()):
            self.decision = Found(record=proposal)
