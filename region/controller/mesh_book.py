"""What one region knows of mesh control: the charter, control's replicas, the regions of the mesh."""

from __future__ import annotations

from georelay.ids import RegionNumber
from region.controller.mesh_rows import Charter, ControlRow, RegionRow, level_of


class MeshBook:
    """A cache of control's rows, and the charter, which is this region's own decision.

    Invariants: 1 no region row that is to come is at or below `index`   2 a charter that is open is never replaced.
    """

    def __init__(self) -> None:
        self.charter: Charter | None = None
        self.control: ControlRow | None = None
        self.regions: dict[RegionNumber, RegionRow] = {}
        self.index = 0

    @property
    def is_empty(self) -> bool:
        """Return whether control was never heard of."""
        return self.charter is None and self.control is None and not self.regions

    def level_for(self, region: RegionNumber) -> int:
        """Return the feature level that brokers of another region must read; 0: it has said which it is at."""
        row = self.regions.get(region)
        return 0 if row is not None and row.has_begun else level_of(self.regions.values())

    @property
    def has_ceded(self) -> bool:
        """Return whether this region must not order definitions: control does, or is about to."""
        return self.charter is not None or self.control is not None
