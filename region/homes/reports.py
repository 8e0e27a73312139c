"""What became of a move, stream by stream: shown while it goes on, and kept for a while after.

Rule 1: a report lives at the leader of control that began the move. What became of a stream is in the book for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from georelay.errors import GeorelayError
from georelay.fields import JsonObject
from georelay.ids import StreamKey
from mesh.home.home_row import HomeRow, key_json
from mesh.home.move_core import Move

REPORTS_MAX: Final = 64
FAULTS_SHOWN_MAX: Final = 20
MOVED_SHOWN_MAX: Final = 10_000  # of a report: a hundred thousand would not fit into one answer
REFUSALS_SHOWN_MAX: Final = 1_000
REFUSAL_CHARS_MAX: Final = 400


@dataclass(slots=True, kw_only=True)
class MoveReport:
    """One move of many streams.

    Args:
        keys: the streams that were asked for.
        ended: rows of the new epochs, with the level that was kept (1: everything).
        refused: streams that were not moved, and why.
        waiting: what streams wait for, newest fault first; empty once the move is over.
    """

    move_id: str
    kind: str
    keys: tuple[StreamKey, ...]
    ended: dict[StreamKey, tuple[HomeRow, int]] = field(default_factory=dict)
    refused: dict[StreamKey, GeorelayError] = field(default_factory=dict)
    stages: dict[str, int] = field(default_factory=dict)
    waiting: dict[StreamKey, str] = field(default_factory=dict)
    is_over: bool = False

    def observe(self, moves: Iterable[Move]) -> None:
        """Show where the attempts under way are."""
        self.stages, self.waiting = {}, {}
        for move in moves:
            self.stages[move.stage.value] = self.stages.get(move.stage.value, 0) + 1
            fault = move.waiting.fault
            if fault and len(self.waiting) < FAULTS_SHOWN_MAX:
                self.waiting[move.row.key] = fault

    def end(self) -> None:
        """Nothing goes on any more."""
        self.stages, self.waiting, self.is_over = {}, {}, True

    def to_json(self) -> JsonObject:
        """Return the JSON form; of faults and ends at most as many as a person reads or a request moved."""
        return {
            "move_id": self.move_id,
            "kind": self.kind,
            "streams": len(self.keys),
            "over": self.is_over,
            "stages": dict(self.stages),
            "moved": [_ended_json(row, kept) for row, kept in islice(self.ended.values(), MOVED_SHOWN_MAX)],
            "moved_count": len(self.ended),
            "refused": [
                key_json(key) | {"code": error.code, "text": str(error)[:REFUSAL_CHARS_MAX]}
                for key, error in islice(self.refused.items(), REFUSALS_SHOWN_MAX)
            ],
            "refused_count": len(self.refused),
            "waiting": [key_json(key) | {"text": text} for key, text in self.waiting.items()],
        }


def _ended_json(row: HomeRow, kept_level: int) -> JsonObject:
    return key_json(row.key) | {
        "home": row.home,
        "epoch": row.epoch,
        "start": row.start,
        "kept_level": kept_level,
        "accept_loss": row.accept_loss,
    }


class MoveReports:
    """The newest reports by move id."""

    def __init__(self) -> None:
        self._reports: dict[str, MoveReport] = {}

    def add(self, report: MoveReport) -> None:
        """Keep a report; the oldest one over the limit goes."""
        self._reports[report.move_id] = report
        while len(self._reports) > REPORTS_MAX:
            del self._reports[next(iter(self._reports))]

    def find(self, move_id: str) -> MoveReport | None:
        """Return the report of a move that this leader began."""
        return self._reports.get(move_id)

    def clear(self) -> None:
        """Forget all: this broker leads no more."""
        self._reports.clear()
