"""Which region sequences one stream whose home can move, in which epoch, since which offset: control's word.

HomeRow   the agreed history of one stream's homes, and the attempt to move it that is under way
Moving    that attempt: control committed it before anybody was asked to seal or to promise

Rule 1: a row is made by control only; a region believes the row with the highest index.
Rule 2: a stream without a row has the row `HomeRow.first`: its first home, epoch 1, from offset 0.
Rule 3: epoch numbers are never given out twice, not even to attempts that ended without a new home.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, integers
from georelay.ids import REGION_NUMBER_MAX, Epoch, Offset, RegionNumber, StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, REGIONS_MAX
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import table_fault
from mesh.replication.stream_header import DIGEST_BYTES

EPOCH_MAX: Final = 2**31 - 1  # Kafka's leader epoch is a signed 32-bit number
HOME_EPOCHS_MAX: Final = 1_000  # rows of one table: a stream whose home moved that often without end is refused
MOVE_ID_CHARS_MAX: Final = 64
TOPIC_ID_BYTES: Final = 16
NOT_CHOSEN: Final = RegionNumber(0)
ONE_HOME: Final = RegionNumber(0)  # origin of streams of topics with one home

_RENEWED: Final = "+"

EpochHome: TypeAlias = tuple[Epoch, RegionNumber]


def renewed_id(move_id: str) -> str:
    """Return the name of the attempt that takes the place of `move_id`, for the same wish."""
    first, _, turn = move_id.partition(_RENEWED)
    return f"{first}{_RENEWED}{int(turn or 0) + 1}"


def first_id(move_id: str) -> str:
    """Return the name of the first attempt for the wish that `move_id` is an attempt for."""
    return move_id.partition(_RENEWED)[0]


class MoveKind(enum.StrEnum):
    """How a home moves."""

    PLANNED = "planned"  # the old home seals its log: nothing is lost, nothing becomes an orphan branch
    FORCED = "forced"  # the old home does not answer: the others promise, the longest agreeing log continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """An attempt to give a stream a new epoch.

    Args:
        move_id: names the attempt; whoever ends it says which attempt it means.
        epoch: what the new epoch will be numbered; spent, whatever becomes of the attempt.
        target: region that shall be home; 0 while a forced move has not chosen.
    """

    move_id: str
    kind: MoveKind
    epoch: Epoch
    target: RegionNumber

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {"move_id": self.move_id, "kind": str(self.kind), "epoch": self.epoch, "target": self.target}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "moving")
        moving = cls(
            move_id=fields.text("move_id", chars_min=1, chars_max=MOVE_ID_CHARS_MAX),
            kind=fields.member("kind", MoveKind),
            epoch=Epoch(fields.integer("epoch", low=2, high=EPOCH_MAX)),
            target=RegionNumber(fields.integer("target", low=0, high=REGION_NUMBER_MAX)),
        )
        fields.done()
        return moving


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeRow:
    """The homes of one stream.

    Args:
        origin: 0 for a topic with one home; the region that began the stream for one of coordinators.
        home, epoch, start: the region that sequences now, the number of its epoch, the first offset of that epoch.
        digest: digest chain before `start`, 16 bytes.
        table: the agreed history, [(epoch, start)], newest = (epoch, start). Epochs of which the history kept nothing
            are not in it.
        homes: who was home in each epoch of `table`.
        regions: the regions that hold the topic in this epoch, rising; their number is the n of the quorum rule.
        last_epoch: the highest epoch number ever given out for this stream; never reused.
        moving: the attempt under way.
        index: control index that proves the row; 0 for a topic without a row.
        accept_loss: this epoch began although too few regions answered to know everything that was acknowledged.

    Invariants: 1 `table` has no fault (epochs rise, starts never fall) and ends with (epoch, start)
    2 `homes` names the epochs of `table`, and `home` for the newest   3 home is one of `regions`
    4 last_epoch >= epoch, and >= moving.epoch > epoch   5 a target is 0 or one of `regions`; planned moves have one.
    """

    topic_id: bytes
    partition: int
    home: RegionNumber
    epoch: Epoch
    start: Offset
    digest: bytes
    table: tuple[EpochRow, ...]
    homes: tuple[EpochHome, ...]
    regions: tuple[RegionNumber, ...]
    last_epoch: Epoch
    moving: Moving | None
    index: int
    accept_loss: bool = False
    origin: RegionNumber = ONE_HOME

    @classmethod
    def first(
        cls,
        topic_id: bytes,
        partition: int,
        *,
        home: RegionNumber,
        regions: tuple[RegionNumber, ...],
        digest: bytes,
        origin: RegionNumber = ONE_HOME,
    ) -> Self:
        """Return what a stream without a row has: epoch 1 from offset 0. `digest` is its first one."""
        return cls(
            topic_id=topic_id,
            origin=origin,
            partition=partition,
            home=home,
            epoch=Epoch(1),
            start=Offset(0),
            digest=digest,
            table=((Epoch(1), Offset(0)),),
            homes=((Epoch(1), home),),
            regions=tuple(sorted(regions)),
            last_epoch=Epoch(1),
            moving=None,
            index=0,
        )

    @property
    def key(self) -> StreamKey:
        """Return the stream's name."""
        return StreamKey(self.topic_id, self.origin, self.partition)

    def home_in(self, epoch: Epoch) -> RegionNumber | None:
        """Return who was home in `epoch`, None when the agreed history has nothing of it."""
        return next((home for known, home in self.homes if known == epoch), None)

    def fault(self) -> str:
        """Return which invariant does not hold, "" when all do."""
        wrong = table_fault(self.table)
        if wrong:
            return wrong
        if self.table[-1] != (self.epoch, self.start):
            return f"the table ends with {self.table[-1]}, the epoch is {self.epoch} at {self.start}"
        if [epoch for epoch, _ in self.homes] != [epoch for epoch, _ in self.table]:
            return "homes and table name different epochs"
        if self.homes[-1][1] != self.home:
            return f"region {self.homes[-1][1]} was home in epoch {self.epoch}, not {self.home}"
        if self.home not in self.regions or list(self.regions) != sorted(set(self.regions)):
            return f"regions {self.regions} do not rise or lack the home {self.home}"
        if self.last_epoch < self.epoch:
            return f"epoch {self.epoch} is above the last one given out, {self.last_epoch}"
        return self._moving_fault()

    def _moving_fault(self) -> str:
        moving = self.moving
        if moving is None:
            return ""
        if not self.epoch < moving.epoch <= self.last_epoch:
            return f"epoch {moving.epoch} of the attempt is not in {self.epoch + 1}..{self.last_epoch}"
        if moving.target != NOT_CHOSEN and moving.target not in self.regions:
            return f"target {moving.target} does not hold the topic"
        if moving.kind is MoveKind.PLANNED and moving.target == NOT_CHOSEN:
            return "a planned move has no target"
        return ""

    def to_json(self) -> JsonObject:
        """Return the JSON form; an origin of 0 is left out."""
        return key_json(self.key) | {
            "home": self.home,
            "epoch": self.epoch,
            "start": self.start,
            "digest": self.digest.hex(),
            "table": [list(row) for row in self.table],
            "homes": [list(row) for row in self.homes],
            "regions": list(self.regions),
            "last_epoch": self.last_epoch,
            "moving": None if self.moving is None else self.moving.to_json(),
            "index": self.index,
            "accept_loss": self.accept_loss,
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read the JSON form.

        Raises:
            FieldError: a field is missing, of another type, out of its range, or an invariant does not hold.
        """
        fields = Fields(value, "home row")
        moving = fields.value("moving")
        row = cls(
            topic_id=fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES),
            origin=read_origin(fields),
            partition=fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
            home=RegionNumber(fields.integer("home", low=1, high=REGION_NUMBER_MAX)),
            epoch=Epoch(fields.integer("epoch", low=1, high=EPOCH_MAX)),
            start=Offset(fields.integer("start", low=0, high=INT64_MAX)),
            digest=fields.blob("digest", size_bytes=DIGEST_BYTES),
            table=read_table(fields, "table"),
            homes=_read_homes(fields),
            regions=tuple(
                RegionNumber(number)
                for number in fields.integers("regions", count_max=REGIONS_MAX, low=1, high=REGION_NUMBER_MAX)
            ),
            last_epoch=Epoch(fields.integer("last_epoch", low=1, high=EPOCH_MAX)),
            moving=None if moving is None else Moving.from_json(moving),
            index=fields.integer("index", low=0, high=INT64_MAX),
            accept_loss=fields.flag("accept_loss"),
        )
        fields.done()
        wrong = row.fault()
        if wrong:
            raise FieldError(f"home row of {row.key}: {wrong}")
        return row


def key_json(key: StreamKey) -> JsonObject:
    """Return the fields that name a stream; an origin of 0 is left out."""
    named: JsonObject = {"topic_id": key.topic_id.hex(), "partition": key.partition}
    return named | {"origin": key.origin} if key.origin else named


def read_key(fields: Fields) -> StreamKey:
    """Read what `key_json` returned. Raises FieldError."""
    topic_id = fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES)
    partition = fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)
    return StreamKey(topic_id, read_origin(fields), partition)


def read_origin(fields: Fields) -> RegionNumber:
    """Read the origin of a stream, 0 where it is left out. Raises FieldError."""
    return RegionNumber(fields.integer("origin", low=0, high=REGION_NUMBER_MAX) if fields.has("origin") else 0)


def read_table(fields: Fields, name: str) -> tuple[EpochRow, ...]:
    """Read an epoch table, [[epoch, start], ...], without a fault. Raises FieldError."""
    rows = _read_pairs(fields, name)
    table = tuple((Epoch(epoch), Offset(start)) for epoch, start in rows)
    wrong = table_fault(table)
    if wrong:
        raise FieldError(f"{name}: {wrong}")
    return table


def _read_homes(fields: Fields) -> tuple[EpochHome, ...]:
    return tuple((Epoch(epoch), RegionNumber(home)) for epoch, home in _read_pairs(fields, "homes"))


def _read_pairs(fields: Fields, name: str) -> list[list[int]]:
    pairs: list[list[int]] = []
    for raw in fields.items(name, count_max=HOME_EPOCHS_MAX):
        if not isinstance(raw, list) or len(raw) != 2:
            raise FieldError(f"{name} holds something else than pairs")
        pair = integers(raw, name, low=0, high=INT64_MAX)
        if pair[0] > EPOCH_MAX:
            raise FieldError(f"{name}: epoch {pair[0]} is over {EPOCH_MAX}")
        pairs.append(pair)
    return pairs
