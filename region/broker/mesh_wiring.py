"""Joins mesh control to the rest of a broker, and lets the broker follow a mesh that grows while it runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber
from mesh.listening.addresses_core import Source
from mesh.replication.link_parts import Open
from mesh.replication.mesh_links import BrokerAddress, LinkSettings, MeshLinks
from region.broker.region_directory import RegionDirectory
from region.config import BrokerConfig
from region.control.mesh_control import MeshControl
from region.controller.mesh_rows import RegionRow, RegionState, parse_seed
from region.controller.service import ControllerService
from region.controller.topology import RegionInfo, Topology
from region.log.data_directory import DataDirectory
from region.log.flusher import Flusher

# Of the link protocol -> feature level. A new level brings a new version, unless other regions see nothing of it: what
# came with 9 lies in the data directories of one region.
LEVEL_OF_VERSION: Final = {5: 9}
UNSAID_LEVEL: Final = 6  # up to here nothing is written into streams of other regions that older brokers do not read


def make_control(
    config: BrokerConfig,
    *,
    directory: DataDirectory,
    controller: ControllerService,
    links: MeshLinks,
    clock: Clock,
    rng: random.Random,
    executor: Executor,
    make_flusher: Callable[..., Flusher],
    failed: Callable[[str], None],
) -> MeshControl:
    """Return mesh control as this broker takes part in it, known to the controller."""
    control = MeshControl(
        me=config.broker_id,
        disk=directory.disk_id,
        mesh_id=config.mesh_id,
        data=directory.path,
        controller=controller,
        links=links,
        clock=clock,
        rng=rng,
        file_system=directory.fs,
        executor=executor,
        make_flusher=make_flusher,
        election_ms=config.control.election_ms,
        enabled=config.control.mode == "auto",
        seeds=config.control.join,
        failed=failed,
    )
    controller.join_control(control)
    return control


def configured_topology(config: BrokerConfig) -> Topology:
    """Return the mesh as a configuration file has it; a region that joins a mesh names no definitions home."""
    numbers = config.region_numbers()
    return Topology(
        mesh_id=config.mesh_id,
        region=config.region_number,
        definitions_home=numbers.get(config.definitions_home, RegionNumber(0)),
        regions=tuple(
            RegionInfo(
                number=RegionNumber(region.number),
                name=region.name,
                brokers=tuple(BrokerId(region.number * 1000 + row.number) for row in region.brokers),
                witness=region.witness,
            )
            for region in config.regions
        ),
    )


class RegionGrowth:
    """Follows the regions that mesh control names: their addresses, and whom to ask for more."""

    def __init__(self, *, controller: ControllerService, links: MeshLinks, directory: RegionDirectory) -> None:
        self._controller = controller
        self._links = links
        self._directory = directory
        self._followed: dict[RegionNumber, RegionRow] = {}

    def follow(self) -> None:
        """Look at what was applied lately."""
        state = self._controller.state
        for number, row in state.mesh.regions.items():
            if self._followed.get(number) is row or state.topology is None or number == state.topology.region:
                continue
            self._followed[number] = row
            if row.state is RegionState.REMOVED:
                self._links.forget_region(number)
                self._directory.forget(number)
                continue
            seeds = [parse_seed(seed) for seed in row.seeds]
            rows = [BrokerAddress(broker_id=b, address=address) for b, address in seeds]
            self._links.know_brokers(number, rows, Source.CONTROL)
            self._directory.know(number)


def link_settings(config: BrokerConfig) -> LinkSettings:
    """Return how the links of this broker are to behave."""
    return LinkSettings(
        forward_timeout_ms=config.forward_timeout_ms,
        compression=config.link_compression == "auto",
        bytes_per_s=config.link_bytes_per_s,
    )


def judge_peers(links: MeshLinks, controller: ControllerService, configured: Topology) -> None:
    """Let links refuse brokers by what the region knows of the mesh."""
    links.region_name = region_names(controller, configured)
    links.too_old = refusal_of_older(controller)


def refusal_of_older(controller: ControllerService) -> Callable[[Open], str]:
    """Return what says why a broker of a region that joins is too old for what the mesh writes, "" if it is not.

    A region that has said its level is at that of all others, and refuses older brokers by itself.
    """

    def refusal(peer: Open) -> str:
        topology, level = controller.state.topology, controller.state.mesh.level_for(peer.region_number)
        if topology is None or peer.region_number == topology.region or level <= level_read_by(peer.protocol_version):
            return ""
        return (
            f"broker {peer.broker_id} speaks link protocol {peer.protocol_version} and may not read feature level "
            f"{level}, which all regions are at: start a newer version in region {peer.region[:40]}"
        )

    return refusal


def level_read_by(version: int) -> int:
    """Return the feature level that brokers who speak a version of the link protocol read, all of them."""
    return max((level for since, level in LEVEL_OF_VERSION.items() if since <= version), default=UNSAID_LEVEL)


def region_names(controller: ControllerService, configured: Topology) -> Callable[[RegionNumber], str]:
    """Return a function from a region's number to its name, "" while it is unknown here."""

    def name_of(number: RegionNumber) -> str:
        found = (controller.state.topology or configured).by_number(number)
        return "" if found is None else found.name

    return name_of
