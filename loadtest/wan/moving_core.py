"""What clients' diaries say: how long nothing came around a cut, what was lost or came twice, who moved when. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.quantile_core import quantile

PERIOD_S = 25.0  # around a cut; the next one comes later


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a diary."""

    kind: str
    what: str
    at_ns: int
    value: str


def silence_s(times_ns: Sequence[int], cut_ns: int) -> float | None:
    """Return the longest time between two events of which the second came after a cut, within PERIOD_S of it.

    None: for a longer time than that nothing came until PERIOD_S was over. What was on its way still comes.
    """
    until_ns = cut_ns + int(PERIOD_S * 1e9)
    times = [at_ns for at_ns in sorted(times_ns) if at_ns <= until_ns]
    gaps = [(after - before) / 1e9 for before, after in pairwise(times) if after > cut_ns]
    longest = max(gaps, default=None)
    return None if longest is None or (until_ns - times[-1]) / 1e9 > longest else longest


def silences(events: Iterable[Event], cuts_ns: Mapping[int, set[str]]) -> dict[tuple[str, str], list[float | None]]:
    """Return by kind of client, and what came, how long nothing did around each cut that met this kind."""
    times: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event.what in ("acked", "read"):
            times.setdefault((event.kind, event.what), []).append(event.at_ns)
    return {
        (kind, what): [silence_s(found, cut_ns) for cut_ns, met in cuts_ns.items() if kind in met]
        for (kind, what), found in times.items()
    }


def silence_row(kind: str, what: str, found: Sequence[float | None]) -> str:
    """Return a line of the table."""
    came = [seconds for seconds in found if seconds is not None]
    ends = f", {len(found) - len(came)} without end" if len(came) < len(found) else ""
    if not came:
        return f"  {kind:16} {what:5} no cut met it{ends}"
    middle, late = quantile(came, 0.5), quantile(came, 0.99)
    return (
        f"  {kind:16} {what:5} {len(found):3} cuts: p50 {middle:.2f} s, p99 {late:.2f} s, most {max(came):.2f} s{ends}"
    )


def lost(events: Iterable[Event], stored: Counter[str]) -> set[str]:
    """Return what was acknowledged and is not stored."""
    return {event.value for event in events if event.what == "acked"} - stored.keys()


def kept_row(kind: str, events: Iterable[Event], stored: Counter[str]) -> str:
    """Return what became of the records of one kind of client, and of all records at its reader."""
    rows = [event for event in events if event.kind == kind]
    acked = {event.value for event in rows if event.what == "acked"}
    read = Counter(event.value for event in rows if event.what == "read")
    gone = len(lost(rows, stored))
    twice = sum(count - 1 for value, count in stored.items() if value.startswith(f"{kind} "))
    failed = sum(event.what == "failed" for event in rows)
    missing = sum(value not in read for value in stored)
    again = sum(count - 1 for count in read.values())
    return (
        f"  {kind:16} {len(acked)} acknowledged, {gone} lost, {twice} stored twice, {failed} of unknown outcome; "
        f"read {len(read)} of {len(stored)}, {missing} missing, {again} twice"
    )


def moves(events: Iterable[Event], since_ns: int) -> dict[str, list[tuple[float, str]]]:
    """Return by follower when it moved, in seconds since a moment, and to which region."""
    found: dict[str, list[tuple[float, str]]] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        if event.kind == "followers" and event.at_ns > since_ns:
            name, region = event.value.split(" ")
            found.setdefault(name, []).append(((event.at_ns - since_ns) / 1e9, region))
    return found


def regions_at(events: Iterable[Event], at_ns: int) -> Counter[str]:
    """Return how many followers are in each region at a moment."""
    latest: dict[str, str] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        if event.kind == "followers" and event.at_ns <= at_ns:
            name, region = event.value.split(" ")
            latest[name] = region
    return Counter(latest.values())
