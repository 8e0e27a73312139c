"""Coalesced heartbeats: one frame per broker pair and beat, however many groups they share.

A beat repeats, without naming it, every group of the pair whose (term, commit) did not change since an
earlier beat of the SAME connection; only changed and removed groups are spelled out. TCP keeps the order,
so both ends hold the same set; a new connection starts from nothing. The receiver answers with the groups
that need more than "heard you".

Frames (big-endian), after the peer transport's length and kind:
    BEAT      sequence u32 | changed u32 | removed u32 | changed x (group u32, term u64, commit u64)
              | removed x group u32
    BEAT_ACK  sequence u32 | exceptions u32 | exceptions x group u32
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from georelay.ids import GroupId, RaftIndex, Term
from georelay.limits import GROUPS_PER_BROKER_MAX

_BEAT: Final = struct.Struct(">III")
_ROW: Final = struct.Struct(">IQQ")
_GROUP: Final = struct.Struct(">I")
_ACK: Final = struct.Struct(">II")
UNANSWERED_MAX: Final = 64  # beats; an answer that is later than that is ignored


class HeartbeatError(ValueError):
    """Bytes that are not a beat."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One decoded beat: rows are (group, term, commit)."""

    sequence: int
    changed: Sequence[tuple[GroupId, Term, RaftIndex]]
    removed: Sequence[GroupId]


def encode_beat(beat: Beat) -> bytes:
    """Return the body of a BEAT frame."""
    parts = [_BEAT.pack(beat.sequence, len(beat.changed), len(beat.removed))]
    parts.extend(_ROW.pack(*row) for row in beat.changed)
    parts.extend(_GROUP.pack(group) for group in beat.removed)
    return b"".join(parts)


def decode_beat(body: bytes | memoryview) -> Beat:
    """Decode a BEAT body. Raises HeartbeatError."""
    if len(body) < _BEAT.size:
        raise HeartbeatError(f"beat of {len(body)} bytes is too short")
    sequence, changed, removed = _BEAT.unpack_from(body)
    if changed > GROUPS_PER_BROKER_MAX or removed > GROUPS_PER_BROKER_MAX:
        raise HeartbeatError(f"beat names {changed}+{removed} groups, the limit is {GROUPS_PER_BROKER_MAX}")
    split = _BEAT.size + changed * _ROW.size
    if len(body) != split + removed * _GROUP.size:
        raise HeartbeatError(f"beat of {len(body)} bytes does not hold {changed}+{removed} rows")
    rows = [(GroupId(g), Term(t), RaftIndex(c)) for g, t, c in _ROW.iter_unpack(body[_BEAT.size : split])]
    return Beat(sequence, rows, [GroupId(g) for (g,) in _GROUP.iter_unpack(body[split:])])


def encode_ack(sequence: int, exceptions: Sequence[GroupId]) -> bytes:
    """Return the body of a BEAT_ACK frame."""
    return _ACK.pack(sequence, len(exceptions)) + b"".join(_GROUP.pack(group) for group in exceptions)


def decode_ack(body: bytes | memoryview) -> tuple[int, list[GroupId]]:
    """Decode a BEAT_ACK body into (sequence, exceptions). Raises HeartbeatError."""
    if len(body) < _ACK.size:
        raise HeartbeatError(f"beat answer of {len(body)} bytes is too short")
    sequence, count = _ACK.unpack_from(body)
    if count > GROUPS_PER_BROKER_MAX or len(body) != _ACK.size + count * _GROUP.size:
        raise HeartbeatError(f"beat answer of {len(body)} bytes does not hold {count} groups")
    return sequence, [GroupId(g) for (g,) in _GROUP.iter_unpack(body[_ACK.size :])]


class BeatSender:
    """The sending end's memory of one connection: what the receiver believes it was told.

    An answer speaks of the groups that its own beat named, not of those that later beats added. Sequences begin
    at a random number, so that a late answer to a beat of an earlier connection names no beat of this one.
    """

    def __init__(self, sequence: int = 0) -> None:
        self.told: dict[GroupId, tuple[Term, RaftIndex]] = {}
        self._sequence = sequence & 0xFFFFFFFF
        self._unanswered: deque[tuple[int, dict[GroupId, tuple[Term, RaftIndex]]]] = deque(maxlen=UNANSWERED_MAX)

    def next_beat(
        self, current: Iterable[tuple[GroupId, Term, RaftIndex]], looked_at: Collection[GroupId] | None = None
    ) -> Beat:
        """Return the beat that brings the receiver from what it was told to `current`.

        Args:
            looked_at: only these groups were looked at, and the others are as they were; None: all of them were.
        """
        changed: list[tuple[GroupId, Term, RaftIndex]] = []
        fresh: dict[GroupId, tuple[Term, RaftIndex]] = {}
        told = self.told
        for row in current:
            group, term, commit = row
            pair = (term, commit)
            fresh[group] = pair
            if told.get(group) != pair:
                changed.append(row)
        candidates = told if looked_at is None else [group for group in looked_at if group in told]
        removed = [group for group in candidates if group not in fresh]
        if changed or removed:
            self.told = {**told, **fresh}  # not in place: beats that are not answered speak of what was told then
            for group in removed:
                del self.told[group]
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._unanswered.append((self._sequence, self.told))
        return Beat(self._sequence, changed, removed)

    def answered(self, sequence: int) -> Mapping[GroupId, tuple[Term, RaftIndex]]:
        """Return what the beat `sequence` told; nothing when it was answered before or is of another connection."""
        for row, (sent, told) in enumerate(self._unanswered):
            if sent == sequence:
                for _ in range(row + 1):
                    self._unanswered.popleft()
                return told
        return {}


class BeatReceiver:
    """The receiving end's memory of one connection: group -> (term, commit) of the last beat."""

    def __init__(self) -> None:
        self.told: dict[GroupId, tuple[Term, RaftIndex]] = {}

    def follow(self, beat: Beat) -> None:
        """Apply the differences of one beat. Raises HeartbeatError when they name too many groups."""
        for group, term, commit in beat.changed:
            self.told[group] = (term, commit)
        for group in beat.removed:
            self.told.pop(group, None)
        if len(self.told) > GROUPS_PER_BROKER_MAX:
            raise HeartbeatError(f"the beats of one connection name {len(self.told)} groups: too many")
