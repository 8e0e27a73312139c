"""Geo acknowledgements of one broker: every hosted stream gets its part, and follows its topic's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from georelay.clock import Clock
from georelay.ids import RegionNumber, StreamKey
from region.geo.counters import GeoCounters
from region.geo.ports import GeoStream
from region.geo.stream_geo import GeoSettings, StreamGeo


class RegionGeo:
    """Makes the parts of streams.

    Args:
        settings_of: what a topic id's definition says about regions, None for a topic that is not known (yet).
        regions: the regions that hold a stream now, its home among them. is_leaving: which regions are on their way
            out of the mesh.
    """

    def __init__(
        self,
        *,
        settings_of: Callable[[bytes], GeoSettings | None],
        regions: Callable[[StreamKey], Sequence[RegionNumber]],
        clock: Clock,
        is_leaving: Callable[[RegionNumber], bool],
    ) -> None:
        self.counters = GeoCounters()
        self._settings_of = settings_of
        self._regions = regions
        self._clock = clock
        self._is_leaving = is_leaving

    def attach(self, stream: GeoStream) -> StreamGeo:
        """Return the part of a stream that is about to be opened."""
        settings = self._settings_of(stream.key.topic_id)
        return StreamGeo(
            stream,
            settings=settings or REGION_SETTINGS,
            regions=partial(self._regions, stream.key),
            clock=self._clock,
            counters=self.counters,
            is_leaving=self._is_leaving,
        )


class _RegionSettings:
    """Of a topic that is not known here yet."""

    min_insync_regions = 1
    insync_raised = False
    max_geo_lag_ms = 0
    max_geo_lag_records = 0


REGION_SETTINGS: GeoSettings = _RegionSettings()
