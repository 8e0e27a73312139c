"""Kafka's ConsumerProtocol: what members of a consumer group write into JoinGroup and SyncGroup.

Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Kafka (versions 0-3). Version 1 is
written, which every client of today reads; of newer versions the fields known here are read and the rest is skipped,
as Kafka's own clients do. Groups mixed of Kafka clients and members of the native API share these bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from georelay.errors import BadRequest

VERSION: Final = 1
TOPICS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 100_000
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member wants. `owned`: (topic, partition) that it holds; cooperative assignors ask for them."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[tuple[str, int], ...] = ()


def encode_subscription(subscription: Subscription) -> bytes:
    """Return the metadata of a JoinGroup protocol, version 1."""
    parts = [_I16.pack(VERSION), _I32.pack(len(subscription.topics))]
    parts += [_string(topic) for topic in sorted(subscription.topics)]
    parts.append(_nullable(subscription.user_data))
    owned: dict[str, list[int]] = {}
    for topic, partition in subscription.owned:
        owned.setdefault(topic, []).append(partition)
    parts.append(_partitions(owned))
    return b"".join(parts)


def decode_subscription(raw: bytes) -> Subscription:
    """Read a member's metadata (BadRequest: it is not a subscription)."""
    reader = _Reader(raw)
    version = reader.int16()
    topics = tuple(reader.string() for _ in range(reader.count(TOPICS_MAX)))
    user_data = reader.nullable()
    owned: tuple[tuple[str, int], ...] = ()
    if version >= 1 and not reader.is_over:
        owned = tuple((topic, partition) for topic, held in reader.partitions().items() for partition in held)
    return Subscription(topics=topics, user_data=user_data, owned=owned)


def encode_assignment(partitions: Mapping[str, Sequence[int]], user_data: bytes = b"") -> bytes:
    """Return the assignment of a SyncGroup, version 1."""
    return _I16.pack(VERSION) + _partitions(partitions) + _nullable(user_data)


def decode_assignment(raw: bytes) -> dict[str, tuple[int, ...]]:
    """Read an assignment; b"" is one of no partitions (BadRequest: it is none)."""
    if not raw:
        return {}
    reader = _Reader(raw)
    reader.int16()
    return reader.partitions()


def _string(text: str) -> bytes:
    raw = text.encode()
    return _I16.pack(len(raw)) + raw


def _nullable(raw: bytes | None) -> bytes:
    return _I32.pack(-1) if raw is None else _I32.pack(len(raw)) + raw


def _partitions(partitions: Mapping[str, Sequence[int]]) -> bytes:
    parts = [_I32.pack(len(partitions))]
    for topic in sorted(partitions):
        numbers = sorted(partitions[topic])
        parts += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


class _Reader:
    """Walks the bytes; every length is checked against what is left."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._raw)

    def int16(self) -> int:
        return int(_I16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_I32.unpack(self._take(4))[0])

    def count(self, limit: int) -> int:
        number = self.int32()
        if not 0 <= number <= min(limit, len(self._raw)):
            raise BadRequest(f"group member's metadata: a count of {number} at byte {self._at - 4}")
        return number

    def string(self) -> str:
        try:
            return self._take(self.int16()).decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"group member's metadata: a name is not UTF-8 before byte {self._at}") from error

    def nullable(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count(TOPICS_MAX)):
            topic = self.string()
            found[topic] = tuple(self.int32() for _ in range(self.count(PARTITIONS_MAX)))
        return found

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._raw):
            raise BadRequest(f"group member's metadata is cut short at byte {self._at}")
        taken = self._raw[self._at : end]
        self._at = end
        return taken
