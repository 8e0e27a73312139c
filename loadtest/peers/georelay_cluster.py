"""A region of three brokers of this checkout, its gateway beside them and not in the way."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from loadtest.mesh_process import MeshProcess
from loadtest.peers.cluster import NODES, Cluster, Node
from loadtest.peers.installation import Installed

REGION: Final = "us"


@contextlib.asynccontextmanager
async def running(folder: Path, installed: Installed) -> AsyncIterator[Cluster]:
    """Start a region in a folder."""
    async with MeshProcess(folder, regions=REGION, brokers_per_region=NODES) as mesh:
        names = [f"{REGION}-{row + 1}" for row in range(NODES)]
        addresses = mesh.endpoints["regions"][REGION]["kafka"]
        nodes = [Node(name, address, mesh.pid_of(name)) for name, address in zip(names, addresses, strict=True)]
        yield Cluster(protocol="kafka", nodes=nodes, packages=installed.packages, leader_aware=True)
