"""Parts that remember, one coordinator's stream on a log in memory, and a region of three whole brokers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from georelay.errors import BadRequest, Busy, GeorelayError
from georelay.ids import GroupId, Offset, RaftIndex, RegionNumber, StreamKey, Term
from mesh.replication.stream_header import StreamHeader
from region.app import Broker
from region.config import BrokerConfig
from region.coordination import region_coordinators
from region.coordination.coordinator_stream import CoordinatorStream
from region.coordination.log import CoordinatorLog
from region.coordination.part import CommandError, Part
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, seal_entry
from region.log.errors import LogCorrupt
from region.topics.committed_tail import TailBudget
from tests.conditions import until
from tests.free_ports import free_addresses

KEY = StreamKey(bytes(range(16)), RegionNumber(1), 3)
NAMES = ("kafka", "grpc", "peers", "link", "admin")


class Notes:
    """A CoordinatorPart: the list of commands, each with its index; `call` adds one, or lists them."""

    def __init__(self, log: CoordinatorLog, part: Part = Part.GROUPS) -> None:
        self.log = log
        self.part = part
        self.commands: list[str] = []
        self.indexes: list[int] = []
        self.times: list[int] = []
        self.story: list[str] = []
        self.was_whole: bool | None = None

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        if command == b"impossible":
            raise CommandError("impossible")
        self.commands.append(command.decode())
        self.indexes.append(index)
        self.times.append(append_us)

    def snapshot(self) -> bytes:
        return json.dumps(self.commands).encode() if self.commands else b""

    def restore(self, raw: bytes) -> None:
        if raw == b"nonsense":
            raise ValueError("nonsense")
        self.commands = json.loads(raw) if raw else []
        self.story.append(f"restored {len(self.commands)}")

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        self.commands.append("fenced")
        self.was_whole = is_whole

    def claim(self, name: str) -> int:
        return self.commands.count(name)

    def elected(self) -> None:
        self.story.append(f"elected after {len(self.commands)}")

    def deposed(self) -> None:
        self.story.append("deposed")

    def close(self) -> None:
        self.story.append("closed")

    async def call(self, operation: str, body: dict[str, Any], *, principal: str) -> dict[str, Any]:
        if operation == "add":
            index = await self.log.propose(self.part, str(body["command"]).encode())
            return {"index": index, "partition": self.log.partition, "principal": principal}
        if operation == "list":
            return {"partition": self.log.partition, "commands": self.commands}
        if operation == "wait":
            await asyncio.sleep(60)
        raise BadRequest(f"operation {operation!r} is unknown")


class HandClock:
    def __init__(self) -> None:
        self.wall = 10_000_000_000

    def wall_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.wall


class OneLog:
    """A log of one voter: committed when the test says so. Implements Proposer."""

    def __init__(self, stream: CoordinatorStream) -> None:
        self.stream = stream
        self.entries: list[Entry] = []
        self.term = Term(0)
        self.applied = 0
        self.base = 0  # entries up to here are in a manifest only
        self.refusal: GeorelayError | None = None

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        if self.refusal is not None:
            raise self.refusal
        return [self.append(draft) for draft in drafts]

    def entries_below(self, index: RaftIndex) -> Iterable[Entry]:
        return [entry for entry in self.entries if entry.index < index]

    async def read_index(self) -> RaftIndex:
        return RaftIndex(self.applied)

    def advance_start(self, first_index: RaftIndex) -> None:
        pass

    def seal(self) -> None:
        pass

    def corrupt_found(self, error: LogCorrupt) -> None:
        pass

    def append(self, draft: EntryDraft) -> Entry:
        chain = self.entries[-1].chain if self.entries else FIRST_CHAIN
        entry = seal_entry(draft, term=self.term, index=RaftIndex(len(self.entries) + 1), previous_chain=chain)
        self.entries.append(entry)
        self.stream.appended(entry)
        return entry

    def noop(self) -> StreamHeader:
        return self.stream.noop_header()

    def lead(self) -> None:
        """Win an election: the noop of the term is appended and committed, with everything before it."""
        self.term = Term(self.term + 1)
        self.append(EntryDraft(header=self.noop(), payload=b""))
        self.commit()
        self.stream.led(leader=1001, is_leader=True)
        self.commit()  # the first epoch

    def step_down(self, leader: int = 1002) -> None:
        self.stream.led(leader=leader, is_leader=False)

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


class NoExecutor(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("the disk is not read here")


class StreamBench:
    """One coordinator stream with parts 1 and 2."""

    def __init__(self, *, level: int = 3, region: int = 1) -> None:
        self.clock = HandClock()
        self.level = level
        self.disk_writable = True
        self.stream = CoordinatorStream(
            parts={Part.GROUPS: Notes, Part.QUEUES: lambda log: Notes(log, Part.QUEUES)},
            key=KEY,
            topic="__georelay_coordinators",
            group_id=GroupId(7),
            home=RegionNumber(1),
            region=RegionNumber(region),
            clock=self.clock,
            budget=TailBudget(),
            executor=NoExecutor(),
            feature_level=lambda: self.level,
            disk_writable=lambda: self.disk_writable,
        )
        self.log = OneLog(self.stream)
        self.stream.proposer = self.log

    @property
    def notes(self) -> Notes:
        found = self.stream.parts[Part.GROUPS]
        assert isinstance(found, Notes)
        return found

    @property
    def queues(self) -> Notes:
        found = self.stream.parts[Part.QUEUES]
        assert isinstance(found, Notes)
        return found

    def propose(self, *commands: str, part: Part = Part.GROUPS) -> list[asyncio.Future[RaftIndex]]:
        return [self.stream.propose(part, command.encode()) for command in commands]


class ThreeBrokers:
    """The brokers 1..3 of one region, each with Notes as its groups part; a stopped one may be started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[int, Broker] = {}
        self._listen = {number: free_addresses(NAMES) for number in (1, 2, 3)}

    def config(self, number: int) -> BrokerConfig:
        rows = [{"number": n, "peers": at["peers"], "link": at["link"]} for n, at in self._listen.items()]
        return BrokerConfig.model_validate(
            {
                "mesh_id": "test",
                "region": "us",
                "broker": number,
                "data_dir": str(self.directory / str(number)),
                "definitions_home": "us",
                "tick_ms": 20,
                "listen": self._listen[number],
                "regions": [{"name": "us", "number": 1, "brokers": rows}],
            }
        )

    async def start(self, *numbers: int, part: type[Notes] = Notes) -> None:
        for number in numbers:
            broker = self.running[number] = Broker(self.config(number))
            makes = broker.core.coordinators._makes
            makes.clear()
            broker.core.coordinators.register(Part.GROUPS, part)
            await broker.start()

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.running.pop(number).stop()

    def erase(self, number: int) -> None:
        shutil.rmtree(self.directory / str(number))

    def all_ready(self) -> bool:
        return all(broker.cluster.ready() for broker in self.running.values())

    def stream(self, number: int, partition: int) -> CoordinatorStream | None:
        found = self.running[number].cluster.stream("__georelay_coordinators", partition)
        assert found is None or isinstance(found, CoordinatorStream)
        return found

    def notes(self, number: int, partition: int) -> Notes | None:
        stream = self.stream(number, partition)
        found = None if stream is None else stream.parts[Part.GROUPS]
        assert found is None or isinstance(found, Notes)
        return found

    def leader(self, partition: int) -> int:
        """Return the number of the broker whose part serves, 0 without one."""
        for number in self.running:
            stream = self.stream(number, partition)
            if stream is not None and stream.is_leader:
                return number
        return 0

    async def add(self, command: str, *, at: int, key: str = "k") -> dict[str, Any]:
        coordinators = self.running[at].core.coordinators
        while True:
            with suppress(Busy):  # a leadership that moves to its preferred broker: nothing was stored
                return await coordinators.call(Part.GROUPS, key, "add", {"command": command}, timeout_s=20)
            await asyncio.sleep(0.05)


@pytest.fixture(name="until")
def until_fixture() -> Any:
    return until


@pytest.fixture
def make_bench() -> type[StreamBench]:
    return StreamBench


@pytest.fixture
def make_notes() -> type[Notes]:
    return Notes


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every few commands fill a segment, so that manifests are made and old segments go."""
    monkeypatch.setattr(region_coordinators, "SEGMENT_BYTES", 16 * 1024)
    monkeypatch.setattr("region.broker.housekeeping.RETAINED_BYTES", 16 * 1024)


@asynccontextmanager
async def three_brokers(directory: Path) -> AsyncIterator[ThreeBrokers]:
    made = ThreeBrokers(directory)
    await made.start(1, 2, 3)
    await until(made.all_ready)
    yield made
    await made.stop(*list(made.running))


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[ThreeBrokers]:
    async with three_brokers(tmp_path) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_region(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ThreeBrokers]:
    """One region for the tests of a file that stop no broker; they run on its loop (`loop_scope="module"`)."""
    async with three_brokers(tmp_path_factory.mktemp("region")) as made:
        yield made


@pytest.fixture
def end_of_log() -> Any:
    """Return the first offset that a stream does not have yet."""
    return lambda stream: Offset(stream.high_watermark)
