"""Three nodes of RabbitMQ with quorum queues, from unpacked packages and with an epmd of their own.

Or one in each of three regions: the exchange FEDERATED of each has those of both others as upstreams, so a record that
is published in any region comes to the queues of all, and does not travel on (one hop).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, Node
from loadtest.free_ports import free_ports
from loadtest.peers.foreign import NODES, READY_SECONDS_MAX, Foreign, listens
from loadtest.peers.installation import Installed, write_erl
from loadtest.peers.regions import REGIONS, Regions, wan_bed

COOKIE: Final = "GEORELAYPEERS"  # lets nodes of one loopback meet; nothing is kept behind it
FEDERATED: Final = "peers"
EPMD_PORT, PORT, DISTRIBUTION_PORT = 4_369, 5_672, 25_672  # in a region, where nobody else is
UPSTREAM: Final = {"max-hops": 1, "reconnect-delay": 1}


def version(installed: Installed) -> str:
    """Return the version of RabbitMQ."""
    return installed.rabbitmq.name.removeprefix("rabbitmq_server-")


@contextlib.asynccontextmanager
async def running(folder: Path, installed: Installed) -> AsyncIterator[Cluster]:
    """Start three nodes in a folder."""
    epmd, *others = free_ports(1 + 2 * NODES)
    ports, distribution = others[:NODES], others[NODES:]
    names = [f"rabbit{epmd}n{row + 1}@localhost" for row in range(NODES)]
    shared = _shared(folder, installed, epmd)

    def control(*words: str) -> str:
        return _control(installed, shared, names[0], *words)

    def leaders(topics: Sequence[str]) -> list[str]:
        rows = [line.split("\t") for line in control("list_queues", "name", "leader").splitlines()]
        found = {row[0]: row[1] for row in rows if len(row) == 2}
        return [found.get(topic, "") for topic in topics]

    with Foreign(folder) as foreign:
        foreign.start("epmd", _epmd(installed), shared)
        nodes = []
        for row, name in enumerate(names):
            address = f"127.0.0.1:{ports[row]}"
            own = _environment(folder / f"n{row + 1}", name, names, address, distribution[row])
            nodes.append(Node(name, address, foreign.start(f"n{row + 1}", _server(installed), shared | own)))
        foreign.until(
            lambda: all(
                f"{name}\n" in control("cluster_status").partition("Versions")[0].partition("Running")[2]
                for name in names
            ),
            "RabbitMQ",
        )
        yield Cluster(protocol="amqp", nodes=nodes, packages=installed.packages, leaders=leaders)


@contextlib.asynccontextmanager
async def in_regions(folder: Path, installed: Installed) -> AsyncIterator[Regions]:
    """Start a node in each region, each a cluster of its own, and federate them."""
    with wan_bed(folder) as (bed, foreign):
        places, environments = {}, {}
        for region in REGIONS:
            name, address = f"{region}@localhost", f"{bed.address(region)}:{PORT}"
            environments[region] = shared = _shared(folder / region, installed, EPMD_PORT)
            plugins = Path(shared["RABBITMQ_ENABLED_PLUGINS_FILE"])
            plugins.write_text("[rabbitmq_federation].\n")  # noqa: ASYNC240  nobody else is on this loop
            own = _environment(folder / region, name, [name], address, DISTRIBUTION_PORT)
            foreign.start(f"epmd-{region}", [*bed.entrance(region), *_epmd(installed)], shared)
            node = Node(
                name, address, foreign.start(region, [*bed.entrance(region), *_server(installed)], shared | own)
            )
            places[region] = Cluster(
                protocol="amqp", nodes=[node], packages=installed.packages, signed_in={"exchange": FEDERATED}
            )
        foreign.until(lambda: all(listens(place.servers()) for place in places.values()), "nodes that listen")
        for region, place in places.items():
            words = (installed, environments[region], place.nodes[0].name)
            control = functools.partial(_control, *words, prefix=bed.entrance(region))
            for other in set(REGIONS) - {region}:
                upstream = {"uri": f"amqp://{places[other].servers()}", **UPSTREAM}
                control("set_parameter", "federation-upstream", other, json.dumps(upstream))
            policy = ("federate", f"^{FEDERATED}$", json.dumps({"federation-upstream-set": "all"}))
            control("set_policy", "--apply-to", "exchanges", *policy)
        yield Regions(places=places, bed=bed, made_in=REGIONS)


def _epmd(installed: Installed) -> list[str]:
    return [str(next(installed.erlang.glob("erts-*")) / "bin" / "epmd")]


def _server(installed: Installed) -> list[str]:
    return ["sh", str(installed.rabbitmq / "sbin" / "rabbitmq-server")]


def _shared(folder: Path, installed: Installed, epmd: int) -> dict[str, str]:
    """Return the environment of a node and of what asks it."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    write_erl(installed, programs / "erl")
    erts = next(installed.erlang.glob("erts-*")) / "bin"
    return {
        "PATH": os.pathsep.join([str(programs), str(erts), os.environ["PATH"]]),
        "HOME": str(_home(folder)),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
    }


def _control(
    installed: Installed, shared: Mapping[str, str], name: str, *words: str, prefix: Sequence[str] = ()
) -> str:
    """Return what `rabbitmqctl` prints; nothing when it failed."""
    command = [*prefix, "sh", str(installed.rabbitmq / "sbin" / "rabbitmqctl"), "-q", "-n", name, *words]
    done = subprocess.run(
        command,
        env={**os.environ, **shared},
        capture_output=True,
        text=True,
        timeout=READY_SECONDS_MAX,
        check=False,
    )
    return "" if done.returncode else done.stdout


def _home(folder: Path) -> Path:
    home = folder / "home"
    home.mkdir()
    cookie = home / ".erlang.cookie"
    cookie.write_text(COOKIE)
    cookie.chmod(0o400)
    return home


def _environment(folder: Path, name: str, names: Sequence[str], address: str, distribution: int) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    lines = [
        f"listeners.tcp.1 = {address}",
        "loopback_users = none",
        "cluster_formation.peer_discovery_backend = classic_config",
    ]
    lines += [f"cluster_formation.classic_config.nodes.{row + 1} = {other}" for row, other in enumerate(names)]
    (folder / "rabbitmq.conf").write_text("\n".join([*lines, ""]))
    return {
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the node instead of starting it
        "RABBITMQ_SERVER_START_ARGS": "-noinput",
    }
