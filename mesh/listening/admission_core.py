"""Who is let in: connections per address and in all, how fast they come, and how many are still shaking hands.

Pure: the caller says what time it is.

Rule 1: refusing is cheap and needs nothing of the other end; what is refused is counted by its reason.
Rule 2: nobody is queued here: what is not accepted yet waits in the kernel's backlog.
Rule 3: memory is bounded: an address is forgotten when it has no connection and has regained its full burst, and
        while ADDRESSES_MAX are known a new one shares one row with all others that came too late.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

ADDRESSES_MAX: Final = 20_000
CROWD: Final = "*"  # the row of the addresses beyond ADDRESSES_MAX
FORGET_EVERY_S: Final = 10.0
FAILED_HANDSHAKE_TOKENS: Final = 10  # of the address's rate, beside the one for being let in


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of one listener; an address is an IPv4 address or the /64 of an IPv6 one.

    Args:
        connections_max: open at once, those that still shake hands included.
        connections_per_address_max: the same from one address.
        handshakes_max: at once before the TLS handshake is over; without TLS nothing counts.
        handshakes_per_address_max: the same from one address.
        accepts_per_s, accepts_burst: connections taken from the kernel, refused ones included.
        admits_per_address_per_s, admits_per_address_burst: connections let in from one address.
        handshake_s: time to finish the TLS handshake.
    """

    connections_max: int = 5_000
    connections_per_address_max: int = 2_000
    handshakes_max: int = 500
    handshakes_per_address_max: int = 200
    accepts_per_s: int = 2_000
    accepts_burst: int = 500
    admits_per_address_per_s: int = 200
    admits_per_address_burst: int = 500
    handshake_s: float = 10.0

    def within(self, connections_max: int) -> AdmissionLimits:
        """Return them for a listener with a room of its own, of which one address has half."""
        most = min(self.connections_max, connections_max)
        of_address = min(self.connections_per_address_max, max(1, most // 2))
        return replace(self, connections_max=most, connections_per_address_max=of_address)


class Refusal(enum.Enum):
    """Why a connection was not let in, or ended before it did anything."""

    TOO_MANY = "too_many"
    TOO_MANY_OF_ADDRESS = "too_many_of_address"
    TOO_MANY_HANDSHAKES = "too_many_handshakes"
    TOO_FAST = "too_fast"
    HANDSHAKE_FAILED = "handshake_failed"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    TOO_SLOW = "too_slow"  # a request that was begun and not sent in time
    NO_SIGN_IN = "no_sign_in"  # in time
    OVERLOADED = "overloaded"  # calls wait for each other


class Bucket:
    """Tokens that come back with time."""

    __slots__ = ("_burst", "_last_s", "_rate_per_s", "_tokens")

    def __init__(self, *, rate_per_s: float, burst: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._last_s = now_s

    def take(self, now_s: float) -> bool:
        """Take one; False when there is none."""
        self._refill(now_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def charge(self, tokens: float, now_s: float) -> None:
        """Take more than there may be; the debt is at most what comes back in a second."""
        self._refill(now_s)
        self._tokens = max(self._tokens - tokens, -self._rate_per_s)

    def wait_s(self, now_s: float) -> float:
        """Return seconds until there is one."""
        self._refill(now_s)
        return max(0.0, (1 - self._tokens) / self._rate_per_s)

    def is_full(self, now_s: float) -> bool:
        """Return whether nothing was taken for long enough."""
        self._refill(now_s)
        return self._tokens >= self._burst

    def _refill(self, now_s: float) -> None:
        if now_s > self._last_s:
            self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._rate_per_s)
            self._last_s = now_s


@dataclass(slots=True)
class _Row:
    bucket: Bucket
    connections: int = 0
    handshakes: int = 0


@dataclass(slots=True)
class AdmissionCounters:
    """Of one listener; `refused` only grows."""

    connections_open: int = 0
    handshakes_open: int = 0
    accepted: int = 0
    restarts: int = 0  # of a server that stopped by itself
    refused: dict[Refusal, int] = field(default_factory=dict)

    def refuse(self, reason: Refusal) -> None:
        """Count one."""
        self.refused[reason] = self.refused.get(reason, 0) + 1


class Admission:
    """The books of one listener."""

    def __init__(self, limits: AdmissionLimits, counters: AdmissionCounters, *, now_s: float) -> None:
        self.limits = limits
        self.counters = counters
        self._accepts = Bucket(rate_per_s=limits.accepts_per_s, burst=limits.accepts_burst, now_s=now_s)
        self._rows: dict[str, _Row] = {}
        self._forget_at_s = now_s + FORGET_EVERY_S

    @property
    def rows(self) -> Mapping[str, _Row]:
        """Return what is known of addresses."""
        return self._rows

    def may_accept(self, now_s: float) -> bool:
        """Take the right to accept one connection from the kernel, whatever becomes of it."""
        return self._accepts.take(now_s)

    def wait_s(self, now_s: float) -> float:
        """Return seconds until `may_accept` can be True."""
        return self._accepts.wait_s(now_s)

    def admit(self, address: str, now_s: float, *, handshake: bool) -> Refusal | str:
        """Let a connection in, or say why not. A str is what to give to `handshaken` and `closed`."""
        if now_s >= self._forget_at_s:
            self._forget(now_s)
        key = group_of(address)
        row = self._row(key, now_s)
        reason = self._reason(row, now_s, handshake=handshake)
        if reason is not None:
            self.counters.refuse(reason)
            return reason
        row.connections += 1
        self.counters.connections_open += 1
        self.counters.accepted += 1
        if handshake:
            row.handshakes += 1
            self.counters.handshakes_open += 1
        return key if key in self._rows else CROWD

    def handshake_failed(self, key: str, now_s: float) -> None:
        """Let an address pay for a handshake that led nowhere: it cost us as much as many refusals."""
        self._rows[key].bucket.charge(FAILED_HANDSHAKE_TOKENS, now_s)

    def handshaken(self, key: str) -> None:
        """Note that a handshake is over, well or not."""
        self._rows[key].handshakes -= 1
        self.counters.handshakes_open -= 1

    def closed(self, key: str) -> None:
        """Note that a connection that was let in is gone."""
        self._rows[key].connections -= 1
        self.counters.connections_open -= 1

    def _reason(self, row: _Row, now_s: float, *, handshake: bool) -> Refusal | None:
        limits, counters = self.limits, self.counters
        if counters.connections_open >= limits.connections_max:
            return Refusal.TOO_MANY
        if row.connections >= limits.connections_per_address_max:
            return Refusal.TOO_MANY_OF_ADDRESS
        if handshake and (
            counters.handshakes_open >= limits.handshakes_max or row.handshakes >= limits.handshakes_per_address_max
        ):
            return Refusal.TOO_MANY_HANDSHAKES
        return None if row.bucket.take(now_s) else Refusal.TOO_FAST

    def _row(self, key: str, now_s: float) -> _Row:
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ADDRESSES_MAX:
                key = CROWD
                if (crowd := self._rows.get(key)) is not None:
                    return crowd
            limits = self.limits
            bucket = Bucket(
                rate_per_s=limits.admits_per_address_per_s, burst=limits.admits_per_address_burst, now_s=now_s
            )
            row = self._rows[key] = _Row(bucket)
        return row

    def _forget(self, now_s: float) -> None:
        self._forget_at_s = now_s + FORGET_EVERY_S
        for key in [key for key, row in self._rows.items() if not row.connections and row.bucket.is_full(now_s)]:
            del self._rows[key]


def group_of(address: str) -> str:
    """Return what counts as one address: an IPv6 client has a whole /64 to choose from."""
    if ":" not in address:
        return address
    if address.startswith("::ffff:") and "." in address:
        return address[7:]
    head, _, tail = address.partition("%")[0].partition("::")
    groups = head.split(":") if head else []
    if tail or "::" in address:
        groups += ["0"] * (8 - len(groups) - len(tail.split(":") if tail else [])) + (tail.split(":") if tail else [])
    return ":".join(groups[:4])
