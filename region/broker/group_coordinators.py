"""Gives the coordinators of a broker what their groups need of it: names of topics, settings, randomness."""

from __future__ import annotations

import random
from collections.abc import Sequence

from georelay.ids import RegionNumber
from region.config import BrokerConfig
from region.controller.registration import BrokerRegistration
from region.controller.service import ControllerService
from region.controller.topology import Topology
from region.coordination.coordinators import Coordinators
from region.coordination.part import Part
from region.groups.counters import GroupCounters
from region.groups.factory import groups_factory
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames


def coordinator_origins(topology: Topology | None) -> Sequence[RegionNumber]:
    """Return the regions that have, or had, coordinators of their own."""
    return () if topology is None else [region.number for region in topology.regions if not region.witness]


def has_left(topology: Topology | None, region: RegionNumber) -> bool:
    """Return whether a region left the mesh."""
    known = None if topology is None else topology.by_number(region)
    return known is not None and known.removed


def kafka_address(registration: BrokerRegistration | None) -> tuple[str, int] | None:
    """Return where Kafka clients reach a broker, None for one that is not registered."""
    return None if registration is None else (registration.kafka_host, registration.kafka_port)


def register_groups(
    coordinators: Coordinators, controller: ControllerService, config: BrokerConfig, *, rng: random.Random
) -> GroupCounters:
    """Have every coordinator keep groups; returns what they count together."""
    names = TopicNames(
        topic=controller.catalog.topic,
        topics=controller.catalog.topics,
        version=lambda: controller.catalog.metadata_epoch,
        is_deleted=controller.state.is_deleted,
    )
    settings = GroupSettings(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offsets_retention_ms=config.offsets_retention_ms,
    )
    counters = GroupCounters()
    coordinators.register(Part.GROUPS, groups_factory(names, settings, rng=rng, counters=counters))
    return counters
