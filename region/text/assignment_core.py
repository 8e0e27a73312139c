"""Who gets which partitions: Kafka's range assignor, for the case that this member leads its group. Pure.

Per topic the members that want it, in the order of their ids, get consecutive partitions; the first ones get one more
where they do not divide. Same result as `RangeAssignor` of Kafka without racks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

RANGE = "range"


def assign_ranges(
    topics_of: Mapping[str, Collection[str]], partitions_of: Callable[[str], int]
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return by member its partitions per topic.

    Args:
        topics_of: by member id the topics that it wants.
        partitions_of: number of partitions of a topic, 0 when it does not exist.
    """
    assigned: dict[str, dict[str, tuple[int, ...]]] = {member: {} for member in topics_of}
    for topic in sorted({topic for topics in topics_of.values() for topic in topics}):
        members = sorted(member for member, topics in topics_of.items() if topic in topics)
        share, more = divmod(partitions_of(topic), len(members))
        start = 0
        for position, member in enumerate(members):
            stop = start + share + (position < more)
            if stop > start:
                assigned[member][topic] = tuple(range(start, stop))
            start = stop
    return assigned
