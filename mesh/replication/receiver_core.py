"""The receiver rule of a mirror: what becomes of one batch that arrived. Pure: values in, a verdict out.

Rule 1: contiguity is judged against the log END, uncommitted entries included. Judged against the high
        watermark, "accept if > hwm" loses records and "first == hwm + 1" stores pipelined batches twice
        (tests/exhaustive/mesh shows both).
Rule 2: the SESSION epoch fences: it must equal the mirror's current epoch. The BATCH epoch says where the batch
        was sequenced: it must be the epoch that the table gives for its first offset, at most the session epoch,
        and the batch must end before the following epoch starts.
Rule 3: the WHOLE batch is accepted or nothing; a batch is never re-cut.
Rule 4: records are given up only when the home says that it has them no more, and only from the log END on: a SKIP
        that begins below would give up records that are held (tests/exhaustive shows it).
Rule 5: a mirror that promised epoch e takes nothing from a home whose table ends below e: only a table that has an
        epoch from e on proves what became of the promise. Its older records may come from such a home: they are what
        the mesh agreed on (tests/unit/mesh/test_mesh_promises.py).
Rule 6: the same is checked again when the entry is applied; a violation there is our own bug.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from georelay.ids import Epoch, Offset
from georelay.wire.crc import crc32c
from mesh.replication.ports import EpochRow
from mesh.replication.stream_header import OWNS_OFFSETS, EntryType, StreamHeader, next_digest

NO_EPOCH: Final = Epoch(0)


class Verdict(enum.Enum):
    """What a mirror does with one batch."""

    ACCEPT = "accept"  # append it as one entry
    ALREADY_THERE = "already_there"  # answer, no effect
    GAP = "gap"  # answer `next`: the home sends from there
    FENCED = "fenced"  # an older session epoch than ours
    EPOCH_AHEAD = "epoch_ahead"  # a newer session epoch: raise ours by a committed EPOCH entry first
    WRONG_EPOCH = "wrong_epoch"  # the batch does not belong to the epoch the table gives: the peer broke the protocol
    DAMAGED = "damaged"  # the bytes were changed on the way: close the link, ask again
    DIVERGED = "diverged"  # intact, contiguous, but the digest chain is another one: stop, alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorEnd:
    """What the rule needs to know about the mirror.

    Args:
        epoch: current (committed) epoch.
        next_offset: log end, uncommitted entries included.
        digest: digest chain at the log end, 16 bytes.
        promised: epoch of the newest PROMISE in the log, uncommitted included; 0 without one.
    """

    epoch: Epoch
    next_offset: Offset
    digest: bytes
    promised: Epoch = NO_EPOCH


class ApplyViolation(Exception):
    """Fencing or contiguity broken at apply: our own bug, the group stops."""


def table_fault(table: Sequence[EpochRow]) -> str:
    """Return what is wrong with an epoch table that a peer sent, "" if nothing.

    Invariants: 1 not empty   2 epochs rise   3 starts never fall and the first is 0 or more.
    """
    if not table:
        return "the epoch table is empty"
    for (epoch, start), (following, following_start) in itertools.pairwise(table):
        if following <= epoch or following_start < start:
            return f"epoch {following} at {following_start} does not follow epoch {epoch} at {start}"
    return "" if table[0][0] >= 1 and table[0][1] >= 0 else f"the first epoch is {table[0][0]} at {table[0][1]}"


def epoch_at(table: Sequence[EpochRow], offset: Offset) -> Epoch | None:
    """Return the epoch that sequenced `offset`, None below the first row."""
    found: Epoch | None = None
    for epoch, start in table:
        if start > offset:
            break
        found = epoch
    return found


def following_row(table: Sequence[EpochRow], epoch: Epoch) -> EpochRow | None:
    """Return the first row after `epoch`, None for the newest."""
    return next((row for row in table if row[0] > epoch), None)


def is_fenced(table: Sequence[EpochRow], promised: Epoch) -> bool:
    """Return whether a home with this epoch table is one of those that the mirror promised to hear no more."""
    return promised > (table[-1][0] if table else NO_EPOCH)


def judge(
    end: MirrorEnd, *, session_epoch: Epoch, table: Sequence[EpochRow], header: StreamHeader, payload: bytes
) -> Verdict:
    """Return what the mirror does with one batch.

    Args:
        end: the mirror's log end now.
        session_epoch: as the batch's frame says.
        table: the stream's epoch table, from the home's answer to HELLO (checked with `table_fault`).
        header: the batch's STREAM part; `payload` the record batch.
    """
    if session_epoch != end.epoch:
        return Verdict.FENCED if session_epoch < end.epoch else Verdict.EPOCH_AHEAD
    if is_fenced(table, end.promised):
        return Verdict.FENCED
    first, following = header.base_offset, header.next_offset
    if header.type not in OWNS_OFFSETS or first < 0:
        return Verdict.WRONG_EPOCH
    if header.epoch != epoch_at(table, first) or header.epoch > end.epoch:
        return Verdict.WRONG_EPOCH
    successor = following_row(table, header.epoch)
    if successor is not None and following > successor[1]:
        return Verdict.WRONG_EPOCH
    if following <= end.next_offset:
        return Verdict.ALREADY_THERE
    if first > end.next_offset:
        return Verdict.GAP
    if crc32c(payload) != header.payload_crc:
        return Verdict.DAMAGED
    if first < end.next_offset:
        return Verdict.DIVERGED  # boundaries differ, and batches are never re-cut
    digest = next_digest(end.digest, epoch=header.epoch, first=first, last=header.last_offset, batch=payload)
    return Verdict.ACCEPT if digest == header.digest else Verdict.DIVERGED


def judge_skip(end: MirrorEnd, *, session_epoch: Epoch, table: Sequence[EpochRow], last: Offset) -> Verdict:
    """Return what the mirror does when the home says that it stores nothing up to `last`.

    Returns:
        ACCEPT: append a SKIP entry; what the mirror holds at or beyond the start of the epoch that follows its own is a
        branch, which is cut off first. ALREADY_THERE: the mirror holds `last`; say HELLO again. FENCED, EPOCH_AHEAD:
        as for a batch. WRONG_EPOCH: the table makes no sense for it.
    """
    if session_epoch != end.epoch:
        return Verdict.FENCED if session_epoch < end.epoch else Verdict.EPOCH_AHEAD
    if is_fenced(table, end.promised):
        return Verdict.FENCED
    if table_fault(table) or table[-1][1] > last + 1 or table[-1][0] < end.epoch:
        return Verdict.WRONG_EPOCH
    following = following_row(table, end.epoch)
    own_end = end.next_offset if following is None else min(end.next_offset, following[1])
    return Verdict.ACCEPT if last >= own_end else Verdict.ALREADY_THERE


def recheck_at_apply(
    *,
    kind: EntryType,
    epoch: Epoch,
    base_offset: Offset,
    committed_epoch: Epoch,
    committed_next: Offset,
    epoch_table: Sequence[EpochRow],
    seal: Epoch = NO_EPOCH,
) -> None:
    """Check fencing and contiguity of a committed entry again, before the high watermark moves over it.

    Args:
        epoch, base_offset: of the entry; committed_epoch, committed_next: of everything applied before it.
        epoch_table: rows committed before it.
        seal: the epoch that a SEAL before it waits for, 0 without one: until then nothing is stored.

    Raises:
        ApplyViolation: our own bug; the group must stop.
    """
    if kind is EntryType.EPOCH:
        if epoch <= committed_epoch:
            raise ApplyViolation(f"epoch {epoch} does not rise above {committed_epoch}")
        if base_offset > committed_next:
            raise ApplyViolation(f"epoch {epoch} starts at {base_offset}, but {committed_next} is next")
        return
    if kind is EntryType.SKIP:
        if epoch < committed_epoch:
            raise ApplyViolation(f"a SKIP of epoch {epoch} is applied in epoch {committed_epoch}")
        if base_offset <= committed_next:
            raise ApplyViolation(f"a SKIP to {base_offset} gives up records before {committed_next}")
        return
    if kind not in OWNS_OFFSETS:
        return
    if seal > committed_epoch:
        raise ApplyViolation(f"offset {base_offset} is stored although the log is sealed for epoch {seal}")
    if base_offset != committed_next:
        raise ApplyViolation(f"an entry starts at {base_offset}, but {committed_next} is next")
    if epoch > committed_epoch or epoch_at(epoch_table, base_offset) != epoch:
        raise ApplyViolation(f"offset {base_offset} was sequenced in epoch {epoch}, which the table does not say")
