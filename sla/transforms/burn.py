"""Burn-rate windows over minute counts, by running sums on a dense grid of minutes. Arrow in, plain values out.

Counts have one row per (target, a, b, ts_s): `total` events of a subject (a, b) in that minute and the `bad` ones, and
`allowed`, the bad share that the target allows. Minutes without a row have no events; they are filled in, because then
a window is the difference of two running sums that lie a fixed number of rows apart.

This is done here and not by Spark: a subject's minutes are arrays of some 50,000 numbers, and all windows of all of
them take less time than Spark needs to plan one.

A window is covered when the subject's first event is at least its length old. Minutes without events inside it do not
count against that: an outage leaves them too, and must not silence its own alert. Only a covered window can be on: the
rates of the rules are shares of a budget spent in the whole window, and of a part nobody knows the rest. Counts begin
the longest window before the period; of a subject that was idle then, `is_unsure` says that its age matters, and who
knows of older events names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sla.tables import MINUTE_S
from sla.targets import BurnRule

SUBJECT: Final = ["target", "a", "b"]
_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Minutes:
    """Every minute of a subject from its first row to the end of the period."""

    first_s: int
    allowed: float
    total: _Counts
    bad: _Counts
    is_older: bool = False

    def window(self, counts: _Counts, minutes: int) -> _Counts:
        """Return the sums over the last `minutes` minutes at the end of every minute."""
        sums = np.cumsum(counts)
        sums[minutes:] -= sums[:-minutes].copy()
        return sums


def burn_alerts(
    counts: Any,
    rules: Sequence[BurnRule],
    *,
    start_s: int,
    end_s: int,
    events_min: int,
    older: Collection[tuple[str, ...]] = (),
) -> list[dict[str, Any]]:
    """Return one value per (target, a, b, rule), in this order, with the alert's state at the end and over the period.

    Keys: long_bad, long_total, short_bad, short_total at `end_s`; covered_minutes (of the long window then, its
    length at most); firing_minutes; worst_rate, worst_s (when the highest rate of a covered window was, first of
    equals; None when none was covered and had enough events); is_unsure (a window with bad events was not covered).

    Args:
        counts: Arrow table; may begin before `start_s`: what lies before fills the windows.
        start_s, end_s: the period is [start_s, end_s), whole minutes, seconds since 1970.
        events_min: events in the long window before the alert may be on, 1 at least.
        older: subjects (target, a, b) with events before the longest window before the period.
    """
    alerts = [
        dict(zip(SUBJECT, subject, strict=True))
        | {"rule": rule.name}
        | _alert(minutes, rule, start_s=start_s, events_min=events_min)
        for subject, minutes in _subjects(counts, end_s=end_s, older=older)
        for rule in rules
    ]
    return sorted(alerts, key=lambda alert: (*(alert[name] for name in SUBJECT), alert["rule"]))


def _subjects(
    counts: Any, *, end_s: int, older: Collection[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], _Minutes]]:
    """Yield every subject that has a row before the end, with its minutes."""
    ts_s, total, bad, allowed = (
        counts[name].fill_null(0).to_numpy(zero_copy_only=False) for name in ("ts_s", "total", "bad", "allowed")
    )
    names, numbers = zip(*(_encoded(counts[name]) for name in SUBJECT), strict=True)
    of_subject = np.ravel_multi_index(numbers, [max(1, len(known)) for known in names])
    order = np.argsort(of_subject, kind="stable")
    order = order[ts_s[order] < end_s]
    borders = np.flatnonzero(np.diff(of_subject[order])) + 1
    for rows in np.split(order, borders):
        if not len(rows):
            continue
        first_s = int(ts_s[rows].min())
        at = (ts_s[rows] - first_s) // MINUTE_S
        in_total, in_bad = (np.zeros((end_s - first_s) // MINUTE_S, np.int64) for _ in range(2))
        np.add.at(in_total, at, total[rows])
        np.add.at(in_bad, at, bad[rows])
        subject = tuple(known[number[rows[0]]] for known, number in zip(names, numbers, strict=True))
        yield subject, _Minutes(first_s, float(allowed[rows].max()), in_total, in_bad, is_older=subject in older)


def _encoded(column: Any) -> tuple[list[str], _Counts]:
    """Return the values of a column of texts, and of each row which of them it is."""
    found = column.combine_chunks().dictionary_encode()
    return found.dictionary.to_pylist(), found.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _alert(minutes: _Minutes, rule: BurnRule, *, start_s: int, events_min: int) -> dict[str, Any]:
    """Return one rule's state over the minutes of a subject; rates count where the long window says enough."""
    windows = {
        f"{window}_{name}": minutes.window(counts, length)
        for window, length in (("long", rule.long_minutes), ("short", rule.short_minutes))
        for name, counts in (("bad", minutes.bad), ("total", minutes.total))
    }
    long_bad, long_total = windows["long_bad"], windows["long_total"]
    age_minutes = np.arange(1, len(minutes.total) + 1)
    starts_s = minutes.first_s + MINUTE_S * (age_minutes - 1)
    is_covered = minutes.is_older | (age_minutes >= rule.long_minutes)
    is_telling = (starts_s >= start_s) & (long_total >= events_min) & is_covered
    limit = rule.rate * minutes.allowed
    is_firing = (long_bad > limit * long_total) & (windows["short_bad"] > limit * windows["short_total"])
    telling = np.flatnonzero(is_telling)
    rates = long_bad[telling] / long_total[telling] / minutes.allowed
    worst = int(rates.argmax()) if len(rates) else None  # the first of equals
    return {name: int(sums[-1]) for name, sums in windows.items()} | {
        "covered_minutes": rule.long_minutes if minutes.is_older else min(rule.long_minutes, len(age_minutes)),
        "firing_minutes": int(np.count_nonzero(is_telling & is_firing)),
        "worst_rate": None if worst is None else float(rates[worst]),
        "worst_s": None if worst is None else int(starts_s[telling[worst]]) + MINUTE_S,
        "is_unsure": bool(np.any((starts_s >= start_s) & (long_bad > 0) & ~is_covered)),
    }
