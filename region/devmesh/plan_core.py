"""The layout of a development mesh: which region has which number, which process listens on which port.

Rule 1: pure; the same wish and the same record give the same layout.
Rule 2: one block of consecutive ports. Broker i (from 0, regions in order) has base + 5 i + (0 Kafka, 1 gRPC, 2 peers,
3 link, 4 admin); after the brokers the gateway has (0 HTTP, 1 Kafka, 2 gRPC), and after it broker i has the text
protocol at + i. Then comes gossip: broker i has + 2 i + (0 LAN, 1 WAN), and after all of them the gateway has its
LAN and its text listener.
Rule 3: region numbers are never reused, because producer ids are made of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from georelay.errors import ConfigError
from georelay.ids import RegionNumber
from georelay.limits import REGION_NAME_CHARS_MAX

BROKERS_PER_REGION: Final = (1, 3, 5)
PORTS_PER_BROKER: Final = 5
GOSSIP_PORTS_PER_BROKER: Final = 2
GATEWAY_PORTS: Final = 3
GATEWAY_LAST_PORTS: Final = 2  # gossip, text
BASE_PORT_DEFAULT: Final = 21_000
READY_TIMEOUT_S: Final = 120.0
PORT_MAX: Final = 65_535
DEV_REGIONS_MAX: Final = 16  # processes on one machine
HOST: Final = "127.0.0.1"
_NAME: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Where processes listen when that is not loopback: in a WAN test bed each broker has an address of its own.

    Args:
        brokers: by (region, number).
    """

    gateway: str
    brokers: Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """One broker: `number` counts inside its region from 1; addresses are "host:port"."""

    region: str
    number: int
    kafka: str
    grpc: str
    peers: str
    link: str
    admin: str
    text: str
    lan: str
    wan: str

    @property
    def name(self) -> str:
        """Return a name for files and progress lines."""
        return f"{self.region}-{self.number}"

    @property
    def host(self) -> str:
        """Return the address that all its listeners have."""
        return self.link.rpartition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """One region and its brokers."""

    name: str
    number: RegionNumber
    brokers: tuple[BrokerPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """The addresses of the gateway."""

    http: str
    kafka: str
    grpc: str
    lan: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRecord:
    """What a data directory remembers of its mesh (mesh.json).

    Args:
        regions: (name, number) in configuration order.
        next_region_number: higher than any number ever given out.
    """

    mesh_id: str
    regions: tuple[tuple[str, RegionNumber], ...]
    brokers_per_region: int
    base_port: int
    next_region_number: int

    @property
    def port_count(self) -> int:
        """Return the length of the block of ports."""
        return port_count(len(self.regions), self.brokers_per_region)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """Every process of the mesh and where it listens."""

    mesh_id: str
    regions: tuple[RegionPlan, ...]
    gateway: GatewayPlan

    @property
    def brokers(self) -> tuple[BrokerPlan, ...]:
        """Return all brokers, regions in order."""
        return tuple(broker for region in self.regions for broker in region.brokers)


def parse_regions(text: str) -> tuple[str, ...]:
    """Return the region names in "us,eu,ap".

    Raises:
        ConfigError: no name, a name that is not allowed, or one name twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"--regions: {name!r} is not a region name (1..{REGION_NAME_CHARS_MAX} of a-z, 0-9, '-')")
    if len(set(names)) != len(names):
        raise ConfigError(f"--regions: a name is there twice in '{text}'")
    if len(names) > DEV_REGIONS_MAX:
        raise ConfigError(f"--regions: {len(names)} regions; one machine runs at most {DEV_REGIONS_MAX}")
    return names


def check_brokers_per_region(count: int) -> None:
    """Raise ConfigError unless a majority of `count` brokers is worth having."""
    if count not in BROKERS_PER_REGION:
        raise ConfigError(f"--brokers-per-region: {count} is not 1, 3 or 5")


def port_count(regions: int, brokers_per_region: int) -> int:
    """Return how many consecutive ports a mesh takes."""
    per_broker = PORTS_PER_BROKER + 1 + GOSSIP_PORTS_PER_BROKER
    return regions * brokers_per_region * per_broker + GATEWAY_PORTS + GATEWAY_LAST_PORTS


def new_record(*, mesh_id: str, regions: tuple[str, ...], brokers_per_region: int, base_port: int) -> MeshRecord:
    """Return the record of a mesh that is started for the first time: numbers from 1, in order."""
    return MeshRecord(
        mesh_id=mesh_id,
        regions=tuple((name, RegionNumber(number)) for number, name in enumerate(regions, start=1)),
        brokers_per_region=brokers_per_region,
        base_port=base_port,
        next_region_number=len(regions) + 1,
    )


def check_same_mesh(record: MeshRecord, *, regions: tuple[str, ...], brokers_per_region: int, directory: str) -> None:
    """Refuse to start another mesh on the data of the recorded one.

    Raises:
        ConfigError: names what differs and the flags that fit.
    """
    names = tuple(name for name, _ in record.regions)
    if (names, record.brokers_per_region) != (regions, brokers_per_region):
        raise ConfigError(
            f"--data: {directory} holds a mesh of --regions {','.join(names)} --brokers-per-region "
            f"{record.brokers_per_region}; start it so, or choose another directory"
        )


def check_block(base_port: int, count: int) -> None:
    """Raise ConfigError unless the ports base_port..base_port+count-1 exist and need no privilege."""
    if not 1024 <= base_port <= PORT_MAX - count + 1:
        raise ConfigError(
            f"--base-port: {base_port} does not leave {count} ports; use 1024..{PORT_MAX - count + 1}, or 0"
        )


def plan(record: MeshRecord, hosts: Hosts | None = None) -> MeshPlan:
    """Return the layout of a recorded mesh, on loopback unless `hosts` says where."""
    brokers_in_all = len(record.regions) * record.brokers_per_region
    port = record.base_port
    gateway_port = port + brokers_in_all * PORTS_PER_BROKER
    text_port = gateway_port + GATEWAY_PORTS
    gossip_port = text_port + brokers_in_all
    regions = []
    for name, number in record.regions:
        brokers = []
        for broker in range(1, record.brokers_per_region + 1):
            host = HOST if hosts is None else hosts.brokers[name, broker]
            brokers.append(_broker(name, broker, host, port, text_port, gossip_port))
            port += PORTS_PER_BROKER
            text_port += 1
            gossip_port += GOSSIP_PORTS_PER_BROKER
        regions.append(RegionPlan(name=name, number=number, brokers=tuple(brokers)))
    gateway_host = HOST if hosts is None else hosts.gateway
    http, kafka, grpc = (f"{gateway_host}:{gateway_port + offset}" for offset in range(GATEWAY_PORTS))
    lan, text = (f"{gateway_host}:{gossip_port + offset}" for offset in range(GATEWAY_LAST_PORTS))
    gateway = GatewayPlan(http=http, kafka=kafka, grpc=grpc, lan=lan, text=text)
    return MeshPlan(mesh_id=record.mesh_id, regions=tuple(regions), gateway=gateway)


def _broker(region: str, number: int, host: str, port: int, text_port: int, gossip_port: int) -> BrokerPlan:
    kafka, grpc, peers, link, admin = (f"{host}:{port + offset}" for offset in range(PORTS_PER_BROKER))
    lan, wan = (f"{host}:{gossip_port + offset}" for offset in range(GOSSIP_PORTS_PER_BROKER))
    return BrokerPlan(
        region=region,
        number=number,
        kafka=kafka,
        grpc=grpc,
        peers=peers,
        link=link,
        admin=admin,
        text=f"{host}:{text_port}",
        lan=lan,
        wan=wan,
    )
