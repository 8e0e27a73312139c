"""Publishing at the home: its leader stamps base offset and home epoch into a batch, continues the digest chain and
proposes ONE entry per batch.

Rule 1: every decision is made against the log END; every answer waits for the commit.
Rule 2: only a leader whose own first entry of the term is committed publishes: then its high watermark is
        not behind anything that was ever acknowledged.
Rule 3: a batch of a transaction is stored while the transaction is open here, or once its coordinator has confirmed it
        (region.topics.transaction_lanes); a marker is stored once (region.topics.transaction_table_core).
Rule 4: behind a SEAL or PROMISE nothing is published, by this leader or a later one, until an epoch begins that is not
        below it; and in an epoch that control has decided nothing before its EPOCH entry is committed.
Rule 5: nothing is published in an epoch of which this broker has not heard who is home: its copy of control's words may
        be older than the log that it leads.
Rule 6: a broker without a lease gives no acknowledgement that depends on one (region.homes.leases).
Rule 7: transactions begin in a region whose brokers all understand them (TRANSACTION_LEVEL).
Rule 8: a region on its way out takes no records into streams that began in it: nobody would be home of them any more.
        A batch that it has stored already is answered all the same.
Rule 9: the type of a batch's timestamps is the topic's, whatever a client wrote. With LogAppendTime the batch gets the
        time of its append, before its digest and checksum are made.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import (
    BadRequest,
    Busy,
    DiskFull,
    InvalidTransactionState,
    NotHome,
    NotLeader,
    OutOfOrderSequence,
    PolicyViolation,
    ProducerFenced,
    Unavailable,
)
from georelay.ids import NO_PRODUCER, Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.wire.batch import BatchHeader, stamp, stamp_time
from georelay.wire.control_batch import build_marker
from georelay.wire.crc import crc32c
from georelay.wire.header import TRANSACTIONAL
from mesh.home.home_row import HomeRow
from mesh.replication.stream_header import EntryType, StreamHeader, next_digest
from region.kafka.ports import Publish, Published
from region.log.entry import EntryDraft, frame_for
from region.multiraft.machine import Proposer
from region.topics.committed_tail import TailBudget
from region.topics.followed_log import FollowedLog
from region.topics.held_publishes import HeldPublishes
from region.topics.stream_state import FIRST_LEVEL
from region.topics.transaction_lanes import TransactionLanes

log = structlog.get_logger()

FIRST_EPOCH: Final = Epoch(1)
TRANSACTION_LEVEL: Final = 3  # feature level from which transactions are understood


class SequencedStream(FollowedLog, ABC):
    """What the leader at the home appends for clients and for coordinators of transactions.

    Args:
        feature_level: of this region now.
        disk_writable: whether the disk has room for more records.
    """

    def __init__(
        self,
        *,
        key: StreamKey,
        topic: str,
        group_id: GroupId,
        home: RegionNumber,
        region: RegionNumber,
        clock: Clock,
        budget: TailBudget,
        feature_level: Callable[[], int] = lambda: FIRST_LEVEL,
        disk_writable: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(
            key=key,
            topic=topic,
            group_id=group_id,
            home=home,
            region=region,
            budget=budget,
            feature_level=feature_level,
        )
        self._clock = clock
        self._disk_writable = disk_writable
        self.home_row: HomeRow | None = None  # control's newest word; None: the stream's home never moved
        self.lease: Callable[[], bool] = _always
        self.isolated: Callable[[], bool] = _never
        self.is_leaving: Callable[[], bool] = _never  # whether this region is on its way out of the mesh
        self.uses_append_time = False  # as the topic says now
        self.forward_jumps = 0  # of producers, after a loss of records
        self.held = HeldPublishes(self.publish)
        self.lanes = TransactionLanes(key, admit=self._admit, again=self._publish_transactional)

    @abstractmethod
    def _open_first_epoch(self) -> None:
        """Append the EPOCH entry of the first home epoch."""

    def _leading(self) -> Proposer:
        if not self.is_leader or self.proposer is None:
            raise NotLeader(leader=self.leader_id)
        return self.proposer

    # --- record batches ---------------------------------------------------------------------------

    def publish(self, publish: Publish) -> asyncio.Future[Published]:
        """Append one batch, copied here, at the home leader; the future resolves at its commit.

        Raises:
            NotLeader, NotHome, Busy, DiskFull, OutOfOrderSequence, ProducerFenced, InvalidTransactionState,
            Unavailable (without a lease), PolicyViolation (this region leaves the mesh): not stored.
        """
        self._prepare_append()
        if publish.needs_lease:
            self._check_lease()
        header = publish.header
        if header.attributes & TRANSACTIONAL:
            if not publish.transactional_id or header.producer_id == NO_PRODUCER:
                raise BadRequest("a transactional batch needs a transactional id and a producer id")
            self._check_transactions_level()
            return self._publish_transactional(publish)
        if header.producer_id in self.transactions.end.ongoing or header.producer_id in self.lanes:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has an open transaction: this batch is not in it"
            )
        self._check_fence(header)
        return self._append(publish)

    def _prepare_append(self) -> Proposer:
        """Return the proposer of a home leader whose epoch is open. Raises NotHome, NotLeader, Busy."""
        if not self.is_home:
            raise self.not_home()
        proposer = self._leading()
        if self.end.epoch < FIRST_EPOCH:
            self._open_first_epoch()
        if self.fences.end.epoch > self.end.epoch:
            raise self.not_home()
        if self.home_row is not None and self.epoch < self.home_row.epoch:
            raise NotLeader(f"epoch {self.home_row.epoch} of {self.topic} has not begun here yet", leader=-1)
        self._check_word()
        return proposer

    def _check_lease(self) -> None:
        """Refuse to store what could not be acknowledged. Raises Unavailable."""
        if not self.lease():
            raise Unavailable(f"the lease of {self.topic}'s home ran out: this broker may not acknowledge anything")

    def _check_stays(self) -> None:
        """Refuse new records in a region that leaves; what it stored already it still says. Raises PolicyViolation."""
        if self.key.origin and self.is_leaving():
            raise PolicyViolation(f"this region is leaving the mesh: publish to {self.topic} in another region")

    def _check_word(self) -> None:
        """Refuse to sequence in an epoch of which this broker has not heard who is home. Raises NotLeader."""
        if self.end.epoch > self.known_epoch:
            raise NotLeader(f"who is home in epoch {self.end.epoch} of {self.topic} is not known here yet", leader=-1)

    @property
    def known_epoch(self) -> Epoch:
        """Return the newest epoch whose home this broker knows: control's newest word, else the first epoch."""
        return FIRST_EPOCH if self.home_row is None else self.home_row.epoch

    def not_home(self) -> NotHome:
        """Return what a publish is told that this region does not sequence (any more): epoch and home to look for."""
        row, fence = self.home_row, self.fences.end.epoch
        if not self.is_home:
            epoch = max(self.epoch, Epoch(0) if row is None else row.epoch)
            return NotHome(f"the home of {self.topic} is region {self.home}", epoch=epoch, home=self.home)
        target = self.home if row is None or row.moving is None or not row.moving.target else row.moving.target
        return NotHome(f"the home of {self.topic} is moving: epoch {fence} is to come", epoch=fence, home=target)

    def _acknowledge(self, index: RaftIndex) -> None:
        self._commits.committed(index, has_lease=self.lease(), is_isolated=self.is_home and self.isolated())

    def _append(self, publish: Publish) -> asyncio.Future[Published]:
        proposer = self._leading()
        end = self.end
        append_us = self._append_us()
        try:
            original = self._original(publish, append_us)
        except OutOfOrderSequence:
            # The log may know already that it leads no more, and have refused the batch before this one: then the gap
            # is ours, and the client is told who to look for, not that it left something out.
            proposer.propose([])
            raise
        if original is not None:
            return original
        self._check_stays()
        if not self._disk_writable():
            raise DiskFull(f"the disk of broker {self.leader_id} is nearly full: nothing is stored until there is room")
        frame, batch = frame_for(publish.raw)
        stamp(batch, base_offset=end.next_offset, epoch=end.epoch)
        header = stamp_time(batch, publish.header, append_ms=append_us // 1000 if self.uses_append_time else None)
        stream_header = self._data_header(publish, header, batch, append_us)
        jumps = self._jumps_in() and self.producers.is_jump(
            producer_id=header.producer_id, epoch=header.producer_epoch, base_sequence=header.base_sequence
        )
        entry = proposer.propose([EntryDraft(header=stream_header, payload=batch, frame=frame)])[0]
        if jumps:
            self.forward_jumps += 1
            log.warning(
                "producer.jumped_forward",
                stream=str(self.key),
                producer=header.producer_id,
                sequence=header.base_sequence,
                offset=end.next_offset,
            )
        return self._at_commit(
            entry.index,
            epoch=end.epoch,
            base_offset=end.next_offset,
            append_us=append_us,
            needs_lease=publish.needs_lease,
        )

    def _jumps_in(self) -> Epoch:
        """Return the epoch in which producers of before may leave sequences out, 0 when that is not this one."""
        row = self.home_row
        return row.epoch if row is not None and row.accept_loss and row.epoch == self.end.epoch else Epoch(0)

    def _append_us(self) -> int:
        return max(self._clock.wall_ns() // 1000, self.end.append_us)

    def _original(self, publish: Publish, append_us: int) -> asyncio.Future[Published] | None:
        """Return the answer of the batch that this one repeats, None for a new one that may be appended."""
        header = publish.header
        original = self.producers.check(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            record_count=header.record_count,
            checksum=header.crc,
            append_us=append_us,
            jumps_in=self._jumps_in(),
            restamped=partial(_restamped, publish.raw, header),
        )
        if original is None:
            return None
        return self._at_commit(
            original.index,
            epoch=original.home_epoch,
            base_offset=original.base_offset,
            append_us=original.append_us,
            needs_lease=publish.needs_lease,
        )

    # --- transactions -----------------------------------------------------------------------------

    def _check_transactions_level(self) -> None:
        if self._feature_level() < TRANSACTION_LEVEL:
            raise Unavailable("transactions begin once every broker of this region runs this version")

    def _check_fence(self, header: BatchHeader) -> None:
        newest = self.transactions.end.fencing_epoch(header.producer_id)
        if header.producer_epoch < newest:
            raise ProducerFenced(
                f"producer {header.producer_id} epoch {header.producer_epoch} is older than {newest}: "
                "start a new producer"
            )

    def _publish_transactional(self, batch: Publish) -> asyncio.Future[Published]:
        """Append to the open transaction, or wait for the coordinator to confirm the one that this batch opens."""
        header = batch.header
        if header.producer_id in self.lanes:
            return self.lanes.wait(batch)
        self._check_fence(header)
        ongoing = self.transactions.end.ongoing.get(header.producer_id)
        if ongoing is not None:
            if header.producer_epoch > ongoing.producer_epoch:
                raise InvalidTransactionState(
                    f"producer {header.producer_id} epoch {ongoing.producer_epoch} has an open transaction: "
                    f"epoch {header.producer_epoch} begins when it is ended"
                )
            return self._append(batch)
        original = self._original(batch, self._append_us())
        if original is not None:
            return original
        self._check_stays()
        self._check_room(header)
        return self.lanes.wait(batch)

    def _check_room(self, header: BatchHeader) -> None:
        """Refuse a batch that would open one transaction too many: what was aborted is kept, and read back."""
        if header.producer_id not in self.transactions.end.ongoing and self.transactions.is_full:
            raise Busy(f"{self.key} holds as many aborted transactions as it may: shorten retention or delete records")

    def _admit(self, batch: Publish, number: int) -> asyncio.Future[Published]:
        """Append a batch whose transaction the coordinator said to be open, unless its marker came meanwhile."""
        self._prepare_append()
        self._check_fence(batch.header)
        if self.transactions.end.is_late(batch.header.producer_id, number):
            raise InvalidTransactionState(f"the transaction of producer {batch.header.producer_id} has been ended")
        self._check_room(batch.header)  # others may have been confirmed meanwhile
        return self._append(batch)

    def write_marker(
        self, *, producer_id: int, producer_epoch: int, is_commit: bool, number: int
    ) -> asyncio.Future[Published]:
        """End a producer's transaction here; the future resolves at the commit. Safe to repeat.

        A marker is written also where the transaction has no records: it fences what is still on its way.

        Args:
            number: of the transaction among those of this producer id, 1..2^31-1, as its coordinator counts them.

        Raises:
            NotLeader, NotHome, Busy, Unavailable (without a lease, too): nothing was appended. ProducerFenced: a newer
            epoch was here.
        """
        proposer = self._prepare_append()
        self._check_lease()
        self._check_transactions_level()
        table = self.transactions.end
        end = self.end
        if table.is_late(producer_id, number):
            ended = table.ended[producer_id]
            return self._at_commit(
                ended.entry_index,
                epoch=end.epoch,
                base_offset=end.next_offset,
                append_us=ended.append_us,
                needs_lease=True,
            )
        newest = table.fencing_epoch(producer_id)
        if producer_epoch < newest:
            raise ProducerFenced(f"producer {producer_id} epoch {producer_epoch} is older than {newest}")
        append_us = self._append_us()
        batch = bytearray(
            build_marker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=is_commit,
                coordinator_epoch=number,
                timestamp_ms=append_us // 1000,
            )
        )
        stamp(batch, base_offset=end.next_offset, epoch=end.epoch)
        header = self._marker_header(batch, append_us=append_us)
        entry = proposer.propose([EntryDraft(header=header, payload=batch)])[0]
        return self._at_commit(
            entry.index, epoch=end.epoch, base_offset=end.next_offset, append_us=append_us, needs_lease=True
        )

    def _marker_header(self, batch: bytearray, *, append_us: int) -> StreamHeader:
        """Return the stream part of a marker: without a producer, which stands in the batch, and without a timestamp.

        It is no batch of a sequence, and nobody looks for it by time.
        """
        end = self.end
        first = end.next_offset
        return StreamHeader(
            type=EntryType.TXN_MARKER,
            entry_region=self.region,
            record_count=1,
            epoch=end.epoch,
            base_offset=first,
            append_us=append_us,
            received_ns=append_us * 1000,
            max_timestamp_ms=-1,
            producer_id=NO_PRODUCER,
            producer_epoch=-1,
            base_sequence=-1,
            payload_crc=crc32c(batch),
            digest=next_digest(end.digest, epoch=end.epoch, first=first, last=first, batch=batch),
        )

    def _data_header(self, publish: Publish, header: BatchHeader, batch: memoryview, append_us: int) -> StreamHeader:
        """Return the stream part of a batch whose header, and bytes, are stamped."""
        end = self.end
        last = Offset(end.next_offset + header.record_count - 1)
        return StreamHeader(
            type=EntryType.DATA,
            entry_region=publish.entry_region,
            record_count=header.record_count,
            epoch=end.epoch,
            base_offset=end.next_offset,
            append_us=append_us,
            received_ns=publish.received_ns,
            max_timestamp_ms=header.max_timestamp_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            payload_crc=crc32c(batch),
            digest=next_digest(end.digest, epoch=end.epoch, first=end.next_offset, last=last, batch=batch),
        )

    def _at_commit(
        self, index: RaftIndex, *, epoch: Epoch, base_offset: Offset, append_us: int, needs_lease: bool = False
    ) -> asyncio.Future[Published]:
        answer = Published(
            epoch=epoch,
            base_offset=base_offset,
            append_us=append_us,
            log_start=self.log_start,
            regions=(self.region,),
        )
        return self._commits.add(index, answer, committed=self.commit_index, needs_lease=needs_lease)


def _restamped(raw: bytes | bytearray | memoryview, header: BatchHeader, append_us: int) -> tuple[int, int]:
    """Return the checksums that a batch got which was appended then, by either type of timestamps; see stamp_time."""
    copy = bytearray(raw)
    with_own = stamp_time(copy, header, append_ms=None)
    return with_own.crc, stamp_time(copy, with_own, append_ms=append_us // 1000).crc


def _always() -> bool:
    return True


def _never() -> bool:
    return False
