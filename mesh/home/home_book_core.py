"""The replicated book of homes: one row per stream whose home ever was to move. Pure; the same on every voter.

Rule 1: an attempt is committed here before anybody is asked to seal or to promise; its epoch number is spent then, and
        it is one of this generation of control (epoch_core).
Rule 2: an attempt ends by a new epoch, whoever is home in it: regions that sealed or promised wait for nothing less.
        To give up is to commit the same home, in the new epoch, from its end on.
Rule 3: only the newest attempt of a stream can end. A forced attempt takes the place of any other; a planned one waits.
Rule 4: whatever is asked twice with one move id is answered twice and done once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Final, TypeAlias

from georelay.errors import BadRequest, Busy, Fenced, PolicyViolation
from georelay.fields import Fields, JsonObject
from georelay.ids import Offset, RegionNumber, StreamKey
from mesh.home.epoch_core import FIRST_FLOOR, next_epoch
from mesh.home.home_row import HOME_EPOCHS_MAX, NOT_CHOSEN, EpochHome, HomeRow, MoveKind, Moving
from mesh.home.promise_core import table_after
from mesh.replication.ports import EpochRow

HomePosition: TypeAlias = tuple[int, bytes, int, int]  # index, topic id, partition, origin
EMPTY_EPOCHS_KEPT: Final = 64  # rows from which on epochs without a record are left out of tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A wish to move one stream's home.

    Args:
        move_id: names the attempt, 1..64 characters; the same wish may come again.
        target: region that shall be home; 0 leaves it to the promises (forced moves only).
    """

    key: StreamKey
    move_id: str
    kind: MoveKind
    target: RegionNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the attempt `move_id` ends: who is home in its epoch, from which offset on.

    Args:
        digest: digest chain before `start`, 16 bytes.
        accept_loss: fewer regions answered than the topic's level needs.
    """

    key: StreamKey
    move_id: str
    home: RegionNumber
    start: Offset
    digest: bytes
    accept_loss: bool = False


class HomeBook:
    """Rows by stream, in the order of their index.

    Invariants: 1 no row has a fault   2 the index of a row is that of the command that changed it last; the book is in
    the order of (index, topic id, partition, origin)   3 epochs and last_epoch of a stream never fall.

    Args:
        floor: epochs that are given out are above it (epoch_core.floor_of); 0 in the first generation of control.
    """

    def __init__(self, *, floor: int = FIRST_FLOOR) -> None:
        self.floor = floor
        self._rows: dict[StreamKey, HomeRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, key: StreamKey) -> HomeRow | None:
        """Return the stream's row, None when its home never was to move."""
        return self._rows.get(key)

    def rows(self) -> Iterator[HomeRow]:
        """Return all rows, the one changed last at the end."""
        return iter(self._rows.values())

    @property
    def position(self) -> HomePosition | None:
        """Return where the row changed last stands, None without rows."""
        row = next(reversed(self._rows.values()), None)
        return None if row is None else (row.index, row.topic_id, row.partition, row.origin)

    def attempts(self) -> Iterator[HomeRow]:
        """Return the rows with an attempt that has not ended."""
        return (row for row in self._rows.values() if row.moving is not None)

    def since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return at most `limit` rows above a position, the lowest first."""
        newer = 0
        for row in reversed(self._rows.values()):
            if (row.index, row.topic_id, row.partition, row.origin) <= position:
                break
            newer += 1
        return list(islice(self._rows.values(), len(self._rows) - newer, len(self._rows) - newer + limit))

    def begin(self, wish: Beginning, *, first: HomeRow, regions: Sequence[RegionNumber], index: int) -> HomeRow:
        """Follow a committed wish; return the row with its attempt.

        Args:
            first: what the stream has while there is no row for it.
            regions: those that are to be asked: holders of the topic now, and of its present epoch.

        Raises:
            Busy: another attempt is under way. PolicyViolation: the target is home already or does not hold the topic.
            BadRequest: a planned move without a target, or no epoch number is left.
        """
        row = self._rows.get(wish.key) or first
        if row.moving is not None and row.moving.move_id == wish.move_id:
            return row
        self._check_beginning(row, wish, regions)
        epoch = next_epoch(row.last_epoch, floor=self.floor)
        moving = Moving(move_id=wish.move_id, kind=wish.kind, epoch=epoch, target=wish.target)
        asked = tuple(sorted({row.home, *regions}))
        return self._enter(replace(row, moving=moving, last_epoch=epoch, regions=asked, index=index))

    def end(self, ending: Ending, *, regions: Sequence[RegionNumber], index: int) -> HomeRow:
        """Follow a committed end of an attempt; return the row with its new epoch.

        Args:
            regions: those that hold the topic in the new epoch.

        Raises:
            Fenced: the attempt ended already, or another took its place.
            BadRequest: the home was not asked, or a planned move would give up agreed records.
        """
        row = self._rows.get(ending.key)
        moving = None if row is None else row.moving
        if row is None or moving is None or moving.move_id != ending.move_id:
            raise Fenced(f"the attempt {ending.move_id} to move the home of {ending.key} is over")
        if ending.home not in row.regions:
            raise BadRequest(f"region {ending.home} was not asked about {ending.key}: it cannot be its home")
        if moving.kind is MoveKind.PLANNED and ending.start < row.start:
            raise BadRequest(f"a planned move of {ending.key} cannot start at {ending.start}, before {row.start}")
        table = _without_empty_epochs(table_after(row.table, epoch=moving.epoch, start=ending.start))
        return self._enter(
            replace(
                row,
                home=ending.home,
                epoch=moving.epoch,
                start=ending.start,
                digest=ending.digest,
                table=table,
                homes=_homes_of(table, (*row.homes, (moving.epoch, ending.home))),
                regions=tuple(sorted({ending.home, *regions})),
                moving=None,
                index=index,
                accept_loss=ending.accept_loss,
            )
        )

    def forget_topic(self, topic_id: bytes) -> None:
        """Follow the deletion of a topic: ids never come back, so neither do its rows."""
        for key in [key for key in self._rows if key.topic_id == topic_id]:
            del self._rows[key]

    def snapshot(self) -> JsonObject:
        """Return everything, in order."""
        return {"rows": [row.to_json() for row in self._rows.values()]}

    @classmethod
    def restored(cls, raw: JsonObject, *, rows_max: int, floor: int = FIRST_FLOOR) -> HomeBook:
        """Return the book that `snapshot` returned, for a generation with that floor. Raises FieldError."""
        fields = Fields(raw, "homes")
        book = cls(floor=floor)
        for value in fields.items("rows", count_max=rows_max):
            row = HomeRow.from_json(value)
            book._rows[row.key] = row
        fields.done()
        return book

    def _check_beginning(self, row: HomeRow, wish: Beginning, regions: Sequence[RegionNumber]) -> None:
        if wish.target != NOT_CHOSEN and wish.target not in regions:
            raise PolicyViolation(f"region {wish.target} does not hold {row.key}: it cannot become its home")
        if len(row.table) >= HOME_EPOCHS_MAX:
            raise BadRequest(f"the home of {row.key} has moved too often: no further epoch can be kept")
        if wish.kind is MoveKind.FORCED:
            return
        if wish.target == NOT_CHOSEN:
            raise BadRequest("a planned move names the region that shall be home")
        if row.moving is not None:
            raise Busy(f"an attempt ({row.moving.kind}) to move the home of {row.key} is under way: wait until it ends")
        if wish.target == row.home:
            raise PolicyViolation(f"region {row.home} is the home of {row.key} already")

    def _enter(self, row: HomeRow) -> HomeRow:
        wrong = row.fault()
        assert not wrong, wrong  # what was asked has been checked: our own bug
        self._rows.pop(row.key, None)
        self._rows[row.key] = row
        return row


def _homes_of(table: tuple[EpochRow, ...], homes: tuple[EpochHome, ...]) -> tuple[EpochHome, ...]:
    known = dict(homes)
    return tuple((epoch, known[epoch]) for epoch, _ in table)


def _without_empty_epochs(table: tuple[EpochRow, ...]) -> tuple[EpochRow, ...]:
    """Return the table without epochs in which nothing was published, once there are many rows."""
    if len(table) <= EMPTY_EPOCHS_KEPT:
        return table
    return (*(row for row, following in pairwise(table) if row[1] < following[1]), table[-1])
