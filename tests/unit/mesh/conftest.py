"""In-memory logs and a mesh of brokers on loopback for the tests of replication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import Busy, Diverged, GeorelayError, NotLeader, UnknownTopic
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.replication.mesh_links import MeshLinks
from mesh.replication.ports import Answer, JsonObject, Published, SkipPoint
from mesh.replication.receiver_core import recheck_at_apply
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest
from tests.conditions import until

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 0)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry as the home wrote it."""

    stream_part: bytes
    payload: bytes
    base_offset: Offset
    next_offset: Offset


@dataclass(slots=True)
class MemoryLog:
    """Both sides in one: sequences at a home, appends verbatim at a mirror."""

    key: StreamKey = KEY
    home: RegionNumber = RegionNumber(1)  # noqa: RUF009
    clock: SystemClock = field(default_factory=SystemClock)
    is_serving: bool = True
    is_home: bool = True
    is_leader: bool = True
    control_index: int = 0
    geo: Any = None
    log_start: Offset = Offset(0)  # noqa: RUF009
    first: Offset = Offset(0)  # noqa: RUF009
    first_digest: bytes = b""
    home_starts: list[Offset] = field(default_factory=list)
    skips_refused: int = 0  # SKIP entries to answer with Busy
    skipped: list[SkipPoint] = field(default_factory=list)
    table: list[tuple[Epoch, Offset]] = field(default_factory=lambda: [(Epoch(1), Offset(0))])
    entries: list[StoredEntry] = field(default_factory=list)
    committed: int = 0  # entries
    commits_at_once: bool = True
    refuses: int = 0  # appends to answer with Busy
    cold_reads: int = 0
    only_cold: bool = False
    read_failure: GeorelayError | None = None
    waiters: dict[int, Callable[[], None]] = field(default_factory=dict)
    promised: Epoch = Epoch(0)  # noqa: RUF009
    decided: Epoch = Epoch(0)  # noqa: RUF009
    proven: Epoch = Epoch(0)  # noqa: RUF009
    _waiter: int = 0

    @property
    def source(self) -> RegionNumber:
        return self.home

    @property
    def epoch(self) -> Epoch:
        return self.table[-1][0]

    @property
    def next_offset(self) -> Offset:
        return self.entries[-1].next_offset if self.entries else self.first

    @property
    def end_digest(self) -> bytes:
        return StreamHeader.decode(self.entries[-1].stream_part).digest if self.entries else self._first_digest()

    def _first_digest(self) -> bytes:
        return self.first_digest or first_digest(self.key)

    @property
    def high_watermark(self) -> Offset:
        return self.entries[self.committed - 1].next_offset if self.committed else self.first

    @property
    def served_from(self) -> Offset:
        return self.first

    def delete_below(self, offset: Offset) -> None:
        """Move the log start; the batches below are gone."""
        gone = [entry for entry in self.entries if entry.next_offset <= offset]
        self.first_digest = StreamHeader.decode(gone[-1].stream_part).digest
        self.first = self.log_start = offset
        self.entries = self.entries[len(gone) :]
        self.committed -= len(gone)
        self.wake()

    def skip_point(self, *, checksums: bool = False) -> SkipPoint:
        table = tuple(row for row in self.table if row[1] <= self.first)
        producers = b"states with checksums" if checksums else b"states"
        return SkipPoint(last=Offset(self.first - 1), digest=self._first_digest(), table=table, producers=producers)

    async def append_skip(self, point: SkipPoint) -> None:
        if self.skips_refused:
            self.skips_refused -= 1
            raise Busy("the log is full")
        await asyncio.sleep(0)
        self.entries, self.committed = [], 0
        self.first = self.log_start = Offset(point.last + 1)
        self.first_digest = point.digest
        self.table = [*self.table, *(row for row in point.table if row[0] > self.epoch)]
        self.skipped.append(point)
        self.wake()

    def home_start_moved(self, log_start: Offset) -> None:
        self.home_starts.append(log_start)

    def epoch_table(self) -> Sequence[tuple[Epoch, Offset]]:
        return list(self.table)

    def sequence(self, payload: bytes, records: int = 1) -> Published:
        """Append one batch as the home does."""
        first, epoch = self.next_offset, self.epoch
        digest = next_digest(self.end_digest, epoch=epoch, first=first, last=Offset(first + records - 1), batch=payload)
        header = StreamHeader(
            type=EntryType.DATA,
            entry_region=1,
            record_count=records,
            epoch=epoch,
            base_offset=first,
            append_us=self.clock.wall_ns() // 1000,
            received_ns=self.clock.wall_ns(),
            max_timestamp_ms=-1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            payload_crc=crc32c(payload),
            digest=digest,
        )
        self.append_batch(header, payload)
        return Published(epoch=epoch, base_offset=first, append_us=header.append_us)

    def append_batch(self, header: StreamHeader, payload: bytes) -> None:
        if not self.is_leader:
            raise NotLeader
        if self.refuses:
            self.refuses -= 1
            raise Busy("the log is full")
        self.entries.append(StoredEntry(header.encode(), payload, header.base_offset, header.next_offset))
        if self.commits_at_once:
            self.commit()

    def commit(self, count: int | None = None) -> None:
        """Commit the next `count` entries (all when None)."""
        end = len(self.entries) if count is None else self.committed + count
        for entry in self.entries[self.committed : end]:
            header = StreamHeader.decode(entry.stream_part)
            recheck_at_apply(
                kind=header.type,
                epoch=header.epoch,
                base_offset=header.base_offset,
                committed_epoch=self.epoch,
                committed_next=self.high_watermark,
                epoch_table=self.table,
            )
            self.committed += 1
        self.wake()

    async def append_epoch(
        self, epoch: Epoch, *, start: Offset, digest: bytes, control_index: int, proven: Epoch
    ) -> None:
        self.proven = proven
        if await self.digest_before(start) != digest:
            raise Diverged(f"another digest at {start}")
        self.begin_epoch(epoch, start)

    def begin_epoch(self, epoch: Epoch, start: Offset) -> None:
        """Open an epoch; what lies at or beyond `start` leaves the log (the orphan branch)."""
        self.entries = [entry for entry in self.entries if entry.next_offset <= start]
        self.committed = len(self.entries)
        self.table.append((epoch, start))
        self.wake()

    def wake(self) -> None:
        for callback in list(self.waiters.values()):
            callback()

    def read(self, offset: Offset, max_bytes: int) -> Sequence[StoredEntry] | None:
        return None if self.only_cold and offset < self.high_watermark else self._read(offset, max_bytes)

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[StoredEntry]:
        self.cold_reads += 1
        await asyncio.sleep(0)
        if self.read_failure is not None:
            raise self.read_failure
        return self._read(offset, max_bytes)

    def _read(self, offset: Offset, max_bytes: int) -> list[StoredEntry]:
        found: list[StoredEntry] = []
        size = 0
        # Tests use one record per batch where they are long, so this finds the row at once.
        row = min(offset - self.first, self.committed)
        while row and self.entries[row - 1].next_offset > offset:
            row -= 1
        for entry in self.entries[row : self.committed]:
            size += len(entry.payload)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    async def digest_before(self, offset: Offset) -> bytes | None:
        if offset == self.first:
            return self._first_digest()
        for entry in reversed(self.entries[: self.committed]):
            if entry.next_offset == offset:
                return StreamHeader.decode(entry.stream_part).digest
        return None

    def add_waiter(self, callback: Callable[[], None]) -> int:
        self._waiter += 1
        self.waiters[self._waiter] = callback
        return self._waiter

    def remove_waiter(self, handle: int) -> None:
        self.waiters.pop(handle, None)

    def payloads(self) -> list[bytes]:
        """Return the committed batches."""
        return [entry.payload for entry in self.entries[: self.committed]]


@dataclass(slots=True)
class TestBroker:
    """One broker's replication and what it serves."""

    __test__ = False
    identity: MeshIdentity
    brokers: dict[RegionNumber, list[BrokerAddress]]
    settings: LinkSettings = field(default_factory=LinkSettings)
    logs: dict[StreamKey, MemoryLog] = field(default_factory=dict)
    leaders: dict[StreamKey, int] = field(default_factory=dict)
    publish_errors: list[GeorelayError] = field(default_factory=list)
    published: list[bytes] = field(default_factory=list)
    hold_publishes: bool = False
    held: list[asyncio.Future[Published]] = field(default_factory=list)
    links: Any = None
    port: int = 0
    carried: dict[str, Any] = field(default_factory=dict)  # how, where it is not as MeshLinks does by itself

    async def start(self, listen: str = "127.0.0.1:0") -> int:
        self.links = MeshLinks(
            identity=self.identity,
            brokers=self.brokers,
            directory=self,
            publisher=self,
            requests=self,
            clock=SystemClock(),
            settings=self.settings,
            **self.carried,
        )
        self.port = await self.links.start(listen)
        return self.port

    def committed_log(self, key: StreamKey) -> MemoryLog | None:
        return self.logs.get(key)

    def leader_of(self, key: StreamKey) -> int:
        return self.leaders.get(key, -1)

    def publish_forwarded(
        self, key: StreamKey, batch: bytes, *, received_ns: int, entry_region: RegionNumber, level: Any = None
    ) -> asyncio.Future[Published]:
        if self.publish_errors:
            raise self.publish_errors.pop(0)
        if key not in self.logs:
            raise NotLeader(leader=self.leader_of(key))
        self.published.append(batch)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if self.hold_publishes:
            self.held.append(future)
        else:
            future.set_result(self.logs[key].sequence(batch))
        return future

    async def handle(self, method: str, body: JsonObject, *, from_broker: BrokerId) -> Answer:
        if method == "echo":
            return Answer({"from": from_broker, "at": self.identity.broker_id, **body}, b"attached")
        if method == "follow":
            if self.leaders.get(KEY, -1) != self.identity.broker_id:
                raise NotLeader(leader=self.leaders.get(KEY, -1))
            return Answer({"at": self.identity.broker_id})
        if method == "never":
            await asyncio.Event().wait()
        raise UnknownTopic(f"no such method {method}")


class TcpForwarder:
    """Stands between two brokers; `cut` resets every connection and refuses new ones until `heal`."""

    def __init__(self) -> None:
        self.target = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def heal(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)


@dataclass(slots=True)
class TwoRegions:
    """Region 1 (one broker, home) and region 2 (one broker, mirror); a TCP forwarder between them."""

    home: TestBroker
    mirror: TestBroker
    wire: TcpForwarder


def identity(broker: int, mesh_id: str = "test-mesh") -> MeshIdentity:
    region = RegionNumber(broker // 1000)
    return MeshIdentity(mesh_id=mesh_id, region=f"r{region}", region_number=region, broker_id=BrokerId(broker))


@pytest.fixture
async def two_regions() -> AsyncIterator[TwoRegions]:
    wire = TcpForwarder()
    home = TestBroker(identity(1001), {})
    wire.target = await home.start()
    port = await wire.heal()
    address = BrokerAddress(broker_id=BrokerId(1001), address=f"127.0.0.1:{port}")
    mirror = TestBroker(identity(2001), {RegionNumber(1): [address]})
    await mirror.start()
    yield TwoRegions(home, mirror, wire)
    await mirror.links.stop()
    await home.links.stop()
    await wire.cut()


@pytest.fixture
async def join() -> AsyncIterator[Callable[..., Any]]:
    """Start a home and a mirror, how each is carried as given."""
    started: list[TestBroker] = []

    async def begin(home: dict[str, Any], mirror: dict[str, Any]) -> tuple[TestBroker, TestBroker]:
        settings = LinkSettings(redial_ms=10)
        started.append(TestBroker(identity(1001), {}, carried=home, settings=settings))
        address = BrokerAddress(broker_id=BrokerId(1001), address=f"127.0.0.1:{await started[0].start()}")
        started.append(TestBroker(identity(2001), {RegionNumber(1): [address]}, carried=mirror, settings=settings))
        await started[1].start()
        return started[0], started[1]

    yield begin
    for broker in reversed(started):
        await broker.links.stop()


@pytest.fixture(name="until")
def until_fixture() -> Any:
    return until


@pytest.fixture
def key() -> StreamKey:
    return KEY


@pytest.fixture
def memory_log() -> type[MemoryLog]:
    return MemoryLog


@pytest.fixture
async def start_broker() -> AsyncIterator[Callable[..., Any]]:
    """Start brokers that know the ones started before; all are stopped at the end."""
    started: list[TestBroker] = []

    async def start(broker: int, mesh_id: str = "test-mesh") -> TestBroker:
        known: dict[RegionNumber, list[BrokerAddress]] = {}
        for other in started:
            address = BrokerAddress(broker_id=other.identity.broker_id, address=f"127.0.0.1:{other.port}")
            known.setdefault(other.identity.region_number, []).append(address)
        one = TestBroker(identity(broker, mesh_id), known)
        await one.start()
        started.append(one)
        return one

    yield start
    for one in reversed(started):
        await one.links.stop()
