"""Who consumes a queue: consumers by the id that they gave themselves, and when each was last heard of. Pure.

A consumer is heard of by every request that names it, and for as long as one of its receives waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from georelay.errors import Busy
from region.queues.limits import CONSUMERS_PER_QUEUE_MAX

MS: int = 1_000_000


@dataclass(slots=True)
class Session:
    """One consumer. `waits` counts its receives that wait."""

    timeout_ms: int
    heard_ns: int
    waits: int = 0


class Sessions:
    """The consumers of one queue at its leader."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[tuple[str, Session]]:
        return iter(self._sessions.items())

    def begin(self, consumer: str, timeout_ms: int, now_ns: int) -> Session:
        """Note that a consumer was heard of, and how long it may be silent (Busy: too many consumers)."""
        session = self._sessions.get(consumer)
        if session is None:
            if len(self._sessions) >= CONSUMERS_PER_QUEUE_MAX:
                raise Busy(f"the queue has {CONSUMERS_PER_QUEUE_MAX} consumers, its maximum")
            session = self._sessions[consumer] = Session(timeout_ms, now_ns)
        session.timeout_ms = timeout_ms
        session.heard_ns = now_ns
        return session

    def heard(self, consumer: str, now_ns: int) -> None:
        """Note that a consumer was heard of, if it has a session."""
        session = self._sessions.get(consumer)
        if session is not None:
            session.heard_ns = now_ns

    def end(self, consumer: str) -> None:
        """Forget a consumer."""
        self._sessions.pop(consumer, None)

    def pop_lost(self, now_ns: int) -> list[str]:
        """Forget and return the consumers that were silent for too long."""
        lost = [
            consumer
            for consumer, session in self._sessions.items()
            if not session.waits and session.heard_ns + session.timeout_ms * MS <= now_ns
        ]
        for consumer in lost:
            del self._sessions[consumer]
        return lost

    def next_due_ns(self) -> int | None:
        """Return when the next session ends if nothing is heard."""
        return min(
            (session.heard_ns + session.timeout_ms * MS for session in self._sessions.values() if not session.waits),
            default=None,
        )
