"""Where one stream's log begins: decided by its home, the same on every replica at equal index.

Payload of a START entry, version 1 (41 bytes, big-endian; it never changes):

    pos  size  field
      0     1  version       1
      1     8  first_index   entries below it may go: whole segments of it are deleted
      9     8  log_start     first offset that readers may ask for
     17     8  boundary      base offset of the batch that holds log_start
     25    16  digest        digest chain before `boundary`

Version 2 (49 bytes) is written only when an operator drops orphan branches:

    41      8  dropped_below   branches that were cut off by an entry below this index are dropped

Rule 1: the log start never goes back, whatever a START entry says. Only an EPOCH entry that begins below it, and cuts
        off everything that this log has, moves it back to there.
Rule 2: the digest travels in the entry, so that a replica knows it without reading what it is about to delete: a
        mirror that ends exactly at `boundary` can be served for ever.
Rule 3: a START entry above the log end at its own place moves nothing: an EPOCH entry overtook it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from georelay.ids import Offset, RaftIndex, StreamKey
from mesh.replication.stream_header import DIGEST_BYTES, first_digest

START_VERSION: Final = 1
_START: Final = struct.Struct(">BQqq16s")
START_BYTES: Final = _START.size
DROP_VERSION: Final = 2
NOTHING_DROPPED: Final = RaftIndex(0)
_DROPPED: Final = struct.Struct(">Q")
assert START_BYTES == 25 + DIGEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStart:
    """The beginning of a log.

    Args:
        first_index: entries below it are not needed any more.
        offset: the log start: first offset that readers may ask for.
        boundary: base offset of the batch that holds `offset`; mirrors are served from here.
        digest: digest chain before `boundary`, 16 bytes.

    Invariants: 1 0 <= boundary <= offset   2 first_index >= 1.
    """

    first_index: RaftIndex
    offset: Offset
    boundary: Offset
    digest: bytes

    def __post_init__(self) -> None:
        """Refuse a start that cannot be."""
        if not 0 <= self.boundary <= self.offset or self.first_index < 1 or len(self.digest) != DIGEST_BYTES:
            raise ValueError(f"a log cannot start at offset {self.offset} in a batch at {self.boundary}")

    @classmethod
    def whole(cls, key: StreamKey) -> LogStart:
        """Return the start of a log from which nothing was deleted."""
        return cls(first_index=RaftIndex(1), offset=Offset(0), boundary=Offset(0), digest=first_digest(key))

    def moved_to(self, wanted: LogStart) -> LogStart:
        """Return the start after a START entry that wants `wanted`: nothing goes back."""
        first_index = max(self.first_index, wanted.first_index)
        if wanted.offset <= self.offset:
            return replace(self, first_index=first_index)
        # A later offset can lie in an earlier batch only if the batch is the same one.
        keeps_batch = wanted.boundary <= self.boundary
        return LogStart(
            first_index=first_index,
            offset=wanted.offset,
            boundary=self.boundary if keeps_batch else wanted.boundary,
            digest=self.digest if keeps_batch else wanted.digest,
        )

    def cut(self, offset: Offset, digest: bytes) -> LogStart:
        """Return the start after an EPOCH entry that begins at `offset`; `digest` is the chain before it."""
        if offset >= self.offset:
            return self
        if offset >= self.boundary:
            return replace(self, offset=offset)
        return replace(self, offset=offset, boundary=offset, digest=digest)


def encode_start(start: LogStart, *, dropped_below: RaftIndex = NOTHING_DROPPED) -> bytes:
    """Return the payload of a START entry."""
    version = DROP_VERSION if dropped_below else START_VERSION
    head = _START.pack(version, start.first_index, start.offset, start.boundary, start.digest)
    return head + _DROPPED.pack(dropped_below) if dropped_below else head


def decode_start(payload: bytes | memoryview) -> LogStart:
    """Decode the payload of a START entry.

    Raises:
        ValueError: another length or version, or a start that cannot be.
    """
    if len(payload) not in (START_BYTES, START_BYTES + _DROPPED.size):
        raise ValueError(f"a START entry has {START_BYTES} bytes, not {len(payload)}")
    version, first_index, offset, boundary, digest = _START.unpack_from(payload)
    if version != (START_VERSION if len(payload) == START_BYTES else DROP_VERSION):
        raise ValueError(f"START entry version {version} is unknown, this broker reads version {START_VERSION}")
    return LogStart(
        first_index=RaftIndex(first_index), offset=Offset(offset), boundary=Offset(boundary), digest=bytes(digest)
    )


def decode_dropped(payload: bytes | memoryview) -> RaftIndex:
    """Return below which index the entries lie whose orphan branches a START entry drops, 0 for none.

    `decode_start` has checked the payload.
    """
    return RaftIndex(_DROPPED.unpack_from(payload, START_BYTES)[0]) if len(payload) > START_BYTES else NOTHING_DROPPED
