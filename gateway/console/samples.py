"""What the collector heard from brokers, and how to read it: values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.routing.region_view_core import RankedRegion

JsonObject = dict[str, Any]
NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """The last answer of one broker.

    Args:
        at_ns: when it came, or did not come (monotonic). status: GET /v1/status, None: it did not answer, and `error`
            says why. clocks: GET /v1/clocks, of this or of an earlier moment.
        last_status: the newest answer there ever was; last_at_ns: when it came.
        rates: user records per second that its streams got since the answer before, by (topic, partition, home).
    """

    at_ns: int
    status: JsonObject | None
    error: str = ""
    clocks: JsonObject | None = None
    last_status: JsonObject | None = None
    last_at_ns: int = 0
    rates: Mapping[tuple[str, int, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSamples:
    """All that an overview is made of.

    Args:
        regions: as the gateway ranks them. brokers: by id; one that was not asked yet has none.
        control: GET /v1/control of some broker. homes: rows of GET /v1/homes. live: live.json of `georelay-sla live`.
        now_ns: monotonic; now_s: wall clock, seconds since 1970.
    """

    mesh: str
    regions: tuple[RankedRegion, ...]
    brokers: Mapping[int, BrokerSample]
    control: JsonObject | None = None
    homes: list[JsonObject] = field(default_factory=list)
    live: JsonObject | None = None
    now_ns: int = 0
    now_s: float = 0.0

    def of_region(self, region: RankedRegion) -> Iterator[tuple[int, BrokerSample]]:
        """Yield (id, sample) of the brokers of a region that were asked, the newest first."""
        found = [
            (b.endpoints.id, self.brokers[b.endpoints.id]) for b in region.brokers if b.endpoints.id in self.brokers
        ]
        found.sort(key=lambda pair: -pair[1].at_ns)
        yield from ((int(broker), sample) for broker, sample in found)

    def region(self, name: str) -> RankedRegion:
        """Return a region by its name."""
        return next(region for region in self.regions if region.name == name)


def taken(previous: BrokerSample | None, *, at_ns: int, status: JsonObject | None, error: str = "") -> BrokerSample:
    """Return the sample that follows `previous`, with the rates between the two."""
    clocks = None if previous is None else previous.clocks
    if status is None:
        last = None if previous is None else previous.last_status
        last_at_ns = 0 if previous is None else previous.last_at_ns
        return BrokerSample(
            at_ns=at_ns, status=None, error=error, clocks=clocks, last_status=last, last_at_ns=last_at_ns
        )
    rates = {}
    if previous is not None and previous.last_status is not None and at_ns > previous.last_at_ns:
        seconds = (at_ns - previous.last_at_ns) / 1e9
        before = dict(_ends(previous.last_status))
        rates = {
            key: max(0, end - before[key]) / seconds
            for key, end in _ends(status)
            if key in before and end > before[key]
        }
    return BrokerSample(at_ns=at_ns, status=status, clocks=clocks, last_status=status, last_at_ns=at_ns, rates=rates)


def _ends(status: JsonObject) -> Iterator[tuple[tuple[str, int, str], int]]:
    """Yield the high watermark of every stream that the broker leads at its home."""
    for row in rows_of(status, "streams"):
        if row.get("is_leader") and row.get("is_home"):
            yield (str(row["topic"]), int(row["partition"]), str(row["home"])), int(row["high_watermark"])


def rows_of(document: Mapping[str, Any] | None, name: str) -> list[JsonObject]:
    """Return the objects of a list in an answer; a broker of another version may lack it."""
    rows = None if document is None else document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
