"""Who gets which partitions: Kafka's range assignor, for the case that this member leads its group. Pure.

Per topic the members that want it, in the order of their ids, get consecutive partitions; the first ones get one more
where they do not divide. Same result as `RangeAssignor` of Kafka without racks, while no member names a limit.
A member of this protocol may say how many partitions it takes at most (SUBS topic group 3): the others get the rest,
and what nobody has room for is read by nobody until somebody joins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

RANGE: Final = "range"
_MOST: Final = re.compile(rb"georelay\.most=([0-9]{1,5})")
_NO_LIMIT: Final[Mapping[str, int]] = {}


def most_text(most: int) -> bytes | None:
    """Return the user data of a member that takes `most` partitions, None for one without a limit (0)."""
    return b"georelay.most=%d" % most if most else None


def most_of(user_data: bytes | None) -> int | None:
    """Return how many partitions a member takes at most by its user data; None: any number, as other clients do."""
    found = _MOST.fullmatch(user_data or b"")
    return None if found is None else int(found[1])


def assign_ranges(
    topics_of: Mapping[str, Collection[str]], partitions_of: Callable[[str], int], most: Mapping[str, int] = _NO_LIMIT
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return by member its partitions per topic.

    Args:
        topics_of: by member id the topics that it wants.
        partitions_of: number of partitions of a topic, 0 when it does not exist.
        most: by member id how many it takes of all topics together; who is not there takes any number.
    """
    assigned: dict[str, dict[str, tuple[int, ...]]] = {member: {} for member in topics_of}
    for topic in sorted({topic for topics in topics_of.values() for topic in topics}):
        members = sorted(member for member, topics in topics_of.items() if topic in topics)
        count = partitions_of(topic)
        rooms = [_room(most.get(member), assigned[member], count) for member in members]
        start = 0
        for member, share in zip(members, _shares(count, rooms), strict=True):
            if share:
                assigned[member][topic] = tuple(range(start, start + share))
            start += share
    return assigned


def _room(most: int | None, held: Mapping[str, Sequence[int]], count: int) -> int:
    return count if most is None else max(0, most - sum(map(len, held.values())))


def _shares(count: int, rooms: Sequence[int]) -> list[int]:
    """Return even shares of `count`, the first ones one more; what is over somebody's room goes to the others."""
    shares = [0] * len(rooms)
    open_places = [place for place, room in enumerate(rooms) if room > 0]
    while count and open_places:
        each, more = divmod(count, len(open_places))
        for position, place in enumerate(open_places):
            given = min(each + (position < more), rooms[place] - shares[place])
            shares[place] += given
            count -= given
        open_places = [place for place in open_places if shares[place] < rooms[place]]
    return shares
