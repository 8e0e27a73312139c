"""Brokers of one region inside one process: real disks, one event loop, and either real sockets or none at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from mesh.listening.addresses_core import Source
from mesh.replication.stream_header import EntryType, StreamHeader
from region.log.data_directory import DataDirectory
from region.log.entry import Entry, EntryDraft, control_header
from region.log.flusher import Flusher, GroupWrite
from region.log.manifest import Manifest
from region.multiraft.host import Host
from region.multiraft.peers import PeerTransport
from region.multiraft.transport import Address, FrameKind, Lane
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream
from tests.free_ports import free_ports

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 0)


class RunningBroker:
    """One broker's host with streams above it."""

    def __init__(self, me: BrokerId, ports: dict[BrokerId, int], path: Path) -> None:
        self.me = me
        self.ports = ports
        self.path = path
        self.streams: dict[GroupId, HostedStream] = {}
        self.stopped_groups: list[GroupId] = []

    async def start(self, groups: list[GroupId]) -> None:
        loop = asyncio.get_running_loop()
        self.directory = DataDirectory.open(self.path, mesh_id="test", broker_id=self.me)
        journal = self.directory.open_hard_states()
        self.flusher = Flusher(
            journal,
            post=lambda tokens: self.post(loop, tokens),
            on_failure=lambda error: None,
        )
        self.executor = ThreadPoolExecutor(1)
        rng = random.Random(self.me)
        self.host = Host(
            me=self.me,
            directory=self.directory,
            flusher=self.flusher,
            hard_states=journal.load(),
            clock=SystemClock(),
            rng=rng,
            tick_ms=10,
            executor=self.executor,
            on_group_stopped=lambda group, reason: self.stopped_groups.append(group),
        )
        self.flusher.start()
        transport = PeerTransport(
            me=self.me,
            mesh_id="test",
            disk=bytes(16),
            listen=("127.0.0.1", self.ports[self.me]),
            peers={peer: ("127.0.0.1", port) for peer, port in self.ports.items() if peer != self.me},
            receiver=self.host,
            rng=rng,
        )
        await self.host.start(transport)
        voters = tuple(self.ports)
        budget = TailBudget()
        for group_id in groups:
            stream = HostedStream(
                key=KEY,
                topic="orders",
                group_id=group_id,
                home=RegionNumber(1),
                region=RegionNumber(1),
                clock=SystemClock(),
                budget=budget,
                executor=self.executor,
            )
            self.streams[group_id] = stream
            group = self.host.open_group(group_id, voters, stream)
            stream.attach(group, group.disk)

    def post(self, loop: asyncio.AbstractEventLoop, tokens: list[object]) -> None:
        loop.call_soon_threadsafe(self.host.durable, tokens)

    async def stop(self) -> None:
        for stream in self.streams.values():
            stream.close()
        await self.host.stop()
        await asyncio.to_thread(self.flusher.stop)
        self.executor.shutdown()
        self.directory.close()


Start = Callable[[int, int], Awaitable[list[RunningBroker]]]


@pytest.fixture
async def start_region(tmp_path: Path) -> AsyncIterator[Start]:
    running: list[RunningBroker] = []

    async def start(brokers: int, groups: int) -> list[RunningBroker]:
        ids = [BrokerId(1001 + row) for row in range(brokers)]
        ports = dict(zip(ids, free_ports(brokers), strict=True))
        for me in ids:
            broker = RunningBroker(me, ports, tmp_path / str(me))
            running.append(broker)
            await broker.start([GroupId(row + 1) for row in range(groups)])
        return running

    yield start
    for broker in running:
        await broker.stop()


# --- without sockets and threads --------------------------------------------------------------------


class HereAndNow(Executor):
    """An executor that is done when it was asked."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Wires:
    """Every connection of the region: frames arrive one loop turn after they were sent."""

    def __init__(self) -> None:
        self.ends: dict[BrokerId, MemoryTransport] = {}
        self.cut: set[BrokerId] = set()

    def carry(self, sender: BrokerId, to: BrokerId, lane: Lane, kind: FrameKind, body: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, sender, to, lane, kind, body)

    def _arrive(self, sender: BrokerId, to: BrokerId, lane: Lane, kind: FrameKind, body: bytes) -> None:
        end = self.ends.get(to)
        if end is None or not end.up or self.cut & {sender, to}:
            return
        if lane is Lane.APPEND and end.appends_paused:
            end.waiting.append((sender, kind, body))
            return
        end.receiver.frame_received(sender, kind, memoryview(body), (sender, lane, end.life))


class MemoryTransport:
    """A region.multiraft.transport.Transport."""

    def __init__(self, me: BrokerId, wires: Wires, peers: list[BrokerId], receiver: Host) -> None:
        self.me = me
        self.wires = wires
        self.peers: dict[BrokerId, Address] = {peer: ("memory", peer) for peer in peers if peer != me}
        self.receiver = receiver
        self.up = False
        self.life = object()
        self.appends_paused = False
        self.waiting: list[tuple[BrokerId, FrameKind, bytes]] = []
        self.kinds: list[FrameKind] = []

    async def start(self) -> None:
        self.up = True
        self.wires.ends[self.me] = self
        for peer in self.peers:
            self._connect(peer)

    def _connect(self, peer: BrokerId) -> None:
        other = self.wires.ends.get(peer)
        if other is not None and other.up and self.me in other.peers:
            for lane in Lane:
                self.receiver.peer_connected(peer, lane)
                other.receiver.peer_connected(self.me, lane)

    async def stop(self) -> None:
        self.up = False
        for peer in self.peers:
            other = self.wires.ends.get(peer)
            if other is not None and other.up:
                for lane in Lane:
                    other.receiver.connection_closed((self.me, lane, other.life))
                    other.receiver.peer_lost(self.me, lane)

    def send(self, peer: BrokerId, lane: Lane, kind: FrameKind, parts: Any, *, can_wait: bool = False) -> bool:
        other = self.wires.ends.get(peer)
        if peer not in self.peers or other is None or not other.up:
            return False
        self.kinds.append(kind)
        self.wires.carry(self.me, peer, lane, kind, b"".join(bytes(part) for part in parts))
        return True

    def add_peer(self, broker: BrokerId, address: Address, source: Source) -> None:
        if broker != self.me and broker not in self.peers:
            self.peers[broker] = address
            self._connect(broker)

    def remove_peer(self, broker: BrokerId) -> None:
        self.peers.pop(broker, None)

    def check_disks(self) -> None:
        pass

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        self.receiver.peer_lost(peer, lane)

    def pause_appends(self) -> None:
        self.appends_paused = True

    def resume_appends(self) -> None:
        self.appends_paused = False
        waiting, self.waiting = self.waiting, []
        for sender, kind, body in waiting:
            self.wires.carry(sender, self.me, Lane.APPEND, kind, body)

    def dropped_frames(self) -> int:
        return 0


class InlineFlusher:
    """Does what was submitted in the next turn of the loop, unless it is held."""

    def __init__(self, flusher: Flusher, post: Callable[[list[object]], None]) -> None:
        self.flusher = flusher
        self.held = self.is_quick = False
        self._post = post
        self._queue: list[GroupWrite] = []

    def fits_on_loop(self, writes: Sequence[GroupWrite]) -> bool:
        return self.flusher.fits_on_loop(writes)

    def flush_on_loop(self, writes: Sequence[GroupWrite]) -> list[object]:
        return self.flusher.flush_on_loop(writes)

    def submit(self, write: GroupWrite) -> None:
        self._queue.append(write)
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        if self._queue and not self.held:
            queue, self._queue = self._queue, []
            self._post(self.flusher.run_cycle(queue))


class Ledger:
    """A state machine that keeps the payloads it was given, and can be restored from a manifest."""

    keeps_whole_log = False
    serves_at_followers = True

    def __init__(self) -> None:
        self.committed: list[bytes] = []
        self.applied_index = 0
        self.end_index = 0
        self.recovered_indexes: list[int] = []
        self.restored: list[int] = []
        self.leads = False
        self._held: list[Entry] = []

    def snapshot(self) -> bytes:
        return b",".join(self.committed)

    def restore(self, manifest: Manifest) -> None:
        self.committed = manifest.state.split(b",") if manifest.state else []
        self.applied_index = self.end_index = manifest.index
        self.restored.append(manifest.index)
        self._held.clear()

    def recovered(self, entry: Entry) -> None:
        self.recovered_indexes.append(entry.index)
        self.appended(entry)

    def noop_header(self) -> StreamHeader:
        return header(b"")

    def appended(self, entry: Entry) -> None:
        assert entry.index == self.end_index + 1, (entry, self.end_index)
        self.end_index = entry.index
        self._held.append(entry)

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        assert from_index > self.applied_index
        self.end_index = from_index - 1
        self._held = [entry for entry in self._held if entry.index < from_index]

    def applied(self, entries: Any) -> None:
        for entry in entries:
            assert entry.index == self.applied_index + 1, (entry, self.applied_index)
            self.applied_index = entry.index
            if entry.type is EntryType.NOOP and len(entry.payload):
                self.committed.append(bytes(entry.payload))
        self._held = [entry for entry in self._held if entry.index > self.applied_index]

    def applied_until(self, newest: Entry) -> None:
        self.applied([entry for entry in self._held if entry.index <= newest.index])

    def led(self, *, leader: int, is_leader: bool) -> None:
        self.leads = is_leader


def header(payload: bytes) -> StreamHeader:
    return control_header(
        EntryType.NOOP, next_offset=Offset(0), epoch=Epoch(1), append_us=0, digest=bytes(16), payload=payload
    )


class MemoryBroker:
    """One host without sockets and threads."""

    def __init__(self, me: BrokerId, wires: Wires, path: Path, members: list[BrokerId]) -> None:
        self.me = me
        self.wires = wires
        self.path = path
        self.members = members
        self.machines: dict[GroupId, Ledger] = {}
        self.stopped_groups: list[tuple[GroupId, str]] = []
        self.running = False
        self.rng = random.Random(me)

    async def start(self, **settings: Any) -> None:
        self.directory = DataDirectory.open(self.path, mesh_id="test", broker_id=self.me)
        journal = self.directory.open_hard_states()
        self.journal = journal
        self.flusher = InlineFlusher(
            Flusher(journal, post=lambda _: None, on_failure=lambda _: None), lambda tokens: self.host.durable(tokens)
        )
        self.host = Host(
            me=self.me,
            directory=self.directory,
            flusher=self.flusher,
            hard_states=journal.load(),
            clock=settings.pop("clock", None) or SystemClock(),
            rng=self.rng,
            tick_ms=10,
            executor=HereAndNow(),
            on_group_stopped=lambda group, reason: self.stopped_groups.append((group, reason)),
            **settings,
        )
        self.transport = MemoryTransport(self.me, self.wires, self.members, self.host)
        await self.host.start(self.transport)
        self.running = True

    async def open(self, group_id: GroupId, voters: tuple[BrokerId, ...]) -> Any:
        machine = self.machines[group_id] = Ledger()
        return await self.host.open_group_async(group_id, voters, machine)

    def publish(self, group_id: GroupId, value: bytes) -> int:
        group = self.host.groups[group_id]
        return int(group.propose([EntryDraft(header=header(value), payload=value)])[0].index)

    async def stop(self, *, clean: bool = True) -> None:
        if not self.running:
            return
        self.running = False
        if not clean:
            self.host.halt()
        await self.host.stop()
        self.flusher.held = False
        self.flusher.flush()
        for group in self.host.groups.values():
            group.disk.close()
        self.directory.close()


class MemoryRegion:
    """Brokers on one set of wires."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wires = Wires()
        self.brokers: dict[BrokerId, MemoryBroker] = {}

    async def add(self, count: int, **settings: Any) -> list[MemoryBroker]:
        ids = [BrokerId(1001 + len(self.brokers) + row) for row in range(count)]
        members = [*self.brokers, *ids]
        for me in ids:
            self.brokers[me] = MemoryBroker(me, self.wires, self.path / str(me), members)
        for broker in self.brokers.values():
            broker.members = members
            if broker.running:
                for me in ids:
                    broker.transport.add_peer(me, ("memory", me), Source.CONFIGURATION)
            else:
                await broker.start(**settings)
        return [self.brokers[me] for me in ids]

    async def until(self, condition: Callable[[], object], seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.001)

    def leader(self, group_id: GroupId) -> MemoryBroker | None:
        for broker in self.brokers.values():
            machine = broker.machines.get(group_id)
            if broker.running and machine is not None and machine.leads and group_id in broker.host.groups:
                return broker
        return None


@pytest.fixture
async def memory_region(tmp_path: Path) -> AsyncIterator[MemoryRegion]:
    region = MemoryRegion(tmp_path)
    yield region
    for broker in region.brokers.values():
        await broker.stop()


@pytest.fixture
def ledger_class() -> type[Ledger]:
    return Ledger
