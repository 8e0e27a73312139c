"""What the brokers of a world name in their ledgers: the part of the SLA report that must know of every record.

unnamed               what is readable in a region is named by some broker of it, whoever was killed meanwhile
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from georelay.ids import RegionNumber
from tests.sim.violation import Violation

_Key = tuple[RegionNumber, str, int, int]


class NamedRecords:
    """The offsets that were named, by region, topic, origin and partition; worlds are small: one by one."""

    def __init__(self) -> None:
        self._offsets: dict[_Key, set[int]] = {}
        self.late = 0

    def add(self, key: _Key, from_offset: int, to_offset: int) -> None:
        """Note that [from_offset, to_offset) was named."""
        self._offsets.setdefault(key, set()).update(range(from_offset, to_offset))

    def check(self, stream: Any) -> None:
        """Hold the rule for the replica of a stream's leader. Raises Violation."""
        key = (stream.region, stream.topic, int(stream.key.origin), stream.partition)
        unnamed = set(range(stream.log_start, stream.high_watermark)) - self._offsets.get(key, set())
        if unnamed:
            raise Violation("unnamed", f"{key}: {len(unnamed)} of [{stream.log_start}, {stream.high_watermark}), "
                            f"the first is {min(unnamed)}")  # fmt: skip


class NamingRecorder:
    """Stands for the recorder of one broker; it keeps what is named, and no latencies."""

    named_before_us = 0

    def __init__(self, region: RegionNumber, named: NamedRecords) -> None:
        self._region = region
        self._named = named

    def committed(self, *, topic: str, origin: int, partition: int, from_offset: int, to_offset: int, **_: Any) -> None:
        """Note a range committed at its home."""
        self._named.add((self._region, topic, int(origin), partition), from_offset, to_offset)

    replicated = committed

    def named_late(self, _kind: Any, ranges: Sequence[Any], *, topic: str, origin: int, partition: int) -> None:
        """Note ranges that nobody saw commit."""
        for late in ranges:
            self._named.late += late.to_offset - late.from_offset
            self._named.add((self._region, topic, int(origin), partition), late.from_offset, late.to_offset)

    def aborted_late(self, *_: Any, **__: Any) -> None:
        """Forget it."""

    def left(self, **_: Any) -> None:
        """Forget it."""
