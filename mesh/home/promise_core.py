"""What promises say, and which log continues when a home does not answer. Pure.

Rule 1: a region reports the length of its log that AGREES with the epoch table: a record (epoch x, offset o) counts
        only if the table gives epoch x for o. All such prefixes are prefixes of one history, so the longest of them
        holds everything that any of them holds. High watermarks, and (epoch, high watermark), compare what cannot be
        compared: both lose acknowledged records (tests/exhaustive/test_homes_forced_move.py finds the schedules).
Rule 2: with m of n regions answering, every record that k >= n - m + 1 regions have is in one of the answers.
Rule 3: a home that answers with everything of its own epoch answers for all levels: what it does not have was never
        acknowledged. Not after a recovery of control: another region may have been home in an epoch that was lost.
Rule 4: two answers of one length have one digest. Otherwise two regions hold different records in agreed epochs:
        nothing is chosen, somebody has to look.
Rule 5: a region may have deleted everything up to which it agrees: it was home, or mirror of one, without knowing that
        its epoch was over, and retention went on. Its promise counts, for it holds nothing that the others could lack;
        but it says only that nothing beyond the start of the present epoch is known there. So the choice has to reach
        that start, or an offset that somebody was told could be given out twice (test_homes_retained_away.py).
Rule 6: a region that is to take no homes, because it leaves, is chosen only when nobody else who answered has as much:
        what was acknowledged comes first, and a home can be moved away again before its region leaves.
Rule 7: a log may be in an epoch that control does not know: one that was lost with the majority before a recovery. What
        it has of that agrees with nothing, though several regions may have acknowledged it: it becomes an orphan branch
        only when an operator accepts that. As many regions as rule 2 says have to tell which epoch they are in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from georelay.errors import Diverged
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.home.home_row import NOT_CHOSEN, HomeRow
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import epoch_at

_NONE: Final = Epoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseAnswer:
    """What one region said when its promise was committed: its agreeing length, and the digest chain before it.

    Args:
        is_stored: False: it agrees at most up to `length`, and stores nothing below its own end of that.
        unknown_epoch: an epoch that control does not know, in which the log has records from `length` on; 0 for none.
    """

    region: RegionNumber
    length: Offset
    digest: bytes
    is_stored: bool = True
    unknown_epoch: Epoch = _NONE

    @classmethod
    def deleted(cls, region: RegionNumber, row: HomeRow) -> Self:
        """Return the answer of a region that holds nothing of the stream's history (rule 5)."""
        return cls(region=region, length=row.start, digest=row.digest, is_stored=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which log continues.

    Args:
        home, start, digest: the new home, the first offset of the new epoch, the digest chain before it.
        answered: the regions whose promises it rests on, rising.
        kept_level: every record acknowledged by this many regions or more is kept; 1 keeps everything.
        is_enough: `kept_level` is at most the level that was to be kept, and rules 5 and 7 allow it.
    """

    home: RegionNumber
    start: Offset
    digest: bytes
    answered: tuple[RegionNumber, ...]
    kept_level: int
    is_enough: bool


def visible_rows(local: Iterable[EpochRow]) -> list[EpochRow]:
    """Return the epochs of a log's own history: a later EPOCH entry hides everything from its start on."""
    rows: list[EpochRow] = []
    for epoch, start in local:
        while rows and rows[-1][1] > start:
            rows.pop()
        rows.append((epoch, start))
    return rows


def agreeing_length(local: Iterable[EpochRow], *, end: Offset, table: Sequence[EpochRow]) -> Offset:
    """Return the first offset below `end` whose epoch differs from what `table` gives, else `end`.

    Args:
        local: (epoch, start) of the log's EPOCH entries, in log order: starts may fall.
        end: the log's end, of committed records.
        table: the agreed history, without a fault.
    """
    rows = visible_rows(local)
    borders = sorted({Offset(0), *(start for _, start in rows), *(start for _, start in table)})
    for border in borders:
        if border >= end:
            break
        if epoch_at(rows, border) != epoch_at(table, border):
            return border
    return end


def answers_needed(*, regions: int, level: int) -> int:
    """Return how many of `regions` have to promise so that every record that `level` of them hold is found.

    Args:
        regions: n, at least 1. level: k, 1..n; more than n is the same as n.
    """
    return regions - min(level, regions) + 1


def kept_level(*, regions: int, answers: int) -> int:
    """Return the lowest level whose records are all kept when `answers` of `regions` promised."""
    return regions - answers + 1


def choose(
    row: HomeRow,
    answers: Mapping[RegionNumber, PromiseAnswer],
    *,
    regions: Sequence[RegionNumber],
    level: int,
    preferred: RegionNumber = NOT_CHOSEN,
    avoided: Collection[RegionNumber] = (),
    trusts_home: bool = True,
) -> Choice | None:
    """Return which log continues, None while nobody of `regions` has answered.

    Args:
        row: the stream's row; its table is what the promises were asked with.
        answers: of this attempt's epoch, by region.
        regions: every region whose acknowledgement may have counted in this epoch.
        level: k, records acknowledged by that many regions must be kept.
        preferred: wins among equals; then the present home, then the lowest number.
        avoided: lose among equals, whatever else they are (rule 6).
        trusts_home: nobody else can have been home since the present epoch of `row` began (rule 3).

    Raises:
        Diverged: two answers of one length have different digests.
    """
    counted = [answer for region, answer in sorted(answers.items()) if region in regions]
    if not counted:
        return None
    stored = [answer for answer in counted if answer.is_stored]
    best = max(
        stored or counted,
        key=lambda answer: (
            answer.length,
            answer.region not in avoided,
            answer.region == preferred,
            answer.region == row.home,
        ),
    )
    for answer in stored:
        if answer.length == best.length and answer.digest != best.digest:
            raise Diverged(
                f"{row.key}: regions {answer.region} and {best.region} hold different records below {best.length}"
            )
    is_agreed = not any(answer.unknown_epoch for answer in counted)
    reaches = all(best.length >= answer.length for answer in counted if not answer.is_stored)
    home = next((answer for answer in stored if answer.region == row.home), None)
    knows_all = home is not None and home.length == best.length >= row.start
    kept = 1 if knows_all and trusts_home else kept_level(regions=len(regions), answers=len(counted))
    return Choice(
        home=best.region,
        start=best.length,
        digest=best.digest,
        answered=tuple(answer.region for answer in counted),
        kept_level=kept,
        is_enough=kept <= max(level, 1) and reaches and is_agreed and bool(stored),
    )


def table_after(table: Sequence[EpochRow], *, epoch: Epoch, start: Offset) -> tuple[EpochRow, ...]:
    """Return the history with `epoch` beginning at `start`: epochs that would begin later never happened."""
    return (*(row for row in table if row[1] <= start), (epoch, start))
