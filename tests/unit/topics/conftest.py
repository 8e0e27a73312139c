"""A stream above a proposer that appends at once and commits when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from georelay.errors import Busy, GeorelayError, NotLeader
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey, Term
from georelay.wire.batch import RecordDraft, build_batch, validate
from mesh.replication.stream_header import EntryType, StreamHeader
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, seal_entry
from region.log.errors import LogCorrupt
from region.topics.committed_tail import TailBudget
from region.topics.stream import Stream

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 0)


class HandClock:
    """Wall time that a test sets."""

    def __init__(self) -> None:
        self.now_ns = 1_800_000_000_000_000_000

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


class OneLog:
    """A group of one: implements Proposer, and drives the stream as region.multiraft.group does."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.entries: list[Entry] = []
        self.term = Term(1)
        self.applied = 0
        self.leads = False
        self.busy = False
        self.started_at: list[RaftIndex] = []
        self.seals = 0
        self.corrupt: list[LogCorrupt] = []

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        if not self.leads:
            raise NotLeader
        if self.busy:
            raise Busy("too much is uncommitted")
        return [self.append(draft) for draft in drafts]

    def entries_below(self, index: RaftIndex) -> Iterable[Entry]:
        return [entry for entry in self.entries if entry.index < index]

    async def read_index(self) -> RaftIndex:
        return RaftIndex(self.applied)

    def advance_start(self, first_index: RaftIndex) -> None:
        self.started_at.append(first_index)

    def seal(self) -> None:
        self.seals += 1

    def corrupt_found(self, error: LogCorrupt) -> None:
        self.corrupt.append(error)

    def append(self, draft: EntryDraft) -> Entry:
        chain = self.entries[-1].chain if self.entries else FIRST_CHAIN
        entry = seal_entry(draft, term=self.term, index=RaftIndex(len(self.entries) + 1), previous_chain=chain)
        self.entries.append(entry)
        self.stream.appended(entry)
        return entry

    def lead(self) -> None:
        """Win an election: the noop of the term is appended and committed."""
        self.term = Term(self.term + 1)
        self.leads = True
        self.append(EntryDraft(header=self.stream.noop_header(), payload=b""))
        self.commit()
        self.stream.led(leader=1001, is_leader=True)

    def step_down(self) -> None:
        self.leads = False
        self.stream.led(leader=1002, is_leader=False)

    def commit(self, up_to: int | None = None) -> None:
        end = len(self.entries) if up_to is None else up_to
        entries = self.entries[self.applied : end]
        self.applied = max(self.applied, end)
        if entries:
            self.stream.applied(entries)

    def truncate(self, from_index: int) -> None:
        assert from_index > self.applied
        del self.entries[from_index - 1 :]
        self.stream.truncated(RaftIndex(from_index), self.entries[-1] if self.entries else None)


class StreamBench:
    """What the tests of one stream need."""

    def __init__(self, *, home: int = 1, level: int = 3) -> None:
        self.level = level
        self.disk_writable = True
        self.clock = HandClock()
        self.budget = TailBudget()
        self.stream = Stream(
            key=KEY,
            topic="orders",
            group_id=GroupId(1),
            home=RegionNumber(home),
            region=RegionNumber(1),
            clock=self.clock,
            budget=self.budget,
            feature_level=lambda: self.level,
            disk_writable=lambda: self.disk_writable,
        )
        self.log = OneLog(self.stream)
        self.stream.proposer = self.log

    def ready(self) -> StreamBench:
        """Lead, with the first epoch committed."""
        self.log.lead()
        self.log.commit()
        return self

    def publish(
        self, value: bytes = b"v", *, count: int = 1, producer: int = -1, epoch: int = -1, sequence: int = -1
    ) -> asyncio.Future[Any]:
        raw = bytearray(
            build_batch(
                [RecordDraft(value)] * count,
                timestamps_ms=1,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
        )
        return self.stream.publish(validate(raw, from_client=True), raw, received_ns=5, entry_region=2)

    def publish_in_transaction(
        self, *, producer: int = 7, epoch: int = 0, sequence: int = 0, count: int = 1, transactional_id: str = "t"
    ) -> asyncio.Future[Any]:
        raw = bytearray(
            build_batch(
                [RecordDraft(b"v")] * count,
                timestamps_ms=1,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        )
        header = validate(raw, from_client=True, transactional_ok=True)
        return self.stream.publish(header, raw, received_ns=5, entry_region=2, transactional_id=transactional_id)

    def confirm(self, numbers: dict[int, int] | None = None) -> Verifier:
        """Let a coordinator confirm transactions: number 1 of every producer unless `numbers` says another one."""
        verifier = Verifier(numbers)
        self.stream.lanes.verifier = verifier
        return verifier

    def mark(
        self, *, producer: int = 7, epoch: int = 0, is_commit: bool = True, number: int = 1
    ) -> asyncio.Future[Any]:
        return self.stream.write_marker(producer_id=producer, producer_epoch=epoch, is_commit=is_commit, number=number)


class Verifier:
    """The coordinator as a partition sees it: answers when the test lets it."""

    def __init__(self, numbers: dict[int, int] | None) -> None:
        self.numbers = {} if numbers is None else numbers
        self.asked: list[tuple[str, int, int]] = []
        self.error: GeorelayError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, key: StreamKey, *, transactional_id: str, producer_id: int, producer_epoch: int) -> int:
        assert key == KEY
        self.asked.append((transactional_id, producer_id, producer_epoch))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.numbers.get(producer_id, 1)


def stream_header(
    *, producer: int = -1, epoch: int = 0, sequence: int = -1, count: int = 1, base: int = 0, append_us: int = 0
) -> StreamHeader:
    return StreamHeader(
        type=EntryType.DATA,
        entry_region=1,
        record_count=count,
        epoch=Epoch(1),
        base_offset=Offset(base),
        append_us=append_us,
        received_ns=0,
        max_timestamp_ms=0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        payload_crc=0,
        digest=bytes(16),
    )


@pytest.fixture
def make_bench() -> type[StreamBench]:
    return StreamBench


@pytest.fixture
def make_header() -> Any:
    return stream_header


@pytest.fixture
def stamped() -> Any:
    """Publish one record with a timestamp."""

    def publish(bench: StreamBench, timestamp_ms: int) -> asyncio.Future[Any]:
        raw = bytearray(build_batch([RecordDraft(b"v")], timestamps_ms=timestamp_ms))
        return bench.stream.publish(validate(raw, from_client=True), raw, received_ns=1, entry_region=1)

    return publish
