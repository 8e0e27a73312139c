"""Parts of a broker that are made from its configuration: its controller, its connections, who it is to others."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from georelay.ids import CONTROLLER_GROUP, BrokerId, RaftIndex, RegionNumber, broker_id
from mesh.listening.listeners import Listeners
from mesh.listening.mesh_secret import MeshSecret
from mesh.replication.settings import BrokerAddress, MeshIdentity
from region.broker.controller_machine import ControllerMachine
from region.broker.mesh_port import RemoteStreamsOverLinks
from region.config import BrokerConfig, split_address
from region.controller.commands import FEATURE_LEVEL_MAX
from region.controller.registration import BrokerRegistration
from region.controller.routing import ControllerSettings
from region.controller.service import ControllerService
from region.controller.topic import TopicDefaults
from region.controller.topology import Topology
from region.multiraft.host import Host
from region.multiraft.peer_links import PeerLinks
from region.multiraft.transport import Transport

log = structlog.get_logger()


def make_controller(
    config: BrokerConfig,
    *,
    topology: Topology,
    disk_id: str,
    host: Host,
    machine: ControllerMachine,
    remote: RemoteStreamsOverLinks,
    read_index: Callable[[], Awaitable[RaftIndex]],
    founding_disks: Callable[[], tuple[tuple[BrokerId, str], ...]],
    peers_learned: Callable[[dict[BrokerId, str]], None],
) -> ControllerService:
    """Return the controller as this broker runs it."""
    kafka_host, kafka_port = split_address(config.listen.kafka)
    return ControllerService(
        topology=topology,
        registration=BrokerRegistration(
            broker=config.broker_id,
            disk_uuid=disk_id,
            kafka_host=kafka_host,
            kafka_port=kafka_port,
            grpc=config.listen.grpc,
            link=config.listen.link,
            admin=config.listen.admin,
            peers=config.listen.peers,
            feature_level_max=FEATURE_LEVEL_MAX,
        ),
        propose=machine.propose,
        request=remote.request,
        is_leader=lambda: machine.is_leader,
        leader_id=lambda: host.leaders.leader(CONTROLLER_GROUP),
        settings=ControllerSettings(
            auto_create=config.auto_create_topics,
            topic_defaults=TopicDefaults(
                partitions=config.num_partitions, replication_factor=config.default_replication_factor
            ),
            auto_join=config.auto_join,
            replace_absent_after_s=config.replace_absent_after_ms / 1000,
            moves_in_flight_max=config.moves_in_flight_max,
        ),
        is_alive=host.is_alive,
        read_index=read_index,
        founding_disks=founding_disks,
        peers_learned=peers_learned,
    )


def mesh_secret(config: BrokerConfig) -> MeshSecret | None:
    """Return what brokers prove to each other, None without it. Raises ConfigError."""
    if not config.mesh_secret_file:
        return None
    if not config.mesh_secret_required:
        log.warning("mesh_secret.not_required", advice="set mesh_secret_required once every broker has the file")
    return MeshSecret.load(Path(config.mesh_secret_file), required=config.mesh_secret_required)


def identity_of(config: BrokerConfig, secret: MeshSecret | None) -> MeshIdentity:
    """Return who this broker is on links."""
    return MeshIdentity(
        mesh_id=config.mesh_id,
        region=config.region,
        region_number=config.region_number,
        broker_id=config.broker_id,
        secret=secret,
    )


def link_addresses(config: BrokerConfig) -> dict[RegionNumber, list[BrokerAddress]]:
    """Return where the configuration says that brokers listen for links; gossip finds those without an address."""
    return {
        RegionNumber(region.number): [
            BrokerAddress(broker_id=broker_id(RegionNumber(region.number), row.number), address=row.link)
            for row in region.brokers
            if row.link
        ]
        for region in config.regions
    }


def make_transport(
    config: BrokerConfig,
    make: Callable[..., Transport],
    *,
    disk_id: str,
    host: Host,
    rng: random.Random,
    registered_disk: Callable[[BrokerId], str | None],
    listeners: Listeners | None,
    secret: MeshSecret | None,
    links: PeerLinks,
) -> Transport:
    """Return the connections with the other brokers of the region."""
    peers = None if listeners is None else listeners["peers"]
    return make(
        me=config.broker_id,
        mesh_id=config.mesh_id,
        disk=uuid.UUID(disk_id).bytes,
        listen=split_address(config.listen.peers),
        peers={
            broker_id(config.region_number, row.number): split_address(row.peers)
            for row in config.own_region.brokers
            if row.number != config.broker and row.peers
        },
        receiver=host,
        rng=rng,
        registered_disk=registered_disk,
        tls=None if peers is None else peers.contexts,
        secret=secret,
        links=links,
        counters=None if peers is None else peers.counters,
    )
