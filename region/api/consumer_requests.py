"""What requests of named consumers say. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from georelay.errors import BadRequest, UnknownTopic
from region.api.reading import EARLIEST, LATEST
from region.api.record_json import parse_json
from region.kafka.ports import TopicView

PARTITIONS_MAX: Final = 64  # of one request; who reads a topic with more names some
INT64_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**31 - 1
STARTS: Final = {"earliest": EARLIEST, "latest": LATEST}
_PLACE: Final = r"[0-9]{1,6}:[0-9]{1,19}(?::[0-9]{1,10})?"  # partition, next offset, home epoch of what lies before
_EVENT_ID: Final = re.compile(f"{_PLACE}(?:,{_PLACE})*", re.ASCII)


def positions_json(positions: Mapping[int, int]) -> dict[str, int]:
    """Return next offsets by partition, where there are any."""
    return {str(partition): offset for partition, offset in sorted(positions.items()) if offset >= 0}


def event_id(positions: Mapping[int, int], epochs: Mapping[int, int]) -> str:
    """Return the id of an event behind which a client stands at these next offsets; see `parse_event_id`."""
    return ",".join(
        f"{partition}:{offset}" + (f":{epochs[partition]}" if partition in epochs else "")
        for partition, offset in sorted(positions.items())
        if offset >= 0
    )


def parse_event_id(text: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return next offsets, and epochs where they were known, by partition, of the last event that a client has seen.

    Raises:
        BadRequest: it is no id of ours.
    """
    if not text:
        return {}, {}
    if len(text) > PARTITIONS_MAX * 39 or _EVENT_ID.fullmatch(text) is None:
        raise BadRequest("Last-Event-ID: give the id of an event of this stream, or leave it out")
    rows = [[int(number) for number in row.split(":")] for row in text.split(",")]
    positions = {row[0]: min(row[1], INT64_MAX) for row in rows}
    return positions, {row[0]: row[2] for row in rows if len(row) > 2 and 0 < row[2] <= EPOCH_MAX}


def chosen_partitions(query: Mapping[str, str], view: TopicView) -> list[int]:
    """Return the partitions that a request names, all of them without (BadRequest, UnknownTopic)."""
    text = query.get("partitions", "")
    if not text:
        if view.partitions > PARTITIONS_MAX:
            raise BadRequest(
                f"topic {view.name!r} has {view.partitions} partitions: name up to {PARTITIONS_MAX} of them"
            )
        return list(range(view.partitions))
    words = text.split(",")
    if len(words) > PARTITIONS_MAX or not all(re.fullmatch(r"[0-9]{1,6}", word, re.ASCII) for word in words):
        raise BadRequest(f"partitions: give up to {PARTITIONS_MAX} numbers such as 0,3")
    chosen = sorted({int(word) for word in words})
    if chosen[-1] >= view.partitions:
        raise UnknownTopic(f"topic {view.name!r} has partitions 0..{view.partitions - 1}, not {chosen[-1]}")
    return chosen


def parse_start(body: bytes) -> int:
    """Return EARLIEST or LATEST (BadRequest)."""
    wish = parse_json(body) if body else {}
    word = wish.get("start", "earliest") if isinstance(wish, dict) and wish.keys() <= {"start"} else None
    if word not in STARTS:
        raise BadRequest('body: must be {"start": "earliest"} or {"start": "latest"}')
    return STARTS[str(word)]


def parse_positions(body: bytes, view: TopicView) -> dict[int, int]:
    """Return next offsets by partition (BadRequest)."""
    wish = parse_json(body)
    rows = wish.get("positions") if isinstance(wish, dict) and wish.keys() == {"positions"} else None
    if not isinstance(rows, dict) or not rows:
        raise BadRequest('body: must be {"positions": {"0": 17}}, as the records came with them')
    positions = {}
    for name, offset in rows.items():
        if re.fullmatch(r"[0-9]{1,6}", name, re.ASCII) is None or int(name) >= view.partitions:
            raise BadRequest(f"positions: {name[:40]!r} is no partition of {view.name!r}")
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= INT64_MAX:
            raise BadRequest(f"positions.{name}: must be an offset, 0 or more")
        positions[int(name)] = offset
    return positions
