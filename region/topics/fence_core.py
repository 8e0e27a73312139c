"""SEAL and PROMISE entries: what closes a stream to everything of lower epochs, from their index in this region's log.

SEAL     written by the home when its home is to move by plan: nothing is published behind it
PROMISE  written by any region when control asks for it: nothing of a lower epoch is accepted behind it

Payload of PROMISE, version 1 (big-endian; it never changes):    u8 version (1) | u32 new epoch
Payload of SEAL, version 1:                                      u8 version (1) | u32 new epoch | u8 n | n bytes move id

Rule 1: a fence holds from its APPEND on: whoever reads the log knows it, so the next leader does, and so does a broker
        that restarts. Truncated, it never was.
Rule 2: a fence ends when an epoch begins that is not below its own. It is never taken back: ending an attempt to move
        a home means beginning an epoch, if need be at the same home.
Rule 3: what was reported (the end of the log at that entry, and the digest chain there) is kept with the fence, so that
        a question that is asked again has the same answer.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.stream_header import DIGEST_BYTES

FENCE_VERSION: Final = 1
MOVE_ID_BYTES_MAX: Final = 64
_PROMISE: Final = struct.Struct(">BI")
_SEAL: Final = struct.Struct(">BIB")
_ROW: Final = struct.Struct(">IQq16sB")
_FLAGS: Final = struct.Struct(">B")
_HAS_PROMISE: Final = 1
_HAS_SEAL: Final = 2
FENCE_ROWS_BYTES_MAX: Final = _FLAGS.size + 2 * (_ROW.size + MOVE_ID_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One SEAL or PROMISE entry.

    Args:
        new_epoch: epochs below it are over.
        index: of the entry. end: log end there. digest: digest chain before `end`, 16 bytes.
        move_id: of the attempt that a SEAL belongs to, at most 64 bytes of UTF-8.
    """

    new_epoch: Epoch
    index: RaftIndex
    end: Offset
    digest: bytes
    move_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceState:
    """The fences that hold: at most one of each kind, the newest."""

    promise: Fence | None = None
    seal: Fence | None = None

    @property
    def epoch(self) -> Epoch:
        """Return the epoch below which everything is over, 0 without a fence."""
        return max(self.promised, Epoch(0) if self.seal is None else self.seal.new_epoch)

    @property
    def promised(self) -> Epoch:
        """Return the epoch of the promise, 0 without one."""
        return Epoch(0) if self.promise is None else self.promise.new_epoch

    def begun(self, epoch: Epoch) -> FenceState:
        """Return what holds once `epoch` has begun."""
        return FenceState(promise=_above(self.promise, epoch), seal=_above(self.seal, epoch))


def _above(fence: Fence | None, epoch: Epoch) -> Fence | None:
    return fence if fence is not None and fence.new_epoch > epoch else None


NO_FENCES: Final = FenceState()


@dataclass(frozen=True, slots=True)
class _Change:
    """An appended entry that matters here: a fence of one kind, or an epoch that begins."""

    index: RaftIndex
    promise: Fence | None = None
    seal: Fence | None = None
    epoch: Epoch = Epoch(0)  # noqa: RUF009

    def after(self, state: FenceState) -> FenceState:
        if self.promise is not None:
            return replace(state, promise=self.promise)
        if self.seal is not None:
            return replace(state, seal=self.seal)
        return state.begun(self.epoch)


class FenceBook:
    """Fences of one log, committed and at the log END."""

    def __init__(self) -> None:
        self.committed = NO_FENCES
        self.end = NO_FENCES
        self._pending: deque[_Change] = deque()

    def promised(self, fence: Fence) -> None:
        """Follow an appended PROMISE entry."""
        self._note(_Change(fence.index, promise=fence))

    def sealed(self, fence: Fence) -> None:
        """Follow an appended SEAL entry."""
        self._note(_Change(fence.index, seal=fence))

    def begun(self, index: RaftIndex, epoch: Epoch) -> None:
        """Follow an appended entry that begins `epoch`."""
        if self.end is not NO_FENCES:
            self._note(_Change(index, epoch=epoch))

    def _note(self, change: _Change) -> None:
        self._pending.append(change)
        self.end = _or_none(change.after(self.end))

    def truncated(self, from_index: RaftIndex) -> None:
        """Forget the entries at or above `from_index`."""
        if not self._pending or self._pending[-1].index < from_index:
            return
        while self._pending and self._pending[-1].index >= from_index:
            self._pending.pop()
        self.end = self.committed
        for change in self._pending:
            self.end = _or_none(change.after(self.end))

    def commit(self, index: RaftIndex) -> bool:
        """Let the entries up to `index` take effect; return whether any did."""
        pending = self._pending
        moved = False
        while pending and pending[0].index <= index:
            self.committed = _or_none(pending.popleft().after(self.committed))
            moved = True
        return moved

    def at(self, index: RaftIndex) -> FenceState:
        """Return what holds behind entry `index`, which is not below what is committed."""
        state = self.committed
        for change in self._pending:
            if change.index > index:
                break
            state = change.after(state)
        return state

    def restore(self, state: FenceState) -> None:
        """Begin again at a committed state."""
        self.committed = self.end = _or_none(state)
        self._pending.clear()


def _or_none(state: FenceState) -> FenceState:
    return NO_FENCES if state == NO_FENCES else state


# --- entries ------------------------------------------------------------------------------------------


def encode_promise(new_epoch: Epoch) -> bytes:
    """Return the payload of a PROMISE entry."""
    return _PROMISE.pack(FENCE_VERSION, new_epoch)


def encode_seal(new_epoch: Epoch, move_id: str) -> bytes:
    """Return the payload of a SEAL entry. ValueError: the move id is too long."""
    name = move_id.encode()
    if len(name) > MOVE_ID_BYTES_MAX:
        raise ValueError(f"a move id of {len(name)} bytes is over {MOVE_ID_BYTES_MAX}")
    return _SEAL.pack(FENCE_VERSION, new_epoch, len(name)) + name


def decode_promise(payload: bytes | memoryview) -> Epoch:
    """Return the new epoch of a PROMISE entry.

    Raises:
        ValueError: another length or version.
    """
    if len(payload) != _PROMISE.size:
        raise ValueError(f"a PROMISE entry has {_PROMISE.size} bytes, not {len(payload)}")
    version, epoch = _PROMISE.unpack(payload)
    _check_version("PROMISE", version)
    return Epoch(epoch)


def decode_seal(payload: bytes | memoryview) -> tuple[Epoch, str]:
    """Return new epoch and move id of a SEAL entry.

    Raises:
        ValueError: another length or version, or a move id that is no text.
    """
    if len(payload) < _SEAL.size:
        raise ValueError(f"a SEAL entry has at least {_SEAL.size} bytes, not {len(payload)}")
    version, epoch, size = _SEAL.unpack_from(payload)
    _check_version("SEAL", version)
    if size > MOVE_ID_BYTES_MAX or len(payload) != _SEAL.size + size:
        raise ValueError(f"a SEAL entry with a move id of {size} bytes does not have {len(payload)} bytes")
    return Epoch(epoch), bytes(payload[_SEAL.size :]).decode()


def _check_version(kind: str, version: int) -> None:
    if version != FENCE_VERSION:
        raise ValueError(f"{kind} entry version {version} is unknown, this broker reads version {FENCE_VERSION}")


# --- in the state of a stream -------------------------------------------------------------------------


def encode_fences(state: FenceState) -> bytes:
    """Return the fences as a stream's state holds them.

    u8 flags (1: promise, 2: seal), then for each: u32 new epoch | u64 index | i64 end | 16 digest | u8 n | n move id
    """
    flags = (_HAS_PROMISE if state.promise else 0) | (_HAS_SEAL if state.seal else 0)
    parts = [_FLAGS.pack(flags)]
    for fence in (state.promise, state.seal):
        if fence is not None:
            name = fence.move_id.encode()
            parts += (_ROW.pack(fence.new_epoch, fence.index, fence.end, fence.digest, len(name)), name)
    return b"".join(parts)


def decode_fences(raw: bytes | memoryview, position: int) -> tuple[FenceState, int]:
    """Decode the fences at `position`; return them and where they end.

    Raises:
        ValueError: lengths or values that cannot be.
    """
    try:
        (flags,) = _FLAGS.unpack_from(raw, position)
        if flags > _HAS_PROMISE | _HAS_SEAL:
            raise ValueError(f"fences of kinds {flags} are unknown")
        position += _FLAGS.size
        promise, position = _decode_row(raw, position) if flags & _HAS_PROMISE else (None, position)
        seal, position = _decode_row(raw, position) if flags & _HAS_SEAL else (None, position)
    except struct.error as error:
        raise ValueError(f"fences end too early: {error}") from error
    return FenceState(promise=promise, seal=seal), position


def _decode_row(raw: bytes | memoryview, position: int) -> tuple[Fence, int]:
    epoch, index, end, digest, size = _ROW.unpack_from(raw, position)
    start = position + _ROW.size
    if size > MOVE_ID_BYTES_MAX or start + size > len(raw) or len(digest) != DIGEST_BYTES:
        raise ValueError(f"a fence with a move id of {size} bytes cannot be")
    name = bytes(raw[start : start + size]).decode()
    return Fence(new_epoch=Epoch(epoch), index=RaftIndex(index), end=Offset(end), digest=digest, move_id=name), (
        start + size
    )
