"""Three brokers of Apache Kafka, each a KRaft controller too; or one in each of three regions and MirrorMaker 2.

Rule 1: MirrorMaker 2 runs in the region that it writes to, one process for each, and copies from the home alone. Names
        of topics stay (IdentityReplicationPolicy), so a copy is an ordinary topic for the clients that move to it.
Rule 2: it copies groups' positions once a second instead of once a minute, and looks for new topics and groups as often
        instead of every ten minutes.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from loadtest.bench.cluster import Cluster, Node
from loadtest.free_ports import free_ports
from loadtest.peers.foreign import NODES, Foreign, listens
from loadtest.peers.installation import Installed
from loadtest.peers.regions import HOME, REGIONS, Regions, wan_bed

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
# What Kafka's own start scripts give a broker.
JAVA: Final = (
    *("java", "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
REPLICATED: Final = {"min.insync.replicas": "2"}
SYNCED: Final = {**REPLICATED, "flush.messages": "1"}
PORT, CONTROLLER_PORT = 9_092, 9_093  # in a region, where nobody else is
MIRROR: Final = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "sync.group.offsets.enabled": "true",
    "emit.heartbeats.enabled": "false",
    **{f"{what}.interval.seconds": 1 for what in ("refresh.topics", "refresh.groups", "sync.group.offsets")},
    "emit.checkpoints.interval.seconds": 1,
    "replication.factor": 1,
    **{f"{what}.topic.replication.factor": 1 for what in ("checkpoints", "offset-syncs")},
    **{f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")},
}


@contextlib.asynccontextmanager
async def running(folder: Path, installed: Installed, *, settings: Mapping[str, str]) -> AsyncIterator[Cluster]:
    """Start three brokers in a folder; `settings` are of the topics."""
    all_ports = free_ports(2 * NODES)
    ports, controllers = all_ports[:NODES], all_ports[NODES:]
    voters = ",".join(f"{row + 1}@127.0.0.1:{controllers[row]}" for row in range(NODES))
    with Foreign(folder) as foreign:
        nodes = []
        for row in range(NODES):
            name = f"kafka-{row + 1}"
            address = f"127.0.0.1:{ports[row]}"
            config = _config(folder / name, row + 1, address, controllers[row], voters)
            nodes.append(Node(name, address, foreign.start(name, _broker(installed, config))))
        foreign.until(lambda: all(listens(node.address) for node in nodes), "a Kafka cluster that listens")
        yield Cluster(protocol="kafka", nodes=nodes, packages=installed.packages, settings=settings, leader_aware=True)


@contextlib.asynccontextmanager
async def in_regions(folder: Path, installed: Installed) -> AsyncIterator[Regions]:
    """Start a broker in each region, and MirrorMaker 2 from the home to the others."""
    with wan_bed(folder) as (bed, foreign):
        places = {}
        for number, region in enumerate(REGIONS, start=1):
            address, voter = f"{bed.address(region)}:{PORT}", f"{number}@127.0.0.1:{CONTROLLER_PORT}"
            config = _config(folder / region, number, address, CONTROLLER_PORT, voter)
            node = Node(
                region, address, foreign.start(f"kafka-{region}", [*bed.entrance(region), *_broker(installed, config)])
            )
            places[region] = Cluster(
                protocol="kafka",
                nodes=[node],
                packages=installed.packages,
                settings={"flush.messages": "1"},
                leader_aware=True,
            )
        foreign.until(lambda: all(listens(place.servers()) for place in places.values()), "brokers that listen")
        for region in REGIONS[1:]:
            servers = {f"{each}.bootstrap.servers": places[each].servers() for each in (HOME, region)}
            way = {"clusters": f"{HOME},{region}", f"{HOME}->{region}.enabled": "true"}
            config = _written(folder / f"mirror-{region}.properties", {**way, **servers, **MIRROR})
            words = ["org.apache.kafka.connect.mirror.MirrorMaker", str(config), "--clusters", region]
            foreign.start(f"mirror-{region}", [*bed.entrance(region), *JAVA, "-cp", installed.kafka_jars, *words])
        yield Regions(places=places, bed=bed)


def _broker(installed: Installed, config: Path) -> list[str]:
    """Format the disk of a broker and return the command that runs it."""
    java = [*JAVA, "-cp", installed.kafka_jars]
    words = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
    subprocess.run([*java, *words], check=True, capture_output=True)
    return [*java, "kafka.Kafka", str(config)]


def _config(data: Path, number: int, address: str, controller: int, voters: str) -> Path:
    replicas = len(voters.split(","))
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min(2, replicas),
    }
    return _written(data.with_suffix(".properties"), settings)


def _written(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
