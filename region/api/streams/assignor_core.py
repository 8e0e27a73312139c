"""Which member of a consumer group reads which partition: Kafka's eager assignors `range` and `roundrobin`. Pure.

Used when the member that leads the group is one of the native API. Members are ordered by instance id (static) or
member id, as Kafka orders them, so that the same members get the same partitions again.
Source: org.apache.kafka.clients.consumer.RangeAssignor, RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One member. `instance_id` is empty for a dynamic member."""

    member_id: str
    instance_id: str = ""
    topics: tuple[str, ...]


Assignment = dict[str, dict[str, list[int]]]  # member id -> topic -> partitions


def _ordered(members: Sequence[Subscriber]) -> list[Subscriber]:
    """Static members first, by instance id; then the others by member id."""
    return sorted(members, key=lambda member: (not member.instance_id, member.instance_id or member.member_id))


def assign_range(members: Sequence[Subscriber], partitions: Mapping[str, int]) -> Assignment:
    """Give each subscriber of a topic one run of its partitions; the first ones get one more.

    Args:
        partitions: topic -> number of partitions, for the topics that exist.
    """
    given: Assignment = {member.member_id: {} for member in members}
    for topic in sorted({topic for member in members for topic in member.topics}):
        count = partitions.get(topic, 0)
        takers = _ordered([member for member in members if topic in member.topics])
        each, more = divmod(count, len(takers))
        first = 0
        for position, member in enumerate(takers):
            size = each + (position < more)
            if size:
                given[member.member_id][topic] = list(range(first, first + size))
            first += size
    return given


def assign_round_robin(members: Sequence[Subscriber], partitions: Mapping[str, int]) -> Assignment:
    """Deal all partitions of all topics out in turn, to members that want the topic."""
    given: Assignment = {member.member_id: {} for member in members}
    circle = _ordered(members)
    turn = 0
    for topic in sorted({topic for member in members for topic in member.topics}):
        for partition in range(partitions.get(topic, 0)):
            while topic not in circle[turn % len(circle)].topics:
                turn += 1
            given[circle[turn % len(circle)].member_id].setdefault(topic, []).append(partition)
            turn += 1
    return given


Assign = Callable[[Sequence[Subscriber], Mapping[str, int]], Assignment]
ASSIGNORS: Final[Mapping[str, Assign]] = MappingProxyType({"range": assign_range, "roundrobin": assign_round_robin})
