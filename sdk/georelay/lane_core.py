"""Which records of one partition travel in which batch, and what happens when a batch fails. Pure.

One `Lane` per (topic, partition) turns chunks of records into batches with a producer id and sequence:

Rule 1: chunks leave in the order they came; a chunk is never split.
Rule 2: an idle lane sends at once; while a batch is in flight, chunks gather for at most `linger_ns`,
        `batch_bytes` or `batch_records`, whichever comes first. A lane whose last batch held more than one chunk is
        busy: its next batch leaves no sooner than `pace_ns` after that one, unless it is full.
Rule 3: at most IN_FLIGHT_MAX batches are out, as many as streams remember per producer; so a resend of any of
        them with its old sequence is recognised as a duplicate and answered with the old offset.
Rule 4: after a failure nothing new is sent until every batch in flight has an answer; then the failed ones are
        resent one at a time, oldest first, with their old sequences.
Rule 5: a batch that is given up leaves a gap, so the lane takes a new producer id; what follows is stamped anew,
        except batches whose own outcome is unknown: stamping those anew could store them twice, so they fail.
Rule 6: where there is no home or leader for `patience_ns`, what is certainly not stored is given up at once, and so is
        what comes later, until it is over. Who says that the home cannot be reached has waited already: then what may
        be stored is given up too, as unknown. While only a leader is missing it is sent again until its deadline.

States and moves (every other pair is a no-op):

    NEEDS_PRODUCER --producer_assigned--> FLOWING
    FLOWING        --failed (others out)--> DRAINING, --failed (last one)--> RESENDING
    DRAINING       --last answer--> RESENDING
    RESENDING      --last resend acked--> FLOWING
    any            --a batch is given up--> NEEDS_PRODUCER (once nothing is out)
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from georelay.errors import (
    Busy,
    GeorelayError,
    HomeUnreachable,
    NotHome,
    NotLeader,
    Outcome,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    Retry,
    Unavailable,
)
from georelay.limits import COALESCE_MS_MAX, KIB, MIB, PRODUCER_BATCHES_REMEMBERED
from georelay.outage_core import Outage

IN_FLIGHT_MAX: Final = PRODUCER_BATCHES_REMEMBERED
OUTAGES: Final = (HomeUnreachable, NotHome, NotLeader, Unavailable)  # nobody could have stored it
UNREACHABLE_BACKOFF: Final = 10  # it lasts, and is answered at once: ten times the back-off of an election
SEQUENCE_MODULUS: Final = 1 << 31  # Kafka sequences wrap from 2^31-1 to 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """Bounds of one lane. Larger batches cost less CPU per record; longer linger costs latency."""

    linger_ns: int = COALESCE_MS_MAX * 1_000_000
    pace_ns: int = 0  # between two batches of a busy lane: a batch costs as much as dozens of records
    batch_bytes: int = 256 * KIB
    batch_records: int = 10_000
    queue_bytes: int = 16 * MIB  # waiting, not in flight; beyond it callers get Busy
    deadline_ns: int = 10_000_000_000  # from the arrival of a batch's first chunk to its failure
    backoff_ns: int = 50_000_000  # between resends; > one event-loop turn, < an election
    patience_ns: int | None = None  # with a home or leader that is not there (rule 6); None: until the deadline


class Chunk(Protocol):
    """Records of one caller for one partition."""

    @property
    def record_count(self) -> int:
        """At least 1."""

    @property
    def size_bytes(self) -> int:
        """Estimated bytes inside the batch."""


C = TypeVar("C", bound=Chunk)


class LaneState(enum.Enum):
    """Life of a lane; the moves are in the module docstring."""

    NEEDS_PRODUCER = "needs_producer"  # nothing is sent until a producer id arrives
    FLOWING = "flowing"
    DRAINING = "draining"  # a batch failed, others are still out
    RESENDING = "resending"  # one batch out at most


@dataclass(slots=True, kw_only=True, eq=False)
class LaneBatch(Generic[C]):
    """Chunks that travel together; compared by identity."""

    chunks: list[C]
    arrived_ns: int  # of its first chunk
    deadline_ns: int
    producer_id: int = -1
    sequence: int = -1
    out: bool = False
    maybe_stored: bool = False  # some attempt ended with an unknown outcome
    last_error: GeorelayError | None = None

    @property
    def record_count(self) -> int:
        """Return the records of all chunks."""
        return sum(chunk.record_count for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(Generic[C]):
    """A batch whose callers must be told `error`."""

    batch: LaneBatch[C]
    error: GeorelayError


@dataclass(slots=True, kw_only=True)
class _Waiting(Generic[C]):
    chunk: C
    arrived_ns: int


@dataclass(slots=True, kw_only=True)
class Lane(Generic[C]):
    """The state machine of one (topic, partition); times are monotonic nanoseconds."""

    limits: LaneLimits = field(default_factory=LaneLimits)
    state: LaneState = LaneState.NEEDS_PRODUCER
    producer_id: int = -1
    _sequence: int = 0
    _waiting: deque[_Waiting[C]] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _waiting_records: int = 0
    _batches: deque[LaneBatch[C]] = field(default_factory=deque)  # cut and not finished, oldest first
    _resend_at_ns: int = 0
    _not_before_ns: int = 0  # the next batch, unless it is full
    _stamp_anew: bool = False
    _outage: Outage | None = None

    def __post_init__(self) -> None:
        """Begin with nothing out of order."""
        if self.limits.patience_ns is not None:
            self._outage = Outage(self.limits.patience_ns)

    @property
    def idle(self) -> bool:
        """Return whether nothing waits and nothing is out."""
        return not self._waiting and not self._batches

    @property
    def queued_bytes(self) -> int:
        """Return the bytes that wait to be cut."""
        return self._waiting_bytes

    def offer(self, now_ns: int, chunk: C) -> None:
        """Queue a chunk.

        Raises:
            Busy: the queue is full; nothing was queued.
        """
        if self._waiting and self._waiting_bytes + chunk.size_bytes > self.limits.queue_bytes:
            raise Busy(
                f"the publish queue of this partition holds {self._waiting_bytes} bytes, "
                f"the limit is {self.limits.queue_bytes}"
            )
        self._waiting.append(_Waiting(chunk=chunk, arrived_ns=now_ns))
        self._waiting_bytes += chunk.size_bytes
        self._waiting_records += chunk.record_count

    def producer_assigned(self, producer_id: int) -> None:
        """Take a fresh producer id; sequences start at 0 and every unfinished batch is stamped anew."""
        assert self.state is LaneState.NEEDS_PRODUCER, self.state
        self.producer_id = producer_id
        self._sequence = 0
        self._stamp_anew = False
        for batch in self._batches:
            self._stamp(batch)
        self.state = LaneState.RESENDING if self._batches else LaneState.FLOWING

    def next_batch(self, now_ns: int) -> LaneBatch[C] | None:
        """Return the batch to send now, marked as out, or None."""
        if self.state is LaneState.RESENDING:
            head = self._batches[0]
            if head.out or now_ns < self._resend_at_ns:
                return None
            head.out = True
            return head
        if self.state is not LaneState.FLOWING or not self._waiting or len(self._batches) >= IN_FLIGHT_MAX:
            return None
        if not self._is_full() and now_ns < self._due_at_ns():
            return None
        batch = self._cut()
        self._not_before_ns = now_ns + self.limits.pace_ns if len(batch.chunks) > 1 else 0
        self._stamp(batch)
        batch.out = True
        self._batches.append(batch)
        return batch

    def wake_at_ns(self) -> int | None:
        """Return when `next_batch` or `expire` may next have work without any event; None: never."""
        times = []
        if self._batches:
            times.append(self._batches[0].deadline_ns)
            if self.state is LaneState.RESENDING and not self._batches[0].out:
                times.append(self._resend_at_ns)
        if self._waiting:
            oldest = self._waiting[0].arrived_ns
            times.append(oldest + self.limits.deadline_ns)
            if self.state is LaneState.FLOWING and len(self._batches) < IN_FLIGHT_MAX:
                times.append(self._due_at_ns())
        return min(times, default=None)

    def acked(self, batch: LaneBatch[C]) -> bool:
        """Record that `batch` is stored; False when it had been given up before (the answer came too late)."""
        if batch not in self._batches or not batch.out:
            return False
        self._batches.remove(batch)
        if self._outage is not None:
            self._outage.over()
        self._answered()
        return True

    def failed(self, batch: LaneBatch[C], error: GeorelayError, now_ns: int) -> list[GivenUp[C]]:
        """Record a failed attempt; returns what is given up because of it."""
        if batch not in self._batches or not batch.out:
            return []
        batch.out = False
        batch.last_error = error
        batch.maybe_stored = batch.maybe_stored or error.outcome is Outcome.UNKNOWN
        factor = UNREACHABLE_BACKOFF if isinstance(error, HomeUnreachable) else 1
        self._resend_at_ns = now_ns + factor * self.limits.backoff_ns
        if self.state is LaneState.FLOWING:
            self.state = LaneState.DRAINING
        given_up: list[GivenUp[C]] = []
        if self._is_known_outage(error, now_ns):
            given_up = self._give_up_in_outage(error)
        elif batch is self._batches[0]:
            given_up = self._judge_head(error)
        elif not _may_be_resent(error):
            given_up = self._give_up(batch, error)
        if self._stamp_anew and batch.maybe_stored and batch in self._batches:
            given_up += self._drop([batch], error)  # one before it was given up while this one was out (rule 5)
        self._answered()
        return given_up

    def producer_refused(self, error: GeorelayError, now_ns: int) -> list[GivenUp[C]]:
        """Record that nobody gives out a producer id; returns what is given up because of it."""
        if self._outage is None:
            return []
        self._outage.seen(now_ns)
        return self._give_up_in_outage(error) if self._outage.is_known(now_ns) else []

    def expire(self, now_ns: int) -> list[GivenUp[C]]:
        """Give up what is past its deadline, in flight or not."""
        given_up: list[GivenUp[C]] = []
        while self._batches and self._batches[0].deadline_ns <= now_ns:
            batch = self._batches[0]
            batch.maybe_stored = batch.maybe_stored or batch.out
            error = batch.last_error or OutcomeUnknown("the publish was not answered before its deadline")
            given_up += self._give_up(batch, error)
        while self._waiting and self._waiting[0].arrived_ns + self.limits.deadline_ns <= now_ns:
            late = self._cut()  # may take some younger chunks along: they came in the same linger window
            waited = Busy("the publish waited in its queue until its deadline; not stored")
            given_up.append(GivenUp(batch=late, error=waited))
        self._answered()
        return given_up

    def _is_known_outage(self, error: GeorelayError, now_ns: int) -> bool:
        if self._outage is None or not isinstance(error, OUTAGES):
            return False
        self._outage.seen(now_ns)
        return isinstance(error, HomeUnreachable) or self._outage.is_known(now_ns)

    def _give_up_in_outage(self, error: GeorelayError) -> list[GivenUp[C]]:
        """Give up what waits in an outage that is known (rule 6).

        Where only a leader is missing, a batch that is perhaps stored keeps those behind it.
        """
        given_up: list[GivenUp[C]] = []
        is_gone = isinstance(error, HomeUnreachable)
        is_held = any(batch.out or (batch.maybe_stored and not is_gone) for batch in self._batches)
        if self._batches and not is_held:
            self._stamp_anew = True
            given_up = self._drop(list(self._batches), error)
        while self._waiting:
            given_up.append(GivenUp(batch=self._cut(), error=error))
        return given_up

    def _judge_head(self, error: GeorelayError) -> list[GivenUp[C]]:
        """Decide about the oldest batch after a failed attempt."""
        head = self._batches[0]
        if isinstance(error, OutOfOrderSequence | ProducerFenced) and not head.maybe_stored:
            # The stream does not know our producer (any more), and this batch is certainly not in it.
            self._stamp_anew = True
            return self._drop([other for other in self._batches if other.maybe_stored], error)
        if _may_be_resent(error) and not isinstance(error, OutOfOrderSequence | ProducerFenced):
            return []
        return self._give_up(head, error)

    def _give_up(self, batch: LaneBatch[C], error: GeorelayError) -> list[GivenUp[C]]:
        """Drop `batch` and every later one whose outcome is unknown (rule 5)."""
        position = list(self._batches).index(batch)
        later = list(self._batches)[position + 1 :]
        self._stamp_anew = True
        if self.state is LaneState.FLOWING:
            self.state = LaneState.DRAINING
        return self._drop([batch] + [other for other in later if other.maybe_stored], error)

    def _drop(self, lost: list[LaneBatch[C]], error: GeorelayError) -> list[GivenUp[C]]:
        for batch in lost:
            self._batches.remove(batch)
            batch.out = False
        return [GivenUp(batch=batch, error=_final_error(batch, error)) for batch in lost]

    def _answered(self) -> None:
        """Move on once nothing is out."""
        if self.state not in (LaneState.DRAINING, LaneState.RESENDING) or any(batch.out for batch in self._batches):
            return
        if self._stamp_anew:
            self.state = LaneState.NEEDS_PRODUCER
        elif self._batches:
            self.state = LaneState.RESENDING
        else:
            self.state = LaneState.FLOWING

    def _is_full(self) -> bool:
        return self._waiting_bytes >= self.limits.batch_bytes or self._waiting_records >= self.limits.batch_records

    def _due_at_ns(self) -> int:
        linger_ns = self.limits.linger_ns if self._batches else 0
        return max(self._waiting[0].arrived_ns + linger_ns, self._not_before_ns)

    def _cut(self) -> LaneBatch[C]:
        """Take the chunks of the next batch off the queue: at least one, then as many as fit."""
        arrived_ns = self._waiting[0].arrived_ns
        chunks: list[C] = []
        size = records = 0
        while self._waiting:
            chunk = self._waiting[0].chunk
            too_big = size + chunk.size_bytes > self.limits.batch_bytes
            too_many = records + chunk.record_count > self.limits.batch_records
            if chunks and (too_big or too_many):
                break
            self._waiting.popleft()
            chunks.append(chunk)
            size += chunk.size_bytes
            records += chunk.record_count
        self._waiting_bytes -= size
        self._waiting_records -= records
        return LaneBatch(chunks=chunks, arrived_ns=arrived_ns, deadline_ns=arrived_ns + self.limits.deadline_ns)

    def _stamp(self, batch: LaneBatch[C]) -> None:
        batch.producer_id = self.producer_id
        batch.sequence = self._sequence
        self._sequence = (self._sequence + batch.record_count) % SEQUENCE_MODULUS


def _may_be_resent(error: GeorelayError) -> bool:
    """Return whether the same batch with the same sequence may succeed later."""
    return error.retry in (Retry.LATER, Retry.REFRESH) or isinstance(error, OutOfOrderSequence | ProducerFenced)


def _final_error(batch: LaneBatch[C], error: GeorelayError) -> GeorelayError:
    """Return what callers are told: never "not stored" when an earlier attempt may have stored it."""
    if batch.maybe_stored and error.outcome is not Outcome.UNKNOWN:
        refused = str(error).partition(";")[0]  # the rest is about an attempt of which nothing was stored
        return OutcomeUnknown(f"it may be stored: an attempt was not answered; later ones were refused: {refused}")
    return error
