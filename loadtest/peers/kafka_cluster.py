"""Three brokers of Apache Kafka, each a KRaft controller too."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, Node
from loadtest.free_ports import free_ports
from loadtest.peers.foreign import NODES, Foreign, listens
from loadtest.peers.installation import Installed

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
# What Kafka's own start scripts give a broker.
JAVA: Final = (
    *("java", "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
REPLICATED: Final = {"min.insync.replicas": "2"}
SYNCED: Final = {**REPLICATED, "flush.messages": "1"}


@contextlib.contextmanager
def running(folder: Path, installed: Installed, *, settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Start three brokers in a folder; `settings` are of the topics."""
    all_ports = free_ports(2 * NODES)
    ports, controllers = all_ports[:NODES], all_ports[NODES:]
    voters = ",".join(f"{row + 1}@127.0.0.1:{controllers[row]}" for row in range(NODES))
    with Foreign(folder) as foreign:
        nodes = []
        for row in range(NODES):
            name = f"kafka-{row + 1}"
            config = folder / f"{name}.properties"
            config.write_text(_config(row + 1, ports[row], controllers[row], voters, folder / name))
            java = [*JAVA, "-cp", installed.kafka_jars]
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)],
                check=True,
                capture_output=True,
            )
            pid = foreign.start(name, [*java, "kafka.Kafka", str(config)])
            nodes.append(Node(name, f"127.0.0.1:{ports[row]}", pid))
        foreign.until(lambda: all(listens(node.address) for node in nodes), "a Kafka cluster that listens")
        yield Cluster(protocol="kafka", nodes=nodes, packages=installed.packages, settings=settings, leader_aware=True)


def _config(number: int, port: int, controller: int, voters: str, data: Path) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
