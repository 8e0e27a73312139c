"""What GET /v1/status of the gateway says: the streams of all regions, and first of all what is out of order. Pure.

Rule 1: a broker that does not answer hides nothing: a home that nobody tells of is shown, as one that does not answer.
Rule 2: a trouble is one line, however many partitions have it, and names what to do where there is one thing to do.
Rule 3: what follows from a trouble is none of its own: a region that is down has no leaders, and nobody knows how far
        its mirrors are behind. Nor is the silence of a home that has left the mesh: what is there is everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

JsonObject = dict[str, Any]
INTERNAL_PREFIX: Final = "__georelay"  # of topics that brokers made for themselves
NO_LEADER: Final = "-"
UNKNOWN: Final = "?"
LAG_MS_MAX: Final = 5_000.0
NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLine:
    """One stream in one region, as its in-region leader reports it; `home` names the sequencing region.

    `trouble` is what is out of order with it, "" for nothing.
    """

    topic: str
    partition: int
    home: str
    region: str
    leader: str
    role: str
    epoch: str
    high_watermark: str
    lag: str
    lag_ms: float | None = None
    trouble: str = ""

    @property
    def is_internal(self) -> bool:
        """Return whether brokers made it for themselves."""
        return self.topic.startswith(INTERNAL_PREFIX)

    @property
    def name(self) -> str:
        """Return topic and partition."""
        return f"{self.topic}/{self.partition}"


def stream_lines(document: JsonObject, *, lag_ms_max: float = LAG_MS_MAX) -> list[StreamLine]:
    """Return one line per stream and region, those with troubles first, then by name."""
    led: dict[tuple[str, int, str, str], StreamLine] = {}
    down = set(_regions_down(document))
    for region, broker in brokers_of(document):
        for stream in _status(broker).get("streams") or ():
            line = _line(region, broker, stream, lag_ms_max=lag_ms_max, home_is_down=stream.get("home") in down)
            key = (line.topic, line.partition, line.home, line.region)
            if line.leader != NO_LEADER or key not in led:
                led[key] = line
    for topic, partition, home, _ in list(led):
        if home in down:
            led[topic, partition, home, home] = _silent_home(topic, partition, home)
    return sorted(led.values(), key=lambda line: (not line.trouble, line.topic, line.partition, line.home, line.region))


def brokers_of(document: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield (region, broker) as the gateway reports them."""
    for region in document.get("regions") or ():
        for broker in region.get("brokers") or ():
            yield str(region.get("region", "")), broker


def troubles(document: JsonObject, *, lag_ms_max: float = LAG_MS_MAX) -> list[str]:
    """Return what is out of order in the mesh, the worst first; empty: nothing that this can see."""
    down = _regions_down(document)
    lines = stream_lines(document, lag_ms_max=lag_ms_max)
    found: list[str] = []
    for region, brokers in down.items():
        homes = _counted([line for line in lines if line.region == line.home == region])
        why = _short(f"{broker['id']}: {_reason(broker)}" for broker in brokers)
        found.append(
            f"region {region} does not answer ({why}); its homes take no records ({homes}); if it is lost: "
            f"georelay home failover --region {region}"
        )
    for region, broker in brokers_of(document):
        if region in down:
            continue
        if not _answers(broker):
            found.append(f"broker {broker['id']} of region {region} does not answer ({_reason(broker)})")
        elif not broker.get("status"):
            found.append(f"broker {broker['id']} of region {region} does not tell its state ({_reason(broker)})")
        elif not _status(broker).get("ready", broker.get("ready")):
            found.append(f"broker {broker['id']} of region {region} is not ready: it hears no leader of its region")
        elif not broker.get("ready"):
            found.append(f"broker {broker['id']} of region {region} is ready, and not used by the gateway yet")
    found += _stream_troubles(lines, down)
    return found


def _stream_troubles(lines: Sequence[StreamLine], down: Iterable[str]) -> Iterator[str]:
    down = set(down)
    for region in sorted({line.region for line in lines} - down):
        leaderless = [line for line in lines if line.region == region and line.leader == NO_LEADER]
        if leaderless:
            yield f"region {region}: no leader that answers for {_counted(leaderless)}: {_names(leaderless)}"
        late = [line for line in lines if line.region == region and line.trouble and line not in leaderless]
        if late:
            known = [line.lag_ms for line in late if line.lag_ms is not None]
            worst = f" by up to {max(known):,.0f} ms" if known else ""
            yield f"region {region}: behind the home{worst} with {_counted(late)}: {_names(late)}"


def totals(document: JsonObject, lines: Sequence[StreamLine]) -> str:
    """Return one line with how much there is."""
    brokers = [broker for _, broker in brokers_of(document)]
    ready = sum(1 for broker in brokers if broker.get("ready"))
    shown = {(line.topic, line.partition, line.home) for line in lines if not line.is_internal}
    internal = {(line.topic, line.partition, line.home) for line in lines if line.is_internal}
    topics = {topic for topic, _, _ in shown}
    return (
        f"{_many(len(document.get('regions') or ()), 'region')}, {ready} of {_many(len(brokers), 'broker')} ready, "
        f"{_many(len(topics), 'topic')} with {_many(len(shown), 'stream')}, {len(internal)} internal"
    )


def _line(region: str, broker: JsonObject, stream: JsonObject, *, lag_ms_max: float, home_is_down: bool) -> StreamLine:
    home_high_watermark = int(stream.get("home_high_watermark", -1))
    high_watermark = int(stream.get("high_watermark", 0))
    leader = str(broker.get("id", "")) if stream.get("is_leader") else NO_LEADER
    lag, trouble = "", "no leader" if leader == NO_LEADER else ""
    lag_ms: float | None = None
    if not stream.get("is_home"):
        lag = UNKNOWN
        if home_high_watermark >= 0:
            lag_ms = float(stream.get("lag_ms", 0))
            lag = f"{max(0, home_high_watermark - high_watermark)} ({lag_ms:.0f} ms)"
        is_awaited = not home_is_down and not stream.get("home_left")
        if not trouble and is_awaited and (lag_ms is None or lag_ms > lag_ms_max):
            trouble = "behind" if lag_ms is not None else "hears nothing of its home"
    return StreamLine(
        topic=str(stream.get("topic", "")),
        partition=int(stream.get("partition", 0)),
        home=str(stream.get("home", "")),
        region=region,
        leader=leader,
        role="home" if stream.get("is_home") else "mirror",
        epoch=str(stream.get("epoch", "")),
        high_watermark=str(high_watermark),
        lag=lag,
        lag_ms=lag_ms,
        trouble=trouble,
    )


def _silent_home(topic: str, partition: int, home: str) -> StreamLine:
    return StreamLine(
        topic=topic,
        partition=partition,
        home=home,
        region=home,
        leader=NO_LEADER,
        role="home",
        epoch=UNKNOWN,
        high_watermark=UNKNOWN,
        lag="",
        trouble="does not answer",
    )


def _regions_down(document: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the regions of which no broker answers, with their brokers."""
    by_region: dict[str, list[JsonObject]] = {}
    for region, broker in brokers_of(document):
        by_region.setdefault(region, []).append(broker)
    return {region: brokers for region, brokers in by_region.items() if not any(map(_answers, brokers))}


def _answers(broker: JsonObject) -> bool:
    return bool(broker.get("status")) or bool(broker.get("ready")) or str(broker.get("error", "")).startswith("HTTP ")


def _status(broker: JsonObject) -> JsonObject:
    return broker.get("status") or {}


def _reason(broker: JsonObject) -> str:
    lines = str(broker.get("error", "")).splitlines()
    return lines[0] if lines else "no reason is known"


def _counted(lines: Sequence[StreamLine]) -> str:
    internal = sum(line.is_internal for line in lines)
    own = len(lines) - internal
    return _many(own, "stream") + (f", {internal} internal" if internal else "")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _names(lines: Sequence[StreamLine]) -> str:
    return _short(line.name for line in sorted(lines, key=lambda line: (line.is_internal, line.topic, line.partition)))


def _short(texts: Iterable[str]) -> str:
    """Return the first few of many."""
    named = list(texts)
    more = len(named) - NAMED_MAX
    return ", ".join(named[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
