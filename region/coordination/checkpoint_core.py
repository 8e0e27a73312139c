"""The state of all parts as records of a coordinator's own stream: whoever reads them needs nothing from before. Pure.

A checkpoint is a run of records with the key 00, written side by side by the leader of the home with nothing else in
flight. Layout of a value, version 1 (big-endian; it never changes):

    u8 version (1) | u8 part | u32 epoch | u32 number | u32 count | bytes of that part's snapshot

Rule 1: pieces are numbered 0..count - 1 over all parts; those of one part, joined, are its snapshot.
Rule 2: a run that does not begin with piece 0, or in which one is missing, says nothing: the next one will.
Rule 3: every part that the writer has stands in it, an empty one with an empty piece.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from georelay.ids import Epoch
from georelay.limits import KIB
from region.coordination.limits import PART_RESTORED_BYTES_MAX
from region.coordination.part import Part

CHECKPOINT_KEY: Final = b"\x00"
CHECKPOINT_VERSION: Final = 1
PIECE_BYTES_MAX: Final = 512 * KIB
PIECES_MAX: Final = len(Part) * (PART_RESTORED_BYTES_MAX // PIECE_BYTES_MAX + 1)
_HEAD: Final = struct.Struct(">BBIII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The states of all parts in one epoch of the stream, as `CoordinatorPart.snapshot` returned them."""

    epoch: Epoch
    parts: Mapping[Part, bytes]


def encode_checkpoint(checkpoint: Checkpoint) -> list[bytes]:
    """Return the values of the records, in order."""
    pieces = [
        (part, state[at : at + PIECE_BYTES_MAX])
        for part, state in sorted(checkpoint.parts.items())
        for at in range(0, max(len(state), 1), PIECE_BYTES_MAX)
    ]
    return [
        _HEAD.pack(CHECKPOINT_VERSION, part, checkpoint.epoch, number, len(pieces)) + piece
        for number, (part, piece) in enumerate(pieces)
    ]


class CheckpointReader:
    """Joins the pieces of the run that is being read."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._pieces: list[bytes] = []
        for piece in pieces:
            self.take(piece)

    @property
    def pieces(self) -> Sequence[bytes]:
        """Return the pieces of a run that is not over: part of the state between two records."""
        return tuple(self._pieces)

    def take(self, value: bytes) -> Checkpoint | None:
        """Follow one record; return the checkpoint that it ends.

        Raises:
            ValueError: a value that is none.
        """
        number, count = _read_head(value)[2:]
        if number != len(self._pieces) and number != 0:
            self._pieces = []
            return None
        if number == 0:
            self._pieces = []
        self._pieces.append(value)
        if number + 1 < count:
            return None
        pieces, self._pieces = self._pieces, []
        return _joined(pieces)


def _read_head(value: bytes) -> tuple[Part, Epoch, int, int]:
    if len(value) < _HEAD.size:
        raise ValueError(f"a piece of a checkpoint of {len(value)} bytes ends too early")
    version, part, epoch, number, count = _HEAD.unpack_from(value)
    if version != CHECKPOINT_VERSION:
        raise ValueError(f"checkpoint version {version} is unknown, this broker reads {CHECKPOINT_VERSION}")
    if not number < count <= PIECES_MAX or len(value) > _HEAD.size + PIECE_BYTES_MAX:
        raise ValueError(f"piece {number} of {count} of a checkpoint, {len(value)} bytes, cannot be")
    return Part(part), Epoch(epoch), number, count


def _joined(pieces: Sequence[bytes]) -> Checkpoint:
    states: dict[Part, bytes] = {}
    epoch = Epoch(0)
    for piece in pieces:
        part, epoch, _, _ = _read_head(piece)
        states[part] = states.get(part, b"") + piece[_HEAD.size :]
    return Checkpoint(epoch=epoch, parts=states)
