"""Three nodes of RabbitMQ with quorum queues, from unpacked packages and with an epmd of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, Node
from loadtest.free_ports import free_ports
from loadtest.peers.foreign import NODES, READY_SECONDS_MAX, Foreign
from loadtest.peers.installation import Installed, write_erl

COOKIE: Final = "GEORELAYPEERS"  # lets nodes of one loopback meet; nothing is kept behind it


def version(installed: Installed) -> str:
    """Return the version of RabbitMQ."""
    return installed.rabbitmq.name.removeprefix("rabbitmq_server-")


@contextlib.contextmanager
def running(folder: Path, installed: Installed) -> Iterator[Cluster]:
    """Start three nodes in a folder."""
    epmd, *others = free_ports(1 + 2 * NODES)
    ports, distribution = others[:NODES], others[NODES:]
    names = [f"rabbit{epmd}n{row + 1}@localhost" for row in range(NODES)]
    programs = folder / "bin"
    programs.mkdir(parents=True)
    write_erl(installed, programs / "erl")
    erts = next(installed.erlang.glob("erts-*")) / "bin"
    shared = {
        "PATH": os.pathsep.join([str(programs), str(erts), os.environ["PATH"]]),
        "HOME": str(_home(folder)),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
    }

    def control(*words: str) -> str:
        command = ["sh", str(installed.rabbitmq / "sbin" / "rabbitmqctl"), "-q", "-n", names[0], *words]
        done = subprocess.run(
            command,
            env={**os.environ, **shared},
            capture_output=True,
            text=True,
            timeout=READY_SECONDS_MAX,
            check=False,
        )
        return "" if done.returncode else done.stdout

    def leaders(topics: Sequence[str]) -> list[str]:
        rows = [line.split("\t") for line in control("list_queues", "name", "leader").splitlines()]
        found = {row[0]: row[1] for row in rows if len(row) == 2}
        return [found.get(topic, "") for topic in topics]

    with Foreign(folder) as foreign:
        foreign.start("epmd", [str(erts / "epmd")], shared)
        nodes = []
        for row, name in enumerate(names):
            own = _environment(folder / f"n{row + 1}", name, names, ports[row], distribution[row])
            script = installed.rabbitmq / "sbin" / "rabbitmq-server"
            nodes.append(
                Node(name, f"127.0.0.1:{ports[row]}", foreign.start(f"n{row + 1}", ["sh", str(script)], shared | own))
            )
        foreign.until(
            lambda: all(
                f"{name}\n" in control("cluster_status").partition("Versions")[0].partition("Running")[2]
                for name in names
            ),
            "RabbitMQ",
        )
        yield Cluster(protocol="amqp", nodes=nodes, packages=installed.packages, leaders=leaders)


def _home(folder: Path) -> Path:
    home = folder / "home"
    home.mkdir()
    cookie = home / ".erlang.cookie"
    cookie.write_text(COOKIE)
    cookie.chmod(0o400)
    return home


def _environment(folder: Path, name: str, names: Sequence[str], port: int, distribution: int) -> dict[str, str]:
    folder.mkdir()
    lines = [f"listeners.tcp.1 = 127.0.0.1:{port}", "cluster_formation.peer_discovery_backend = classic_config"]
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
