"""A mesh that the drill starts for itself and takes away again: in a WAN test bed, or on loopback."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from loadtest.drill.mesh import DrillMesh, MeshAccess
from loadtest.mesh_process import MeshProcess

PAIRS: Final = "us-eu=70ms,us-ap=150ms,eu-ap=120ms"
REGIONS: Final = "us,eu,ap"
USER: Final = "drill"


class OwnMesh(MeshProcess):
    """`georelay up --restart` as a child process. Use as an async context manager.

    Args:
        pairs: round trips of its test bed; "" for loopback without one.
        regions: names, without a test bed.
    """

    def __init__(self, directory: Path, *, pairs: str, regions: str, brokers_per_region: int) -> None:
        password = secrets.token_urlsafe(16)
        names = dict.fromkeys(name for item in pairs.split(",") for name in item.split("=")[0].split("-"))
        self._bed = f"drill-{os.getpid()}" if pairs else ""
        self._credentials = f"{USER}:{password}" if pairs else ""
        super().__init__(
            directory,
            regions=",".join(names) if pairs else regions,
            brokers_per_region=brokers_per_region,
            arguments=("--restart", *(("--wan", pairs, "--wan-name", self._bed) if pairs else ())),
            user=(USER, password) if pairs else None,
        )

    def opened(self) -> DrillMesh:
        """Return it as drills see it; it runs."""
        return DrillMesh(
            MeshAccess(
                endpoints_file=self.directory / "endpoints.json",
                user=self._credentials,
                run_directory=self.directory / "mesh" / "run",
                bed=self._bed,
            )
        )
