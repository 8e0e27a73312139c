"""Leases: for how long a home that nobody hears may go on acknowledging at region level. Pure; time is handed in.

Only streams with failover=auto need one, and only region-level acknowledgements depend on it: records acknowledged by
several regions are protected by promises alone, whatever clocks do.

Rule 1: the broker counts from the time at which its renewal was SENT, and stops at 1.8 s.
Rule 2: the control leader counts from the time at which it ANSWERED, which is later, and waits for 2 s. Between the two
        lies a tenth: clocks that run apart by less than that do not break the bound.
        Both clocks count suspensions of their hosts (georelay.clock.elapsed_of): a broker that slept has no lease left.
Rule 3: an answer is given only after a majority of the voters confirmed the leader, since the renewal came: nobody was
        elected before that.
Rule 4: a control leader does not know what its predecessor granted: it waits one whole lease after its election.
Rule 5: a broker that restarted has none.
Rule 6: a broker whose lease had ended takes another one only once it knows of every move that was committed before the
        answer was given: homes may have been taken from its region meanwhile, and it would go on as their home. While a
        lease is held without a gap no home can have been taken.

Prior art: Gray & Cheriton, "Leases" (SOSP 1989), section 2 for clocks with bounded drift.
"""

from __future__ import annotations

from typing import Final

from georelay.ids import BrokerId, RegionNumber, region_of

_NS_PER_MS: Final = 1_000_000
LEASE_MS: Final = 2_000  # how long the control leader waits
HELD_MS: Final = 1_800  # how long the broker acknowledges
RENEW_MS: Final = 500
HOLDERS_MAX: Final = 64 * 999  # brokers of a mesh
assert RENEW_MS * 2 < HELD_MS < LEASE_MS


class BrokerLease:
    """What one broker holds."""

    def __init__(self) -> None:
        self._until_ns: int | None = None

    def granted(self, *, sent_ns: int) -> None:
        """Follow an answer to the renewal that was sent at `sent_ns`; answers may come out of order."""
        until_ns = sent_ns + HELD_MS * _NS_PER_MS
        self._until_ns = until_ns if self._until_ns is None else max(self._until_ns, until_ns)

    def holds(self, now_ns: int) -> bool:
        """Return whether this broker may acknowledge at `now_ns`."""
        return self._until_ns is not None and now_ns < self._until_ns

    def left_ms(self, now_ns: int) -> int:
        """Return for how long it may go on, 0 when not at all."""
        return max(self._until_ns - now_ns, 0) // _NS_PER_MS if self._until_ns is not None else 0


class LeaseBook:
    """What the control leader granted, and when nobody can hold any of it any more."""

    def __init__(self) -> None:
        self._elected_ns: int | None = None
        self._granted_ns: dict[BrokerId, int] = {}

    def elected(self, now_ns: int) -> None:
        """Become control leader: what was granted before is unknown."""
        self._elected_ns = now_ns
        self._granted_ns.clear()

    def deposed(self) -> None:
        """Be leader no more."""
        self._elected_ns = None
        self._granted_ns.clear()

    def granted(self, broker: BrokerId, *, now_ns: int) -> None:
        """Grant a lease to one broker; the answer leaves now."""
        assert self._elected_ns is not None, broker
        if len(self._granted_ns) >= HOLDERS_MAX:
            self._forget_ended(now_ns)
        self._granted_ns[broker] = now_ns

    def newest_ns(self, region: RegionNumber) -> int | None:
        """Return when a broker of `region` last got one, None when none did since the election."""
        return max((at for broker, at in self._granted_ns.items() if region_of(broker) == region), default=None)

    def free_at_ns(self, region: RegionNumber) -> int | None:
        """Return from when on no broker of `region` holds a lease; None: not leader, nothing can be said."""
        if self._elected_ns is None:
            return None
        newest_ns = self.newest_ns(region)
        return max(self._elected_ns, newest_ns or self._elected_ns) + LEASE_MS * _NS_PER_MS

    def is_free(self, region: RegionNumber, now_ns: int) -> bool:
        """Return whether a new epoch may start although `region`, the home, has not answered."""
        free_at_ns = self.free_at_ns(region)
        return free_at_ns is not None and now_ns >= free_at_ns

    def _forget_ended(self, now_ns: int) -> None:
        ended_ns = now_ns - LEASE_MS * _NS_PER_MS
        self._granted_ns = {broker: at for broker, at in self._granted_ns.items() if at > ended_ns}
