"""What this region answers to an audit: each question goes to the leaders of the streams it names, once per broker.

Rule 1: a broker answers for the streams that it leads, and asks the other brokers of its region for theirs; never
        further. Where one broker's replicas are asked for, that broker answers, whoever leads.
Rule 2: only committed records of the present history are told of, and nothing is changed.
Rule 3: what a log holds is told by the batches that are stored in it: control entries at its end carry the digest of
        the leader that wrote them, which a follower copies whatever it holds itself.
Rule 4: batches are looked up one after the other: an audit never takes the disk from those who publish and consume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from georelay.clock import Clock
from georelay.errors import (
    BadRequest,
    GeorelayError,
    NotLeader,
    OffsetOutOfRange,
    PolicyViolation,
    Unavailable,
    UnknownTopic,
)
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, Offset, StreamKey, region_of
from region.audit.deep import DeepReader, check_readable
from region.audit.questions import (
    DEEP_METHOD,
    DIGESTS_METHOD,
    REPLICA_METHOD,
    REPLICAS_MAX,
    REPLICAS_METHOD,
    DeepAsked,
    DeepPiece,
    DigestsAsked,
    answer_json,
    brokers_json,
    deep_json,
    digests_json,
    read_answers,
    read_deep,
    read_digests,
    read_piece,
    read_replica,
    read_replicas,
    replica_json,
)
from region.audit.values import BatchAt, LogView, OrphanRange, Told
from region.topics.hosted_stream import HostedStream

DIGESTS_TIMEOUT_S: Final = 4.0
DEEP_TIMEOUT_S: Final = 20.0
LOOK_UPS_AT_ONCE: Final = 4
VIEW_TRIES: Final = 5


class AskBroker(Protocol):
    """Carries one request to another broker of this region."""

    async def __call__(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Return the answer; raises GeorelayError."""


class AuditAgent:
    """One broker's answers.

    Args:
        hosted: the stream when a replica of it is on this broker.
        leader_of: the broker of this region that leads a stream, -1 while unknown.
        replicas_of: the brokers of this region that hold replicas of a stream, as far as is known here.
        ask: asks another broker of this region.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        hosted: Callable[[StreamKey], HostedStream | None],
        leader_of: Callable[[StreamKey], int],
        ask: AskBroker,
        clock: Clock,
        replicas_of: Callable[[StreamKey], Iterable[BrokerId]] = lambda _key: (),
    ) -> None:
        self._me = me
        self._replicas_of = replicas_of
        self._hosted = hosted
        self._leader_of = leader_of
        self._ask = ask
        self._deep = DeepReader(clock)
        self._looking_up = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

    async def handle(self, method: str, body: Mapping[str, Any], *, from_broker: BrokerId) -> JsonObject:
        """Answer one request of another broker.

        Raises:
            BadRequest, PolicyViolation. NotLeader, Unavailable, Busy, OffsetOutOfRange, UnknownTopic: of audit.deep.
        """
        try:
            if method == DIGESTS_METHOD:
                rows, is_local = read_digests(body)
                self._check_local(is_local, from_broker)
                return answer_json(await (self._views_here(rows) if is_local else self.views(rows)))
            if method == REPLICAS_METHOD:
                return brokers_json({key: self.replicas(key) for key in read_replicas(body)})
            if method == REPLICA_METHOD:
                rows, broker, is_local = read_replica(body)
                self._check_local(is_local, from_broker)
                return answer_json(await (self._copies_here(rows) if is_local else self.copies(broker, rows)))
            if method == DEEP_METHOD:
                asked, is_local = read_deep(body)
                self._check_local(is_local, from_broker)
                return (await (self._piece_here(asked) if is_local else self.piece(asked))).to_json()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        raise BadRequest(f"method '{method[:64]}' is unknown")

    def _check_local(self, is_local: bool, from_broker: BrokerId) -> None:
        if is_local and region_of(from_broker) != region_of(self._me):
            raise PolicyViolation("an audit of one broker's own streams is for brokers of its region only")

    def _broker_of(self, key: StreamKey) -> int:
        stream = self._hosted(key)
        return self._me if stream is not None and stream.is_leader else self._leader_of(key)

    # --- digests ----------------------------------------------------------------------------------

    async def views(self, rows: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
        """Return what this region says about each stream."""
        by_broker: dict[int, list[DigestsAsked]] = {}  # leaders
        for row in rows:
            by_broker.setdefault(self._broker_of(row.key), []).append(row)
        unled = by_broker.pop(-1, [])
        answers: dict[StreamKey, Told] = {
            row.key: NotLeader(f"{row.key} has no leader in region {region_of(self._me)}", leader=-1) for row in unled
        }
        asked = [self._views_of(BrokerId(broker), some) for broker, some in by_broker.items()]
        for told in await asyncio.gather(*asked):
            answers.update(told)
        return answers

    async def _views_of(self, broker: BrokerId, rows: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
        if broker == self._me:
            return await self._views_here(rows)
        return await self._asked(broker, DIGESTS_METHOD, digests_json(rows, local=True), rows)

    async def _asked(
        self, broker: BrokerId, method: str, body: JsonObject, rows: Sequence[DigestsAsked]
    ) -> dict[StreamKey, Told]:
        """Return what another broker of this region says, or why it says nothing, about each stream."""
        missing: GeorelayError = Unavailable(f"broker {broker} left streams out of its answer")
        told: Mapping[StreamKey, Told] = {}
        try:
            told = read_answers(await self._ask(broker, method, body, timeout_s=DIGESTS_TIMEOUT_S), asked=rows)
        except GeorelayError as error:
            missing = error
        except FieldError as error:
            missing = Unavailable(f"broker {broker} answered {method} oddly: {error}")
        return {row.key: told.get(row.key, missing) for row in rows}

    async def _views_here(self, rows: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
        return await self._views_by(self._led, rows)

    async def _views_by(
        self, find: Callable[[StreamKey], HostedStream], rows: Sequence[DigestsAsked]
    ) -> dict[StreamKey, Told]:
        found: dict[StreamKey, Told] = {}
        for row in rows:
            try:
                async with self._looking_up:
                    found[row.key] = await view_of(find(row.key), row.at)
            except GeorelayError as error:
                found[row.key] = error
        return found

    def _led(self, key: StreamKey) -> HostedStream:
        stream = self._copy(key)
        if not stream.is_leader:
            raise NotLeader(leader=self._leader_of(key))
        return stream

    def _copy(self, key: StreamKey) -> HostedStream:
        stream = self._hosted(key)
        if stream is None:
            raise UnknownTopic(f"stream {key} has no replica on broker {self._me}")
        check_readable(stream)
        return stream

    # --- replicas ---------------------------------------------------------------------------------

    def replicas(self, key: StreamKey) -> tuple[BrokerId, ...]:
        """Return the brokers of this region that hold replicas of a stream, its leader first."""
        leader = self._leader_of(key)
        return tuple(sorted(self._replicas_of(key), key=lambda broker: (broker != leader, broker))[:REPLICAS_MAX])

    async def copies(self, broker: BrokerId, rows: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
        """Return what one broker's replicas say about each stream, whether it leads them or not.

        Raises:
            BadRequest: it is a broker of another region.
        """
        if region_of(broker) != region_of(self._me):
            raise BadRequest(f"broker {broker} is not of region {region_of(self._me)}")
        if broker == self._me:
            return await self._copies_here(rows)
        return await self._asked(broker, REPLICA_METHOD, replica_json(rows, broker=broker, local=True), rows)

    async def _copies_here(self, rows: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
        return await self._views_by(self._copy, rows)

    # --- deep -------------------------------------------------------------------------------------

    async def piece(self, asked: DeepAsked) -> DeepPiece:
        """Recompute a piece of a log wherever in this region it is led; errors as `handle`."""
        broker = self._broker_of(asked.key)
        if broker == self._me:
            return await self._piece_here(asked)
        if broker < 0:
            raise NotLeader(f"{asked.key} has no leader in region {region_of(self._me)}", leader=-1)
        answer = await self._ask(BrokerId(broker), DEEP_METHOD, deep_json(asked, local=True), timeout_s=DEEP_TIMEOUT_S)
        try:
            return read_piece(answer)
        except FieldError as error:
            raise Unavailable(f"broker {broker} answered {DEEP_METHOD} oddly: {error}") from error

    async def _piece_here(self, asked: DeepAsked) -> DeepPiece:
        return await self._deep.piece(self._led(asked.key), asked)


async def view_of(stream: HostedStream, at: Sequence[Offset]) -> LogView:
    """Return what a log looks like now, with the batches that hold the offsets `at`.

    Raises:
        Unavailable: it is damaged and being fetched again, or changes too fast.
    """
    batches: dict[Offset, BatchAt] = {}
    for offset in at:
        batch = await _batch_at(stream, offset)
        if batch is not None:
            batches[offset] = batch
    for _ in range(VIEW_TRIES):
        epochs, end = tuple(stream.epoch_table()), stream.high_watermark
        newest = await _batch_at(stream, Offset(end - 1))
        start = stream.start  # what follows is of one turn of the loop
        is_same_history = tuple(stream.epoch_table()) == epochs and start.boundary <= end <= stream.high_watermark
        if is_same_history and (newest is not None or end == start.boundary):
            break
    else:
        raise Unavailable(f"the log of {stream.key} changed {VIEW_TRIES} times while it was looked at")
    return LogView(
        epochs=epochs,
        log_start=min(max(stream.log_start, start.boundary), end),
        boundary=start.boundary,
        boundary_digest=start.digest,
        end=end,
        end_digest=start.digest if newest is None else newest.digest,
        orphans=tuple(
            OrphanRange(epoch=row.epoch, first=row.first, following=row.following) for row in stream.orphans()
        ),
        batches=batches,
    )


async def _batch_at(stream: HostedStream, offset: Offset) -> BatchAt | None:
    """Return the committed batch that holds an offset, None where there is none."""
    if not stream.start.boundary <= offset < stream.high_watermark:
        return None
    try:
        found = stream.read(offset, 1)
        entries = await stream.read_cold(offset, 1) if found is None else found
    except OffsetOutOfRange:  # deleted meanwhile
        return None
    if not entries or not entries[0].base_offset <= offset < entries[0].next_offset:
        return None
    header = entries[0].header()
    return BatchAt(
        first=header.base_offset,
        following=header.next_offset,
        epoch=header.epoch,
        digest=header.digest,
        crc=header.payload_crc,
    )
