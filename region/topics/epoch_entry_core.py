"""The payload of an EPOCH entry: why the epoch begins, and where records are cut off, what the log says without them.

    u64 control index                                              version 1: 8 bytes, nothing is cut off
    u64 control index | u8 version (2) | u8 flags | u64 first index
        [ transactions (region.topics.transaction_rows, without aborted ones) | producer states (producer_rows) ]
    the same with version 3: the producer states have their second layout; from CHECKSUM_LEVEL on

Rule 1: what the records beyond the start of the epoch taught about producers and transactions is forgotten. Older
        states cannot be derived from newer ones, so the leader makes them anew from the log below the cut and writes
        them into the entry: every replica takes them from there.
Rule 2: without them (flag 1 is not set) a replica keeps of its own states what lies below the cut.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from georelay.ids import RaftIndex
from georelay.limits import RECORD_BATCH_BYTES_MAX
from region.topics.producer_rows import decode_producers, encode_producers
from region.topics.producer_table_core import Row
from region.topics.transaction_rows import decode_transactions, encode_transactions
from region.topics.transaction_table_core import TransactionRows

CUT_VERSION: Final = 2
CHECKSUM_VERSION: Final = 3
_CONTROL_INDEX: Final = struct.Struct(">Q")
_CUT: Final = struct.Struct(">QBBQ")
_HAS_STATES: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesBelow:
    """What a log says right before an offset: producers in the order of their last append, transactions."""

    producers: tuple[Row, ...]
    transactions: TransactionRows


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCut:
    """Records are cut off: `first_index` is not above their first entry; `states` is None where nobody could tell."""

    first_index: RaftIndex
    states: StatesBelow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegun:
    """A decoded payload."""

    control_index: int
    cut: EpochCut | None = None


def encode_epoch(begun: EpochBegun, *, checksums: bool = False) -> bytes:
    """Return the payload; states that are over the size of an entry are left out (rule 2)."""
    if begun.cut is None:
        return _CONTROL_INDEX.pack(begun.control_index)
    states = b"" if begun.cut.states is None else _encode_states(begun.cut.states, checksums=checksums)
    if _CUT.size + len(states) > RECORD_BATCH_BYTES_MAX:
        states = b""
    version = CHECKSUM_VERSION if checksums and states else CUT_VERSION
    head = _CUT.pack(begun.control_index, version, _HAS_STATES if states else 0, begun.cut.first_index)
    return head + states


def _encode_states(states: StatesBelow, *, checksums: bool) -> bytes:
    transactions = encode_transactions(states.transactions._replace(aborted=()))
    return transactions + encode_producers(states.producers, checksums=checksums)


def decode_epoch(payload: bytes | memoryview) -> EpochBegun:
    """Decode the payload of an EPOCH entry.

    Raises:
        ValueError: another version, or lengths, counts or values that cannot be.
    """
    if len(payload) == _CONTROL_INDEX.size:
        return EpochBegun(control_index=_CONTROL_INDEX.unpack(payload)[0])
    if len(payload) < _CUT.size:
        raise ValueError(f"an EPOCH entry of {len(payload)} bytes ends too early")
    control_index, version, flags, first_index = _CUT.unpack_from(payload)
    if version not in (CUT_VERSION, CHECKSUM_VERSION) or flags > _HAS_STATES:
        raise ValueError(f"EPOCH entry version {version} is unknown, this broker reads up to {CHECKSUM_VERSION}")
    states = None
    if flags & _HAS_STATES:
        transactions, position = decode_transactions(payload, _CUT.size)
        rows = decode_producers(memoryview(payload)[position:], checksums=version == CHECKSUM_VERSION)
        states = StatesBelow(producers=tuple(rows), transactions=transactions)
    elif len(payload) != _CUT.size:
        raise ValueError(f"an EPOCH entry without states has {_CUT.size} bytes, not {len(payload)}")
    return EpochBegun(control_index=control_index, cut=EpochCut(first_index=RaftIndex(first_index), states=states))
