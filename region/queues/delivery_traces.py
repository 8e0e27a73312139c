"""Deliveries of queues in the traces: when the leader of a queue's coordinator has handed a leased record out.

Rule 1: a session is what one consumer was given of one partition without a gap; what goes on elsewhere is another one.
        Queues share records between consumers and give some out again, so that one session for all would look like
        records that were lost, twice or out of order. That a record is given out again says its `attempt`.
Rule 2: latencies count records that were received after the partition was read to its end, and that nobody delayed.
Rule 3: what nobody waited for any more was not delivered, though it was leased for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from region.kafka.ports import TopicView, TraceRecorder, TraceSession

SESSIONS_PER_QUEUE_MAX: Final = 1_024
_Key = tuple[str, int, bool]


@dataclass(slots=True, kw_only=True)
class QueueTraces:
    """Where the queues of a broker are recorded; None: nowhere, as in the simulator."""

    recorder: TraceRecorder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What a record's batch says of its way here; one object for all records of the batch.

    Args:
        append_us: when it was appended at its home, us since 1970. epoch: the home epoch.
        received_ns: when the first broker of the mesh received it, ns since 1970. entry_region: of that broker.
    """

    append_us: int
    epoch: int
    received_ns: int
    entry_region: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """A record that a consumer got. `attempt` is how often it was delivered, this time included."""

    partition: int
    offset: int
    batch: BatchFacts
    size_bytes: int
    attempt: int
    is_delayed: bool


class DeliveryTraces:
    """The sessions of one queue at its leader."""

    def __init__(self, queue: str, traces: QueueTraces) -> None:
        self._queue = queue
        self._traces = traces
        self._sessions: dict[_Key, TraceSession] = {}
        self._live_since_ns: dict[int, int] = {}

    def caught_up(self, partition: int, now_ns: int) -> None:
        """Note that everything of a partition was read; only the first time counts."""
        self._live_since_ns.setdefault(partition, now_ns)

    def delivered(self, consumer: str, view: TopicView | None, rows: Iterable[HandedOut], *, now_ns: int) -> None:
        """Record what a consumer was handed at `now_ns`; `view`: the queue's topic, None when it was deleted."""
        recorder = self._traces.recorder
        if recorder is None or view is None:
            return
        for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
            batch = row.batch
            self._session(recorder, view, consumer, row).delivered(
                epoch=batch.epoch,
                base_offset=row.offset,
                record_count=1,
                entry_region=batch.entry_region,
                received_ns=batch.received_ns,
                delivered_ns=now_ns,
                size_bytes=row.size_bytes,
                attempt=row.attempt,
            )

    def _session(self, recorder: TraceRecorder, view: TopicView, consumer: str, row: HandedOut) -> TraceSession:
        key = (consumer, row.partition, row.is_delayed)
        session = self._sessions.pop(key, None)
        if session is None or session.next_offset != row.offset:
            session = recorder.open_session(
                topic=view.definition.name,
                origin=int(view.origin),
                partition=row.partition,
                offset=row.offset,
                group=self._queue,
            )
        live_since_ns = self._live_since_ns.get(row.partition)
        if live_since_ns is not None and not row.is_delayed:
            session.caught_up(live_since_ns)
        while len(self._sessions) >= SESSIONS_PER_QUEUE_MAX:
            del self._sessions[next(iter(self._sessions))]  # whose was not used for longest
        self._sessions[key] = session
        return session
