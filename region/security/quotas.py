"""Quotas of principals on one broker: bytes in, bytes out, share of one core.

Rule 1: a principal's own quota counts, else that of "User:*", each principal for itself; without either there is none.
Rule 2: all connections of a principal share its buckets.
Rule 3: with no quota in the mesh a question costs one comparison.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from typing import Final

from region.controller.security_book import SecurityBook
from region.security.access import Principal
from region.security.acl import EVERYBODY
from region.security.definition import Kind, Quota
from region.security.quota_core import TokenBucket

PRINCIPALS_MAX: Final = 10_000  # with buckets; whoever used nothing lately is forgotten first
PPM: Final = 1_000_000


class _Use(enum.Enum):
    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"


class Quotas:
    """What principals have used lately."""

    def __init__(
        self, *, book: Callable[[], SecurityBook] = SecurityBook, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._book = book
        self._monotonic_s = monotonic_s
        self._buckets: dict[tuple[str, _Use], TokenBucket] = {}
        self.throttled_ms = 0  # all pauses that were asked for

    @property
    def is_idle(self) -> bool:
        """Return whether nobody has a quota."""
        return self._book().count(Kind.QUOTA) == 0

    def produce(self, principal: Principal, n_bytes: int) -> int:
        """Count bytes that a principal published; return its pause in ms."""
        return self._use(principal, _Use.PRODUCE, n_bytes)

    def fetch(self, principal: Principal, n_bytes: int) -> int:
        """Count bytes that a principal is sent; return its pause in ms."""
        return self._use(principal, _Use.FETCH, n_bytes)

    def request(self, principal: Principal, busy_s: float) -> int:
        """Count time that the broker worked for a principal; return its pause in ms."""
        return self._use(principal, _Use.REQUEST, busy_s)

    def _use(self, principal: Principal, use: _Use, amount: float) -> int:
        book = self._book()
        if book.count(Kind.QUOTA) == 0:
            return 0
        rate = _rate_of(book.quota(principal.name) or book.quota(EVERYBODY), use)
        if rate == 0:
            return 0
        now_s = self._monotonic_s()
        bucket = self._buckets.get((principal.name, use))
        if bucket is None:
            self._make_room(now_s)
            bucket = self._buckets[principal.name, use] = TokenBucket(rate, now_s)
        elif bucket.rate_per_s != rate:
            bucket.change_rate(rate, now_s)
        pause_ms = math.ceil(bucket.use(amount, now_s) * 1_000)
        self.throttled_ms += pause_ms
        return pause_ms

    def _make_room(self, now_s: float) -> None:
        if len(self._buckets) < PRINCIPALS_MAX:
            return
        for key in [key for key, bucket in self._buckets.items() if bucket.is_full(now_s)]:
            del self._buckets[key]
        while len(self._buckets) >= PRINCIPALS_MAX:
            del self._buckets[next(iter(self._buckets))]


def _rate_of(quota: Quota | None, use: _Use) -> float:
    if quota is None:
        return 0
    match use:
        case _Use.PRODUCE:
            return quota.produce_bytes_per_s
        case _Use.FETCH:
            return quota.fetch_bytes_per_s
        case _Use.REQUEST:
            return quota.request_share_ppm / PPM
