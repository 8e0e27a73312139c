"""Gives the coordinators of a broker what their groups need of it: names of topics, settings, randomness."""

from __future__ import annotations

import random

from region.config import BrokerConfig
from region.controller.service import ControllerService
from region.coordination.coordinators import Coordinators
from region.coordination.part import Part
from region.groups.counters import GroupCounters
from region.groups.factory import groups_factory
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames


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
