"""Geo acknowledgements as Prometheus families, read when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.ids import Offset, RegionNumber
from region.geo.counters import GeoCounters
from region.geo.stream_geo import StreamGeo

_STREAM_LABELS = ("topic", "partition", "origin", "regions")


class GeoStreamGauges(Protocol):
    """The part of a hosted stream that is shown."""

    @property
    def topic(self) -> str:
        """Plain name of its topic."""

    @property
    def partition(self) -> int:
        """0-based."""

    @property
    def home(self) -> RegionNumber:
        """The region that sequences it."""

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed at home."""

    @property
    def geo(self) -> StreamGeo | None:
        """Who counts regions."""


class GeoCollector(Collector):
    """Watermarks of the streams led here at their home, and what became of publishes.

    Args:
        streams: the hosted streams now. region_name: region number -> name.
    """

    def __init__(
        self,
        *,
        counters: GeoCounters,
        streams: Callable[[], Iterable[GeoStreamGauges]],
        region_name: Callable[[int], str],
    ) -> None:
        self._counters = counters
        self._streams = streams
        self._region_name = region_name

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        watermark = GaugeMetricFamily(
            "georelay_geo_watermark", "First offset that fewer than so many regions have", labels=_STREAM_LABELS
        )
        lag = GaugeMetricFamily(
            "georelay_geo_watermark_lag_records",
            "Records committed at home that fewer than so many regions have",
            labels=_STREAM_LABELS,
        )
        for stream in self._streams():
            for k, offset in ({} if stream.geo is None else stream.geo.watermarks()).items():
                labels = (stream.topic, str(stream.partition), self._region_name(stream.home), str(k))
                watermark.add_metric(labels, offset)
                lag.add_metric(labels, stream.high_watermark - offset)
        yield from (watermark, lag, *self._counted())

    def _counted(self) -> Iterator[Metric]:
        publishes = CounterMetricFamily(
            "georelay_geo_publishes",
            "Publishes that asked for more than their home, by regions and outcome",
            labels=("regions", "outcome"),
        )
        for (level, outcome), count in sorted(self._counters.publishes.items()):
            publishes.add_metric((str(level), outcome.value), count)
        refusals = CounterMetricFamily(
            "georelay_geo_refusals", "Publishes that the home did not take, by reason", labels=("reason",)
        )
        for reason, count in sorted(self._counters.refusals.items()):
            refusals.add_metric((reason.value,), count)
        yield publishes
        yield refusals
        yield CounterMetricFamily(
            "georelay_geo_slowed", "Publishes answered later because regions lag", self._counters.slowed
        )
