"""Joins geo acknowledgements and the controller's state: which topics ask for regions, and which regions count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from georelay.clock import Clock
from georelay.ids import RegionNumber, StreamKey
from region.controller.mesh_rows import RegionState
from region.controller.state_core import ControllerState
from region.geo.region_geo import RegionGeo
from region.geo.stream_geo import GeoSettings


def region_geo(state: Callable[[], ControllerState], clock: Clock) -> RegionGeo:
    """Return the geo acknowledgements of a broker; `state` is the controller's now."""

    def settings_of(topic_id: bytes) -> GeoSettings | None:
        return state().topic_by_id(topic_id)

    def regions_of(key: StreamKey) -> Sequence[RegionNumber]:
        """Return the regions of the stream's home epoch, or all that hold topics where its home never moved.

        Without those that left the mesh: control asks them nothing when a home is lost.
        """
        now = state()
        row, topology = now.home_row(key), now.topology
        if topology is None:
            return () if row is None else row.regions
        holding = [region.number for region in topology.data_regions]
        if row is None:
            return holding
        return [number for number in row.regions if number in holding or topology.by_number(number) is None]

    def is_leaving(region: RegionNumber) -> bool:
        row = state().mesh.regions.get(region)
        return row is not None and row.state is not RegionState.ACTIVE

    return RegionGeo(settings_of=settings_of, regions=regions_of, clock=clock, is_leaving=is_leaving)
