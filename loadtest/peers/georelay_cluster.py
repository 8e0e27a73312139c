"""A region of three brokers of this checkout, its gateway beside them and not in the way."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, clusters_of
from loadtest.mesh_process import MeshProcess
from loadtest.peers.foreign import NODES
from loadtest.peers.installation import Installed

REGION: Final = "us"


@contextlib.asynccontextmanager
async def running(folder: Path, _: Installed) -> AsyncIterator[Cluster]:
    """Start a region in a folder."""
    async with MeshProcess(folder, regions=REGION, brokers_per_region=NODES) as mesh:
        yield clusters_of(mesh)[REGION]
