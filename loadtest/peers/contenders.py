"""What is measured side by side: a broker, the settings that decide what an acknowledgement means, how it starts."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from loadtest.bench.cluster import Cluster
from loadtest.peers import georelay_cluster, kafka_cluster, nats_cluster, rabbitmq_cluster
from loadtest.peers.installation import Installed
from loadtest.peers.page_core import FAR_OURS, OURS
from loadtest.peers.regions import Regions

Running = TypeVar("Running")  # a Cluster, or Regions


@dataclass(frozen=True, slots=True)
class Contender(Generic[Running]):
    """One row of every table.

    Args:
        durability: what holds of a record when its producer has the acknowledgement.
        client: which client library both producer and consumer use.
        synced: whether that is durable on a majority, as ours.
    """

    name: str
    durability: str
    client: str
    synced: bool
    version: Callable[[Installed], str]
    running: Callable[[Path, Installed], AbstractAsyncContextManager[Running]]


def _own_version(_: Installed) -> str:
    return importlib.metadata.version("georelay-server")


def _kafka_version(installed: Installed) -> str:
    return installed.kafka_version


CONTENDERS: Final[tuple[Contender[Cluster], ...]] = (
    Contender(
        OURS,
        "synced on 2 of 3",
        "librdkafka",
        True,
        _own_version,
        georelay_cluster.running,
    ),
    Contender(
        "NATS, sync always",
        "synced on 2 of 3 (`sync_interval: always`)",
        "nats-py",
        True,
        nats_cluster.version,
        functools.partial(nats_cluster.running, sync_always=True),
    ),
    Contender(
        "RabbitMQ, quorum queues",
        "synced on 2 of 3",
        "pika",
        True,
        rabbitmq_cluster.version,
        rabbitmq_cluster.running,
    ),
    Contender(
        "Kafka, flush.messages=1",
        "synced on all in-sync replicas, 2 at least",
        "librdkafka",
        True,
        _kafka_version,
        functools.partial(kafka_cluster.running, settings=kafka_cluster.SYNCED),
    ),
    Contender(
        "Kafka, default",
        "in the memory of all in-sync replicas, 2 at least; synced later",
        "librdkafka",
        False,
        _kafka_version,
        functools.partial(kafka_cluster.running, settings=kafka_cluster.REPLICATED),
    ),
    Contender(
        "NATS, default",
        "in the memory of 2 of 3; synced within 2 minutes",
        "nats-py",
        False,
        nats_cluster.version,
        functools.partial(nats_cluster.running, sync_always=False),
    ),
)
IN_HOME: Final = "synced in us alone"
REGIONAL: Final[tuple[Contender[Regions], ...]] = (
    Contender(
        FAR_OURS[0],
        IN_HOME,
        "librdkafka",
        True,
        _own_version,
        functools.partial(georelay_cluster.in_regions, settings={}),
    ),
    Contender(
        FAR_OURS[1],
        "synced in 2 regions",
        "librdkafka",
        True,
        _own_version,
        functools.partial(georelay_cluster.in_regions, settings=georelay_cluster.GEO),
    ),
    Contender("NATS, mirrors", IN_HOME, "nats-py", True, nats_cluster.version, nats_cluster.in_regions),
    Contender("RabbitMQ, federation", IN_HOME, "pika", True, rabbitmq_cluster.version, rabbitmq_cluster.in_regions),
    Contender("Kafka, MirrorMaker 2", IN_HOME, "librdkafka", True, _kafka_version, kafka_cluster.in_regions),
)
