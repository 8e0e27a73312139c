"""SKIP: a mirror gives up records that its home no longer stores, and continues above them.

The header of the entry says where: base offset = first offset that follows, digest = digest chain before it, epoch =
the one that sequenced what follows. Payload, version 1 (big-endian; it never changes):

    u8 version (1) | u16 rows, each u32 epoch, i64 start | producer states (region.topics.producer_rows, index 0)

Version 2 is the same with producer states in their second layout, with checksums; from SKIP_CHECKSUM_LEVEL of the
mirror's region on. On the link producer states with checksums begin with u32 2^32 - 1, which is no count, and are sent
to brokers only that know it; without that they have their first layout.

Rule 1: nothing below stays readable, so a log never has a hole inside: the log start becomes the base offset.
Rule 2: the producer states are those of the home before that offset, so that a mirror that becomes home tells
        duplicates as the home would have, and tells them from other batches under the same sequence.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from georelay.ids import Epoch, Offset, RaftIndex
from georelay.limits import RECORD_BATCH_BYTES_MAX
from mesh.replication.frames import EPOCH_ROWS_MAX
from mesh.replication.ports import EpochRow
from region.topics.producer_rows import (
    PRODUCER_ROWS_BYTES_MAX,
    decode_producers,
    encode_producers,
)
from region.topics.producer_table_core import ProducerState, Row

SKIP_VERSION: Final = 1
CHECKSUM_VERSION: Final = 2
_WITH_CHECKSUMS: Final = b"\xff\xff\xff\xff"
_HEAD: Final = struct.Struct(">BH")
_ROW: Final = struct.Struct(">Iq")
assert _HEAD.size + EPOCH_ROWS_MAX * _ROW.size + PRODUCER_ROWS_BYTES_MAX < RECORD_BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTo:
    """What a mirror knows after a SKIP entry: the home's epochs and producers before the offset that follows."""

    epochs: tuple[EpochRow, ...]
    producers: tuple[Row, ...]


def producers_before(rows: Iterable[Row], offset: Offset) -> list[Row]:
    """Return the states without the batches at or above `offset`, which the mirror receives and follows itself."""
    kept: list[Row] = []
    for producer_id, state in rows:
        batches = tuple(batch for batch in state.batches if batch.base_offset < offset)
        if batches:
            kept.append((producer_id, ProducerState.of(state.epoch, batches)))
    return sorted(kept, key=lambda row: row[1].batches[-1].base_offset)


def _indexed(rows: Iterable[Row], index: RaftIndex) -> list[Row]:
    return [
        (producer_id, ProducerState.of(state.epoch, (replace(batch, index=index) for batch in state.batches)))
        for producer_id, state in rows
    ]


def encode_shipped_producers(rows: Iterable[Row], *, checksums: bool = False) -> bytes:
    """Return producer states as they travel to another region: without the indexes of this region's log.

    Args:
        checksums: of their batches too, for a broker that knows how these travel.
    """
    mark = _WITH_CHECKSUMS if checksums else b""
    return mark + encode_producers(_indexed(rows, RaftIndex(0)), checksums=checksums)


def encode_skip(*, epochs: Sequence[EpochRow], producers: bytes, checksums: bool = False) -> bytes:
    """Return the payload of a SKIP entry.

    Args:
        producers: as `encode_shipped_producers` gives them.
        checksums: whether every broker of this region reads version 2; else checksums are left out.

    Raises:
        ValueError: `producers` are none.
    """
    version = SKIP_VERSION
    if producers.startswith(_WITH_CHECKSUMS):
        producers = producers[len(_WITH_CHECKSUMS) :]
        if checksums:
            version = CHECKSUM_VERSION
        else:
            producers = encode_producers(decode_producers(producers, checksums=True))
    return b"".join((_HEAD.pack(version, len(epochs)), *(_ROW.pack(*row) for row in epochs), producers))


def decode_skip(payload: bytes | memoryview, *, index: RaftIndex) -> SkippedTo:
    """Decode the payload of the SKIP entry at `index`.

    Raises:
        ValueError: another version, or lengths, counts or values that cannot be.
    """
    try:
        version, count = _HEAD.unpack_from(payload)
        if version not in (SKIP_VERSION, CHECKSUM_VERSION):
            raise ValueError(f"SKIP entry version {version} is unknown, this broker reads up to {CHECKSUM_VERSION}")
        if count > EPOCH_ROWS_MAX:
            raise ValueError(f"{count} epochs are over {EPOCH_ROWS_MAX}")
        rows = [_ROW.unpack_from(payload, _HEAD.size + at * _ROW.size) for at in range(count)]
    except struct.error as error:
        raise ValueError(f"a SKIP entry ends too early: {error}") from error
    states = memoryview(payload)[_HEAD.size + count * _ROW.size :]
    producers = _indexed(decode_producers(states, checksums=version == CHECKSUM_VERSION), index)
    return SkippedTo(epochs=tuple((Epoch(epoch), Offset(start)) for epoch, start in rows), producers=tuple(producers))
