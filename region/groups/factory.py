"""Makes the parts of one broker's coordinators."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

from region.coordination.log import CoordinatorLog
from region.groups.counters import GroupCounters
from region.groups.part import GroupsPart
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames


def groups_factory(
    names: TopicNames, settings: GroupSettings, *, rng: random.Random, counters: GroupCounters | None = None
) -> Callable[[CoordinatorLog], GroupsPart]:
    """Return what Coordinators.register takes for Part.GROUPS."""
    shared = GroupCounters() if counters is None else counters

    def new_id() -> str:
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    def make(coordinator: CoordinatorLog) -> GroupsPart:
        return GroupsPart(coordinator, names=names, settings=settings, new_id=new_id, counters=shared)

    return make
