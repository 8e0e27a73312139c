"""What the collector heard from brokers, and how to read it: values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gateway.routing.region_view_core import RankedRegion
from georelay.cli.mesh_status_core import INTERNAL_PREFIX
from mesh.distance.rule_set_core import Rule

JsonObject = dict[str, Any]
GROUPS: Final = "georelay_consumer_groups"
QUEUES: Final = "georelay_queues"
DISK_FREE: Final = "georelay_disk_free_bytes"
DISK_WRITABLE: Final = "georelay_disk_writable"
ORPHANS: Final = "georelay_stream_orphan_records"
GAUGES: Final = frozenset({GROUPS, QUEUES, DISK_FREE, DISK_WRITABLE, ORPHANS})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """The last answer of one broker.

    Args:
        at_ns: when it came, or did not come (monotonic). status: GET /v1/status, None: it did not answer, and `error`
            says why. clocks: GET /v1/clocks, of this or of an earlier moment.
        last_status: the newest answer there ever was; last_at_ns: when it came.
        gauges: numbers of GET /metrics that are shown, by name, of this or of an earlier moment.
        rates: user records per second that its streams got since the answer before, by (topic, partition, home).
    """

    at_ns: int
    status: JsonObject | None
    error: str = ""
    clocks: JsonObject | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    last_status: JsonObject | None = None
    last_at_ns: int = 0
    rates: Mapping[tuple[str, int, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSamples:
    """All that an overview is made of.

    Args:
        regions: as the gateway ranks them. brokers: by id; one that was not asked yet has none.
        controls: GET /v1/control by region that was asked. homes: rows of GET /v1/homes.
        live: live.json of `georelay-sla live`; no_live: why there is none.
        drills: the last drill of each kind (drills_core); no_drills: why there is none.
        rules: what operators decided about clients, those in force.
        now_ns: monotonic; now_s: wall clock, seconds since 1970.
    """

    mesh: str
    regions: tuple[RankedRegion, ...]
    brokers: Mapping[int, BrokerSample]
    controls: Mapping[str, JsonObject] = field(default_factory=dict)
    homes: list[JsonObject] = field(default_factory=list)
    live: JsonObject | None = None
    no_live: str = ""
    drills: list[JsonObject] = field(default_factory=list)
    no_drills: str = ""
    rules: Sequence[Rule] = ()
    now_ns: int = 0
    now_s: float = 0.0

    def of_region(self, region: RankedRegion) -> Iterator[tuple[int, BrokerSample]]:
        """Yield (id, sample) of the brokers of a region that were asked, the newest first."""
        found = [
            (b.endpoints.id, self.brokers[b.endpoints.id]) for b in region.brokers if b.endpoints.id in self.brokers
        ]
        found.sort(key=lambda pair: -pair[1].at_ns)
        yield from ((int(broker), sample) for broker, sample in found)

    @property
    def control(self) -> JsonObject | None:
        """Return what is known of mesh control: of a region that reaches its leader, where there is one."""
        return max(self.controls.values(), key=lambda said: said.get("has_majority") is True, default=None)


def taken(previous: BrokerSample | None, *, at_ns: int, status: JsonObject | None, error: str = "") -> BrokerSample:
    """Return the sample that follows `previous`, with the rates between the two."""
    before = previous if previous is not None else BrokerSample(at_ns=0, status=None)
    sample = replace(before, at_ns=at_ns, status=status, error=error, rates={})
    if status is None:
        return sample
    rates = {}
    if before.last_status is not None and at_ns > before.last_at_ns:
        seconds = (at_ns - before.last_at_ns) / 1e9
        ends = dict(_ends(before.last_status))
        rates = {key: (end - ends[key]) / seconds for key, end in _ends(status) if end > ends.get(key, end)}
    return replace(sample, last_status=status, last_at_ns=at_ns, rates=rates)


def gauges_of(exposition: str) -> dict[str, float]:
    """Return the gauges that the console shows, of a broker's /metrics: the sums over their labels.

    Streams of the brokers' own are left out.
    """
    found: dict[str, float] = {}
    for line in exposition.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name in GAUGES and INTERNAL_PREFIX not in line:
            try:
                found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
            except ValueError:
                continue
    return found


def _ends(status: JsonObject) -> Iterator[tuple[tuple[str, int, str], int]]:
    """Yield the high watermark of every stream that the broker leads at its home."""
    for row in rows_of(status, "streams"):
        if row.get("is_leader") and row.get("is_home"):
            yield (str(row["topic"]), int(row["partition"]), str(row["home"])), int(row["high_watermark"])


def rows_of(document: Mapping[str, Any] | None, name: str) -> list[JsonObject]:
    """Return the objects of a list in an answer; a broker of another version may lack it."""
    rows = None if document is None else document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
