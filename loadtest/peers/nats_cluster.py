"""Three NATS servers with JetStream: a cluster; or one in each of three regions, leaf nodes of the home.

Each region is a JetStream domain of its own; a stream elsewhere is a mirror of that of the home.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, Node
from loadtest.free_ports import free_ports
from loadtest.peers.foreign import NODES, Foreign, listens
from loadtest.peers.installation import Installed
from loadtest.peers.regions import HOME, MOVED_TO, REGIONS, Regions, wan_bed

PORT, LEAF_PORT = 4_222, 7_422  # in a region, where nobody else is
ALONE: Final = {"replicas": "1"}


def version(installed: Installed) -> str:
    """Return what the server calls itself."""
    said = subprocess.check_output([installed.nats_server, "--version"], text=True)
    return said.strip().removeprefix("nats-server: v")


@contextlib.asynccontextmanager
async def running(folder: Path, installed: Installed, *, sync_always: bool) -> AsyncIterator[Cluster]:
    """Start three servers in a folder; `sync_always`: a sync of the file before each acknowledgement."""
    all_ports = free_ports(2 * NODES)
    ports, routes = all_ports[:NODES], all_ports[NODES:]
    with Foreign(folder) as foreign:
        nodes = []
        for row in range(NODES):
            name = f"n{row + 1}"
            config = folder / f"{name}.conf"
            config.write_text(_config(name, ports[row], routes, row, folder / name, sync_always))
            pid = foreign.start(name, [str(installed.nats_server), "-c", str(config)])
            nodes.append(Node(name, f"127.0.0.1:{ports[row]}", pid))
        logs = [folder / f"{node.name}.log" for node in nodes]
        foreign.until(
            lambda: any("JetStream cluster new metadata leader" in log.read_text() for log in logs),
            "a NATS cluster with a leader",
        )
        yield Cluster(protocol="nats", nodes=nodes, packages=installed.packages)


@contextlib.asynccontextmanager
async def in_regions(folder: Path, installed: Installed) -> AsyncIterator[Regions]:
    """Start a server in each region, with a sync of the file before each acknowledgement."""
    with wan_bed(folder) as (bed, foreign):
        places = {}
        for region in REGIONS:
            links = f'remotes: [{{ url: "nats-leaf://{bed.address(HOME)}:{LEAF_PORT}" }}]'
            leaf = f"listen: {bed.address(HOME)}:{LEAF_PORT}" if region == HOME else links
            address = f"{bed.address(region)}:{PORT}"
            config = folder / f"{region}.conf"
            jetstream = f'jetstream {{ domain: {region}, store_dir: "{folder / region}"\nsync_interval: always\n}}\n'
            config.write_text(f"server_name: {region}\nlisten: {address}\n{jetstream}leafnodes {{ {leaf} }}\n")
            node = Node(
                region,
                address,
                foreign.start(region, [*bed.entrance(region), str(installed.nats_server), "-c", str(config)]),
            )
            settings = ALONE if region == HOME else {**ALONE, "mirror_of": HOME}
            places[region] = Cluster(protocol="nats", nodes=[node], packages=installed.packages, settings=settings)
        foreign.until(lambda: all(listens(place.servers()) for place in places.values()), "servers that listen")
        promoted = replace(places[MOVED_TO], settings=ALONE)
        yield Regions(places=places, bed=bed, made_in=REGIONS, promote=promoted.create)


def _config(name: str, port: int, routes: Sequence[int], row: int, store: Path, sync_always: bool) -> str:
    others = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    sync = "sync_interval: always" if sync_always else ""
    return (
        f"server_name: {name}\nlisten: 127.0.0.1:{port}\n"
        f'jetstream {{ store_dir: "{store}"\n{sync}\n}}\n'
        f"cluster {{ name: peers, listen: 127.0.0.1:{routes[row]}, routes: [{others}] }}\n"
    )
