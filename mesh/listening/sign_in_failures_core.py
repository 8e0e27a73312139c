"""How long a sign-in waits after failed ones, and how many may wait at a time.

Rule 1: failures count for the name that was tried from an address: of one name the first FREE cost nothing more than
        their answer, each further one doubles the wait before the next password is looked at, up to DELAY_S_MAX. One
        failure is forgotten every FORGET_S.
Rule 2: they count for the address as well, where FREE_OF_ADDRESS are free: who tries one name after the other waits
        too, and a neighbour at the same address who mistypes a few times keeps nobody else waiting.
Rule 3: nobody is refused for what others did: behind one address there may be many who know their password.
Rule 4: at most WAITING_MAX sign-ins that have to wait are kept waiting, of a name or an address; more are refused.
        Where a try costs much, those that need not wait are bounded as well (`bounds_free`), WAITING_MAX of a name and
        FREE_OF_ADDRESS of an address: what comes all at once has begun before the first of it has failed.
Rule 5: at most ROWS_MAX rows are known; the one that failed longest ago is forgotten first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FREE: Final = 5
FREE_OF_ADDRESS: Final = 100
DELAY_S: Final = 0.1
DELAY_S_MAX: Final = 2.0
FORGET_S: Final = 5.0
OVER_MAX: Final = 15  # failures beyond the free ones that are counted
ROWS_MAX: Final = 20_000
WAITING_MAX: Final = 16

_Key = tuple[str, str | None]  # an address and a name; None for all names


@dataclass(slots=True)
class _Row:
    free: int
    free_at_once: int | None  # None: any number
    failures: float = 0.0
    since_s: float = 0.0
    waiting: int = 0

    def over(self, now_s: float) -> int:
        """Return how many failures beyond the free ones there are; below 0 while some are free."""
        return int(self.decayed(now_s)) - self.free

    def decayed(self, now_s: float) -> float:
        return max(0.0, self.failures - (now_s - self.since_s) / FORGET_S)

    def is_full(self, now_s: float) -> bool:
        """Return whether no further sign-in may begin."""
        most = self.free_at_once if self.over(now_s) < 0 else WAITING_MAX
        return most is not None and self.waiting >= most


class SignInFailures:
    """Failures by address and name; times are monotonic seconds. `bounds_free`: see rule 4."""

    def __init__(self, *, bounds_free: bool = False) -> None:
        self._bounds_free = bounds_free
        self._rows: dict[_Key, _Row] = {}

    def __len__(self) -> int:
        """Return how many rows are known."""
        return len(self._rows)

    def begin(self, address: str, name: str, now_s: float) -> float | None:
        """Count a sign-in that begins; return how long it has to wait (s), None when too many wait already."""
        rows = [self._row((address, name), now_s), self._row((address, None), now_s)]
        if any(row.is_full(now_s) for row in rows):
            return None
        for row in rows:
            row.waiting += 1
        over = max(row.over(now_s) for row in rows)
        return 0.0 if over < 0 else min(DELAY_S * 2.0**over, DELAY_S_MAX)

    def end(self, address: str, name: str, now_s: float, *, has_failed: bool) -> None:
        """Count a sign-in that `begin` let pass as ended."""
        for key in ((address, name), (address, None)):
            row = self._rows.get(key)
            if row is None:  # forgotten meanwhile
                continue
            row.waiting = max(0, row.waiting - 1)
            failures = row.decayed(now_s) + has_failed
            if failures <= 0 and row.waiting == 0:
                del self._rows[key]
                continue
            row.failures, row.since_s = min(failures, row.free + OVER_MAX), now_s
            if has_failed:
                self._rows[key] = self._rows.pop(key)  # now the newest

    def _row(self, key: _Key, now_s: float) -> _Row:
        row = self._rows.get(key)
        if row is None:
            while len(self._rows) >= ROWS_MAX:
                del self._rows[next(iter(self._rows))]
            free, at_once = (FREE_OF_ADDRESS, FREE_OF_ADDRESS) if key[1] is None else (FREE, WAITING_MAX)
            row = self._rows[key] = _Row(free, at_once if self._bounds_free else None, since_s=now_s)
        return row
