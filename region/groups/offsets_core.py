"""Offsets of one group: committed ones, and those that wait for the end of their transaction. Pure.

Rule 1: an offset belongs to a stream (topic id, origin, partition), never to a name: a group that moves to another
        region, or to a topic that was made again under an old name, never applies one stream's offset to another.
Rule 2: offsets of a transaction become visible when it is committed, all together, and never if it is aborted.
Rule 3: what a transaction commits after its end was heard of is refused (its number is not above the newest ended one),
        also when the two crossed on their way into the log.
Rule 4: which offsets have expired depends on replicated times only, so that any leader answers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from georelay.ids import StreamKey
from georelay.wire.api import ErrorCode
from region.coordination.shares_core import text_bytes
from region.groups.settings import OFFSET_METADATA_BYTES_MAX, OFFSETS_PER_GROUP_MAX, PRODUCERS_PER_GROUP_MAX

NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
NO_NUMBER: Final = -1
ROW_BYTES: Final = 128  # of one offset in a snapshot at most, its metadata not counted
PENDING_BYTES: Final = 128  # of what one transaction wants to commit, its offsets not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """Where a group stands in one stream.

    Args:
        leader_epoch: home epoch of the last record that was read, -1 unknown.
        metadata: the consumer's own text, at most OFFSET_METADATA_BYTES_MAX bytes of UTF-8.
        commit_us: when it was committed, us since 1970, by the coordinator's log.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_us: int = 0

    @property
    def size_bytes(self) -> int:
        """Return what it takes in a snapshot, at most."""
        return ROW_BYTES + text_bytes(self.metadata)


@dataclass(slots=True, kw_only=True)
class PendingOffsets:
    """What one transaction wants to commit."""

    epoch: int
    number: int = NO_NUMBER
    rows: dict[StreamKey, CommittedOffset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """The newest transaction of a producer of which this group heard the end."""

    epoch: int
    number: int


class GroupOffsets:
    """See the module docstring."""

    def __init__(self) -> None:
        self.committed: dict[StreamKey, CommittedOffset] = {}
        self.pending: dict[int, PendingOffsets] = {}  # by producer id
        self.ended: dict[int, EndedTransaction] = {}  # by producer id, the latest to end last
        self.size_bytes = 0  # of committed and pending ones in a snapshot, at most
        self.newest_us = 0  # of the commits, also of those that were deleted since

    def __bool__(self) -> bool:
        return bool(self.committed or self.pending)

    def commit(self, rows: Mapping[StreamKey, CommittedOffset]) -> None:
        """Remember where the group stands."""
        for key, row in rows.items():
            self._forget(key)
            self.committed[key] = row
            self.newest_us = max(self.newest_us, row.commit_us)
            self.size_bytes += row.size_bytes

    def delete(self, keys: Iterable[StreamKey]) -> None:
        """Forget offsets; harmless for those that are not there."""
        for key in keys:
            self._forget(key)

    def _forget(self, key: StreamKey) -> None:
        old = self.committed.pop(key, None)
        if old is not None:
            self.size_bytes -= old.size_bytes

    def growth(self, rows: Mapping[StreamKey, CommittedOffset], producer_id: int | None = None) -> int:
        """Return by how many bytes `commit` would make it larger, or `hold` for a producer."""
        held = None if producer_id is None else self.pending.get(producer_id)
        known = self.committed if producer_id is None else {} if held is None else held.rows
        old_bytes = sum(known[key].size_bytes for key in rows if key in known)
        new_bytes = sum(row.size_bytes for row in rows.values())
        return new_bytes - old_bytes + PENDING_BYTES * (producer_id is not None and held is None)

    # --- transactions -----------------------------------------------------------------------------

    def check_transaction(self, producer_id: int, epoch: int, number: int) -> ErrorCode:
        """Return why a transaction may not add offsets, NONE when it may."""
        error = self.check_open(producer_id, epoch, number)
        if error is not ErrorCode.NONE:
            return error
        if producer_id not in self.pending and len(self.pending) >= PRODUCERS_PER_GROUP_MAX:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return ErrorCode.NONE

    def check_open(self, producer_id: int, epoch: int, number: int) -> ErrorCode:
        """Return NONE unless this group has heard of the end of a transaction, or of a newer one of its producer."""
        ended = self.ended.get(producer_id)
        pending = self.pending.get(producer_id)
        if (ended is not None and epoch < ended.epoch) or (pending is not None and epoch < pending.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if number != NO_NUMBER and ended is not None and number <= ended.number:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def hold(self, producer_id: int, epoch: int, number: int, rows: Mapping[StreamKey, CommittedOffset]) -> None:
        """Keep offsets until their transaction ends; those of an older one of the producer are dropped.

        Behind its end nothing is kept: nobody would end it.
        """
        if self.check_open(producer_id, epoch, number) is not ErrorCode.NONE:
            return
        held = self.pending.get(producer_id)
        if held is None or (held.epoch, held.number) != (epoch, number):
            self._drop(producer_id)
            held = self.pending[producer_id] = PendingOffsets(epoch=epoch, number=number)
            self.size_bytes += PENDING_BYTES
        for key, row in rows.items():
            old = held.rows.get(key)
            self.size_bytes += row.size_bytes - (0 if old is None else old.size_bytes)
            held.rows[key] = row

    def _drop(self, producer_id: int) -> None:
        held = self.pending.pop(producer_id, None)
        if held is not None:
            self.size_bytes -= PENDING_BYTES + sum(row.size_bytes for row in held.rows.values())

    def end(self, producer_id: int, epoch: int, number: int, *, is_commit: bool) -> None:
        """End a producer's transaction: commit or drop what it held. Again, or for an older one, it does nothing."""
        held = self.pending.get(producer_id)
        if held is not None and held.epoch <= epoch and (number == NO_NUMBER or held.number <= number):
            self._drop(producer_id)
            if is_commit and (held.number == number or NO_NUMBER in (held.number, number)):
                self.commit(held.rows)
        known = self.ended.pop(producer_id, EndedTransaction(epoch=epoch, number=number))
        newest = EndedTransaction(epoch=max(known.epoch, epoch), number=max(known.number, number))
        self.ended[producer_id] = newest
        while len(self.ended) > PRODUCERS_PER_GROUP_MAX:
            del self.ended[next(iter(self.ended))]

    def is_unstable(self, key: StreamKey) -> bool:
        """Return whether a transaction that is not ended may still change this offset."""
        return any(key in held.rows for held in self.pending.values())

    # --- what is too much, what is too old --------------------------------------------------------

    def check_count(self, keys: Iterable[StreamKey]) -> ErrorCode:
        """Return why offsets of so many streams are refused, NONE when they are not."""
        grown = sum(key not in self.committed for key in keys)
        is_over = grown > 0 and len(self.committed) + grown > OFFSETS_PER_GROUP_MAX
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_over else ErrorCode.NONE

    @staticmethod
    def check_metadata(metadata: str) -> ErrorCode:
        """Return why a consumer's text is refused, NONE when it is not."""
        is_over = len(metadata) > OFFSET_METADATA_BYTES_MAX or len(metadata.encode()) > OFFSET_METADATA_BYTES_MAX
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_over else ErrorCode.NONE

    def expired(
        self,
        *,
        now_us: int,
        retention_us: int,
        empty_since_us: int | None,
        is_used: Callable[[StreamKey], bool],
    ) -> list[StreamKey]:
        """Return the offsets that nobody has used for the retention.

        Args:
            empty_since_us: when the group lost its last member; None while it has members, and for consumers without
                membership, whose commits alone say that they live.
            is_used: whether members that the group has now read the stream: its offset never expires.
        """
        latest_us = now_us - retention_us
        return [
            key
            for key, row in self.committed.items()
            if max(row.commit_us, empty_since_us or 0) <= latest_us and not is_used(key) and not self.is_unstable(key)
        ]
