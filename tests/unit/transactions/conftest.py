"""A coordinator of transactions in memory, and participants that do what the test says."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from georelay.errors import GeorelayError, PolicyViolation, UnknownTopic
from georelay.ids import RegionNumber, StreamKey
from region.coordination.in_memory import InMemoryClock, InMemoryCoordinatorLog
from region.transactions.part import TransactionsPart
from region.transactions.settings import TransactionSettings
from region.transactions.transaction_core import Transaction, TransactionEnd

TOPICS = {"a": bytes(range(16)), "b": bytes(16)}


class FakeParticipants:
    """Topics a and b of four partitions; "elsewhere" has another home."""

    def __init__(self) -> None:
        self.told: list[tuple[str, TransactionEnd]] = []
        self.errors: dict[str, GeorelayError] = {}
        self.gone: set[StreamKey] = set()
        self._ids = itertools.count(1000)

    def resolve(self, topic: str, partition: int) -> StreamKey:
        if topic == "elsewhere":
            raise PolicyViolation("its home is another region")
        if topic not in TOPICS or not 0 <= partition < 4:
            raise UnknownTopic("no such partition")
        return StreamKey(TOPICS[topic], RegionNumber(0), partition)

    def name_of(self, key: StreamKey) -> str | None:
        return next((name for name, topic_id in TOPICS.items() if topic_id == key.topic_id), None)

    async def is_gone(self, key: StreamKey) -> bool:
        return key in self.gone

    async def end_partition(self, key: StreamKey, end: TransactionEnd) -> None:
        await self._hear(f"{self.name_of(key)}/{key.partition}", end)

    async def end_group(self, group_id: str, end: TransactionEnd) -> None:
        await self._hear(group_id, end)

    async def _hear(self, who: str, end: TransactionEnd) -> None:
        await asyncio.sleep(0)
        if who in self.errors:
            raise self.errors[who]
        self.told.append((who, end))

    async def allocate_producer_id(self) -> int:
        await asyncio.sleep(0)
        return next(self._ids)


class Coordinator:
    """One elected TransactionsPart."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.log = InMemoryCoordinatorLog(clock=InMemoryClock())
        self.participants = FakeParticipants()
        self.settings = settings
        self.part = self.make(self.log)
        self.log.add(self.part)
        self.log.elect()

    def make(self, log: Any) -> TransactionsPart:
        return TransactionsPart(log, self.participants, self.settings)

    def restart(self) -> None:
        """Another replica leads, from a snapshot."""
        self.log.depose()
        part = self.log.restart(self.make)
        assert isinstance(part, TransactionsPart)
        self.part = part
        self.log.elect()

    def row(self, name: str = "t") -> Transaction:
        found = self.part.book.get(name)
        assert found is not None
        return found

    async def ask(self, operation: str, name: str = "t", **body: Any) -> Any:
        return await self.part.call(operation, {"transactional_id": name, **body}, principal="User:p")

    async def init(self, name: str = "t", timeout_ms: int = 60_000, **body: Any) -> tuple[int, int]:
        answer = await self.ask("init", name, timeout_ms=timeout_ms, **body)
        return answer["producer_id"], answer["producer_epoch"]

    async def add(self, producer: tuple[int, int], *places: tuple[str, int], name: str = "t") -> Any:
        answer = await self.ask(
            "add_partitions", name, producer_id=producer[0], producer_epoch=producer[1], partitions=[*map(list, places)]
        )
        return answer["errors"]

    async def end(self, producer: tuple[int, int], *, is_commit: bool, name: str = "t") -> None:
        await self.ask("end", name, producer_id=producer[0], producer_epoch=producer[1], is_commit=is_commit)

    async def verify(self, producer: tuple[int, int], topic: str = "a", partition: int = 0) -> int:
        answer = await self.ask(
            "verify",
            producer_id=producer[0],
            producer_epoch=producer[1],
            topic_id=TOPICS[topic].hex(),
            origin=0,
            partition=partition,
        )
        return int(answer["number"])

    async def settled(self) -> None:
        """Let everything that is ready happen."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, state: str, name: str = "t") -> None:
        """Wait until an id has a state."""
        async with asyncio.timeout(5):
            while self.row(name).state != state:
                await asyncio.sleep(0.001)


@pytest.fixture
def make_coordinator() -> type[Coordinator]:
    return Coordinator
