"""Who holds control's log, as control itself agreed: replicas by number, and which of them shall vote.

Rule 1: a number is given once. A broker whose disk was lost, or that comes back into a region, gets another number: the
        vote that the lost disk gave is nobody's any more.
Rule 2: at most five voters, one per region, and an odd number of them where there are three or more regions; whoever is
        left over follows as a learner, and takes the place of a voter that retires.
Rule 3: who votes keeps voting while it may; a replica votes only when its broker has made it (`disk` is known).
Rule 4: a replica that retired is forgotten once it is no member any more.
Part "members" of the state; pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from georelay.errors import BadRequest, PolicyViolation
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, integers
from georelay.ids import BrokerId, region_of
from region.controller.mesh_rows import REPLICA_NUMBER_MAX, REPLICAS_MAX, VoterRow
from region.controller.registration import ADDRESS_CHARS_MAX, DISK_UUID_CHARS_MAX
from region.controller.topology import BROKER_ID_MAX

CONTROL_VOTERS_MAX: Final = 5


class Members:
    """Replicas of control's log.

    Invariants: 1 at most one replica per region that has not retired   2 `voters` and `learners` are what the leader
    last saw committed.
    """

    name = "members"

    def __init__(self) -> None:
        self.index = 0  # of the newest change
        self.next_replica = 1
        self.voters: tuple[int, ...] = ()
        self.learners: tuple[int, ...] = ()
        self._rows: dict[int, VoterRow] = {}

    def rows(self) -> tuple[VoterRow, ...]:
        """Return every replica, in order of numbers."""
        return tuple(row for _, row in sorted(self._rows.items()))

    def row(self, replica: int) -> VoterRow | None:
        """Return a replica by its number."""
        return self._rows.get(replica)

    def of_region(self, region: int) -> VoterRow | None:
        """Return the replica of a region that has not retired."""
        return next((row for row in self.rows() if row.region == region and not row.retired), None)

    def targets(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (voters, learners) that the group shall have."""
        usable = [row.replica for row in self.rows() if row.disk and not row.retired]
        if not usable:
            return self.voters, ()
        ranked = sorted(usable, key=lambda replica: (replica not in self.voters, replica))
        voters = tuple(ranked[: _size(len(ranked))])
        return voters, tuple(replica for replica in ranked if replica not in voters)

    # --- ControlPart --------------------------------------------------------------------------------------------------

    def apply(self, command: JsonObject, *, index: int, append_us: int) -> JsonObject:
        """Apply one change; see ControlPart."""
        del append_us
        fields = Fields(command, self.name)
        match fields.text("do", chars_max=16):
            case "add":
                outcome = self._add(fields)
            case "made":
                outcome = self._made(fields)
            case "retire":
                outcome = self._retire(fields)
            case "reached":
                outcome = self._reached(fields)
            case other:
                raise BadRequest(f"{other!r} is nothing that members do")
        self.index = index
        return outcome

    def snapshot(self) -> JsonObject:
        """Return the state of the part."""
        return {
            "index": self.index,
            "next_replica": self.next_replica,
            "voters": list(self.voters),
            "learners": list(self.learners),
            "rows": [row.to_json() for row in self.rows()],
        }

    def restore(self, raw: JsonObject) -> None:
        """Replace the state. Raises FieldError."""
        fields = Fields(raw, self.name)
        index = fields.integer("index", low=0, high=INT64_MAX)
        following = fields.integer("next_replica", low=1, high=REPLICA_NUMBER_MAX)
        voters, learners = _numbers(fields, "voters"), _numbers(fields, "learners")
        rows = [VoterRow.from_json(item) for item in fields.items("rows", count_max=REPLICAS_MAX)]
        fields.done()
        if len({row.replica for row in rows}) != len(rows) or any(row.replica >= following for row in rows):
            raise FieldError("replicas are there twice, or were never given out")
        self.index, self.next_replica, self.voters, self.learners = index, following, voters, learners
        self._rows = {row.replica: row for row in rows}

    def elected(self) -> None:
        """Nothing to do."""

    def deposed(self) -> None:
        """Nothing to do."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def _add(self, fields: Fields) -> JsonObject:
        broker = BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))
        address = fields.text("address", chars_max=ADDRESS_CHARS_MAX)
        known = self.of_region(region_of(broker))
        if known is not None and known.broker == broker:
            return {"replica": known.replica}  # the same wish again
        if known is not None:
            raise PolicyViolation(f"region {known.region} has replica {known.replica} on broker {known.broker}")
        if len(self._rows) >= REPLICAS_MAX or self.next_replica >= REPLICA_NUMBER_MAX:
            raise PolicyViolation(f"control has {len(self._rows)} replicas, its maximum")
        replica = self.next_replica
        self.next_replica += 1
        self._rows[replica] = VoterRow(replica=replica, broker=broker, disk="", address=address)
        return {"replica": replica}

    def _made(self, fields: Fields) -> JsonObject:
        row = self._known(fields)
        disk = fields.text("disk", chars_min=1, chars_max=DISK_UUID_CHARS_MAX)
        address = fields.text("address", chars_max=ADDRESS_CHARS_MAX)
        if row.disk and row.disk != disk:
            text = f"replica {row.replica} was made on disk {row.disk}, not {disk}: it has to be replaced"
            raise PolicyViolation(text)
        self._rows[row.replica] = replace(row, disk=disk, address=address or row.address)
        return {}

    def _retire(self, fields: Fields) -> JsonObject:
        row = self._known(fields)
        others = [other for other in self._rows.values() if other.disk and not other.retired and other != row]
        if row.replica in self.voters and not others:
            raise PolicyViolation(f"replica {row.replica} is the last one of mesh control")
        self._rows[row.replica] = replace(row, retired=True)
        self._forget()
        return {}

    def _reached(self, fields: Fields) -> JsonObject:
        self.voters, self.learners = _numbers(fields, "voters"), _numbers(fields, "learners")
        self._forget()
        return {}

    def _known(self, fields: Fields) -> VoterRow:
        replica = fields.integer("replica", low=1, high=REPLICA_NUMBER_MAX)
        row = self._rows.get(replica)
        if row is None:
            raise BadRequest(f"replica {replica} is unknown")
        return row

    def _forget(self) -> None:
        members = {*self.voters, *self.learners}
        for row in self.rows():
            if row.retired and row.replica not in members:
                del self._rows[row.replica]


def founded(broker: BrokerId, *, replica: int, disk: str, address: str, index: int) -> JsonObject:
    """Return the snapshot of the part with one replica, the founder or the survivor."""
    members = Members()
    members.next_replica, members.index, members.voters = replica + 1, index, (replica,)
    row = VoterRow(replica=replica, broker=broker, disk=disk, address=address)
    members._rows[replica] = row
    return members.snapshot()


def _size(replicas: int) -> int:
    if replicas <= 2:
        return replicas
    return min(replicas - 1 + replicas % 2, CONTROL_VOTERS_MAX)


def _numbers(fields: Fields, name: str) -> tuple[int, ...]:
    return tuple(integers(fields.items(name, count_max=REPLICAS_MAX), name, low=1, high=REPLICA_NUMBER_MAX))
