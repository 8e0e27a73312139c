"""Texts that consumers give and rows of queues keep: their own names, and reasons of rejects. At the leader only.

Rule 1: each counts once for each queue, in the bytes that it takes in a snapshot, and is shared among principals as
        region.coordination.shares_core says. So 100,000 rows do not keep 100,000 long names.
Rule 2: what rows keep is counted when it comes; what they keep no more is noticed when there is no room, at most once
        in RECOUNT_NS: that walks all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from region.coordination.shares_core import Room, Shares, text_bytes
from region.queues.limits import TEXT_BYTES_MAX
from region.queues.queue_core import QueueState
from region.queues.state_core import QueuesState

RECOUNT_NS: Final = 1_000_000_000
ENTRY_BYTES: Final = 3  # quotes and comma


class KeptTexts:
    """The texts of one coordinator's queues."""

    def __init__(self, state: QueuesState, monotonic_ns: Callable[[], int]) -> None:
        self._state = state
        self._monotonic_ns = monotonic_ns
        self._known: set[tuple[str, int, str]] = set()
        self._shares = Shares(TEXT_BYTES_MAX)
        self._counted_ns: int | None = None

    def take(self, queue: QueueState, text: str) -> bool:
        """Return whether rows of a queue may keep a text; then it counts."""
        if not text or self._key(queue, text) in self._known:
            return True
        if not self._fits(queue, text) and self._may_count():
            self._count()
        if not self._fits(queue, text):
            return False
        self._add(queue, text)
        return True

    def _fits(self, queue: QueueState, text: str) -> bool:
        return self._shares.look(queue.principal, text_bytes(text) + ENTRY_BYTES) is Room.FREE

    def _may_count(self) -> bool:
        now_ns = self._monotonic_ns()
        if self._counted_ns is not None and now_ns - self._counted_ns < RECOUNT_NS:
            return False
        self._counted_ns = now_ns
        return True

    def _count(self) -> None:
        self._known, self._shares = set(), Shares(TEXT_BYTES_MAX)
        for queue in self._state:
            for text in {text for _, row in queue.rows() for text in (row.consumer, row.reason)}:
                self._add(queue, text)

    def _add(self, queue: QueueState, text: str) -> None:
        key = self._key(queue, text)
        if text and key not in self._known:
            self._known.add(key)
            self._shares.add(queue.principal, text_bytes(text) + ENTRY_BYTES)

    @staticmethod
    def _key(queue: QueueState, text: str) -> tuple[str, int, str]:
        return queue.definition.name, queue.made_us, text
