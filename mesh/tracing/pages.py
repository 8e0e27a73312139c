"""What a reader of traces is told: pages, how far rows reach, and why there are none. Light: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from georelay.trace.position import TracePosition


class PositionExpired(Exception):
    """Rows from the position on were deleted; `oldest` is where what is left begins."""

    def __init__(self, position: TracePosition, oldest: TracePosition) -> None:
        super().__init__(f"position {position} is gone, the oldest is {oldest}")
        self.oldest = oldest


class PositionsReversed(ValueError):
    """The end of what is asked for lies before its beginning."""

    def __init__(self, start: TracePosition, until: TracePosition) -> None:
        super().__init__(f"{start} lies behind the end, {until}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far some rows reach: the position behind them, how many they are at most, whether there are more."""

    end: TracePosition
    rows: int
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Arrow record batches of mesh.tracing.shelf.PAGE_SCHEMAS, and the position behind them."""

    batches: list[Any]
    rows: int
    next: TracePosition
