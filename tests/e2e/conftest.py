"""A whole region inside one process, and a file system that watches it.

Real brokers (region.app.Broker), real sockets on loopback; only the file system below the log is the test's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from georelay.client.broker_connection import BrokerConnection
from georelay.errors import GeorelayError
from georelay.ids import BrokerId, GroupId
from georelay.wire.api import ApiKey
from georelay.wire.batch import build_batch
from georelay.wire.requests import PartitionProduceData, ProduceRequest, TopicProduceData
from loadtest.history.checker_core import check
from loadtest.history.history_file import HistoryWriter, read_history
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.history.verdict import Verdict
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import TopicSpec
from region.log.entry import decode_entry
from region.log.entry_journal import JOURNAL_NAMES, decode_frames
from region.log.filesystem import Buffer, FileSystem, OsFileSystem
from region.log.hard_state import JOURNAL_NAME
from region.log.segment import segment_path
from region.multiraft.group import Group
from region.multiraft.peers import FrameKind, Lane, PeerTransport
from region.raft.core import AppendResponse, Ready, VoteResponse
from region.raft.wire import decode_message
from tests.e2e.foreign_producer import key_of, read_region, value_of
from tests.e2e.power_cut_disk import PowerCutFileSystem, PowerSupply
from tests.free_ports import free_ports

TOPIC = "orders"
REGION = "us"
BROKERS = 3
MAJORITY = 2
TICK_MS = 20  # elections within half a second
PRODUCE_VERSION = 7
CREATE_SECONDS_MAX = 20


# --- a file system that knows what is durable -------------------------------------------------------


class GroupBook:
    """What one broker's file system saw of one group's log: entry by entry, written and then synced."""

    def __init__(self) -> None:
        self.next_offsets: dict[int, int] = {0: 0}
        self.durable_index = 0

    @property
    def durable_offset(self) -> int:
        return self.next_offsets[self.durable_index]

    def written(self, index: int, next_offset: int) -> None:
        self.next_offsets[index] = next_offset
        self.durable_index = min(self.durable_index, index - 1)  # an entry was replaced


class WatchedFileSystem(OsFileSystem):
    """Passes everything on and notes which log entries and which terms an fdatasync that RETURNED has covered.

    `sync_works=False` patches the sync out: it returns at once, and nothing counts as durable.
    """

    def __init__(self, sync_seconds: float) -> None:
        self.groups: dict[int, GroupBook] = defaultdict(GroupBook)
        self.durable_terms: dict[int, int] = defaultdict(int)
        self.sync_works = True
        self._sync_seconds = sync_seconds
        self._paths: dict[int, Path] = {}
        self._unsynced: dict[Path, list[int]] = defaultdict(list)  # log file -> indexes
        self._unsynced_terms: list[tuple[int, int]] = []
        self._unsynced_rows: list[tuple[Path, int]] = []  # of the entry journal: log file, newest index
        self._unsynced_names: set[Path] = set()
        self._nameless: dict[Path, int] = {}  # log file whose name is not durable yet -> newest synced index
        self._lock = threading.Lock()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        with self._lock:
            if create and not self.exists(path):
                self._unsynced_names.add(path)
            handle = super().open(path, create=create, write=write)
            self._paths[handle] = path
            return handle

    def make_directory(self, path: Path) -> None:
        with self._lock:
            if not self.exists(path):
                self._unsynced_names.add(path)
        super().make_directory(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        written = super().pwritev(handle, buffers, position)
        path, raw = self._paths[handle], b"".join(buffers)
        with self._lock:
            if path.suffix == ".log" and _is_of_region(path):
                self._note_entries(path, raw)
            elif path.name == JOURNAL_NAME and _is_of_region(path):
                self._note_terms(raw)
            elif path.name in JOURNAL_NAMES and _is_of_region(path):
                self._note_rows(path.parent, raw)
        return written

    def _note_rows(self, home: Path, raw: bytes) -> None:
        for _, rows in decode_frames(raw):
            for row in rows:
                position, index = 0, 0
                while position < len(row.content):
                    entry = decode_entry(row.content, position)
                    position, index = position + len(entry.frame), int(entry.index)
                if index:
                    segment = segment_path(home / "groups" / str(row.group), row.first_index)
                    self._unsynced_rows.append((segment, index))

    def _note_entries(self, path: Path, raw: bytes) -> None:
        position = 0
        while position < len(raw):
            entry = decode_entry(raw, position)
            self.groups[int(path.parent.name)].written(entry.index, entry.next_offset)
            self._unsynced[path].append(entry.index)
            position += len(entry.frame)

    def _note_terms(self, raw: bytes) -> None:
        assert raw[:4] == b"HSFR", raw[:4]
        for row in range(int.from_bytes(raw[4:8], "big")):
            at = 32 + 16 * row
            group, term = int.from_bytes(raw[at : at + 4], "big"), int.from_bytes(raw[at + 8 : at + 16], "big")
            self._unsynced_terms.append((group, term))

    def fdatasync(self, handle: int) -> None:
        if not self.sync_works:
            return
        path = self._paths[handle]
        with self._lock:
            indexes, terms = list(self._unsynced[path]), list(self._unsynced_terms)
            rows = list(self._unsynced_rows)
        time.sleep(self._sync_seconds)  # in the flusher's thread: whoever does not wait for us is caught
        super().fdatasync(handle)
        with self._lock:
            if path.suffix == ".log":
                del self._unsynced[path][: len(indexes)]
                if indexes:
                    self._nameless[path] = indexes[-1]
                    self._settle()
            elif path.name == JOURNAL_NAME and _is_of_region(path):
                del self._unsynced_terms[: len(terms)]
                for group, term in terms:
                    self.durable_terms[group] = max(term, self.durable_terms[group])
            elif path.name in JOURNAL_NAMES and _is_of_region(path):
                del self._unsynced_rows[: len(rows)]
                self._nameless.update(rows)
                self._settle()

    def fsync_directory(self, path: Path) -> None:
        if not self.sync_works:
            return
        super().fsync_directory(path)
        with self._lock:
            self._unsynced_names = {name for name in self._unsynced_names if name.parent != path}
            self._settle()

    def _settle(self) -> None:
        """Synced bytes count once the names of their file and its folder cannot be lost any more."""
        for path, index in list(self._nameless.items()):
            if not self._unsynced_names & {path, path.parent}:
                self.groups[int(path.parent.name)].durable_index = index
                del self._nameless[path]

    def durable(self, group: int) -> GroupBook:
        """Return the book of a group."""
        with self._lock:
            return self.groups[group]


def _is_of_region(path: Path) -> bool:
    """Return whether a file is of the region's groups: mesh control's have numbers of their own, from 0 too."""
    return "control" not in path.parts


class DurabilityWatch:
    """Compares every acknowledgement, at the moment it is given, with what the file systems say is durable."""

    def __init__(self, *, sync_seconds: float = 0.004) -> None:
        self.file_systems = {BrokerId(1001 + row): WatchedFileSystem(sync_seconds) for row in range(BROKERS)}
        self.checked: dict[str, int] = defaultdict(int)
        self.violations: list[str] = []

    def patch_sync_out(self) -> None:
        """From now on no sync does anything."""
        for file_system in self.file_systems.values():
            file_system.sync_works = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Look at every frame before it is sent and at every commit before it is applied."""
        send, apply = PeerTransport.send, Group.apply

        def watched_send(
            transport: PeerTransport,
            peer: BrokerId,
            lane: Lane,
            kind: FrameKind,
            parts: Sequence[Buffer],
            *,
            can_wait: bool = False,
        ) -> bool:
            if kind is FrameKind.RAFT:
                self._frame_leaves(transport.me, b"".join(parts))
            return send(transport, peer, lane, kind, parts, can_wait=can_wait)

        def watched_apply(group: Group, ready: Ready[Any]) -> None:
            if ready.committed is not None and group.node.id in self.file_systems:  # mesh control has one replica here
                self._expect("commit", self._replicas(group.group_id, index=ready.committed[1] - 1) >= MAJORITY)
            apply(group, ready)

        monkeypatch.setattr(PeerTransport, "send", watched_send)
        monkeypatch.setattr(Group, "apply", watched_apply)

    def answered(self, group: GroupId, *, next_offset: int) -> None:
        """A Kafka client was told that everything below `next_offset` is stored."""
        replicas = sum(fs.durable(group).durable_offset >= next_offset for fs in self.file_systems.values())
        self._expect("produce answer", replicas >= MAJORITY)

    def _frame_leaves(self, broker: BrokerId, body: bytes) -> None:
        group, message = decode_message(body)
        file_system = self.file_systems[broker]
        if isinstance(message, AppendResponse) and not message.rejected:
            self._expect("append response", file_system.durable(group).durable_index >= message.index)
        elif isinstance(message, VoteResponse) and message.granted and not message.pre:
            self._expect("vote", file_system.durable_terms[group] >= message.term)

    def _replicas(self, group: int, *, index: int) -> int:
        return sum(fs.durable(group).durable_index >= index for fs in self.file_systems.values())

    def _expect(self, kind: str, holds: bool) -> None:
        self.checked[kind] += 1
        if not holds:
            self.violations.append(kind)


# --- a region in this process -----------------------------------------------------------------------


class RegionBed:
    """Three brokers of one region on this event loop. The ports stay the same from start to start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.brokers: list[Broker] = []
        self._ports = free_ports(5 * BROKERS)

    @property
    def kafka(self) -> list[str]:
        """Return the Kafka addresses."""
        return [self._listen(number)["kafka"] for number in range(BROKERS)]

    def _listen(self, number: int) -> dict[str, str]:
        kinds = ("kafka", "grpc", "peers", "link", "admin")
        return {kind: f"127.0.0.1:{self._ports[number * 5 + row]}" for row, kind in enumerate(kinds)}

    def config(self, number: int) -> BrokerConfig:
        """Return the configuration of a broker, 0..BROKERS-1."""
        rows = [
            {"number": row + 1, "peers": self._listen(row)["peers"], "link": self._listen(row)["link"]}
            for row in range(BROKERS)
        ]
        return BrokerConfig.model_validate(
            {
                "mesh_id": "bed",
                "region": REGION,
                "broker": number + 1,
                "data_dir": self.directory / f"{REGION}-{number + 1}",
                "definitions_home": REGION,
                "listen": self._listen(number),
                "regions": [{"name": REGION, "number": 1, "brokers": rows}],
                "tick_ms": TICK_MS,
            }
        )

    @asynccontextmanager
    async def running(self, file_systems: Sequence[FileSystem]) -> AsyncIterator[RegionBed]:
        """Start all brokers, wait until the region commits, stop them at the end."""
        async with AsyncExitStack() as stack:
            self.brokers = []
            for number, file_system in enumerate(file_systems):
                broker = Broker(self.config(number), file_system=file_system)
                stack.push_async_callback(broker.stop)
                self.brokers.append(broker)
                await broker.start()
            async with asyncio.timeout(CREATE_SECONDS_MAX):
                while not all(broker.cluster.ready() for broker in self.brokers):
                    await asyncio.sleep(0.02)
            yield self

    async def create_topic(self) -> None:
        """Create the topic and wait until a broker leads it."""
        async with asyncio.timeout(CREATE_SECONDS_MAX):
            await self.brokers[0].cluster.create_topic(TopicSpec(name=TOPIC, partitions=1))
            await self.leader()

    async def leader(self) -> Broker:
        """Return the broker that leads the partition, once it does."""
        async with asyncio.timeout(CREATE_SECONDS_MAX):
            while True:
                for broker in self.brokers:
                    stream = broker.cluster.stream(TOPIC, 0)
                    if stream is not None and stream.is_leader and stream.epoch > 0:
                        return broker
                await asyncio.sleep(0.02)

    async def publish(
        self,
        name: str,
        numbers: Sequence[int],
        sends: list[Operation],
        *,
        lanes: int = 4,
        on_answer: Callable[[GroupId, int], None] = lambda _group, _next_offset: None,
    ) -> None:
        """Publish one batch per number over several connections; end quietly when the brokers are gone.

        Args:
            sends: what was sent and what came of it is added here, each lane being a process.
        """
        leader = await self.leader()
        stream = leader.cluster.stream(TOPIC, 0)
        assert stream is not None
        host, _, port = leader.config.listen.kafka.rpartition(":")

        async def lane(row: int) -> None:
            connection = await BrokerConnection.dial(host, int(port))
            try:
                for number in numbers[row::lanes]:
                    offset, began_ns = None, time.monotonic_ns()
                    try:
                        offset = await _produce(connection, value_of(name, number))
                        if offset is None:
                            return
                        on_answer(stream.group_id, offset + 1)
                    finally:
                        sends.append(_sent(f"{name}/{row}", f"{name}:{number}", number, began_ns, offset))
            except (ConnectionError, GeorelayError):
                return  # nothing more is acknowledged; what was is what counts
            finally:
                connection.close()

        await asyncio.gather(*(lane(row) for row in range(lanes)))

    async def judged(self, sends: Sequence[Operation]) -> Verdict:
        """Read everything back, and judge what was sent by it."""
        complete = self.directory / "complete.history"
        writer = HistoryWriter(complete, "complete")
        try:
            await read_region(writer, self.kafka, TOPIC, 0, site=REGION)
        finally:
            writer.close()
        return check([*sends, *read_history([complete])])


def _sent(process: str, value: str, number: int, began_ns: int, offset: int | None) -> Operation:
    return Operation(
        process=process,
        number=number,
        kind=Kind.PRODUCE,
        key=key_of(TOPIC, 0),
        value=value,
        invoked_ns=began_ns,
        completed_ns=None if offset is None else time.monotonic_ns(),
        outcome=Outcome.UNKNOWN if offset is None else Outcome.OK,
        offset=offset,
    )


async def _produce(connection: BrokerConnection, value: bytes) -> int | None:
    """Return the offset, None when it was refused or its outcome is unknown."""
    batch = build_batch([(value, None, ())], timestamps_ms=1_700_000_000_000)
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5_000, topic_data=[data])
    answer = await connection.request(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    row = answer.responses[0].partition_responses[0]
    return None if row.error_code else int(row.base_offset)


@pytest.fixture
def region_bed(tmp_path: Path) -> RegionBed:
    return RegionBed(tmp_path)


@pytest.fixture
def durability_watch(monkeypatch: pytest.MonkeyPatch) -> DurabilityWatch:
    watch = DurabilityWatch()
    watch.install(monkeypatch)
    return watch


@pytest.fixture
def power_cut_disks() -> Callable[[PowerSupply, Path], list[PowerCutFileSystem]]:
    return lambda supply, root: [PowerCutFileSystem(supply, root=root) for _ in range(BROKERS)]


@pytest.fixture
def new_supply() -> Callable[[], PowerSupply]:
    return PowerSupply
