"""Frames of mesh control's Raft group between brokers of different regions, inside RAFT parts of a link.

    16 control id | u32 generation | u32 from replica | u32 to replica | u64 from session | u64 to session
    | u8 kind | u8 flags | payload                                                   (big-endian, 46 bytes of head)

kind is a FrameKind of the peer transport, or 64 NEWER: "your control is over, this is the one that is": payload empty.
flags: 1 more pieces of this frame follow.

Rule 1: every frame says which control it is of. A frame of another one never reaches a Raft group.
Rule 2: a session names one life of one direction: beats are told as differences, so both ends must agree where they
        began. HELLO carries the sender's session and the one that it knows of the receiver, 0 for none.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from georelay.limits import KIB

PIECE_BYTES: Final = 256 * KIB  # of one frame: batches of streams go in between
NEWER: Final = 64
_HEAD: Final = struct.Struct(">16sIIIQQBB")
_MORE: Final = 1


class RaftFrameError(ValueError):
    """Bytes that are not such a frame: the link is closed."""


class RaftFrame(NamedTuple):
    """One piece of a frame."""

    control_id: str
    generation: int
    from_replica: int
    to_replica: int
    from_session: int
    to_session: int
    kind: int
    has_more: bool
    payload: memoryview | bytes


def encode(frame: RaftFrame) -> bytes:
    """Return the bytes of a frame."""
    head = _HEAD.pack(
        bytes.fromhex(frame.control_id),
        frame.generation,
        frame.from_replica,
        frame.to_replica,
        frame.from_session,
        frame.to_session,
        frame.kind,
        _MORE * frame.has_more,
    )
    return head + bytes(frame.payload)


def decode(raw: bytes) -> RaftFrame:
    """Read a frame.

    Raises:
        RaftFrameError: too short, or a flag that this version does not know.
    """
    if len(raw) < _HEAD.size or len(raw) > _HEAD.size + PIECE_BYTES:
        raise RaftFrameError(f"a RAFT part of {len(raw)} bytes is too short or too long")
    control_id, generation, sender, receiver, from_session, to_session, kind, flags = _HEAD.unpack_from(raw)
    if flags & ~_MORE:
        raise RaftFrameError(f"flags {flags} of a RAFT part are unknown")
    payload = memoryview(raw)[_HEAD.size :]
    return RaftFrame(
        control_id.hex(), generation, sender, receiver, from_session, to_session, kind, bool(flags & _MORE), payload
    )


def newer_than(frame: RaftFrame, generation: int, control_id: str) -> RaftFrame:
    """Return the answer to a frame of a control that is over: the one that is."""
    return frame._replace(
        control_id=control_id,
        generation=generation,
        from_replica=frame.to_replica,
        to_replica=frame.from_replica,
        kind=NEWER,
        has_more=False,
        payload=b"",
    )
