"""Compares one stream in all regions by bisection over offsets: which questions to ask, and what the answers say. Pure.

Whose log it is makes no difference: a region's leader answers for the region, or every replica for itself (by_broker).

A batch carries the digest chain over everything before it and itself, and is never re-cut on its way to a mirror. So

    same(x) = "the batch that holds offset x is the same here and there: offsets, epoch, digest"

is true up to the first difference and false from there on, whatever offsets are asked for: no offset has to be the
border of a batch.

Rule 1: epoch tables first. The history is the table with the newest epoch; of each log only the length that agrees with
        it is compared. What is beyond is an orphan branch that is not cut off yet. One epoch with two starts is a
        divergence by itself.
Rule 2: the longest of these logs is the reference, the home's among equals; each other log is compared with it. Equal
        chains at one offset mean equal records below it, the deleted ones included.
Rule 3: when they differ, each round asks both logs for POINTS offsets between what is the same and what differs.
Rule 4: what is compared is what the first answers said: records that come meanwhile change nothing. When epochs or the
        oldest batch change meanwhile, the comparison begins again, TRIES_MAX times.
Rule 5: nobody is asked for more than OFFSETS_MAX offsets at a time; the rest is asked for in the next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey, region_of
from mesh.home.promise_core import agreeing_length
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import epoch_at
from region.audit.values import (
    OFFSETS_MAX,
    BatchAt,
    Divergence,
    FindingState,
    LogView,
    RegionFinding,
    StreamVerdict,
    Told,
    Who,
)

POINTS: Final = 8  # offsets asked for in one round: 7 rounds for a million records, with 8 reads each
TRIES_MAX: Final = 3


class _Side:
    """One log and the batches that are known of it."""

    def __init__(self, view: LogView, length: Offset) -> None:
        self.view = view
        self.length = length
        self.batches: dict[Offset, BatchAt] = {}
        self._asked: set[Offset] = set()

    def learn(self, asked: Sequence[Offset], batches: Mapping[Offset, BatchAt]) -> None:
        """Follow one answer."""
        self._asked.update(asked)
        self.batches.update(batches)

    def unknown(self, offsets: Sequence[Offset]) -> set[Offset]:
        """Return those offsets that this log stores and was not asked for yet."""
        view = self.view
        return {row for row in offsets if view.boundary <= row < view.end and row not in self._asked}

    def digest_before(self, offset: Offset) -> bytes | None:
        """Return the digest chain before an offset that was asked for or is an end; None inside a batch."""
        view = self.view
        if offset == view.end:
            return view.end_digest
        if offset == view.boundary:
            return view.boundary_digest
        batch = self.batches.get(Offset(offset - 1))
        return batch.digest if batch is not None and batch.following == offset else None

    def knows_before(self, offset: Offset) -> bool:
        """Return whether `digest_before` needs no question."""
        return offset in (self.view.end, self.view.boundary) or Offset(offset - 1) in self.batches


class _Pair:
    """The search for the first difference between the reference and one other log.

    Invariants: 1 everything below `low` is the same (once `is_different`)   2 the batch at `high` differs.
    """

    def __init__(self, reference: _Side, other: _Side) -> None:
        self._sides = (reference, other)
        self.low = max(reference.view.boundary, other.view.boundary)
        self.high = self.end = min(reference.length, other.length)
        self.is_different: bool | None = None  # None: not known yet
        self.is_below_start = False  # the difference lies in what is deleted
        self.has_nothing_common = self.end < self.low
        self._checked_start = False
        self._found = False
        self._points: list[Offset] = []

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to be asked."""
        return self.has_nothing_common or self.is_different is False or self.is_below_start or self._found

    def wanted(self) -> tuple[Sequence[Offset], Sequence[Offset]]:
        """Return the offsets that `look` needs of the reference and of the other log."""
        if self.is_different is None:
            return self._before(self.end)
        if not self._checked_start:
            return self._before(self.low)
        span = self.high - self.low
        self._points = sorted({Offset(self.low + span * row // POINTS) for row in range(POINTS)})
        return self._points, self._points

    def _before(self, offset: Offset) -> tuple[Sequence[Offset], Sequence[Offset]]:
        mine, theirs = ([] if row.knows_before(offset) else [Offset(offset - 1)] for row in self._sides)
        return mine, theirs

    def look(self) -> None:
        """Draw conclusions from what is known now."""
        if self.is_different is None:
            self.is_different = not self._same_before(self.end)
            if self.is_different and self.end == self.low:
                self.is_below_start = True
            return
        if not self._checked_start:
            self._checked_start = True
            self.is_below_start = not self._same_before(self.low)
            return
        self._narrow()

    def _narrow(self) -> None:
        mine, theirs = (side.batches for side in self._sides)
        for point in self._points:
            batch = mine.get(point)
            if batch is None or batch != theirs.get(point):
                # A batch that is not there at the reference begins where it should be.
                self.high = min(self.high, max(self.low, point if batch is None else batch.first))
                break
            self.low = min(max(self.low, batch.following), self.high)
        self._found = self.low >= self.high

    def _same_before(self, offset: Offset) -> bool:
        mine, theirs = (side.digest_before(offset) for side in self._sides)
        return mine is not None and mine == theirs

    @property
    def first_difference(self) -> Offset:
        """Return the first offset that differs; where they meet when the difference lies below."""
        return self.low if self.is_below_start else self.high


class StreamAudit:
    """One stream: ask `wanted`, hand the answers to `told`, until nothing is wanted; then `verdict`.

    Args:
        home: the region that sequences it.
        regions: those that hold the stream; with `by_broker` the brokers that hold replicas of it.
        preferred: among equals the reference; 0: the home.
    """

    def __init__(
        self,
        key: StreamKey,
        *,
        home: RegionNumber,
        regions: Sequence[Who],
        by_broker: bool = False,
        preferred: Who = 0,
    ) -> None:
        self.key = key
        self.rounds = 0
        self._home = home
        self._by_broker = by_broker
        self._preferred = preferred or home
        self._regions = tuple(sorted(regions))
        self._tries = 0
        self._silent: dict[Who, GeorelayError] = {}
        self._unsettled: set[Who] = set()
        self._begin()

    def _begin(self) -> None:
        self._tries += 1
        self._sides: dict[Who, _Side] = {}
        self._reference: Who | None = None
        self._pairs: dict[Who, _Pair] = {}
        self._two_starts: dict[Who, EpochRow] = {}
        self._asked: dict[Who, tuple[Offset, ...]] = dict.fromkeys(self._answering(), ())
        self._named = False
        self._is_over = not self._asked

    def _answering(self) -> list[Who]:
        return [row for row in self._regions if row not in self._silent and row not in self._unsettled]

    def wanted(self) -> Mapping[Who, tuple[Offset, ...]]:
        """Return which regions to ask now, and for which offsets; nobody when the comparison is over."""
        return {} if self._is_over else self._asked

    def told(self, answers: Mapping[Who, Told]) -> None:
        """Follow the answers to what was wanted; GeorelayError: that region cannot say anything."""
        self.rounds += 1
        asked = dict(self._asked)
        silent = {region: told for region in asked if isinstance(told := answers[region], GeorelayError)}
        views = {region: told for region in asked if isinstance(told := answers[region], LogView)}
        self._silent |= silent
        if self._reference is None:
            self._compare(views)
        elif silent:
            self._begin()  # without it
            return
        elif moved := self._moved(views):
            if self._tries >= TRIES_MAX:
                self._unsettled |= moved
            self._begin()
            return
        else:
            for region, view in views.items():
                self._sides[region].learn(self._asked[region], view.batches)
        self._advance()

    def _moved(self, views: Mapping[Who, LogView]) -> set[Who]:
        """Return the regions whose log is not the one any more that the comparison began with."""
        return {
            region
            for region, view in views.items()
            if view.epochs != self._sides[region].view.epochs
            or any(view.boundary > offset >= self._sides[region].view.boundary for offset in self._asked[region])
        }

    def _compare(self, views: Mapping[Who, LogView]) -> None:
        """Follow the first answers: lengths that agree, the reference, the pairs."""
        if not views:
            self._is_over = True
            return
        self._table = max((view.epochs for view in views.values()), key=lambda rows: rows[-1] if rows else (0, 0))
        starts = dict(self._table)
        for region, view in views.items():
            other = next((row for row in view.epochs if starts.get(row[0], row[1]) != row[1]), None)
            if other is not None:
                self._two_starts[region] = other
            length = agreeing_length(view.epochs, end=view.end, table=self._table) if self._table else Offset(0)
            self._sides[region] = _Side(view, length)
        # A log whose epochs contradict the table's is never what others are compared with.
        self._reference = max(
            self._sides,
            key=lambda row: (row not in self._two_starts, self._sides[row].length, row == self._preferred, -row),
        )
        reference = self._sides[self._reference]
        self._pairs = {
            region: _Pair(reference, side) for region, side in self._sides.items() if region != self._reference
        }

    def _advance(self) -> None:
        """Let every pair conclude as far as it can, and collect what it wants to know next."""
        asked: dict[Who, set[Offset]] = {}
        for region, pair in self._pairs.items():
            for name, points in self._next_points(region, pair).items():
                asked.setdefault(name, set()).update(points)
        if not asked and not self._named and (first := self._first_named()) is not None:
            self._named = True
            asked = {name: points for name, side in self._sides.items() if (points := side.unknown([first]))}
        self._asked = {region: tuple(sorted(points)[:OFFSETS_MAX]) for region, points in asked.items()}
        self._is_over = not asked

    def _next_points(self, region: Who, pair: _Pair) -> Mapping[Who, set[Offset]]:
        """Let a pair conclude until it lacks something; return that, {} when it is done."""
        assert self._reference is not None
        names = (self._reference, region)
        while not pair.is_done:
            wanted = zip(names, pair.wanted(), strict=True)
            lacking = {name: points for name, offsets in wanted if (points := self._sides[name].unknown(offsets))}
            if lacking:
                return lacking
            pair.look()
        return {}

    # --- what came out ----------------------------------------------------------------------------

    def _first_named(self) -> Offset | None:
        """Return the first offset that differs anywhere, None when nothing does or nobody can say."""
        found = [row.first_difference for row in self._pairs.values() if row.is_different and not row.is_below_start]
        return min(found, default=None)

    def verdict(self) -> StreamVerdict:
        """Return what was found, once nothing is wanted any more."""
        reference = None if self._reference is None else self._sides[self._reference]
        compared = [pair.end for pair in self._pairs.values() if not pair.has_nothing_common]
        return StreamVerdict(
            key=self.key,
            home=self._home,
            epoch=max((side.view.epoch for side in self._sides.values()), default=Epoch(0)),
            compared=max(compared, default=Offset(0)),
            findings=tuple(self._finding(region, reference) for region in self._regions),
            divergence=self._divergence(),
            rounds=self.rounds,
        )

    def _finding(self, who: Who, reference: _Side | None) -> RegionFinding:
        if not self._by_broker:
            return self._finding_of(who, RegionNumber(who), reference)
        broker = BrokerId(who)
        return replace(self._finding_of(who, region_of(broker), reference), broker=broker)

    def _finding_of(self, who: Who, region: RegionNumber, reference: _Side | None) -> RegionFinding:
        side = self._sides.get(who)
        if side is None or reference is None:
            error = self._silent.get(who)
            if error is None:
                return RegionFinding(
                    region=region, state=FindingState.UNSETTLED, reason="its epochs changed while it was compared"
                )
            return RegionFinding(region=region, state=FindingState.NO_ANSWER, reason=f"{error.code}: {error}")
        state, reason = self._state_of(who)
        return RegionFinding(
            region=region,
            state=state,
            end=side.view.end,
            log_start=side.view.log_start,
            behind=reference.length - side.length,
            beyond=side.view.end - side.length,
            orphans=side.view.orphans,
            reason=reason,
        )

    def _state_of(self, region: Who) -> tuple[FindingState, str]:
        if (row := self._two_starts.get(region)) is not None:
            start = dict(self._table)[row[0]]
            return FindingState.DIVERGED, f"epoch {row[0]} starts at {row[1]} there, at {start} in the mesh"
        pair = self._pairs.get(region)
        if pair is None:
            return FindingState.REFERENCE, ""
        if pair.has_nothing_common:
            side = self._sides[region]
            return FindingState.BELOW_START, f"it stores {side.view.boundary}..{side.view.end}"
        if not pair.is_different:
            return FindingState.AGREES, ""
        where = f"below offset {pair.low}, which is deleted" if pair.is_below_start else f"from {pair.first_difference}"
        return FindingState.DIVERGED, f"other records {where}"

    def _divergence(self) -> Divergence | None:
        first = self._first_named()
        is_exact = first is not None
        if first is None:
            below = [pair.low for pair in self._pairs.values() if pair.is_below_start]
            if not below and not self._two_starts:
                return None
            first = min([*below, *(row[1] for row in self._two_starts.values())])
        return Divergence(
            epoch=epoch_at(self._table, first) or Epoch(0),
            first=first,
            is_exact=is_exact,
            batches={who: side.batches.get(first) for who, side in self._sides.items()} if is_exact else {},
            by_broker=self._by_broker,
        )
