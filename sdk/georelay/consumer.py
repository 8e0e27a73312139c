"""Reading: records of streams in order, by positions that the application keeps or as a member of a group.

    async with connection.consumer(["orders"], group="billing", start=Start.EARLIEST) as consumer:
        async for record in consumer:
            ...
            await consumer.commit()

Rule 1: a record is done when the next one is asked for. So partitions are only given up between two records, and
        `commit` commits what was done, never what is still being worked on by the same task.
Rule 2: memory is bounded by credit: brokers send at most `buffer_bytes` that the application has not taken.
Rule 3: a broker or a region that fails is left: reading goes on where it was, checked by epoch (PositionLost).
Rule 4: a position that is not there any more is an error, never a silent reset.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels
from georelay.consumed import ConsumedRecord, unfold
from georelay.consumer_settings import ConsumerSettings, Rebalanced
from georelay.errors import (
    BadRequest,
    Fenced,
    GeorelayError,
    Retry,
    Unavailable,
    UnknownTopic,
)
from georelay.group_commits import GroupCommits
from georelay.library_log import log
from georelay.limits import KIB
from georelay.positions import Place, Position, PositionLost, Since, Start, fill_start, start_of
from georelay.region_map import RegionMap
from georelay.subscription import Subscription

RETRY_S: Final = 0.2
CLOSE_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 15.0
UNKNOWN_TOPIC_S: Final = 5.0  # for how long a topic may be unknown
ALIVES_PER_SESSION: Final = 3
DECODE_ON_LOOP_BYTES: Final = 256 * KIB


@dataclass(slots=True)
class _Reading:
    """One partition that is read. `done` is the position after what the application has finished."""

    place: Place
    next_offset: int
    epoch: int
    cursor: int = 0
    done: Position | None = None
    high_watermark: int = 0
    paused: bool = False


class Consumer:
    """Made by `Connection.consumer`; use as an async context manager."""

    def __init__(self, channels: Channels, region: RegionMap, settings: ConsumerSettings) -> None:
        settings.check()
        self.settings = settings
        self._channels = channels
        self._region = region
        self._readings: dict[Place, _Reading] = {}
        self._events: deque[tuple[Subscription, pb.SubscribeResponse]] = deque()
        self._arrived = asyncio.Event()
        self._records: deque[ConsumedRecord] = deque()
        self._in_hands: list[ConsumedRecord] = []  # handed out, done when the next one is asked for
        self._unfolded_bytes = 0
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: GeorelayError | None = None
        self._member_id = ""
        self._generation = -1
        self._commits = GroupCommits()
        self._committed_at = time.monotonic()
        self._cursor = 0
        self._is_assigned = False
        self._closing = False

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commit=error is None)

    def open(self) -> None:
        """Begin to read; entering the context does it."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="consumer")

    async def close(self, *, commit: bool = True) -> None:
        """Leave. With automatic commits what is done is committed first."""
        if self._task is None:
            return
        if commit:
            self._finish_taken()
            if self.settings.auto_commit_s is not None:
                await self._commit_quietly()
        self._closing = True
        if self._subscription is not None:
            await self._subscription.finish(CLOSE_S)  # the broker leaves the group before the call ends
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail(BadRequest("the consumer is closed"))

    # --- what the application asks -----------------------------------------------------------------

    @property
    def group_id(self) -> str:
        """Return the group, "" without one."""
        return self.settings.group

    @property
    def assignment(self) -> list[Place]:
        """Return the partitions that are read now."""
        return sorted(self._readings)

    async def until_assigned(self, timeout_s: float = 60.0) -> list[Place]:
        """Return the partitions once the first assignment (or the start of every position) is known.

        Raises:
            Unavailable: not within the time. GeorelayError: the consumer has failed.
        """
        try:
            deadline = asyncio.get_running_loop().time() + timeout_s
            while not self._is_assigned:
                await self._handle_next(deadline)
        except TimeoutError as error:
            raise Unavailable(f"no assignment within {timeout_s:g} s") from error
        return self.assignment

    def positions(self) -> dict[Place, Position]:
        """Return where each partition's next record is; what was handed out last counts as not done."""
        return {
            place: reading.done or Position(reading.next_offset, reading.epoch)
            for place, reading in self._readings.items()
        }

    def lag(self) -> dict[Place, int]:
        """Return how many committed records each partition has that were not handed out, as far as is known."""
        waiting: dict[Place, int] = {}
        for record in self._records:
            waiting[record.place] = waiting.get(record.place, 0) + 1
        return {
            place: max(0, reading.high_watermark - reading.next_offset) + waiting.get(place, 0)
            for place, reading in self._readings.items()
        }

    def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        return self

    async def __anext__(self) -> ConsumedRecord:
        """Return the next record of any partition; the one before is done now.

        Raises:
            PositionLost: see georelay.positions. GeorelayError: reading cannot go on.
        """
        self._finish_taken()
        while not self._records:
            await self._handle_next()
        record = self._records.popleft()
        self._in_hands.append(record)
        return record

    async def get_many(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[ConsumedRecord]:
        """Return up to `max_records` that are here, or the first to arrive within `timeout_s`; all before are done.

        Raises as `__anext__`.
        """
        self._finish_taken()
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while not self._records:
                await self._handle_next(deadline)
        except TimeoutError:
            return []
        self._in_hands = [self._records.popleft() for _ in range(min(max_records, len(self._records)))]
        return list(self._in_hands)

    async def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit for the group: what is done, or (topic, partition) -> next offset.

        What was handed out last counts as done when this is called: committing is how an application says so.

        Raises:
            Fenced: the group has rebalanced; the records may be another member's now. OutcomeUnknown: not answered.
        """
        if not self.settings.group:
            raise BadRequest("commit: this consumer is in no group")
        if offsets is None:
            self._finish_taken()
            rows, _, generation, _ = self.group_offsets()
        else:
            generation = self._generation
            rows = [
                pb.CommittedOffset(topic=topic, partition=partition, offset=offset, epoch=-1)
                for (topic, partition), offset in offsets.items()
            ]
        if rows:
            await self._commit(rows, generation)

    def group_offsets(self) -> tuple[list[pb.CommittedOffset], str, int, str]:
        """Return what is done (the last record handed out included), member id, generation and instance id."""
        self._finish_taken()
        rows = [
            pb.CommittedOffset(
                topic=place.stream, partition=place.partition, offset=reading.done.offset, epoch=reading.done.epoch
            )
            for place, reading in sorted(self._readings.items())
            if reading.done is not None
        ]
        return rows, self._member_id, self._generation, self.settings.instance_id

    async def seek(self, places: Mapping[tuple[str, int], Position | Start | Since]) -> None:
        """Read partitions from elsewhere on; records of them that were not handed out are dropped."""
        self._finish_taken()
        asked = []
        for (stream, partition), at in places.items():
            self._cursor += 1
            place = Place(stream, partition)
            reading = self._readings.setdefault(place, _Reading(place, 0, -1))
            reading.cursor, reading.done = self._cursor, None
            asked.append(start_of(place, at, self._cursor))
            if isinstance(at, Position):
                reading.next_offset, reading.epoch = at.offset, at.epoch
        self._drop_records({Place(*place) for place in places})
        if self._subscription is not None:
            await self._subscription.send(pb.SubscribeRequest(seek=pb.Seek(positions=asked)))

    async def pause(self, places: Iterable[tuple[str, int]]) -> None:
        """Hand out no records of these partitions until `resume`; what is here is dropped and read again then."""
        chosen = [Place(*place) for place in places]
        for place in chosen:
            self._require(place).paused = True
        if self._subscription is not None:
            rows = [pb.StreamPartition(stream=place.stream, partition=place.partition) for place in chosen]
            await self._subscription.send(pb.SubscribeRequest(pause=pb.Pause(partitions=rows)))

    async def resume(self, places: Iterable[tuple[str, int]]) -> None:
        """Go on with partitions that were paused, where they were."""
        chosen = [Place(*place) for place in places]
        for place in chosen:
            self._require(place).paused = False
        positions = self.positions()
        await self.seek({place: positions[place] for place in chosen})

    # --- handing out -------------------------------------------------------------------------------

    def _require(self, place: Place) -> _Reading:
        reading = self._readings.get(place)
        if reading is None:
            raise BadRequest(f"{place.stream}/{place.partition} is not read by this consumer")
        return reading

    def _finish_taken(self) -> None:
        """What the application has in its hands is done."""
        for record in self._in_hands:
            reading = self._readings.get(record.place)
            if reading is not None:
                reading.done = Position(record.offset + 1, record.epoch)
        self._in_hands.clear()

    def _drop_records(self, places: set[Place]) -> None:
        self._records = deque(record for record in self._records if record.place not in places)

    # --- events ------------------------------------------------------------------------------------

    async def _handle_next(self, deadline: float | None = None) -> None:
        """Wait for one event and take it in; runs in the application's task, between two records.

        Only the waiting ends at `deadline` (of the loop's clock): an event that is half taken in would be lost.

        Raises:
            TimeoutError: nothing came by then.
        """
        await self._auto_commit()
        if self._unfolded_bytes and not self._records and self._subscription is not None:
            size, self._unfolded_bytes = self._unfolded_bytes, 0
            await self._ignoring_loss(self._subscription.consumed(size))
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            async with asyncio.timeout_at(deadline):
                await self._arrived.wait()
        subscription, response = self._events.popleft()
        kind = response.WhichOneof("response")
        if kind == "delivery":
            try:
                await self._unfold(response.delivery)
            except asyncio.CancelledError:  # the application's own: it may ask again
                if subscription is self._subscription or not self.settings.group:
                    self._events.appendleft((subscription, response))
                raise
        elif kind == "assigned":
            await self._take_assignment(response.assigned)
        elif kind == "revoked":
            await self._give_up(subscription, response.revoked)
        elif kind == "started":
            self._take_starts(response.started.starts)

    async def _unfold(self, delivery: pb.Delivery) -> None:
        place = Place(delivery.stream, delivery.partition)
        size = sum(map(len, delivery.batches))
        reading = self._readings.get(place)
        if reading is None or reading.cursor != delivery.cursor or reading.paused:
            self._unfolded_bytes += size
            return
        if size > DECODE_ON_LOOP_BYTES:
            records = await asyncio.to_thread(unfold, delivery, reading.next_offset)
        else:
            records = unfold(delivery, reading.next_offset)
        self._unfolded_bytes += size
        if reading.cursor != delivery.cursor:
            return
        self._records.extend(records)
        reading.high_watermark = delivery.high_watermark
        reading.next_offset = max(reading.next_offset, delivery.next_offset)
        if delivery.epoch:
            reading.epoch = delivery.epoch

    async def _take_assignment(self, assigned: pb.Assigned) -> None:
        self._member_id, self._generation = assigned.member_id, assigned.generation
        self._readings = {}
        self._take_starts(assigned.starts, are_new=True)
        await _call(self.settings.on_assigned, self.assignment)

    async def _give_up(self, subscription: Subscription, revoked: pb.Revoked) -> None:
        places = [Place(at.stream, at.partition) for at in revoked.partitions]
        if not revoked.lost and self.settings.auto_commit_s is not None:
            await self._commit_quietly()
        await _call(self.settings.on_revoked, places)
        self._readings = {}
        self._in_hands.clear()
        self._records.clear()
        if not revoked.lost:
            released = pb.Released(generation=revoked.generation)
            await self._ignoring_loss(subscription.send(pb.SubscribeRequest(released=released)))

    def _take_starts(self, starts: Sequence[pb.StreamStart], *, are_new: bool = False) -> None:
        lost: PositionLost | None = None
        for start in starts:
            place = Place(start.stream, start.partition)
            reading = self._readings.get(place)
            if reading is None:
                reading = self._readings[place] = _Reading(place, start.offset, -1, start.cursor)
            elif reading.cursor != start.cursor and not are_new:
                continue  # of a seek before the last one
            if start.standing in (pb.STANDING_DIVERGED, pb.STANDING_OUT_OF_RANGE):
                lost = lost or PositionLost(place, start)
                continue
            reading.next_offset = start.offset
            reading.high_watermark = start.high_watermark
        self._is_assigned = True
        if lost is not None:
            raise lost

    # --- commits -----------------------------------------------------------------------------------

    async def _auto_commit(self) -> None:
        period = self.settings.auto_commit_s
        if period is not None and self._readings and time.monotonic() - self._committed_at >= period:
            await self._commit_quietly()

    async def _commit_quietly(self) -> None:
        if not self.settings.group:
            return
        rows, _, generation, _ = self.group_offsets()
        try:
            if rows:
                await self._commit(rows, generation)
        except GeorelayError as error:
            log.warning("commit.failed", group=self.settings.group, error=str(error))

    async def _commit(self, rows: list[pb.CommittedOffset], generation: int) -> None:
        self._committed_at = time.monotonic()
        if self._subscription is None:
            raise Unavailable("commit: no broker is connected; the group keeps what was committed before")
        await self._commits.commit(self._subscription, rows, generation)

    @staticmethod
    async def _ignoring_loss(work: Awaitable[None]) -> None:
        """Send something that means nothing once the call is lost: the background task sees that itself."""
        try:
            await work
        except GeorelayError as error:
            log.debug("subscription.ended", error=str(error))

    # --- the call, in the background ---------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a subscription open; ends with the first error that trying again cannot help."""
        unknown_since = 0.0
        while True:
            try:
                await self._region.locate(timeout_s=60.0)
                # A member of a group stays while its region does: leaving would have records delivered again.
                await self._region.until_answered(self._subscribe_at, timeout_s=60.0, follows=not self.settings.group)
            except GeorelayError as error:
                if self._closing:
                    return
                was_silent = isinstance(error, Fenced) and not self.settings.instance_id
                is_final = error.retry in (Retry.NEVER, Retry.SIGN_IN) and not was_silent
                if isinstance(error, UnknownTopic):  # it may be so new that this broker has not heard of it
                    unknown_since = unknown_since or time.monotonic()
                    is_final = time.monotonic() - unknown_since > UNKNOWN_TOPIC_S
                if is_final:
                    self._fail(error)
                    return
                log.info("subscription.lost", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _subscribe_at(self, address: str, _: float) -> None:
        """Subscribe at one broker and read until the call breaks."""
        if self._closing:
            raise BadRequest("the consumer is closed")
        subscription = await Subscription.open(self._channels, address, self._start())
        self._subscription = subscription
        alive = asyncio.get_running_loop().create_task(self._send_alive(subscription), name="alive")
        try:
            while True:
                response = await subscription.read()
                kind = response.WhichOneof("response")
                if kind == "committed":
                    self._commits.take(response.committed)
                    continue
                if kind == "revoked":  # what waits is not the application's any more
                    self._forget_deliveries()
                self._events.append((subscription, response))
                self._arrived.set()
        finally:
            alive.cancel()
            subscription.cancel()
            self._lose(subscription)

    def _start(self) -> pb.SubscribeStart:
        settings = self.settings
        start = pb.SubscribeStart(credit_bytes=settings.buffer_bytes)
        if settings.group:
            start.group.CopyFrom(settings.membership(self._member_id))
            return start
        start.positions.CopyFrom(pb.StartPositions(positions=self._start_positions()))
        return start

    def _start_positions(self) -> list[pb.StartPosition]:
        """At first what the settings say; after a loss where each partition is."""
        if self._readings:
            self._cursor += 1  # what the last call delivered and is being unfolded now will be delivered again
            for reading in self._readings.values():
                reading.cursor = self._cursor
            return [
                start_of(place, Position(reading.next_offset, reading.epoch), reading.cursor)
                for place, reading in sorted(self._readings.items())
            ]
        asked = [start_of(Place(*place), at, 0) for place, at in (self.settings.positions or {}).items()]
        for topic in self.settings.topics:
            whole = pb.StartPosition(stream=topic)
            fill_start(whole, self.settings.start)
            asked.append(whole)
        return asked

    async def _send_alive(self, subscription: Subscription) -> None:
        while self.settings.group:
            await asyncio.sleep(self.settings.session_timeout_s / ALIVES_PER_SESSION)
            await self._ignoring_loss(subscription.send(pb.SubscribeRequest(alive=pb.Alive())))

    def _forget_deliveries(self) -> None:
        self._events = deque(event for event in self._events if event[1].WhichOneof("response") != "delivery")
        self._records.clear()

    def _lose(self, subscription: Subscription) -> None:
        """The call is over: deliveries that came stay good without a group; in a group they are read again."""
        self._subscription = None
        self._commits.lose()
        self._unfolded_bytes = 0
        if self.settings.group:
            self._forget_deliveries()
            held = [pb.StreamPartition(stream=at.stream, partition=at.partition) for at in self._readings]
            lost = pb.Revoked(generation=self._generation, partitions=held, lost=True)
            if held:
                self._events.append((subscription, pb.SubscribeResponse(revoked=lost)))
        else:
            # Positions of the next call count from what was unfolded; what was not will be delivered again.
            self._events.clear()
        self._arrived.set()

    def _fail(self, error: GeorelayError) -> None:
        self._failure = self._failure or error
        self._arrived.set()


async def _call(callback: Rebalanced | None, places: list[Place]) -> None:
    if callback is not None:
        outcome: Any = callback(places)
        if inspect.isawaitable(outcome):
            await outcome
