"""What regions tell about their logs when they are audited, and what the comparison finds.

Offsets are those of records that are committed and in the region's present history: the records of an orphan branch
that an EPOCH entry cut off are no part of it. `following` is always the first offset behind a batch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.ports import EpochRow

_NOWHERE: Final = Offset(0)
OFFSETS_MAX: Final = 512  # asked of one log at a time
Who: TypeAlias = int  # who answers for a log: a region, by its number, with its leader's; or a broker, by its id


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAt:
    """The batch (or marker) of one log that holds an offset somebody asked for.

    Args:
        first, following: its offsets.
        epoch: in which it was sequenced.
        digest: the digest chain behind it, 16 bytes. crc: CRC-32C of its bytes, as its header says.
    """

    first: Offset
    following: Offset
    epoch: Epoch
    digest: bytes
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanRange:
    """Records first..following - 1 that `epoch` cut off in one region, and that are kept there."""

    epoch: Epoch
    first: Offset
    following: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """One region's log of one stream, as its leader, or another replica, saw it in one moment.

    Args:
        epochs: (epoch, start) of the present history, rising.
        log_start: first offset that is read. boundary: first offset of the oldest stored batch, at or below it.
        end: high watermark.
        boundary_digest, end_digest: the digest chain before `boundary` and before `end`.
        batches: by the offset asked for; what is not stored here, or not committed, is left out.
    """

    epochs: tuple[EpochRow, ...]
    log_start: Offset
    boundary: Offset
    boundary_digest: bytes
    end: Offset
    end_digest: bytes
    orphans: tuple[OrphanRange, ...] = ()
    batches: Mapping[Offset, BatchAt] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        """Return the newest epoch, 0 before the first."""
        return self.epochs[-1][0] if self.epochs else Epoch(0)


Told: TypeAlias = LogView | GeorelayError
Views: TypeAlias = Mapping[StreamKey, Told]


class FindingState(enum.StrEnum):
    """What the comparison says about one region's log of one stream."""

    REFERENCE = "reference"  # the others are compared with it
    AGREES = "agrees"  # everything it has is what the reference has; it may have less
    DIVERGED = "diverged"  # other records, or another chain, in the history that the mesh agreed on
    BELOW_START = "below_start"  # nothing in common is stored any more: one ends where the other begins
    NO_ANSWER = "no_answer"  # unreachable, without a leader, damaged and being repaired; the reason says which
    UNSETTLED = "unsettled"  # its epochs changed again and again while it was compared


COMPARED: Final = frozenset({FindingState.REFERENCE, FindingState.AGREES})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFinding:
    """One region's log of one stream: that of its leader, or of the replica on `broker`.

    Args:
        behind: records that the reference has and this one has not.
        beyond: committed records that the mesh's history does not have: an orphan branch that is not cut off yet.
        reason: why there is no comparison, or what differs; "" otherwise.
    """

    region: RegionNumber
    state: FindingState
    end: Offset = _NOWHERE
    log_start: Offset = _NOWHERE
    behind: int = 0
    beyond: int = 0
    orphans: tuple[OrphanRange, ...] = ()
    reason: str = ""
    broker: BrokerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two regions hold different records first.

    Args:
        epoch: that the mesh gives for `first`.
        first: first offset that differs: everything before it is the same.
        is_exact: False when the difference lies below `first`, in records that a region has deleted.
        batches: what everybody who answers holds there; None where it holds nothing.
        by_broker: whether these are brokers; else regions.
    """

    epoch: Epoch
    first: Offset
    is_exact: bool
    batches: Mapping[Who, BatchAt | None]
    by_broker: bool = False

    @property
    def last(self) -> Offset:
        """Return the last offset of the longest batch that begins there; first - 1 when it is not exact."""
        return Offset(max((row.following for row in self.batches.values() if row is not None), default=self.first) - 1)


class VerdictState(enum.StrEnum):
    """What is to be done about a stream: nothing, somebody has to look, or ask again."""

    AGREES = "agrees"
    DIVERGED = "diverged"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamVerdict:
    """What the comparison says about one stream.

    Args:
        home: the region that sequences it now, as the auditing broker knows.
        epoch: newest that any region has begun. compared: offsets below it were compared in at least two regions.
        rounds: how often each region was asked at most.
    """

    key: StreamKey
    home: RegionNumber
    epoch: Epoch
    compared: Offset
    findings: tuple[RegionFinding, ...]
    divergence: Divergence | None
    rounds: int

    @property
    def state(self) -> VerdictState:
        """Return the worst of all regions."""
        states = {finding.state for finding in self.findings}
        if FindingState.DIVERGED in states:
            return VerdictState.DIVERGED
        return VerdictState.AGREES if states <= COMPARED else VerdictState.INCOMPLETE
