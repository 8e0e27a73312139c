"""What the live view knows after a batch: open minutes, totals, how new every stream is. Pure: state + batch -> state.

Rule 1: a state is made of the state before and one batch and nothing else: a batch that is done again makes it again.
Rule 2: a minute is closed when the watermark is behind its end. Its row then stands for ever: rows that come later are
        late. They are in no minute, and in the totals.
Rule 3: the watermark is `delay_s` behind the newest row of the slowest stream (broker and kind) that the batch had rows
        of: whoever is silent holds nothing back, whoever catches up does. It never goes back, and never ahead of the
        clock.
Rule 4: not more than OPEN_ROWS_MAX rows are open: the oldest minutes are closed before their time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from georelay.trace.histogram import merge
from sla.live.requests_core import RequestCounts, RequestMinute, RequestState

STATE_VERSION: Final = 1
MINUTE_S: Final = 60
WINDOW_S: Final = 15 * MINUTE_S  # of closed minutes that are still shown
OPEN_ROWS_MAX: Final = 50_000
_SUMS: Final = ("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "lat_sum_us", "probes_ok", "probes_bad")

Pair = tuple[str, str]
MinuteKey = tuple[int, str, str]  # start in seconds since 1970, origin, dest


@dataclass(slots=True)
class Counts:
    """What is counted of one pair: records from publish to delivery, and probes.

    Attributes:
        n, n_good, n_good_lo, n_good_hi: records; in time as measured, surely, perhaps.
        n_clock_unknown: records whose clocks nothing is known of: none of them is surely in time, all are perhaps.
        hist: bucket -> records, on the grid of georelay.trace.histogram.
    """

    n: int = 0
    n_good: int = 0
    n_good_lo: int = 0
    n_good_hi: int = 0
    n_clock_unknown: int = 0
    lat_sum_us: int = 0
    lat_max_us: int = 0
    probes_ok: int = 0
    probes_bad: int = 0
    hist: dict[int, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Add what another counted."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lat_max_us = max(self.lat_max_us, other.lat_max_us)
        merge(self.hist, other.hist.items())

    def copy(self) -> Counts:
        """Return another with the same numbers."""
        return replace(self, hist=dict(self.hist))

    def to_json(self) -> list[Any]:
        """Return the numbers."""
        return [*(getattr(self, name) for name in _SUMS), self.lat_max_us, sorted(self.hist.items())]

    @classmethod
    def from_json(cls, found: list[Any]) -> Counts:
        """Read them back."""
        *sums, lat_max_us, hist = found
        return cls(**dict(zip(_SUMS, sums, strict=True)), lat_max_us=lat_max_us, hist=dict(hist))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """What one batch holds.

    Args:
        rows: by kind. newest_s: (region/broker, kind) -> newest row's moment, seconds since 1970.
        minutes: on time; late: by pair, of minutes that were closed.
        late_rows: rows of the traces that `late` was made of.
        requests: by minute and place; none of them is late.
    """

    rows: Mapping[str, int]
    newest_s: Mapping[tuple[str, str], int]
    minutes: Mapping[MinuteKey, Counts]
    late: Mapping[Pair, Counts]
    late_rows: int = 0
    requests: Mapping[RequestMinute, RequestCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """See the module.

    Args:
        batch: number of the last batch, -1 before the first.
        watermark_s: minutes that end at or before it are closed; 0 before the first batch.
        rows: rows read, by kind. late_rows: those that were late.
        newest_s: region/broker -> kind -> newest row's moment.
        minutes: open ones, and closed ones of the last WINDOW_S.
        totals: of every row, late ones too, without histograms. late: those of late rows.
    """

    batch: int = -1
    watermark_s: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    late_rows: int = 0
    newest_s: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    minutes: Mapping[MinuteKey, Counts] = field(default_factory=dict)
    totals: Mapping[Pair, Counts] = field(default_factory=dict)
    late: Mapping[Pair, Counts] = field(default_factory=dict)
    requests: RequestState = field(default_factory=RequestState)

    def is_closed(self, minute_s: int) -> bool:
        """Return whether a minute takes no more rows."""
        return minute_s + MINUTE_S <= self.watermark_s

    def encode(self) -> bytes:
        """Return the state's bytes."""
        return json.dumps(
            {
                "state_version": STATE_VERSION,
                "batch": self.batch,
                "watermark_s": self.watermark_s,
                "rows": dict(self.rows),
                "late_rows": self.late_rows,
                "newest_s": {name: dict(kinds) for name, kinds in self.newest_s.items()},
                "minutes": [[*key, counts.to_json()] for key, counts in sorted(self.minutes.items())],
                "totals": [[*pair, counts.to_json()] for pair, counts in sorted(self.totals.items())],
                "late": [[*pair, counts.to_json()] for pair, counts in sorted(self.late.items())],
                "requests": self.requests.to_json(),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, raw: bytes) -> LiveState:
        """Read a state back.

        Raises:
            ValueError: it is none of this version.
        """
        try:
            found = json.loads(raw)
            if found.pop("state_version") != STATE_VERSION:
                raise ValueError("it was written by another version")
            minutes = {(minute, origin, dest): Counts.from_json(c) for minute, origin, dest, c in found.pop("minutes")}
            totals, late = (
                {(origin, dest): Counts.from_json(c) for origin, dest, c in found.pop(name)}
                for name in ("totals", "late")
            )
            # A state that was written before requests were counted has none.
            requests = RequestState.from_json(found.pop("requests")) if "requests" in found else RequestState()
            return cls(minutes=minutes, totals=totals, late=late, requests=requests, **found)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def advance(
    before: LiveState, batch: BatchCounts, *, number: int, now_s: int, delay_s: int
) -> tuple[LiveState, dict[MinuteKey, Counts]]:
    """Return the state after a batch and the minutes that it closed, in no order.

    Args:
        number: of the batch.
        now_s: wall clock, seconds since 1970: no watermark is ahead of it.
        delay_s: how long a minute waits for late rows.
    """
    minutes = {key: counts.copy() for key, counts in before.minutes.items()}
    totals = {pair: counts.copy() for pair, counts in before.totals.items()}
    late = {pair: counts.copy() for pair, counts in before.late.items()}
    for key, counts in batch.minutes.items():
        assert not before.is_closed(key[0]), f"minute {key} was closed before batch {number}"
        minutes.setdefault(key, Counts()).add(counts)
        _sum(totals, key[1:], counts)
    for pair, counts in batch.late.items():
        _sum(late, pair, counts)
        _sum(totals, pair, counts)
    open_keys = [key for key in minutes if not before.is_closed(key[0])]
    watermark_s = max(before.watermark_s, _watermark_s(batch, now_s=now_s, delay_s=delay_s), _cut_s(open_keys))
    after = LiveState(
        batch=number,
        watermark_s=watermark_s,
        rows=_added(before.rows, batch.rows),
        late_rows=before.late_rows + batch.late_rows,
        newest_s=_newest(before.newest_s, batch.newest_s),
        minutes={key: counts for key, counts in minutes.items() if key[0] + WINDOW_S > watermark_s},
        totals=totals,
        late=late,
        requests=before.requests.after(batch.requests, now_s=now_s),
    )
    return after, {key: minutes[key] for key in open_keys if after.is_closed(key[0])}


def _watermark_s(batch: BatchCounts, *, now_s: int, delay_s: int) -> int:
    newest_s = [moment_s for (_, kind), moment_s in batch.newest_s.items() if kind in MINUTE_KINDS]
    return min([*newest_s, now_s]) - delay_s if newest_s else 0


MINUTE_KINDS: Final = frozenset({"latency_hist", "probe"})  # kinds that minutes are made of


def _cut_s(open_keys: list[MinuteKey]) -> int:
    """Return what the watermark must be, that not more than OPEN_ROWS_MAX rows stay open."""
    if len(open_keys) <= OPEN_ROWS_MAX:
        return 0
    return sorted(minute_s for minute_s, _, _ in open_keys)[len(open_keys) - OPEN_ROWS_MAX - 1] + MINUTE_S


def _sum(into: dict[Pair, Counts], pair: Iterable[str], counts: Counts) -> None:
    origin, dest = pair
    into.setdefault((origin, dest), Counts()).add(replace(counts, hist={}))


def _added(before: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {kind: before.get(kind, 0) + more.get(kind, 0) for kind in sorted({*before, *more})}


def _newest(before: Mapping[str, Mapping[str, int]], more: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found = {name: dict(kinds) for name, kinds in before.items()}
    for (name, kind), moment_s in more.items():
        kinds = found.setdefault(name, {})
        kinds[kind] = max(kinds.get(kind, 0), moment_s)
    return found
