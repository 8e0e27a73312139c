"""How long an address waits after failed sign-ins, and how many may wait at a time.

Rule 1: the first FREE failures cost nothing more than their answer; each further one doubles the wait before the next
        password is looked at, up to DELAY_S_MAX. One failure is forgotten every FORGET_S.
Rule 2: nobody is locked out: behind one address there may be many who know their password.
Rule 3: at most WAITING_MAX sign-ins of an address that waits are kept waiting, others are refused at once.
Rule 4: at most ADDRESSES_MAX addresses are known; the one that failed longest ago is forgotten first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FREE: Final = 5
DELAY_S: Final = 0.1
DELAY_S_MAX: Final = 2.0
FORGET_S: Final = 5.0
FAILURES_MAX: Final = 20
ADDRESSES_MAX: Final = 10_000
WAITING_MAX: Final = 16


@dataclass(slots=True)
class _Address:
    failures: float = 0.0
    since_s: float = 0.0
    waiting: int = 0


class SignInFailures:
    """Failures by address; times are monotonic seconds."""

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}

    def __len__(self) -> int:
        """Return how many addresses are known."""
        return len(self._addresses)

    def begin(self, host: str, now_s: float) -> float | None:
        """Count a sign-in that begins; return how long it has to wait (s), None when too many wait already."""
        address = self._addresses.get(host)
        if address is None:
            address = self._enter(host, now_s)
        over = int(self._decayed(address, now_s)) - FREE
        if over >= 0 and address.waiting >= WAITING_MAX:
            return None
        address.waiting += 1
        return 0.0 if over < 0 else min(DELAY_S * 2.0**over, DELAY_S_MAX)

    def end(self, host: str, now_s: float, *, has_failed: bool) -> None:
        """Count a sign-in that `begin` let pass as ended."""
        address = self._addresses.get(host)
        if address is None:  # forgotten meanwhile
            return
        address.waiting = max(0, address.waiting - 1)
        failures = self._decayed(address, now_s) + has_failed
        if failures <= 0 and address.waiting == 0:
            del self._addresses[host]
            return
        address.failures, address.since_s = min(failures, FAILURES_MAX), now_s
        if has_failed:
            self._addresses[host] = self._addresses.pop(host)  # now the newest

    def _enter(self, host: str, now_s: float) -> _Address:
        while len(self._addresses) >= ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        address = self._addresses[host] = _Address(since_s=now_s)
        return address

    @staticmethod
    def _decayed(address: _Address, now_s: float) -> float:
        return max(0.0, address.failures - (now_s - address.since_s) / FORGET_S)
