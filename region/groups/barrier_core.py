"""The barrier of a rebalance: until when it waits for members. Pure.

Rule 1: the first barrier of an empty group waits for `delay_ms` in any case, and again after each time in which
        somebody new came, until the rebalance timeout is used up (KIP-134). Later ones fall as soon as all have joined.
"""

from __future__ import annotations

MS: int = 1_000_000  # nanoseconds


class Barrier:
    """Open while a group prepares a rebalance."""

    __slots__ = ("_delay_ms", "_has_grown", "_left_ms", "until_ns")

    def __init__(self) -> None:
        self.until_ns: int | None = None  # when it falls whoever has joined; None: no rebalance
        self._delay_ms = 0
        self._left_ms = 0  # by how much the first one may still be put off; 0: it is a later one
        self._has_grown = False

    def begin(self, now_ns: int, timeout_ms: int) -> None:
        """Wait for everybody, at most `timeout_ms`."""
        self._left_ms = 0
        self.until_ns = now_ns + timeout_ms * MS

    def begin_first(self, now_ns: int, *, delay_ms: int, timeout_ms: int) -> None:
        """Wait for whoever comes within `delay_ms`."""
        self._delay_ms = min(delay_ms, timeout_ms)
        self._left_ms = timeout_ms - self._delay_ms if self._delay_ms else 0
        self._has_grown = False
        self.until_ns = now_ns + self._delay_ms * MS

    def grew(self) -> None:
        """Note that somebody new came."""
        self._has_grown = True

    def may_fall(self, now_ns: int, *, all_joined: bool) -> bool:
        """Return whether the rebalance ends now; puts the first barrier off where rule 1 says so."""
        assert self.until_ns is not None
        if self.until_ns > now_ns:
            return all_joined and not self._left_ms
        if not self._left_ms or not self._has_grown:
            return True
        delay_ms = min(self._delay_ms, self._left_ms)
        self._left_ms -= delay_ms
        self._has_grown = False
        self.until_ns = now_ns + delay_ms * MS
        return False

    def close(self) -> None:
        """Note that there is no rebalance."""
        self.until_ns = None
        self._left_ms = 0
