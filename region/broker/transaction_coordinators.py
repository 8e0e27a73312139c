"""The transactions part of coordinators, joined with the streams that markers go to."""

from __future__ import annotations

from region.broker.mesh_port import MeshPort, RemoteStreamsOverLinks
from region.broker.transaction_port import TransactionPort
from region.config import BrokerConfig
from region.controller.service import ControllerService
from region.coordination.part import Part
from region.coordination.region_coordinators import RegionCoordinators
from region.transactions.part import TransactionsPart
from region.transactions.settings import TransactionSettings


def register_transactions(
    config: BrokerConfig,
    *,
    coordinators: RegionCoordinators,
    controller: ControllerService,
    port: MeshPort,
    remote: RemoteStreamsOverLinks,
) -> TransactionPort:
    """Let coordinators of this broker keep transactions; return their way to the streams."""
    way = TransactionPort(
        me=config.broker_id,
        region=config.region_number,
        catalog=controller.catalog,
        coordinators=coordinators,
        hosted=port.hosted,
        leader_of=port.leader_of,
        barrier=controller.barrier,
        allocate=controller.allocate_producer_id,
        ask=remote.ask,
        ask_region=remote.request,
    )
    settings = TransactionSettings(
        timeout_ms_max=config.transaction_timeout_max_ms, expiry_ms=config.transactional_id_expiry_ms
    )
    coordinators.register(Part.TRANSACTIONS, lambda log: TransactionsPart(log, way, settings))
    return way
