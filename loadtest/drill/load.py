"""The clients of a drill: publishers at a steady rate and a reader per region, all with the SDK.

Rule 1: a record's value says who sent it, its number there and when it was due, so that every copy of it can be named.
Rule 2: a publisher is told the fate of each record once; the SDK sends again meanwhile, under the same sequence.
Rule 3: a reader saves its positions as an application would, every SAVE_S; when its region is lost it goes on in
        another one from what it had saved, and nowhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from georelay import (
    Connection,
    ConsumedRecord,
    Durability,
    DurabilityPending,
    GeorelayError,
    Outcome,
    Position,
    Retry,
    Start,
)
from georelay.durability import Stored
from georelay.positions import Place
from loadtest.drill.values import Fate, Reading, RecordName, Sent
from loadtest.wan.heals_core import Delivery

PADDING: Final = b"x" * 70
SAVE_S: Final = 0.5
GET_S: Final = 0.2
REQUEST_S: Final = 3.0
GEO_DEADLINE_S: Final = 30.0
DELIVERY_S: Final = 90.0
RETRY_S: Final = 0.2
BATCH_RECORDS: Final = 200

Dial = Callable[[str], Connection]  # region -> a connection that stays in it


def value_of(name: RecordName, due_ns: int) -> bytes:
    """Return the value of a record."""
    return b"%s:%d:%d:" % (name.publisher.encode(), name.number, due_ns) + PADDING


def name_of(value: bytes | None) -> tuple[RecordName | None, int]:
    """Return whose record a value is and when it was due; (None, 0) for what no drill wrote."""
    parts = (value or b"").split(b":")
    if len(parts) != 4 or not parts[1].isdigit() or not parts[2].isdigit():
        return None, 0
    return RecordName(parts[0].decode("ascii", "replace"), int(parts[1])), int(parts[2])


class Publisher:
    """Sends to partition 0 of a topic. Use as an async context manager; leaving it waits for all outcomes.

    Args:
        region: whose brokers it speaks with.
        rate_per_s: records, one at a time.
    """

    def __init__(
        self, name: str, dial: Dial, region: str, topic: str, *, durability: Durability, rate_per_s: float
    ) -> None:
        self.name = name
        self.region = region
        self._dial = dial
        self._topic = topic
        self._durability = durability
        self._rate_per_s = rate_per_s
        self._outcomes: dict[int, Sent] = {}
        self._open: dict[int, int] = {}  # number -> due_ns
        self._task: asyncio.Task[None] | None = None
        self._ends = asyncio.Event()
        self.newest_epoch = 0

    async def __aenter__(self) -> Publisher:
        self._task = asyncio.create_task(self._run(), name=self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send no more, and wait until everything sent has its fate. Raises what broke the publisher."""
        self._ends.set()
        if self._task is not None:
            await self._task

    def sent(self) -> list[Sent]:
        """Return the fate of everything that was sent; what has none yet is UNKNOWN."""
        asked = self._durability.regions
        unknown = [
            Sent(name=RecordName(self.name, number), asked=asked, fate=Fate.UNKNOWN, due_ns=due_ns, at_ns=0)
            for number, due_ns in self._open.items()
        ]
        return [*self._outcomes.values(), *unknown]

    async def until_acknowledged(self, *, epoch: int = 0, timeout_s: float) -> None:
        """Wait for an acknowledgement of this epoch or a later one. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.newest_epoch < max(1, epoch):
                if self._task is not None and self._task.done():
                    await self._task
                await asyncio.sleep(0.02)

    async def _run(self) -> None:
        async with (
            self._dial(self.region) as connection,
            connection.producer(
                durability=self._durability,
                deadline_s=GEO_DEADLINE_S if self._durability.is_geo else 0.0,
                request_timeout_s=REQUEST_S,
                delivery_timeout_s=DELIVERY_S,
                linger_ms=0,
            ) as producer,
        ):
            began_ns, number = time.monotonic_ns(), 0
            while not self._ends.is_set():
                due_ns = began_ns + int(number * 1e9 / self._rate_per_s)
                await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
                self._open[number] = due_ns
                value = value_of(RecordName(self.name, number), due_ns)
                future = await producer.send(self._topic, value, partition=0)
                future.add_done_callback(partial(self._answered, number))
                number += 1

    def _answered(self, number: int, done: asyncio.Future[Stored]) -> None:
        due_ns = self._open.pop(number)
        fate, epoch, offset = _fate_of(done)
        if fate is Fate.STORED:
            self.newest_epoch = max(self.newest_epoch, epoch)
        self._outcomes[number] = Sent(
            name=RecordName(self.name, number),
            asked=self._durability.regions,
            fate=fate,
            due_ns=due_ns,
            at_ns=time.monotonic_ns(),
            epoch=epoch,
            offset=offset,
        )


def _fate_of(done: asyncio.Future[Stored]) -> tuple[Fate, int, int]:
    if done.cancelled():
        return Fate.UNKNOWN, -1, -1
    error = done.exception()
    if error is None:
        stored = done.result()
        return Fate.STORED, stored.epoch, stored.base_offset
    if isinstance(error, DurabilityPending):
        return Fate.PENDING, error.epoch, error.offset
    if isinstance(error, GeorelayError) and error.outcome is Outcome.NOT_STORED:
        return Fate.REFUSED, -1, -1
    return Fate.UNKNOWN, -1, -1


class Reader:
    """Reads a topic from its begin on in one region. Use as an async context manager."""

    def __init__(self, dial: Dial, region: str, topic: str) -> None:
        self.reading = Reading(region=region)
        self.next_offset = 0
        self._dial = dial
        self._topic = topic
        self._saved: Position | None = None
        self._at: Position | None = None  # in memory; lost when the application goes elsewhere
        self._saved_at = time.monotonic()
        self._unsaved = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reader:
        self._task = asyncio.create_task(self._read(self.reading.region), name=f"reader-{self.reading.region}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            (ended,) = await asyncio.gather(self._task, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended

    async def move_to(self, region: str) -> None:
        """Give the region up and go on in another one, from the position that was saved last."""
        await self.close()
        self.reading.moved_to, self.reading.in_flight = region, self._unsaved
        self._unsaved, self._at = 0, self._saved
        self._task = asyncio.create_task(self._read(region), name=f"reader-{region}")

    async def until_read(self, end: int, *, timeout_s: float) -> bool:
        """Wait until everything below offset `end` was read; return whether it was."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.next_offset < end and self._task is not None and not self._task.done():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            return False
        return self.next_offset >= end

    async def _read(self, region: str) -> None:
        while True:
            try:
                await self._read_at(region)
            except GeorelayError as error:
                if error.retry not in (Retry.LATER, Retry.REFRESH):
                    self.reading.complaint = str(error)
                    return
                await asyncio.sleep(RETRY_S)

    async def _read_at(self, region: str) -> None:
        place = Place(self._topic, 0)
        positions: Mapping[tuple[str, int], Position] | None = {place: self._at} if self._at is not None else None
        async with (
            self._dial(region) as connection,
            connection.consumer(
                () if positions else (self._topic,), start=Start.EARLIEST, positions=positions
            ) as consumer,
        ):
            while True:
                self._take(await consumer.get_many(max_records=BATCH_RECORDS, timeout_s=GET_S))

    def _take(self, records: list[ConsumedRecord]) -> None:
        now_ns = time.monotonic_ns()
        for record in records:
            _, due_ns = name_of(record.value)
            self.reading.deliveries.append(Delivery(record.offset, due_ns, now_ns))
            self.next_offset = max(self.next_offset, record.offset + 1)
        if not records:
            return
        self._unsaved += len(records)
        self._at = Position(records[-1].offset + 1, records[-1].epoch)
        if time.monotonic() - self._saved_at >= SAVE_S:
            self._saved = self._at
            self._saved_at, self._unsaved = time.monotonic(), 0
