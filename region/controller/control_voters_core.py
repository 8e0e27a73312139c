"""Who votes in the controller's own group, decided by every replica alike while it applies commands.

Rule 1: at most five voters, and an odd number of them: a sixth would only make every commit slower. Two brokers both
        vote: the second copy of the region's metadata is worth more than going on without it.
Rule 2: absence never makes the group smaller; it gives the absent broker's vote to another one if there is one.
Rule 3: who votes keeps voting while it may; movement is minimal. Everybody else registered follows as a learner.
Rule 4: a wish whose absent members are no minority is not made: the group could not commit any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from georelay.ids import BrokerId
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerRecord, BrokerState

CONTROL_VOTERS_MAX: Final = 5


def control_target(
    control: Assignment, records: Mapping[BrokerId, BrokerRecord]
) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
    """Return (voters, learners) that the controller's group shall have."""
    usable = {
        broker: record
        for broker, record in sorted(records.items())
        if record.registration is not None and record.state is not BrokerState.REMOVED and broker not in control.unsafe
    }
    size = _size(sum(record.counts for record in records.values()))
    ranked = sorted(usable, key=lambda broker: _rank(usable[broker], control))
    chosen = [broker for broker in ranked if usable[broker].takes_replicas or broker in control.target][:size]
    absent = sum(usable[broker].state is BrokerState.ABSENT for broker in chosen)
    if not chosen or (2 * absent >= len(chosen) and set(chosen) != set(control.target)):
        chosen = list(control.target)
    kept = [broker for broker in control.target if broker in chosen]
    voters = (*kept, *(broker for broker in chosen if broker not in kept))
    return voters, tuple(broker for broker in usable if broker not in voters)


def _size(strength: int) -> int:
    if strength <= 2:
        return max(strength, 1)
    return min(strength - 1 + strength % 2, CONTROL_VOTERS_MAX)


def _rank(record: BrokerRecord, control: Assignment) -> tuple[int, bool, BrokerId]:
    order = {BrokerState.ACTIVE: 0, BrokerState.DRAINING: 1, BrokerState.DRAINED: 2, BrokerState.ABSENT: 3}
    return order[record.state], record.broker not in control.target, record.broker
