"""What a broker tells of a log is what is stored in it, in one moment of its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import Unavailable
from georelay.ids import Epoch, Offset
from region.audit.agent import VIEW_TRIES, view_of

TRUE, COPIED = b"t" * 16, b"c" * 16


@dataclass
class Log:
    """A hosted stream of batches of ten records each; entry n has the digest nnnn..."""

    batches: int = 3
    boundary: int = 0
    orphan: bool = False
    on_read: Any = None
    epochs: list[tuple[Epoch, Offset]] = field(default_factory=lambda: [(Epoch(1), Offset(0))])
    key: str = "orders/0"

    @property
    def high_watermark(self) -> Offset:
        return Offset(10 * self.batches)

    @property
    def log_start(self) -> Offset:
        return Offset(self.boundary)

    @property
    def start(self) -> Any:
        return SimpleNamespace(boundary=Offset(self.boundary), digest=TRUE)

    @property
    def applied_end(self) -> Any:
        """The newest entry is a control entry: it has the digest of the leader that wrote it."""
        return SimpleNamespace(digest=COPIED)

    def epoch_table(self) -> list[tuple[Epoch, Offset]]:
        return list(self.epochs)

    def orphans(self) -> list[Any]:
        return []

    def read(self, offset: Offset, _max_bytes: int) -> None:
        return None

    async def read_cold(self, offset: Offset, _max_bytes: int) -> list[Any]:
        if self.on_read is not None:
            self.on_read()
        row = offset // 10
        header = SimpleNamespace(
            base_offset=Offset(10 * row), next_offset=Offset(10 * row + 10), epoch=Epoch(1), digest=bytes([row]) * 16,
            payload_crc=row,
        )  # fmt: skip
        return [SimpleNamespace(base_offset=header.base_offset, next_offset=header.next_offset, header=lambda: header)]


async def view(log: Log, *at: int) -> Any:
    return await view_of(log, [Offset(row) for row in at])  # type: ignore[arg-type]


async def test_the_chain_at_the_end_is_that_of_the_newest_stored_batch_and_not_of_a_copied_control_entry() -> None:
    found = await view(Log())
    assert (found.end, found.end_digest) == (30, bytes([2]) * 16)


async def test_a_log_without_stored_batches_ends_as_it_begins() -> None:
    found = await view(Log(batches=2, boundary=20))
    assert (found.boundary, found.end, found.end_digest) == (20, 20, TRUE)


async def test_records_that_come_meanwhile_change_nothing() -> None:
    log = Log()

    def grow() -> None:
        log.batches += 1

    log.on_read = grow
    found = await view(log)
    assert (found.end, found.end_digest) == (30, bytes([2]) * 16)


async def test_a_log_whose_history_changes_meanwhile_is_looked_at_again() -> None:
    log = Log()

    def cut() -> None:
        if len(log.epochs) == 1:
            log.epochs.append((Epoch(2), Offset(20)))
            log.batches = 2

    log.on_read = cut
    found = await view(log)
    assert (found.epochs[-1], found.end, found.end_digest) == ((2, 20), 20, bytes([1]) * 16)


async def test_a_log_that_never_keeps_still_is_not_told_of() -> None:
    log, reads = Log(), []

    def begin_epoch() -> None:
        reads.append(1)
        log.epochs.append((Epoch(len(reads) + 1), Offset(30)))

    log.on_read = begin_epoch
    with pytest.raises(Unavailable):
        await view(log)
    assert len(reads) == VIEW_TRIES


async def test_batches_that_were_asked_for_are_named_by_their_offsets() -> None:
    found = await view(Log(boundary=10), 5, 15, 29, 30)
    assert sorted(found.batches) == [15, 29]
    assert (found.batches[15].first, found.batches[15].following, found.batches[15].digest) == (10, 20, bytes([1]) * 16)
