"""A stream that geo acknowledgements are attached to, and a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.ports import Published
from region.geo.counters import GeoCounters
from region.geo.stream_geo import StreamGeo


@dataclass(slots=True)
class SetClock:
    """Stands still until it is moved."""

    now_ns: int = 1_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def move(self, ms: float) -> None:
        self.now_ns += int(ms * 1_000_000)


@dataclass(frozen=True, slots=True)
class FakeHeader:
    append_us: int


@dataclass(frozen=True, slots=True)
class FakeEntry:
    append_us: int

    def header(self) -> FakeHeader:
        return FakeHeader(self.append_us)


@dataclass(slots=True)
class FakeStream:
    """Leads a stream of us; what is appended is committed when the test says so."""

    clock: SetClock
    key: StreamKey = StreamKey(bytes(16), RegionNumber(0), 0)  # noqa: RUF009
    topic: str = "orders"
    partition: int = 0
    home: RegionNumber = RegionNumber(1)  # noqa: RUF009
    is_home: bool = True
    is_leader: bool = True
    log_start: Offset = Offset(0)  # noqa: RUF009
    high_watermark: Offset = Offset(0)  # noqa: RUF009
    next_offset: Offset = Offset(0)  # noqa: RUF009
    table: list[tuple[Epoch, Offset]] = field(default_factory=lambda: [(Epoch(1), Offset(0))])
    decided: list[tuple[Epoch, Offset]] = field(default_factory=list)
    appended_us: list[int] = field(default_factory=list)
    waiting: list[tuple[Offset, asyncio.Future[Published]]] = field(default_factory=list)
    waiters: list[Callable[[], None]] = field(default_factory=list)
    wakes: int = 0

    @property
    def epoch(self) -> Epoch:
        return self.table[-1][0]

    def epoch_table(self) -> Sequence[tuple[Epoch, Offset]]:
        return self.table

    @property
    def decided_table(self) -> Sequence[tuple[Epoch, Offset]]:
        return self.decided

    def decide(self, *, epoch: int, start: int, home: int) -> None:
        """Follow control's word about an epoch that has not begun in this log."""
        self.decided.append((Epoch(epoch), Offset(start)))
        self.home, self.is_home = RegionNumber(home), home == 1
        self.wake()

    def read(self, offset: Offset, max_bytes: int) -> list[FakeEntry]:
        return [FakeEntry(self.appended_us[offset])] if offset < self.high_watermark else []

    def add_waiter(self, callback: Callable[[], None]) -> int:
        self.waiters.append(callback)
        return len(self.waiters)

    def wake_readers(self) -> None:
        self.wakes += 1

    def wake(self) -> None:
        for callback in self.waiters:
            callback()

    def append(self, records: int = 1) -> asyncio.Future[Published]:
        """Append one batch; its future resolves with `commit`."""
        stored: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self.appended_us += [self.clock.wall_ns() // 1000] * records
        self.waiting.append((self.next_offset, stored))
        self.next_offset = Offset(self.next_offset + records)
        return stored

    def commit(self) -> None:
        self.high_watermark = self.next_offset
        for base, stored in self.waiting:
            stored.set_result(Published(epoch=self.epoch, base_offset=base, append_us=1))
        self.waiting.clear()
        self.wake()

    def lead(self, *, leads: bool) -> None:
        self.is_leader = leads
        self.wake()


@dataclass(frozen=True, slots=True)
class FakeSettings:
    min_insync_regions: int = 1
    insync_raised: bool = False
    max_geo_lag_ms: int = 0
    max_geo_lag_records: int = 0


@dataclass(slots=True)
class Listener:
    """A mirror's session as far as it is told of watermarks."""

    geo: StreamGeo
    told: list[tuple[int, Offset] | None] = field(default_factory=list)

    def watermark_moved(self) -> None:
        self.told.append(self.geo.watermark_to_tell())


@dataclass(slots=True)
class Scene:
    """One stream with three regions."""

    clock: SetClock
    stream: FakeStream
    geo: StreamGeo
    counters: GeoCounters
    leaving: set[RegionNumber]  # on their way out of the mesh

    def settings(self, **settings: Any) -> None:
        self.geo.follow_topic(FakeSettings(**settings))

    @staticmethod
    def settings_of(**settings: Any) -> FakeSettings:
        return FakeSettings(**settings)

    def published(self, base: int) -> Published:
        return Published(epoch=self.stream.epoch, base_offset=Offset(base), append_us=1)

    def join(self, *regions: int) -> list[Listener]:
        listeners = [Listener(self.geo) for _ in regions]
        for region, listener in zip(regions, listeners, strict=True):
            self.geo.joined(RegionNumber(region), region, listener)
        return listeners

    def ack(self, region: int, offset: int, *, epoch: int | None = None) -> None:
        self.geo.acknowledged(
            RegionNumber(region), epoch=self.stream.epoch if epoch is None else Epoch(epoch), offset=Offset(offset)
        )

    async def publish(self, asked: Any, records: int = 1) -> asyncio.Future[Published]:
        """Publish as `region.broker.storing` does; nothing is committed yet."""
        admission = self.geo.admit(asked)
        stored = self.stream.append(records)
        return stored if admission is None else self.geo.gate(admission, stored, records)


@pytest.fixture
def scene() -> Scene:
    clock, counters = SetClock(), GeoCounters()
    stream = FakeStream(clock)
    regions = [RegionNumber(1), RegionNumber(2), RegionNumber(3)]
    leaving: set[RegionNumber] = set()
    geo = StreamGeo(
        stream,
        settings=FakeSettings(),
        regions=lambda: regions,
        clock=clock,
        counters=counters,
        is_leaving=leaving.__contains__,
    )
    return Scene(clock, stream, geo, counters, leaving)
