"""Where a consumer stands and where it begins: values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from georelay._pb import streams_pb2 as pb
from georelay.errors import GeorelayError, OffsetOutOfRange


class Place(NamedTuple):
    """One partition of one stream: a topic's local name, "<region>.<topic>" for one region's stream of a topic."""

    stream: str
    partition: int


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read, and the home epoch of the record before it (-1: unknown); valid in every region."""

    offset: int
    epoch: int = -1


class Start(Enum):
    """Where reading begins where there is no position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"  # an error instead


@dataclass(frozen=True, slots=True)
class Since:
    """Begin at the first record whose append time at the home is not before `us` (microseconds since 1970)."""

    us: int


class PositionLost(OffsetOutOfRange):
    """A position that the region's stream does not hold: it has diverged, or retention has deleted what comes next.

    Nothing was skipped. `seek` to go on: to `log_start` for what is left, or to where the streams part.

    Args:
        epoch, offset: with `diverged`, the epoch that ended before the position, and where.
    """

    def __init__(self, place: Place, start: pb.StreamStart) -> None:
        self.place = place
        self.diverged = start.standing == pb.STANDING_DIVERGED
        self.offset = start.offset
        self.epoch = start.epoch
        self.log_start = start.log_start
        self.high_watermark = start.high_watermark
        what = (
            f"the region's stream parts from what was read at offset {start.offset} (end of epoch {start.epoch})"
            if self.diverged
            else f"offset {start.offset} is not in the log, which holds {start.log_start}..{start.high_watermark}"
        )
        super().__init__(f"{place.stream}/{place.partition}: {what}; seek to go on")


def start_of(place: Place, at: Position | Start | Since, cursor: int) -> pb.StartPosition:
    """Return the message for one partition (GeorelayError: Start.NONE says nothing)."""
    asked = pb.StartPosition(stream=place.stream, partition=place.partition, cursor=cursor)
    fill_start(asked, at)
    return asked


def fill_start(asked: pb.StartPosition, at: Position | Start | Since) -> None:
    """Say where reading begins (GeorelayError: Start.NONE says nothing)."""
    if isinstance(at, Position):
        asked.position.CopyFrom(pb.Position(epoch=at.epoch, offset=at.offset))
    elif isinstance(at, Since):
        asked.since_us = at.us
    elif at is Start.EARLIEST:
        asked.earliest = True
    elif at is Start.LATEST:
        asked.latest = True
    else:
        raise GeorelayError(f"{asked.stream}: Start.NONE is no place to begin")
