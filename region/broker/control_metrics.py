"""Mesh control in numbers, as this broker knows it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from region.control.mesh_control import MeshControl


class ControlCollector:
    """Reads MeshControl when it is asked."""

    def __init__(self, control: MeshControl) -> None:
        self._control = control

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        control = self._control
        yield GaugeMetricFamily(
            "georelay_control_generation",
            "Generation of mesh control as known here; 0 before there is any.",
            value=control.generation,
        )
        yield GaugeMetricFamily(
            "georelay_control_is_leader", "1 when this broker leads mesh control.", value=float(control.is_leader)
        )
        yield GaugeMetricFamily(
            "georelay_control_is_voter",
            "1 when this broker's replica of control's log votes.",
            value=float(control.has_voter),
        )
        yield GaugeMetricFamily(
            "georelay_control_index",
            "Mesh index of the newest command applied here, or known to the region.",
            value=control.index(),
        )
        yield GaugeMetricFamily(
            "georelay_control_voters",
            "Replicas of control's log that vote, as known here.",
            value=len(control.voters()),
        )
        yield GaugeMetricFamily(
            "georelay_control_alarms",
            "Things about mesh control that people have to look at.",
            value=len(control.alarms),
        )
