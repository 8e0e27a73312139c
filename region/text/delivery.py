"""Delivery of one subscription: records of its partitions as REC lines, from where the group is.

    REC topic subscription.partition offset {"Header":{},"Key":"k","Body":"text"}

Rule 1: at least once: what was delivered and not done (DONE) comes again, to whoever gets the partition next.
Rule 2: a client that does not read is not read for: delivery waits until its socket takes more.
Rule 3: only committed records; within a partition in order.
Rule 4: records that retention has removed, or that cannot be read, are stepped over, with a line that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import structlog

from georelay.errors import (
    BadRequest,
    Busy,
    GeorelayError,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from georelay.limits import KIB
from mesh.listening.line_session_core import one_line
from region.api.answer_room import CALL_BYTES_MAX, AnswerMemory, AnswerRoom, read_with_room
from region.api.reading import EARLIEST
from region.api.unfolding import Unreadable, readable_chunks
from region.coordination.shares_core import NOBODY
from region.groups.group_client import GroupClient
from region.kafka.ports import EntryLike, ReadAnswer, TopicView, TraceSession
from region.kafka.services import plain_name
from region.security.access import Operation, Principal, Resource
from region.text.answers import pause
from region.text.membership import RETRY_S, Identity, Membership
from region.text.record_core import body_text
from region.text.services import TextServices
from region.text.subscriptions_core import Place, Subscription, Subscriptions

log = structlog.get_logger()

READ_BYTES: Final = 128 * KIB
WAIT_MS: Final = 10_000  # of one long poll; a wake-up ends it at once
PASSING: Final = (NotLeader, Unavailable, Busy, OutcomeUnknown)


class Speaker:
    """Where lines go: `say` never blocks, `writable` waits until the client has read."""

    def __init__(self, say: Callable[[str], None], writable: Callable[[], Awaitable[object]]) -> None:
        self.say = say
        self.writable = writable
        self.turn = asyncio.Lock()  # one batch of a connection is unfolded at a time
        self.memory = AnswerMemory(CALL_BYTES_MAX)  # what readers of a connection hold that wait for their turn


class Delivery:
    """One subscription that runs until `close`."""

    def __init__(
        self,
        services: TextServices,
        *,
        subscription: Subscription,
        book: Subscriptions,
        partitions: Sequence[int],
        most: int,
        principal: Principal,
        speaker: Speaker,
        ended: Callable[[int], None],
    ) -> None:
        """Deliver `partitions`, or with () those of the group, `most` of them (0: any number).

        `ended`: told the number of the subscription when it ends by itself.
        """
        self.subscription = subscription
        self._services = services
        self._book = book
        self._fixed = tuple(partitions)
        self._most = most
        self._principal = principal
        self._speaker = speaker
        self._ended = ended
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        coordinators, group = services.coordinators, subscription.group
        if group and coordinators is None:
            raise Unavailable("this broker keeps no groups; subscribe with group -")
        self._client = None if coordinators is None or not group else GroupClient(coordinators, group, principal.name)
        self._member: Membership | None = None
        if self._client is not None and not self._fixed:
            self._member = Membership(
                client=self._client,
                cluster=services.cluster,
                topic=subscription.topic,
                identity=Identity(client_id="text", host=principal.host, principal=principal.name),
                most=most,
                changed=self._share,
            )

    async def open(self) -> str:
        """Begin; return what follows the OK.

        Raises:
            UnknownTopic, BadRequest, Busy, Unavailable, PolicyViolation: it did not begin.
        """
        subscription = self.subscription
        view = self._view()
        wanted = self._fixed or tuple(range(view.partitions))[: self._most or None]
        if wanted[-1] >= view.partitions:
            raise UnknownTopic(f"topic {view.name!r} has partitions 0..{view.partitions - 1}, not {wanted[-1]}")
        if self._member is not None:
            self._start(self._member.run())
            return f"{subscription.number} {view.name} group {subscription.group}: partitions follow"
        self._book.check_room(subscription, len(wanted))
        self._start(self._begin(await self._starts(wanted)))
        group = f"group {subscription.group}" if self._client else "no group"
        return f"{subscription.number} {view.name} {group}"

    async def commit(self, place: Place) -> None:
        """Store where the group goes on; without a group there is nothing to store.

        Raises:
            BadRequest: no group. PolicyViolation: not this member's any more. Unavailable, OutcomeUnknown: ask again.
        """
        if self._client is None:
            raise BadRequest("a subscription without a group stores nothing")
        member = self._member
        await self._client.commit(
            self.subscription.topic,
            {place.partition: place.next_offset},
            member_id="" if member is None else member.member_id,
            generation=-1 if member is None else member.generation,
        )

    async def close(self) -> None:
        """Stop delivering, and leave the group."""
        tasks = [task for task in (self._task, *self._readers.values()) if task is not None]
        self._readers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._member is not None:
            await self._member.leave()

    # --- inside ----------------------------------------------------------------------------------

    def _view(self) -> TopicView:
        view = self._services.cluster.topic(self.subscription.topic)
        if view is None:
            raise UnknownTopic(f"topic {self.subscription.topic!r} does not exist")
        return view

    def _start(self, work: Awaitable[None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Say why it ended, when it ends by itself."""
        try:
            await work
        except GeorelayError as error:
            self._end(error)

    def _end(self, error: GeorelayError) -> None:
        number = self.subscription.number
        self._book.close(number)
        self._speaker.say(one_line(f"END {number} {error.code} {error}"))
        self._ended(number)

    async def _share(self, partitions: tuple[int, ...]) -> None:
        """Deliver exactly these partitions from now on."""
        old = list(self._readers.values())
        self._readers.clear()
        for task in old:
            task.cancel()
        await asyncio.gather(*old, return_exceptions=True)
        subscription = self.subscription
        had = bool(subscription.next_offsets)
        subscription.next_offsets.clear()
        if not partitions:
            if had:
                self._speaker.say(f"PARTS {subscription.number} none")
            return
        self._book.check_room(subscription, len(partitions))
        await self._begin(await self._starts(partitions))

    async def _begin(self, starts: Mapping[int, int]) -> None:
        subscription = self.subscription
        subscription.next_offsets.update(starts)
        self._speaker.say(f"PARTS {subscription.number} {','.join(map(str, starts))}")
        loop = asyncio.get_running_loop()
        for partition, start in starts.items():
            self._readers[partition] = loop.create_task(self._guarded(self._deliver(partition, start)))

    async def _starts(self, partitions: tuple[int, ...]) -> dict[int, int]:
        """Return where each begins: behind what the group has consumed, else at the log start."""
        committed = dict.fromkeys(partitions, -1)
        if self._client is not None:
            committed = await self._client.offsets(self.subscription.topic, partitions)
        return {
            partition: offset if offset >= 0 else await self._log_start(partition)
            for partition, offset in committed.items()
        }

    async def _log_start(self, partition: int) -> int:
        answer = await self._services.reader.read(self.subscription.topic, partition, EARLIEST, max_bytes=1, wait_ms=0)
        return answer.log_start

    async def _deliver(self, partition: int, start: int) -> None:
        room = AnswerRoom(NOBODY, self._speaker.memory)
        try:
            await self._deliver_from(start, partition, room)
        finally:
            room.end()

    async def _deliver_from(self, start: int, partition: int, room: AnswerRoom) -> None:
        services, subscription, view = self._services, self.subscription, self._view()
        trace = services.recorder.open_session(
            topic=plain_name(view), origin=view.origin, partition=partition, offset=start, group=subscription.group
        )
        position = start
        while True:
            room.end()
            await self._speaker.writable()
            services.access.check(self._principal, Operation.READ, Resource.TOPIC, subscription.topic)
            try:
                read = partial(services.reader.read, subscription.topic, partition, position)
                answer = await read_with_room(partial(read, max_bytes=READ_BYTES, wait_ms=WAIT_MS), room)
            except OffsetOutOfRange:
                position = await self._stepped_over(partition, position)
                continue
            except PASSING:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with self._speaker.turn:
                    position = await self._say_records(partition, position, answer, trace)
            except Busy:  # a batch took too long to unfold: on with what comes next, for a new while
                position = max(position, subscription.next_offsets.get(partition, position))
                await asyncio.sleep(RETRY_S)

    async def _stepped_over(self, partition: int, position: int) -> int:
        """Return the log start, where the group's place is no longer in the log."""
        start = await self._log_start(partition)
        token = self.subscription.token(partition)
        self._speaker.say(f"SKIP {self.subscription.topic} {token} {position} is not in the log; going on at {start}")
        self.subscription.next_offsets[partition] = start
        return start

    async def _say_records(self, partition: int, position: int, answer: ReadAnswer, trace: TraceSession) -> int:
        subscription = self.subscription
        start = f"REC {subscription.topic} {subscription.token(partition)} "
        for entry in answer.entries:
            async with aclosing(readable_chunks(entry, f"{subscription.topic}/{partition}")) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Unreadable):
                        position = self._passed_over(partition, position, chunk)
                        continue
                    for record in chunk:
                        if record.offset < position:
                            continue
                        await self._speaker.writable()
                        line = f"{start}{record.offset} {body_text(record)}"
                        self._speaker.say(line)
                        position = record.offset + 1
                        subscription.next_offsets[partition] = position
                        await pause(self._services.quotas.fetch(self._principal, len(line)))
            position = max(position, entry.base_offset + entry.record_count)
            self._delivered(trace, entry)
        return max(position, answer.next_offset)  # what readers do not see is behind it

    def _passed_over(self, partition: int, position: int, rest: Unreadable) -> int:
        """Say what cannot be read; return where the records behind it begin."""
        if rest.following > position:
            token, first = self.subscription.token(partition), max(position, rest.first)
            why = one_line(f"{first} cannot be read: {rest.why}; going on at {rest.following}")
            self._speaker.say(f"SKIP {self.subscription.topic} {token} {why}")
            self.subscription.next_offsets[partition] = rest.following
        return max(position, rest.following)

    def _delivered(self, trace: TraceSession, entry: EntryLike) -> None:
        header = entry.header()
        trace.delivered(
            epoch=header.epoch,
            base_offset=entry.base_offset,
            record_count=entry.record_count,
            entry_region=header.entry_region,
            received_ns=header.received_ns,
            delivered_ns=self._services.wall_ns(),
            size_bytes=len(entry.payload),
        )
