"""State and lag of every stream between regions, as Prometheus gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.replication.link_state import LinkState
from mesh.replication.snapshot import SessionSnapshot

_LABELS = ("role", "stream", "region")


class LinkCollector(Collector):
    """Reads the sessions when it is scraped.

    Args:
        sessions: returns the sessions of this broker's links.
        region_name: region number -> name.
    """

    def __init__(self, *, sessions: Callable[[], Sequence[SessionSnapshot]], region_name: Callable[[int], str]) -> None:
        self._sessions = sessions
        self._region_name = region_name

    def collect(self) -> Iterator[Metric]:
        """Yield one sample per session and gauge; the state is the one whose sample is 1."""
        records = GaugeMetricFamily("georelay_link_lag_records", "Records a mirror is behind its home", labels=_LABELS)
        lag_bytes = GaugeMetricFamily("georelay_link_lag_bytes", "Bytes a mirror is behind (estimate)", labels=_LABELS)
        seconds = GaugeMetricFamily(
            "georelay_link_lag_seconds", "Age of the oldest record a mirror lacks, on the home's clock", labels=_LABELS
        )
        state = GaugeMetricFamily("georelay_link_state", "1 for the state the stream is in", labels=(*_LABELS, "state"))
        for row in self._sessions():
            labels = (row.role, str(row.key), self._region_name(row.region))
            records.add_metric(labels, row.lag_records)
            lag_bytes.add_metric(labels, row.lag_bytes)
            seconds.add_metric(labels, row.lag_ms / 1000)
            for each in LinkState:
                state.add_metric((*labels, each.value), 1.0 if each is row.state else 0.0)
        yield from (records, lag_bytes, seconds, state)

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []
