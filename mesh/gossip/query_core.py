"""Questions to many members: who is meant (filters), and who has answered so far (serf-wire 2.7). Pure.

Rule 1: a filter that cannot be read matches nobody: a question that was not understood is not answered.
Rule 2: each member answers and acknowledges once; what comes later, or with another id, is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from mesh.gossip.dialect import pack, read_map
from mesh.gossip.faults import GossipFault
from mesh.gossip.serf_messages import NAME_CHARS_MAX, QueryResponse

FILTER_NAMES: Final = 0
FILTER_TAG: Final = 1
FILTER_NAMES_MAX: Final = 256
EXPRESSION_CHARS_MAX: Final = 256
ANSWERS_MAX: Final = 10_000
TIMEOUT_MULT: Final = 16

TagMatch: TypeAlias = Callable[[str, str], bool]  # (expression, value) -> does the expression occur in the value?

_ARRAY: Final = b"\x81\xa1N"  # a map of one field around an array, which the reader of maps can read


def names_filter(names: Sequence[str]) -> bytes:
    """Return the filter for members with these names."""
    return bytes((FILTER_NAMES,)) + pack({"N": list(names)})[len(_ARRAY) :]


def tag_filter(tag: str, expression: str) -> bytes:
    """Return the filter for members whose tag has a place that matches the regular expression (RE2)."""
    return bytes((FILTER_TAG,)) + pack({"Tag": tag, "Expr": expression})


def is_meant(filters: Sequence[bytes], *, name: str, tags: Mapping[str, str], match: TagMatch) -> bool:
    """Return whether every filter lets this member answer."""
    return all(_lets_pass(raw, name, tags, match) for raw in filters)


def _lets_pass(raw: bytes, name: str, tags: Mapping[str, str], match: TagMatch) -> bool:
    try:
        if raw[:1] == bytes((FILTER_NAMES,)):
            wanted = read_map(_ARRAY + raw[1:], array_max=FILTER_NAMES_MAX)
            return name in wanted.texts("N", limit=FILTER_NAMES_MAX, each_limit=NAME_CHARS_MAX)
        if raw[:1] == bytes((FILTER_TAG,)):
            fields = read_map(raw[1:])
            tag = fields.text("Tag", limit=NAME_CHARS_MAX)
            expression = fields.text("Expr", limit=EXPRESSION_CHARS_MAX)
            return match(expression, tags.get(tag, ""))
    except GossipFault:
        return False
    return False


def default_timeout_s(gossip_interval_s: float, alive: int) -> float:
    """Return how long a question is open when nobody says how long: it grows with the number of members."""
    return gossip_interval_s * TIMEOUT_MULT * math.ceil(math.log10(max(alive, 1) + 1))


class RunningQuery:
    """A question of this member that is still open until `deadline` (monotonic seconds)."""

    def __init__(self, *, ltime: int, query_id: int, deadline: float) -> None:
        self.ltime = ltime
        self.query_id = query_id
        self.deadline = deadline
        self.acknowledged: set[str] = set()
        self.answered: set[str] = set()

    def take(self, response: QueryResponse, now: float) -> bool:
        """Return whether this response counts, and remember that it came."""
        if response.query_id != self.query_id or now > self.deadline:
            return False
        seen = self.acknowledged if response.is_ack else self.answered
        if response.sender in seen or len(seen) >= ANSWERS_MAX:
            return False
        seen.add(response.sender)
        return True
