"""Logs of several regions as the comparison sees them, without brokers: batches with real digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from georelay.errors import GeorelayError, HomeUnreachable
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.ports import EpochRow
from mesh.replication.stream_header import first_digest, next_digest
from region.audit.audit_core import StreamAudit
from region.audit.values import BatchAt, LogView, OrphanRange, StreamVerdict

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 3)
HOME = RegionNumber(1)


@dataclass
class ModelLog:
    """One region's log: sizes of its batches, and the content of each."""

    batches: list[BatchAt] = field(default_factory=list)
    epochs: tuple[EpochRow, ...] = ((Epoch(1), Offset(0)),)
    boundary: int = 0
    orphans: tuple[OrphanRange, ...] = ()
    reads: int = 0

    def append(self, records: int, content: bytes, epoch: int = 1) -> None:
        first = self.end
        before = self.batches[-1].digest if self.batches else first_digest(KEY)
        digest = next_digest(
            before, epoch=Epoch(epoch), first=first, last=Offset(first + records - 1), batch=bytes(21) + content
        )
        following = Offset(first + records)
        self.batches.append(
            BatchAt(first=first, following=following, epoch=Epoch(epoch), digest=digest, crc=len(content))
        )

    @property
    def end(self) -> Offset:
        return self.batches[-1].following if self.batches else Offset(0)

    def start_at(self, batch: int) -> None:
        """Delete everything before a batch."""
        self.boundary = self.batches[batch].first

    def holding(self, offset: int) -> BatchAt | None:
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].following <= offset:
                low = middle + 1
            else:
                high = middle
        found = self.batches[low] if low < len(self.batches) else None
        return found if found is not None and self.boundary <= offset else None

    def digest_before(self, offset: int) -> bytes:
        found = self.holding(offset - 1) if offset > self.boundary else None
        if found is not None:
            return found.digest
        return next((row.digest for row in self.batches if row.following == offset), first_digest(KEY))

    def view(self, at: Sequence[Offset]) -> LogView:
        self.reads += len(at)
        return LogView(
            epochs=self.epochs,
            log_start=Offset(self.boundary),
            boundary=Offset(self.boundary),
            boundary_digest=self.digest_before(self.boundary),
            end=self.end,
            end_digest=self.digest_before(self.end),
            orphans=self.orphans,
            batches={x: batch for x in at if (batch := self.holding(x)) is not None},
        )


class ModelMesh:
    """Regions 1..n; answers what the audit asks, and counts."""

    def __init__(self) -> None:
        self.requests = 0
        self.silent: dict[int, GeorelayError] = {}
        self.between: Callable[[int], None] = lambda _round: None  # called before each round

    def log(self, *sizes: int, changed: int | None = None, epochs: Sequence[int] = ()) -> ModelLog:
        """Return a log; batch `changed` and those after it have another chain."""
        log = ModelLog()
        for row, size in enumerate(sizes):
            epoch = epochs[row] if epochs else 1
            log.append(size, b"other" if row == changed else b"batch %d" % row, epoch)
        return log

    def unreachable(self, region: int) -> None:
        self.silent[region] = HomeUnreachable(f"no broker of region {region} can be reached")

    def audit(self, logs: Mapping[int, ModelLog]) -> StreamVerdict:
        audit = StreamAudit(KEY, home=HOME, regions=[RegionNumber(row) for row in {*logs, *self.silent}])
        while wanted := audit.wanted():
            self.between(audit.rounds)
            self.requests += len(wanted)
            audit.told({row: self.silent.get(row) or logs[row].view(at) for row, at in wanted.items()})
        return audit.verdict()


@pytest.fixture
def mesh() -> ModelMesh:
    return ModelMesh()
