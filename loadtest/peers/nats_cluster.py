"""Three NATS servers with JetStream."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest.bench.cluster import Cluster, Node
from loadtest.free_ports import free_ports
from loadtest.peers.foreign import NODES, Foreign
from loadtest.peers.installation import Installed


def version(installed: Installed) -> str:
    """Return what the server calls itself."""
    said = subprocess.check_output([installed.nats_server, "--version"], text=True)
    return said.strip().removeprefix("nats-server: v")


@contextlib.contextmanager
def running(folder: Path, installed: Installed, *, sync_always: bool) -> Iterator[Cluster]:
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


def _config(name: str, port: int, routes: Sequence[int], row: int, store: Path, sync_always: bool) -> str:
    others = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    sync = "sync_interval: always" if sync_always else ""
    return (
        f"server_name: {name}\nlisten: 127.0.0.1:{port}\n"
        f'jetstream {{ store_dir: "{store}"\n{sync}\n}}\n'
        f"cluster {{ name: peers, listen: 127.0.0.1:{routes[row]}, routes: [{others}] }}\n"
    )
