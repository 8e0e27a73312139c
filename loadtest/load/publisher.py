"""A publisher: what is due goes out and into its history; how it goes out is its subclass's.

Rule 1: `send` runs in the thread that watches the clock, answers come in another; each counts its own, and what is
        done goes through `done`.
Rule 2: latency counts from when a record was due.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from georelay.wire.murmur2 import partition_for_key
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.arrivals import Arrivals, Keys
from loadtest.load.campaign import TRANSACTIONS
from loadtest.load.engine_values import ABORT, EPOCH, PUBLISH, Plan, WallClock, publisher_name, value_of
from loadtest.load.samples_core import Done

GIVE_UP_S: Final = 120.0  # longer than any fault of a campaign lasts
NO_ROOM: Final = "not sent: too many were not answered"
REALTIME_PRIORITY: Final = 1  # the lowest there is; every process without one waits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A record that is due. `partition` is where brokers put its key; `name` is what histories call it.

    Args:
        topic: where it is sent. stream: where everybody reads it.
    """

    topic: str
    stream: str
    partition: int
    key: bytes
    value: bytes
    name: str
    due_ns: int


class Publisher(ABC):
    """One kind of user in one region."""

    def __init__(self, plan: Plan, row: int, region: str, clock: WallClock) -> None:
        self.name = publisher_name(plan.worker, row, region)
        self.region = region
        rng = random.Random(f"{plan.campaign.seed}/{self.name}")
        self.users = plan.campaign.users[row]
        self.topics = plan.topics(self.users.topics)
        self.arrivals = Arrivals(rng, poisson=self.users.arrival == "poisson")
        self.done: deque[Done] = deque()  # of streams
        self.sent = self.answered = 0
        self._folder = plan.folder / "histories"
        self._rng = rng
        self._clock = clock
        self._unsent: HistoryWriter | None = None
        self._keys = Keys(self.users.keys, self.users.key_count, rng)

    def send(self, due_ns: int, *, in_flight_max: int) -> None:
        """Send what is due: a record, or in a transaction one to each topic. Without room for it it has failed."""
        has_room = self.sent - self.answered < in_flight_max
        topics = self.topics if self.users.kind == TRANSACTIONS else (self._rng.choice(self.topics),)
        key = str(self._keys.draw()).encode()
        records = []
        for topic in topics:
            value = value_of(self.name, self.sent, due_ns, self.users.payload_bytes)
            records.append(
                Outgoing(
                    topic=topic.name,
                    stream=topic.stream_of(self.region),
                    partition=partition_for_key(key, topic.partitions),
                    key=key,
                    value=value,
                    name=f"{self.name}:{self.sent}",
                    due_ns=due_ns,
                )
            )
            self.sent += 1
        if has_room:
            self.offer(records)
            return
        if self._unsent is None:
            self._unsent = self.writer(f"{self.name}.unsent")
        for record in records:
            self.failed(self._unsent, self.begin(self._unsent, record), record, NO_ROOM, is_sure=True)

    def finish(self, seconds: float) -> int:
        """Wait for the last answers; return how many did not come."""
        left = self.settle(seconds)
        if self._unsent is not None:
            self._unsent.close()
        return left

    @abstractmethod
    def offer(self, records: list[Outgoing]) -> None:
        """Put records on their way."""

    @abstractmethod
    def settle(self, seconds: float) -> int:
        """Wait for the last answers, and let everything go; return how many did not come."""

    def writer(self, process: str) -> HistoryWriter:
        """Return a history for those who send one after the other under this name."""
        return HistoryWriter(self._folder / f"{process}.history", process)

    def begin(self, history: HistoryWriter, record: Outgoing) -> int:
        """Note that a record is sent now; return the number of the operation."""
        is_loose = self.users.kind == "kafka" and not self.users.sends_again
        return history.invoke(Kind.PRODUCE, f"{record.stream}/{record.partition}", value=record.name, loose=is_loose)

    def stored(
        self, history: HistoryWriter, number: int, record: Outgoing, offset: int | None, *, epoch: int | None = None
    ) -> None:
        """Note an acknowledgement; epoch: of the home, where the client is told."""
        history.produced(number, offset, "" if epoch is None else f"{EPOCH}{epoch}")
        self._end(record, (self._clock.now_ns() - record.due_ns) / 1e6)

    def failed(self, history: HistoryWriter, number: int, record: Outgoing, why: str, *, is_sure: bool) -> None:
        """Note that there is none; is_sure: the record is not stored and never will be."""
        (history.failed if is_sure else history.unknown)(number, why)
        self._end(record, None)

    def aborted(self, history: HistoryWriter, number: int, record: Outgoing) -> None:
        """Note that a transaction was aborted as it was meant to be: nobody may read the record."""
        history.failed(number, ABORT)
        self._end(record, (self._clock.now_ns() - record.due_ns) / 1e6, method=ABORT)

    def _end(self, record: Outgoing, latency_ms: float | None, *, method: str = PUBLISH) -> None:
        self.answered += 1
        self.done.append((method, record.stream, latency_ms))


def come_first() -> None:
    """Let this thread run as soon as it wakes, before a mesh on the same cores: clients have their own elsewhere.

    Linux grants it to root and to CAP_SYS_NICE. Where it does not, records leave later, and the run is judged by that.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(REALTIME_PRIORITY))


def first_thread(work: Callable[[], None]) -> threading.Thread:
    """Return a thread that comes first."""

    def run() -> None:
        come_first()
        work()

    return threading.Thread(target=run, daemon=True)
