"""A region of three brokers of this checkout, its gateway beside them and not in the way; or three regions of one."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, clusters_of
from loadtest.bench.mesh_asks import ask
from loadtest.mesh_process import MeshProcess
from loadtest.peers.foreign import NODES, READY_SECONDS_MAX
from loadtest.peers.installation import Installed
from loadtest.peers.regions import HOME, REGIONS, Regions
from loadtest.wan.wan_mesh import WanMesh

REGION: Final = "us"
GEO: Final = {"min.insync.regions": "2", "protect.k": "2", "failover": "auto"}
ASK_AGAIN_S: Final = 0.2


@contextlib.asynccontextmanager
async def running(folder: Path, _: Installed) -> AsyncIterator[Cluster]:
    """Start a region in a folder."""
    async with MeshProcess(folder, regions=REGION, brokers_per_region=NODES) as mesh:
        yield clusters_of(mesh)[REGION]


@contextlib.asynccontextmanager
async def in_regions(folder: Path, _: Installed, *, settings: Mapping[str, str]) -> AsyncIterator[Regions]:
    """Start three regions of one broker; `settings` are of the topics. Without failover=auto an operator moves them."""
    mesh = WanMesh(folder, brokers_per_region=1)
    async with mesh:
        found = clusters_of(mesh)
        own = {"georelay.home": HOME, **settings}
        places = {region: dataclasses.replace(found[region], settings=own) for region in REGIONS}
        is_auto = settings.get("failover") == "auto"
        yield Regions(places=places, bed=mesh, promote=lambda _: None if is_auto else _fail_over(mesh))


def _fail_over(mesh: MeshProcess) -> None:
    """Do what `georelay home failover --region us` does, again while mesh control elects a leader."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            ask(mesh, "/v1/homes/failover", {"region": HOME, "accept_loss": False})
            return
        except OSError as error:  # no answer, or not a good one
            if time.monotonic() > deadline:
                raise RuntimeError(f"no failover: {error}") from error
            time.sleep(ASK_AGAIN_S)
