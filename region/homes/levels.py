"""Which acknowledgements a forced move has to keep, and which topics fail over by themselves."""

from __future__ import annotations

from collections.abc import Iterable

from georelay.durability import GEO_REGIONS_MIN
from region.controller.geo_settings import FailoverPolicy
from region.controller.topic import Homes, TopicDefinition
from region.coordination.coordinators import INTERNAL_TOPIC


def protected_level(topic: TopicDefinition, *, regions: int) -> int:
    """Return k: what k of the topic's `regions` acknowledged is kept unless an operator accepts the loss.

    protect.k if it is set, else min.insync.regions if that is more than 1, else 2: the least that more than the home
    can have acknowledged. No majority: that of the regions that are asked is more than that of the fewer ones which
    there were when a record was acknowledged, in this epoch or an earlier one, and nobody knows how many those were.
    Coordinators are acknowledged in their home alone: a majority of the regions has to promise for them.
    """
    if topic.protect_k > 1:
        return min(topic.protect_k, regions)
    if topic.min_insync_regions > 1 and not topic.insync_raised:  # records of before may have been acknowledged by two
        return min(topic.min_insync_regions, regions)
    return regions // 2 + 1 if is_coordination(topic) else min(GEO_REGIONS_MIN, regions)


def needs_lease(topic: TopicDefinition) -> bool:
    """Return whether brokers acknowledge the topic's records at region level only while they hold a lease."""
    return topic.homes is Homes.ONE and topic.failover is FailoverPolicy.AUTO


def is_coordination(topic: TopicDefinition) -> bool:
    """Return whether this is the topic whose streams are coordinators: groups, transactions, queues."""
    return topic.name == INTERNAL_TOPIC and topic.homes is Homes.EVERY


def coordinators_need_lease(topics: Iterable[TopicDefinition]) -> bool:
    """Return whether coordinators acknowledge only while their broker holds a lease.

    Groups go where the topics go: where any topic fails over by itself they are taken over with it, and commits of an
    isolated coordinator must have ended by then.
    """
    return any(needs_lease(topic) for topic in topics)


def may_fail_over(topic: TopicDefinition) -> bool:
    """Return whether control may move the topic's homes by itself.

    Nothing that consumers saw is lost by that: what is protected is at most what they wait for.
    """
    level = max(topic.protect_k, 0) or topic.min_insync_regions
    return needs_lease(topic) and 2 <= level <= topic.min_insync_regions
