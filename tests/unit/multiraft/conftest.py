"""Three brokers of one region inside one process: real disks, real sockets on loopback, one event loop."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from georelay.clock import SystemClock
from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey
from region.log.data_directory import DataDirectory
from region.log.flusher import Flusher
from region.multiraft.host import Host
from region.multiraft.peers import PeerTransport
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 0)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


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
