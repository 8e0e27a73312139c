"""Requests as the live view counts them: at brokers, and apart from those at gateways, which see the same ones. Pure.

Rule 1: totals are exact. Minutes are there to be shown: they are never closed, and forgotten after WINDOW_S.
Rule 2: a row of a second that is not near the clock is in the totals only; so what is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

MINUTE_S: Final = 60
WINDOW_S: Final = 15 * MINUTE_S
MINUTE_ROWS_MAX: Final = 50_000

RequestKey = tuple[str, str, str]  # region, gateway ("": at its brokers), operation
RequestMinute = tuple[int, str, str, str]  # start in seconds since 1970, and a RequestKey


@dataclass(slots=True)
class RequestCounts:
    """What became of requests; `attempts` are all of them, `client_error` those that were refused for good reason."""

    attempts: int = 0
    ok: int = 0
    client_error: int = 0
    server_error: int = 0
    timeout: int = 0

    def add(self, other: RequestCounts) -> None:
        """Add what another counted."""
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> list[int]:
        """Return the numbers."""
        return [getattr(self, name) for name in NAMES]


NAMES: Final = tuple(each.name for each in fields(RequestCounts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """Requests of all batches (`totals`) and of the last minutes."""

    totals: Mapping[RequestKey, RequestCounts] = field(default_factory=dict)
    minutes: Mapping[RequestMinute, RequestCounts] = field(default_factory=dict)

    def after(self, batch: Mapping[RequestMinute, RequestCounts], *, now_s: int) -> RequestState:
        """Return the state after a batch."""
        totals: dict[RequestKey, RequestCounts] = {}
        minutes: dict[RequestMinute, RequestCounts] = {}
        for (minute_s, *key), counts in (*self.minutes.items(), *batch.items()):
            if abs(now_s - minute_s) <= WINDOW_S + MINUTE_S:
                minutes.setdefault((minute_s, *_key(key)), RequestCounts()).add(counts)
        for whole, counts in self.totals.items():
            totals.setdefault(whole, RequestCounts()).add(counts)
        for (_, *key), counts in batch.items():
            totals.setdefault(_key(key), RequestCounts()).add(counts)
        kept = sorted(minutes, reverse=True)[:MINUTE_ROWS_MAX]
        return RequestState(totals=totals, minutes={key: minutes[key] for key in sorted(kept)})

    def since(self, first_s: int) -> dict[RequestKey, RequestCounts]:
        """Return the requests of the minutes that end after a moment."""
        found: dict[RequestKey, RequestCounts] = {}
        for (minute_s, *key), counts in self.minutes.items():
            if minute_s + MINUTE_S > first_s:
                found.setdefault(_key(key), RequestCounts()).add(counts)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, in order."""
        return {
            "totals": [[*key, counts.to_json()] for key, counts in sorted(self.totals.items())],
            "minutes": [[*key, counts.to_json()] for key, counts in sorted(self.minutes.items())],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RequestState:
        """Read them back. Raises KeyError, TypeError, ValueError."""
        return cls(
            totals={_key(key): RequestCounts(*counts) for *key, counts in found["totals"]},
            minutes={(minute_s, *_key(key)): RequestCounts(*counts) for minute_s, *key, counts in found["minutes"]},
        )


def _key(words: Iterable[str]) -> RequestKey:
    region, gateway, operation = words
    return region, gateway, operation
