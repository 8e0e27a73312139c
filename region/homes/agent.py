"""What this region answers about homes: each question goes to the leaders of the streams it names, once per broker.

Rule 1: a broker answers for the streams that it leads, and asks the other brokers of its region for theirs; never
        further.
Rule 2: the streams of one question are treated side by side; one that fails has its fault in the answer, and the
        others theirs.
Rule 3: nothing is answered before it is committed here: a seal or a promise that was told is in the log for good. What
        is not committed in time has an unknown outcome: without a majority of its replicas a log commits nothing.
Rule 4: a broker that knows no leader of its region gives no sign of life for it: a region without a majority can keep
        no promise, and acknowledges nothing. Who asks goes on to its next broker.
Rule 5: a broker that can answer for none of the streams it is asked about says so as a whole, when another broker of
        the region might do better: it may be cut off from those that lead them. Who asks goes on to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from georelay.errors import (
    BadRequest,
    GeorelayError,
    NotLeader,
    OutcomeUnknown,
    PolicyViolation,
    Unavailable,
    UnknownTopic,
)
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey, region_of
from mesh.replication.ports import EpochRow
from region.homes.home_requests import (
    PING_METHOD,
    Answers,
    Asked,
    EndAsked,
    LogEnds,
    PrefixEnd,
    PromiseAsked,
    Question,
    SealAsked,
    Told,
    answer_json,
    asked_json,
    is_for_another_broker,
    read_answers,
    read_question,
)

log = structlog.get_logger()

METHOD_PREFIX: Final = "home."
ASK_TIMEOUT_S: Final = 4.0  # one broker of the region, for all its streams; the wait of home.ends comes on top
COMMIT_TIMEOUT_S: Final = 3.5  # of a seal or a promise: less than who asks waits


class EndOfPrefix(Protocol):
    """Offset and digest chain before it."""

    @property
    def offset(self) -> Offset:
        """First offset after the prefix."""

    @property
    def digest(self) -> bytes:
        """Digest chain before it, 16 bytes."""


class LedStream(Protocol):
    """What a stream of this region can be asked; only its leader answers, others raise NotLeader."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it and its first entry of the term is committed."""

    @property
    def epoch(self) -> Epoch:
        """Newest committed epoch."""

    @property
    def next_offset(self) -> Offset:
        """Log end."""

    @property
    def high_watermark(self) -> Offset:
        """First offset not yet committed."""

    @property
    def log_start(self) -> Offset:
        """First offset stored."""

    @property
    def has_open_transactions(self) -> bool:
        """Whether records below the log end belong to transactions whose end is not in the log."""

    async def confirm_leader(self) -> None:
        """Return once a quorum said that this broker leads still. Raises NotLeader, Unavailable."""

    async def seal(self, *, epoch: Epoch, new_epoch: Epoch, move_id: str) -> EndOfPrefix:
        """Commit SEAL; return where the log ends."""

    async def promise(self, *, new_epoch: Epoch, table: Sequence[EpochRow]) -> EndOfPrefix:
        """Commit PROMISE; return how long the log agrees with `table`.

        Raises:
            OffsetOutOfRange: it is promised, and all that agreed was deleted here.
        """

    def add_waiter(self, callback: Callable[[], None]) -> int:
        """Call `callback` when the high watermark moves or the leadership is lost."""

    def remove_waiter(self, handle: int) -> None:
        """Forget a waiter."""


class AskBroker(Protocol):
    """Carries one request to another broker of this region."""

    async def __call__(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Return the answer; raises GeorelayError."""


class HomeAgent:
    """One broker's answers.

    Args:
        hosted: the stream when a replica of it is on this broker.
        leader_of: the broker of this region that leads a stream, -1 while unknown.
        ask: asks another broker of this region.
        is_led: whether this broker knows a leader of its region.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        hosted: Callable[[StreamKey], LedStream | None],
        leader_of: Callable[[StreamKey], int],
        ask: AskBroker,
        is_led: Callable[[], bool] = lambda: True,
    ) -> None:
        self._me = me
        self._region: RegionNumber = region_of(me)
        self._hosted = hosted
        self._leader_of = leader_of
        self._ask = ask
        self._is_led = is_led

    async def handle(self, method: str, body: Mapping[str, Any], *, from_broker: BrokerId) -> JsonObject:
        """Answer one request of another broker. Raises BadRequest, PolicyViolation, Unavailable (rules 4 and 5)."""
        if method == PING_METHOD:
            if not self._is_led():
                raise Unavailable(f"broker {self._me} knows no leader of region {self._region}")
            return {}
        try:
            question = read_question(method, body)
        except FieldError as error:
            raise BadRequest(str(error)) from error
        if not question.local:
            answers = await self.answer(question)
            if answers and all(map(is_for_another_broker, answers.values())):
                raise Unavailable(
                    f"broker {self._me} can answer for none of the streams: {next(iter(answers.values()))}"
                )
            return answer_json(answers)
        if region_of(from_broker) != self._region:
            raise PolicyViolation(f"{method} of one broker's own streams is for brokers of its region only")
        return answer_json(await self._answer_here(question.rows, question.wait_ms))

    async def answer(self, question: Question) -> Answers:
        """Return what this region says about each stream."""
        by_broker: dict[int, list[Asked]] = {}
        answers: dict[StreamKey, Told] = {}
        for row in question.rows:
            stream = self._hosted(row.key)
            leader = self._me if stream is not None and stream.is_leader else self._leader_of(row.key)
            if leader > 0:
                by_broker.setdefault(leader, []).append(row)
            else:
                answers[row.key] = NotLeader(f"{row.key} has no leader in region {self._region} yet", leader=-1)
        asked = [self._ask_broker(question, BrokerId(broker), rows) for broker, rows in by_broker.items()]
        for told in await asyncio.gather(*asked):
            answers.update(told)
        return answers

    async def _ask_broker(self, question: Question, broker: BrokerId, rows: Sequence[Asked]) -> Answers:
        if broker == self._me:
            return await self._answer_here(rows, question.wait_ms)
        body = asked_json(rows, wait_ms=question.wait_ms, local=True)
        timeout_s = ASK_TIMEOUT_S + question.wait_ms / 1000
        keys = [row.key for row in rows]
        try:
            answer = await self._ask(broker, question.method, body, timeout_s=timeout_s)
            return read_answers(question.method, answer, asked=keys)
        except GeorelayError as error:
            return dict.fromkeys(keys, error)
        except FieldError as error:
            return dict.fromkeys(keys, Unavailable(f"broker {broker} answered {question.method} oddly: {error}"))

    async def _answer_here(self, rows: Sequence[Asked], wait_ms: int) -> Answers:
        told = await asyncio.gather(*(self._answer_row(row, wait_ms) for row in rows))
        return {row.key: answer for row, answer in zip(rows, told, strict=True)}

    async def _answer_row(self, row: Asked, wait_ms: int) -> Told:
        stream = self._hosted(row.key)
        if stream is None:
            return UnknownTopic(f"stream {row.key} has no replica on broker {self._me}")
        if not stream.is_leader:
            return NotLeader(leader=self._leader_of(row.key))
        try:
            if isinstance(row, EndAsked):
                await _reached(stream, row.until, wait_ms)
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                if not isinstance(row, EndAsked):
                    return await _closed(stream, row)
                # A leader that was replaced without knowing it would tell an end below what is acknowledged.
                await stream.confirm_leader()
                return _ends_of(stream, with_transactions=row.with_transactions)
        except GeorelayError as error:
            return error
        except TimeoutError:
            return OutcomeUnknown(f"{row.key}: nothing is committed in region {self._region}: ask again")


async def _closed(stream: LedStream, row: SealAsked | PromiseAsked) -> PrefixEnd:
    """Seal or promise; return where the log ends, or up to where it agrees."""
    if isinstance(row, SealAsked):
        end = await stream.seal(epoch=row.epoch, new_epoch=row.new_epoch, move_id=row.move_id)
        log.info("home.sealed", stream=str(row.key), epoch=row.epoch, end=end.offset, move=row.move_id)
    else:
        end = await stream.promise(new_epoch=row.new_epoch, table=row.table)
        log.info("home.promised", stream=str(row.key), epoch=row.new_epoch, length=end.offset)
    return PrefixEnd(offset=end.offset, digest=end.digest)


def _ends_of(stream: LedStream, *, with_transactions: bool) -> LogEnds:
    return LogEnds(
        epoch=stream.epoch,
        next_offset=stream.next_offset,
        high_watermark=stream.high_watermark,
        log_start=stream.log_start,
        has_open_transactions=stream.has_open_transactions if with_transactions else None,
    )


async def _reached(stream: LedStream, until: Offset, wait_ms: int) -> None:
    """Wait until `until` is committed, the leadership is lost, or the time is over."""
    if wait_ms <= 0 or stream.high_watermark >= until:
        return
    moved = asyncio.Event()
    handle = stream.add_waiter(moved.set)

    async def watch() -> None:
        while stream.is_leader and stream.high_watermark < until:
            await moved.wait()
            moved.clear()

    try:
        async with asyncio.timeout(wait_ms / 1000):
            await watch()
    except TimeoutError:
        return  # the answer says how far it came
    finally:
        stream.remove_waiter(handle)
