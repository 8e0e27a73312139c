"""Latency histograms of the seconds that are still open: pure.

Rule 1: a cell is one (second of publish, region the latency began in, topic, group, stage). It takes the clock
        correction in force when it opens and keeps it: the row says by how much its latencies were moved.
Rule 2: nothing is ever given up: beyond CELLS_OPEN_MAX the topics and groups of a region pair share one cell, with an
        empty topic.
Rule 3: a corrected latency below 0 counts as 0 and is counted aside; one below what the clocks' bound allows is
        counted as impossible: a clock lies about itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from georelay.trace.histogram import GRID, LatencyHistogram
from georelay.trace.kinds import Stage

CELLS_OPEN_MAX: Final = 100_000

Row = tuple[Any, ...]  # values in the order of the kind's recorded columns


class Correction(NamedTuple):
    """What is added to a latency that began in another clock; `error_us` None: nothing is known, `offset_us` is 0."""

    offset_us: int
    error_us: int | None


SAME_CLOCK: Final = Correction(0, 0)
UNKNOWN_CLOCK: Final = Correction(0, None)


class _Second:
    """All cells of one second of publish; closed as one."""

    __slots__ = ("cells", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        self.cells: dict[tuple[int, str, str, Stage], Cell] = {}


class Cell:
    """One open histogram."""

    __slots__ = ("_second", "clock", "group", "histogram", "origin", "second", "stage", "topic")

    def __init__(
        self, owner: _Second, *, second: int, origin: int, topic: str, group: str, stage: Stage, clock: Correction
    ) -> None:
        self._second = owner
        self.second = second
        self.origin = origin
        self.topic = topic
        self.group = group
        self.stage = stage
        self.clock = clock
        self.histogram = LatencyHistogram(clock_error_us=clock.error_us)

    @property
    def is_open(self) -> bool:
        """Return whether it may still be added to."""
        return self._second.is_open

    def row(self, *, dest: str, region_name: Callable[[int], str]) -> Row:
        """Return the row of a closed cell."""
        histogram, (offset_us, error_us) = self.histogram, self.clock
        is_known = error_us is not None
        return (
            self.second,
            region_name(self.origin) if self.origin else "",
            dest,
            self.topic,
            self.group,
            GRID,
            histogram.n,
            histogram.n_good,
            histogram.lat_sum_us,
            histogram.lat_max_us,
            [{"b": index, "n": count} for index, count in sorted(histogram.buckets.items())],
            self.stage.value,
            histogram.n_good_lo if is_known else None,
            histogram.n_good_hi if is_known else None,
            offset_us if is_known else None,
            error_us,
        )


class LatencyCells:
    """The open cells of one broker.

    Args:
        correction: region number -> what to add to a latency that began there; asked once per cell.
    """

    def __init__(self, correction: Callable[[int], Correction]) -> None:
        self._correction = correction
        self._seconds: dict[int, _Second] = {}
        self._open = 0
        self.negative_latencies = 0
        self.impossible_latencies = 0

    def cell(self, second: int, origin: int, topic: str, group: str, stage: Stage) -> Cell:
        """Return the open cell of this name."""
        owner = self._seconds.get(second)
        if owner is None:
            owner = self._seconds[second] = _Second()
        found = owner.cells.get((origin, topic, group, stage))
        if found is None:
            if self._open >= CELLS_OPEN_MAX and topic:
                return self.cell(second, origin, "", "", stage)
            clock = SAME_CLOCK if stage is Stage.DELIVER else self._correction(origin)
            found = owner.cells[origin, topic, group, stage] = Cell(
                owner, second=second, origin=origin, topic=topic, group=group, stage=stage, clock=clock
            )
            self._open += 1
        return found

    def add(self, cell: Cell, latency_us: int, count: int) -> int:
        """Count `count` records of one uncorrected latency; return the latency that was counted."""
        offset_us, error_us = cell.clock
        latency_us += offset_us
        if latency_us < 0:
            self.negative_latencies += count
            if error_us is not None and latency_us < -error_us:
                self.impossible_latencies += count
            latency_us = 0
        cell.histogram.add(latency_us, count)
        return latency_us

    def close(self, this_second: int, *, final: bool = False) -> list[Cell]:
        """Close and return the cells of every second but the running one; of all seconds when `final`."""
        closed: list[Cell] = []
        for second in [s for s in self._seconds if s != this_second or final]:
            owner = self._seconds.pop(second)
            owner.is_open = False
            closed.extend(owner.cells.values())
        self._open -= len(closed)
        return closed
