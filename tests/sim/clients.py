"""Producers and readers of a simulated region, as far from the brokers as real ones: they retry, time out and guess.

Every producer is idempotent and writes unique batches. It keeps a window of batches in flight and sends them again, in
order and with their first sequences, after any answer but success. Whatever is acknowledged goes to the ledger.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from georelay.errors import GeorelayError, NotLeader, OutcomeUnknown
from georelay.ids import BrokerId, GroupId
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.log.errors import ReadInterrupted
from tests.sim.clockwork import NS_PER_MS
from tests.sim.ledger import GroupLedger
from tests.sim.world import World

TIMEOUT_NS: Final = 1_500 * NS_PER_MS
BACKOFF_NS: Final = 40 * NS_PER_MS
HOP_NS: Final = 150_000
PublishAt = Callable[[Any, int, bytes], Any]  # (a broker's life, producer id, batch) -> a future


class Region(Protocol):
    """What a client can reach."""

    @property
    def brokers(self) -> tuple[BrokerId, ...]: ...

    @property
    def lives(self) -> Mapping[BrokerId, Any]: ...


class Producer:
    """One idempotent producer of one group."""

    def __init__(
        self,
        world: World,
        region: Region,
        ledger: GroupLedger,
        *,
        producer_id: int,
        rng: random.Random,
        window: int,
        period_ns: int,
        bytes_max: int,
        brokers: tuple[BrokerId, ...] | None = None,
        publish: PublishAt | None = None,
    ) -> None:
        self.acknowledged = 0
        self.sent = 0
        self.stopped = False
        self._world = world
        self._region = region
        self._ledger = ledger
        self._group: GroupId = ledger.group_id
        self._id = producer_id
        self._rng = rng
        self._window = window
        self._period_ns = period_ns
        self._bytes_max = bytes_max
        self._sequence = 0
        self._batches = 0
        self._open: deque[tuple[int, int, bytes]] = deque()  # (base sequence, number, batch), oldest first
        self._counts: dict[int, int] = {}  # base sequence -> records
        self._flight: dict[int, int] = {}  # base sequence -> number of its attempt
        self._attempt = 0
        self._brokers = brokers or region.brokers
        self._publish = publish or self._publish_at_stream
        self._leader = rng.choice(self._brokers)
        self._resend_at_ns = 0
        self._last_arrival_ns = 0
        world.clockwork.after(rng.randrange(period_ns), self._produce)

    @property
    def idle(self) -> bool:
        """Return whether everything sent was acknowledged."""
        return not self._open

    def _produce(self) -> None:
        if self.stopped and not self._open:
            return
        if not self.stopped and self._has_room():
            count = self._rng.choice((1, 1, 2, 5))
            size = self._rng.choice((8, 40, self._bytes_max))
            batch = build_batch(
                [RecordDraft(value=f"{self._id}.{self._sequence + row}".encode().ljust(size)) for row in range(count)],
                timestamps_ms=self._world.clockwork.now_ns // NS_PER_MS,
                producer_id=self._id,
                producer_epoch=0,
                base_sequence=self._sequence,
            )
            self._open.append((self._sequence, self._batches, batch))
            self._counts[self._sequence] = count
            self._batches += 1
            self._sequence += count
        self._send_open()
        self._world.clockwork.after(int(self._period_ns * (0.5 + self._rng.random())), self._produce)

    def _has_room(self) -> bool:
        """Return whether a batch may follow: brokers remember only the newest batches of a producer."""
        return not self._open or self._batches - self._open[0][1] < self._window

    def _send_open(self) -> None:
        if self._world.clockwork.now_ns < self._resend_at_ns:
            return
        for sequence, _, batch in self._open:
            if sequence not in self._flight:
                self._send(sequence, batch)

    def _send(self, sequence: int, batch: bytes) -> None:
        self._attempt += 1
        self.sent += 1
        attempt = self._flight[sequence] = self._attempt
        clockwork = self._world.clockwork
        life = self._region.lives.get(self._leader)
        clockwork.after(TIMEOUT_NS, self._timed_out, sequence, attempt)
        if life is not None:
            arrives = max(clockwork.now_ns + HOP_NS + self._rng.randrange(HOP_NS), self._last_arrival_ns)
            self._last_arrival_ns = arrives  # one connection keeps the order
            clockwork.at(arrives, life.loop, life.loop.run_now, self._arrive, life, sequence, attempt, batch)

    def _arrive(self, life: Any, sequence: int, attempt: int, batch: bytes) -> None:
        if not life.serving:
            self._answer(sequence, attempt, NotLeader(leader=-1))
            return
        try:
            future = self._publish(life, self._id, batch)
        except GeorelayError as error:
            self._answer(sequence, attempt, error)
            return
        if future.done():
            self._world.mark("stream.duplicate_answered")
        future.add_done_callback(lambda done: self._answered(sequence, attempt, done))

    def _publish_at_stream(self, life: Any, _: int, batch: bytes) -> Any:
        stream = life.streams.get(self._group)
        if stream is None:
            raise NotLeader(leader=-1)
        return stream.publish(Publish.built(batch, received_ns=1, entry_region=1))

    def _answered(self, sequence: int, attempt: int, future: Any) -> None:
        if not future.cancelled():
            self._answer(sequence, attempt, future.exception() or future.result())

    def _answer(self, sequence: int, attempt: int, answer: Any) -> None:
        delay = HOP_NS + self._rng.randrange(HOP_NS)
        self._world.clockwork.after(delay, self._hear, sequence, attempt, answer)

    def _hear(self, sequence: int, attempt: int, answer: Any) -> None:
        if not isinstance(answer, Exception):
            # Also an answer that is too late for the producer was given: it must be true.
            self._ledger.acknowledged((self._id, 0, sequence), answer.base_offset)
            self._ledger.answered(answer.base_offset, self._counts.get(sequence, 1))
        if self._flight.get(sequence) != attempt:
            return
        del self._flight[sequence]
        if isinstance(answer, Exception):
            self._refused(answer)
            return
        self.acknowledged += 1
        self._open = deque(row for row in self._open if row[0] != sequence)

    def _refused(self, error: Exception) -> None:
        if isinstance(error, OutcomeUnknown):
            self._world.mark("stream.outcome_unknown")
        elif isinstance(error, NotLeader):
            self._world.mark("stream.not_leader")
        else:
            self._world.mark(f"stream.{type(error).__name__}")
        hint = getattr(error, "leader", -1)
        brokers = self._brokers
        self._leader = BrokerId(hint) if hint in brokers and hint != self._leader else self._rng.choice(brokers)
        self._resend_at_ns = self._world.clockwork.now_ns + int(BACKOFF_NS * (0.5 + self._rng.random()))

    def _timed_out(self, sequence: int, attempt: int) -> None:
        if self._flight.get(sequence) == attempt:
            del self._flight[sequence]
            self._world.mark("client.timed_out")
            self._leader = self._rng.choice(self._brokers)


class Reader:
    """Follows one group at one broker, from memory or from disk, and sometimes looks back."""

    def __init__(
        self,
        world: World,
        region: Region,
        ledger: GroupLedger,
        *,
        rng: random.Random,
        period_ns: int,
        choose: Callable[[], BrokerId],
    ) -> None:
        self._world = world
        self._region = region
        self._ledger = ledger
        self._rng = rng
        self._period_ns = period_ns
        self._choose = choose
        self._offset = 0
        world.clockwork.after(rng.randrange(period_ns), self._poll)

    def _poll(self) -> None:
        self._world.clockwork.after(int(self._period_ns * (0.5 + self._rng.random())), self._poll)
        life = self._region.lives.get(self._choose())
        if life is not None and life.serving:
            clockwork = self._world.clockwork
            clockwork.at(clockwork.now_ns + HOP_NS, life.loop, life.loop.run_now, self._read, life)

    def _read(self, life: Any) -> None:
        stream = life.streams.get(self._ledger.group_id)
        if stream is None:
            return
        if self._rng.random() < 0.3:
            life.loop.create_task(self._ask_end(life, stream, self._ledger.acknowledged_end))
        high = stream.high_watermark
        if self._offset > high:
            self._offset = self._rng.randint(stream.log_start, max(stream.log_start, high))
        elif self._rng.random() < 0.1:
            self._offset = self._rng.randint(stream.log_start, high)
        if self._offset < stream.log_start:
            self._offset = stream.log_start
        found = stream.read(self._offset, 4096)
        if found is None:
            life.loop.create_task(self._read_cold(life, stream, self._offset))
        else:
            self._got(life, found)

    async def _ask_end(self, life: Any, stream: Any, acknowledged: int) -> None:
        try:
            end = await stream.confirmed_end()
        except GeorelayError as error:
            self._world.mark(f"stream.end_refused.{type(error).__name__}")
        else:
            if not life.loop.dead:
                self._ledger.confirmed_end(life.me, end, acknowledged)

    async def _read_cold(self, life: Any, stream: Any, offset: int) -> None:
        try:
            found = await stream.read_cold(offset, 4096)
        except ReadInterrupted:
            self._world.mark("stream.read_interrupted")
            return
        except GeorelayError:
            self._world.mark("stream.read_refused")
            return
        self._world.mark("stream.read_from_disk")
        self._got(life, found)

    def _got(self, life: Any, entries: Any) -> None:
        self._ledger.read(life.me, entries)
        if entries:
            self._offset = entries[-1].next_offset
