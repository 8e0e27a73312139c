"""The state of each directed pair of regions, in words: how records of one get to the other. Pure.

Rule 1: the mirror dials its home, so what the destination says of its connections decides whether there is one.
Rule 2: of several sessions the worst one is the pair's, with its cause; what both ends say of it is said once. What
        only the origin tells of is over (a home moved, its sessions stay listed), unless the destination is silent.
Rule 3: lag is the mirrors' own word while there is a connection, and what the home knows to be missing without one. Who
        lacks no record is behind by no time, whatever else is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.console.samples import BrokerSample, JsonObject, MeshSamples, rows_of
from gateway.routing.region_view_core import RankedRegion

# Of a session, the worst first.
WORST_FIRST: Final = ("diverged", "stalled", "lagging", "fenced", "connecting", "shipping", "idle")
_WORDS: Final = {
    "diverged": "holds other records than its home: a person must decide which are right",
    "stalled": "stands still: nothing arrives",
    "lagging": "behind",
    "fenced": "a home moves: sessions are opened again",
    "connecting": "opens its sessions",
    "shipping": "in step, records on their way",
    "idle": "in step",
}
_CAUSES: Final = {
    "network": "the network: sent, and not acknowledged in time",
    "throttled": "a limit of the brokers that send",
    "apply": "the brokers that store: they write slower than records come",
}
_GOOD: Final = frozenset({"idle", "shipping"})
_PASSING: Final = frozenset({"fenced", "connecting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One direction.

    Args:
        state: ok, passing (over in a moment), behind, cut, diverged, silent (one end says nothing), none (no streams).
        words: the state for a person. cause: why, "" where nothing is wrong.
        lag_ms, lag_records: of the stream that is furthest behind, and of all together; None: unknown.
        rtt_ms: measured round trip between the two; None: unknown.
    """

    origin: str
    dest: str
    state: str
    words: str
    cause: str
    lag_ms: float | None
    lag_records: int | None
    streams: int
    rtt_ms: float | None

    def to_json(self) -> JsonObject:
        """Return it for the overview; the floor is half the round trip: no record can be faster."""
        return {
            "origin": self.origin,
            "dest": self.dest,
            "state": self.state,
            "words": self.words,
            "cause": self.cause,
            "lag_ms": None if self.lag_ms is None else round(self.lag_ms, 1),
            "lag_records": self.lag_records,
            "streams": self.streams,
            "rtt_ms": self.rtt_ms,
            "floor_ms": None if self.rtt_ms is None else round(self.rtt_ms / 2, 2),
        }


def pairs_of(samples: MeshSamples) -> list[Pair]:
    """Return every directed pair, in the order of the regions' names."""
    regions = sorted(samples.regions, key=lambda region: region.name)
    rtts = round_trips_ms(samples)
    return [_pair(samples, origin, dest, rtts) for origin in regions for dest in regions if origin is not dest]


def round_trips_ms(samples: MeshSamples) -> dict[tuple[str, str], float]:
    """Return what brokers measured on their links, the least of both ends, by both orders of the names."""
    found: dict[tuple[str, str], float] = {}
    for region in samples.regions:
        for _, sample in samples.of_region(region):
            for row in rows_of(sample.clocks, "clocks"):
                other, rtt_us = str(row.get("region", "")), row.get("rtt_us")
                if other == region.name or not isinstance(rtt_us, int | float):
                    continue
                rtt_ms = round(float(rtt_us) / 1000, 2)
                for key in ((region.name, other), (other, region.name)):
                    found[key] = min(rtt_ms, found.get(key, rtt_ms))
    return found


def _pair(
    samples: MeshSamples, origin: RankedRegion, dest: RankedRegion, rtts: Mapping[tuple[str, str], float]
) -> Pair:
    here, there = list(samples.of_region(origin)), list(samples.of_region(dest))
    answers = {name: any(s.status is not None for _, s in rows) for name, rows in (("o", here), ("d", there))}
    mirrors = list(_sessions(there, "mirror", origin.number))
    named = {str(row.get("stream")) for row in mirrors}
    homes = [row for row in _sessions(here, "home", dest.number) if not answers["d"] or str(row.get("stream")) in named]
    sessions = [*homes, *mirrors]
    links = list(_links(there, origin.number))
    lag_records, lag_ms = _lag(sessions)
    state, words, cause = _judged(origin.name, dest.name, answers, links, sessions)
    if state in ("none", "silent") and not sessions:
        lag_records, lag_ms = (0, 0.0) if state == "none" else (None, None)
    return Pair(
        origin=origin.name,
        dest=dest.name,
        state=state,
        words=words,
        cause=cause,
        lag_ms=lag_ms,
        lag_records=lag_records,
        streams=len({str(row.get("stream")) for row in sessions}),
        rtt_ms=rtts.get((origin.name, dest.name)),
    )


def _judged(
    origin: str, dest: str, answers: Mapping[str, bool], links: list[JsonObject], sessions: list[JsonObject]
) -> tuple[str, str, str]:
    """Return (state, words, cause)."""
    if not answers["d"]:
        return "silent", "not known", f"no broker of {dest} answers this gateway"
    if links and not any(link.get("open") for link in links):
        why = next((str(link["last_failure"]) for link in links if link.get("last_failure")), "no reason is known")
        return "cut", "no connection", f"{dest} cannot reach {origin}: {why}"
    if not answers["o"] and not links:
        return "silent", "not known", f"no broker of {origin} answers this gateway"
    if not sessions:
        return "none", "no streams yet", ""
    states = [str(row.get("state")) for row in sessions]
    worst = next((state for state in WORST_FIRST if state in states), "connecting")
    causes = sorted({str(r.get("cause")) for r in sessions if r.get("state") == worst and r.get("cause")})
    cause = "; ".join(_CAUSES.get(name, name) for name in causes)
    if worst in _GOOD:
        return "ok", _WORDS[worst], ""
    if worst in _PASSING:
        return "passing", _WORDS[worst], cause
    return ("diverged" if worst == "diverged" else "behind"), _WORDS[worst], cause


def _lag(sessions: Iterable[JsonObject]) -> tuple[int | None, float | None]:
    """Return (records behind in all, ms of the worst); of each stream the larger word of its two ends."""
    records: dict[str, int] = {}
    lag_ms: float | None = None
    for row in sessions:
        stream = str(row.get("stream"))
        records[stream] = max(records.get(stream, 0), int(row.get("lag_records", 0)))
        lag_ms = max(lag_ms or 0.0, float(row.get("lag_ms", 0.0)) if row.get("lag_records") else 0.0)
    return (sum(records.values()) if records else None), lag_ms


def _sessions(rows: list[tuple[int, BrokerSample]], role: str, region: int) -> Iterator[JsonObject]:
    """Yield the sessions that brokers have with a region; one that answers no more has none."""
    seen: set[str] = set()
    for _, sample in rows:
        for row in rows_of(sample.status, "links"):
            if row.get("role") == role and row.get("region") == region and row.get("stream") not in seen:
                seen.add(str(row.get("stream")))
                yield row


def _links(rows: list[tuple[int, BrokerSample]], region: int) -> Iterator[dict[str, Any]]:
    """Yield the connections to a region that brokers dialled, of the newest answer that has some."""
    for _, sample in rows:
        found = [r for r in rows_of(sample.status, "links") if "role" not in r and r.get("region") == region]
        if found:
            yield from found
            return
