"""Links and the streams they carry, as Prometheus metrics.

Rule: however many streams there are, at most STREAMS_MAX of them have samples of their own: those that are not idle
        first, then those with the largest lag. All of them are in the numbers by region and state, which say how many
        were left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_state import LinkState
from mesh.replication.snapshot import SessionSnapshot

STREAMS_MAX: Final = 256
_LABELS: Final = ("role", "stream", "region")
RegionName = Callable[[int], str]


class LinkCollector(Collector):
    """Reads the sessions when it is scraped.

    Args:
        sessions: returns the sessions of this broker's links.
        region_name: region number -> name.
        counters: of the links; None: no counters.
    """

    def __init__(
        self,
        *,
        sessions: Callable[[], Sequence[SessionSnapshot]],
        region_name: RegionName,
        counters: LinkCounters | None = None,
    ) -> None:
        self._sessions = sessions
        self._region_name = region_name
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield what the sessions are like now, and what was counted since the start."""
        sessions = self._sessions()
        yield from self._by_state(sessions)
        yield from self._by_stream(listed(sessions))
        if self._counters is not None:
            yield from self._counted(self._counters)

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def _by_state(self, sessions: Sequence[SessionSnapshot]) -> Iterator[Metric]:
        streams = GaugeMetricFamily(
            "georelay_link_streams",
            "Streams between two regions, by state and its cause",
            labels=("role", "region", "state", "cause"),
        )
        lag = GaugeMetricFamily(
            "georelay_link_lag_seconds_max", "Largest lag of any stream of a region", labels=("role", "region")
        )
        counts = Counter((row.role, row.region, row.state.value, row.cause.value) for row in sessions)
        for (role, region, state, cause), count in sorted(counts.items()):
            streams.add_metric((role, self._region_name(region), state, cause), count)
        for role, region in sorted({(row.role, row.region) for row in sessions}):
            worst = max(row.lag_ms for row in sessions if (row.role, row.region) == (role, region))
            lag.add_metric((role, self._region_name(region)), worst / 1000)
        left_out = GaugeMetricFamily("georelay_link_streams_unlisted", "Streams without samples of their own")
        left_out.add_metric((), max(len(sessions) - STREAMS_MAX, 0))
        yield from (streams, lag, left_out)

    def _by_stream(self, sessions: Sequence[SessionSnapshot]) -> Iterator[Metric]:
        records = GaugeMetricFamily("georelay_link_lag_records", "Records a mirror is behind its home", labels=_LABELS)
        lag_bytes = GaugeMetricFamily("georelay_link_lag_bytes", "Bytes a mirror is behind (estimate)", labels=_LABELS)
        seconds = GaugeMetricFamily(
            "georelay_link_lag_seconds", "Age of the oldest record a mirror lacks, on the home's clock", labels=_LABELS
        )
        state = GaugeMetricFamily(
            "georelay_link_state",
            "1 for the state the stream is in, with its cause",
            labels=(*_LABELS, "state", "cause"),
        )
        resumes = CounterMetricFamily(
            "georelay_link_stream_resumes", "Sessions of a stream after its first", labels=_LABELS
        )
        refusals = CounterMetricFamily(
            "georelay_link_stream_refusals", "Sessions of a stream that the home refused", labels=_LABELS
        )
        for row in sessions:
            labels = (row.role, str(row.key), self._region_name(row.region))
            records.add_metric(labels, row.lag_records)
            lag_bytes.add_metric(labels, row.lag_bytes)
            seconds.add_metric(labels, row.lag_ms / 1000)
            state.add_metric((*labels, row.state.value, row.cause.value), 1.0)
            resumes.add_metric(labels, row.resumes)
            if row.role == "mirror":
                refusals.add_metric(labels, row.refusals)
        yield from (records, lag_bytes, seconds, state, resumes, refusals)

    def _counted(self, counters: LinkCounters) -> Iterator[Metric]:
        name = self._region_name
        for title, text, by_side in (
            ("georelay_links_opened", "Links that were opened", counters.opened),
            ("georelay_links_lost", "Links that were lost after they were open", counters.lost),
        ):
            family = CounterMetricFamily(title, text, labels=("side", "region"))
            for (side, region), count in sorted(by_side.items()):
                family.add_metric((side, name(region)), count)
            yield family
        for title, text, by_role in (
            ("georelay_link_sessions", "Sessions of streams that were opened", counters.sessions),
            ("georelay_link_resumes", "Those of them that were not the first of their stream", counters.resumes),
        ):
            family = CounterMetricFamily(title, text, labels=("role", "region"))
            for (role, region), count in sorted(by_role.items()):
                family.add_metric((role, name(region)), count)
            yield family
        refusals = CounterMetricFamily(
            "georelay_link_refusals", "Sessions that were refused, by reason", labels=("role", "region", "code")
        )
        for (role, region, code), count in sorted(counters.refusals.items()):
            refusals.add_metric((role, name(region), code), count)
        yield refusals
        peers = CounterMetricFamily(
            "georelay_link_peers_refused", "Links refused for who is at the other end", labels=("code",)
        )
        for code, count in sorted(counters.peers_refused.items()):
            peers.add_metric((code,), count)
        yield peers
        for title, text, by_region in (
            ("georelay_link_dial_failures", "Dials after which there was no link", counters.dial_failures),
            ("georelay_link_sent_bytes", "Bytes of frames as they were sent", counters.sent_bytes),
            ("georelay_link_sent_plain_bytes", "The same before compression", counters.sent_plain_bytes),
            ("georelay_link_received_bytes", "Bytes of frames as they came", counters.received_bytes),
        ):
            family = CounterMetricFamily(title, text, labels=("region",))
            for region, count in sorted(by_region.items()):
                family.add_metric((name(region),), count)
            yield family


def listed(sessions: Sequence[SessionSnapshot]) -> list[SessionSnapshot]:
    """Return the sessions that have samples of their own, the ones in trouble first. Pure."""
    if len(sessions) <= STREAMS_MAX:
        return list(sessions)
    worst_first = sorted(sessions, key=lambda row: (row.state is LinkState.IDLE, -row.lag_ms, -row.lag_records))
    return worst_first[:STREAMS_MAX]
