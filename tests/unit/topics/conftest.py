"""A stream above a proposer that appends at once and commits when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import Busy, GeorelayError, NotLeader
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey, Term
from georelay.wire.batch import RecordDraft, build_batch, iterate_records, validate
from mesh.home.home_row import HomeRow, Moving
from mesh.home.promise_core import table_after
from mesh.replication.publish import Publish
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, seal_entry
from region.log.errors import LogCorrupt
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.log.manifest import Manifest
from region.multiraft.machine import HandingOver
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream
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
        self.hands_over = False
        self.started_at: list[RaftIndex] = []
        self.seals = 0
        self.corrupt: list[LogCorrupt] = []

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        if not self.leads:
            raise NotLeader
        if self.busy:
            raise Busy("too much is uncommitted")
        if self.hands_over:
            raise HandingOver("leadership is being handed over to broker 1002")
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


class ToldStream(Stream):
    """A stream whose epochs the test begins: who is home in each of them is known at once."""

    @property
    def known_epoch(self) -> Epoch:
        return self.end.epoch


class StreamBench:
    """What the tests of one stream need."""

    def __init__(self, *, home: int = 1, level: int = 6) -> None:
        self.level = level
        self.disk_writable = True
        self.clock = HandClock()
        self.budget = TailBudget()
        self.stream = ToldStream(
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
        return self.stream.publish(Publish.built(raw, received_ns=5, entry_region=2))

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
        return self.stream.publish(Publish(header, raw, 5, 2, transactional_id=transactional_id))

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
        return bench.stream.publish(Publish.built(raw, received_ns=1, entry_region=1))

    return publish


class MovingBench:
    """A hosted stream of one region on a real disk, whose home control moves as the test says."""

    def __init__(self, path: Path, executor: Any, *, region: int = 1, home: int = 1, level: int = 6) -> None:
        self.clock = HandClock()
        self.level = level
        self.path = path
        self.executor = executor
        self.region = region
        self.first_home = home
        self.log: OneLog
        self.stream: HostedStream
        self.rows: list[HomeRow] = []
        self._open()

    def _open(self) -> None:
        self.disk = GroupLog.open(self.path / str(self.region), OsFileSystem())
        self.stream = HostedStream(
            key=KEY,
            topic="orders",
            group_id=GroupId(1),
            home=RegionNumber(self.first_home),
            region=RegionNumber(self.region),
            clock=self.clock,
            budget=TailBudget(),
            executor=self.executor,
            feature_level=lambda: self.level,
        )
        self.log = OneLog(self.stream)
        self.stream.attach(self.log, self.disk)

    def restart(self, *, from_state: bool = False) -> None:
        """Make the stream anew from what is on disk, by its state at the applied entry or from the first entry."""
        entries, term, applied = list(self.log.entries), self.log.term, self.log.applied
        state = self.stream.snapshot()
        self.disk.close()
        self._open()
        self.log.entries, self.log.term, self.log.applied = entries, term, applied
        if from_state and applied:
            self.stream.restore(_At(entries[applied - 1].index, state))
        for entry in entries:
            if not (from_state and entry.index <= applied):
                self.stream.recovered(entry)
        if applied and not from_state:
            self.stream.applied_until(entries[applied - 1])

    def ready(self) -> MovingBench:
        self.log.lead()
        self.store()
        return self

    def store(self, *, commit: bool = True) -> None:
        self.disk.append(self.log.entries[self.disk.last_index :])
        self.disk.sync()
        if commit:
            self.log.commit()

    def write_manifest(self) -> None:
        """Write a manifest of the applied entry, as upkeep does."""
        entry = self.log.entries[self.log.applied - 1]
        self.disk.write_manifest(
            Manifest(
                index=entry.index,
                term=entry.term,
                chain=entry.chain,
                stream_part=entry.stream_part,
                state=self.stream.snapshot(),
            )
        )

    def publish(
        self,
        value: bytes = b"v",
        *,
        count: int = 1,
        producer: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        timestamp_ms: int = 1,
    ) -> asyncio.Future[Any]:
        raw = bytearray(
            build_batch(
                [RecordDraft(value)] * count,
                timestamps_ms=timestamp_ms,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
        )
        return self.stream.publish(Publish.built(raw, received_ns=5, entry_region=2))

    def mirror(self, entry: Entry) -> None:
        """Append an entry of another region verbatim."""
        self.stream.append_batch(entry.header(), bytes(entry.payload))

    def row(
        self,
        home: int,
        epoch: int,
        start: int,
        *,
        digest: bytes | None = None,
        before: HomeRow | None = None,
        index: int = 0,
        accept_loss: bool = False,
        moving: Moving | None = None,
    ) -> HomeRow:
        """Return a row that follows `before` (the first row of this bench when None)."""
        known = before or HomeRow.first(
            KEY.topic_id,
            KEY.partition,
            home=RegionNumber(self.first_home),
            regions=(RegionNumber(1), RegionNumber(2), RegionNumber(3)),
            digest=first_digest(KEY),
        )
        table = known.table
        homes = known.homes
        if epoch > known.epoch:
            table = table_after(known.table, epoch=Epoch(epoch), start=Offset(start))
            kept = {number for number, _ in table}
            homes = tuple(row for row in (*known.homes, (Epoch(epoch), RegionNumber(home))) if row[0] in kept)
        return replace(
            known,
            home=RegionNumber(home),
            epoch=Epoch(epoch),
            start=Offset(start),
            digest=self.digest_at(start) if digest is None else digest,
            table=table,
            homes=homes,
            last_epoch=Epoch(max(epoch, 0 if moving is None else moving.epoch)),
            moving=moving,
            index=index or known.index + 1,
            accept_loss=accept_loss,
        )

    def digest_at(self, offset: int) -> bytes:
        """Return the digest chain before an offset of this bench's log as it is now."""
        if offset == 0:
            return first_digest(KEY)
        for entry in reversed(self.log.entries):
            if entry.record_count and entry.next_offset == offset:
                return entry.header().digest
        raise AssertionError(f"no entry ends at {offset}")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Store and commit what is appended until a condition holds."""
        async with asyncio.timeout(5):
            while not condition():
                self.store()
                await asyncio.sleep(0.001)

    async def answered(self, work: Any) -> Any:
        """Return what a coroutine returns that waits for a commit."""
        task = asyncio.ensure_future(work)
        await self.until(task.done)
        return task.result()

    async def records(self) -> list[bytes]:
        """Return the values that readers see, from memory and from disk alike."""
        end = self.stream.high_watermark
        found = await self.stream.read_cold(self.stream.log_start, 1 << 24)
        values = [record.value or b"" for entry in found for record in iterate_records(entry.payload, validated=True)]
        self.check_offsets(found, end)
        return values

    def check_offsets(self, entries: Sequence[Entry], end: Offset) -> None:
        following = None
        for entry in entries:
            assert following is None or entry.base_offset == following, (entry, following)
            following = entry.next_offset
        assert following is None or following == end

    def close(self) -> None:
        self.stream.close()
        self.disk.close()


class _At:
    def __init__(self, index: RaftIndex, state: bytes) -> None:
        self.index = index
        self.state = state


@pytest.fixture
def make_moving(tmp_path: Path) -> Iterator[Any]:
    """Make benches of several regions."""
    executor = ThreadPoolExecutor(1)
    made: list[MovingBench] = []

    def make(**settings: Any) -> MovingBench:
        made.append(MovingBench(tmp_path, executor, **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
    executor.shutdown()
