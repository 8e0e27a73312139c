"""Bodies of BULK frames: whole sealed segments on their way between two brokers of a region.

Layout of version 1 (big-endian; it never changes), first byte is the operation:

    1 REQUEST   ask u8 | request u32 | group u32 | first u64 | position u64 | size u32
                LIST: sealed, committed segments that hold something from index `first` on
                READ: `size` bytes of the segment that begins at `first`, from byte `position`
                MANIFEST: the manifest at index `first`
                SEAL: end the open segment if it holds index `first`, committed; the answer has no data
    2 ANSWER    request u32 | status u8 | data (LIST: rows of
                first u64 | last u64 | size u64 | last_term u64 | previous_chain u32 | last_chain u32)
    3 OFFER     group u32 | term u64                  leader -> follower: fetch what you miss, I send nothing
    4 FETCHED   group u32 | term u64 | index u64 | more u8    follower -> leader: I hold it up to `index`

Rule: what is decoded is bounded; BulkWireError is the only error, and it closes the connection.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from georelay.ids import GroupId, RaftIndex, Term
from georelay.limits import MIB

CHUNK_BYTES_MAX: Final = 1 * MIB
LIST_ROWS_MAX: Final = 64
MANIFEST_BYTES_MAX: Final = 32 * MIB
NUMBER_MAX: Final = 2**63 - 1
_REQUEST: Final = struct.Struct(">BBIIQQI")
_ANSWER: Final = struct.Struct(">BIB")
_ROW: Final = struct.Struct(">QQQQII")
_OFFER: Final = struct.Struct(">BIQ")
_FETCHED: Final = struct.Struct(">BIQQB")


class BulkWireError(ValueError):
    """Bytes that are not a bulk frame of this version."""


class Operation(enum.IntEnum):
    """First byte of a bulk frame."""

    REQUEST = 1
    ANSWER = 2
    OFFER = 3
    FETCHED = 4


class Ask(enum.IntEnum):
    """What a request is for."""

    LIST = 1
    READ = 2
    MANIFEST = 3
    SEAL = 4


class Status(enum.IntEnum):
    """How a request ended."""

    OK = 0
    GONE = 1  # not held here (any more), or not committed yet
    FAILED = 2  # this broker cannot read it


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """One question; `request` names it in the answer."""

    ask: Ask
    request: int
    group: GroupId
    first: RaftIndex
    position: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAnswer:
    """The answer to `request`; `data` is valid as long as the frame it came in."""

    request: int
    status: Status
    data: bytes | memoryview = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOffer:
    """The leader of `term` asks a follower to fetch sealed segments."""

    group: GroupId
    term: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkFetched:
    """A follower holds everything up to `index`; `more` while it goes on fetching."""

    group: GroupId
    term: Term
    index: RaftIndex
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """One sealed segment that a broker offers. Indexes are inclusive, size in bytes."""

    first_index: RaftIndex
    last_index: RaftIndex
    size_bytes: int
    last_term: Term
    previous_chain: int
    last_chain: int


BulkFrame: TypeAlias = BulkRequest | BulkAnswer | BulkOffer | BulkFetched


def encode_bulk(frame: BulkFrame) -> list[bytes | memoryview]:
    """Return the body of a BULK frame as buffers to be written one after the other."""
    if isinstance(frame, BulkRequest):
        fields = (frame.ask, frame.request, frame.group, frame.first, frame.position, frame.size)
        return [_REQUEST.pack(Operation.REQUEST, *fields)]
    if isinstance(frame, BulkAnswer):
        return [_ANSWER.pack(Operation.ANSWER, frame.request, frame.status), frame.data]
    if isinstance(frame, BulkOffer):
        return [_OFFER.pack(Operation.OFFER, frame.group, frame.term)]
    return [_FETCHED.pack(Operation.FETCHED, frame.group, frame.term, frame.index, frame.more)]


def decode_bulk(body: memoryview) -> BulkFrame:
    """Decode the body of a BULK frame. Raises BulkWireError."""
    try:
        return _decode(body)
    except (struct.error, IndexError) as error:
        raise BulkWireError(f"bulk frame of {len(body)} bytes has the wrong length") from error
    except BulkWireError:
        raise
    except ValueError as error:  # a number that names no operation, question or status
        raise BulkWireError(str(error)) from error


def _decode(body: memoryview) -> BulkFrame:
    operation = Operation(body[0])
    if operation is Operation.ANSWER:
        _, request, status = _ANSWER.unpack_from(body)
        return BulkAnswer(request=request, status=Status(status), data=body[_ANSWER.size :])
    if operation is Operation.REQUEST:
        _, ask, request, group, first, position, size = _REQUEST.unpack(body)
        if size > CHUNK_BYTES_MAX or max(first, position) > NUMBER_MAX:
            raise BulkWireError(f"bulk request for {size} bytes at {position} of {first} is over the limits")
        return BulkRequest(
            ask=Ask(ask), request=request, group=GroupId(group), first=RaftIndex(first), position=position, size=size
        )
    if operation is Operation.OFFER:
        _, group, term = _OFFER.unpack(body)
        return BulkOffer(group=GroupId(group), term=Term(term))
    _, group, term, index, more = _FETCHED.unpack(body)
    if more > 1 or max(term, index) > NUMBER_MAX:
        raise BulkWireError(f"bulk notice of index {index} in term {term} is over the limits")
    return BulkFetched(group=GroupId(group), term=Term(term), index=RaftIndex(index), more=bool(more))


def encode_rows(rows: Sequence[SegmentRow]) -> bytes:
    """Return the data of a LIST answer."""
    return b"".join(
        _ROW.pack(row.first_index, row.last_index, row.size_bytes, row.last_term, row.previous_chain, row.last_chain)
        for row in rows
    )


def decode_rows(data: bytes | memoryview) -> list[SegmentRow]:
    """Decode the data of a LIST answer. Raises BulkWireError."""
    if len(data) % _ROW.size or len(data) > LIST_ROWS_MAX * _ROW.size:
        raise BulkWireError(f"segment list of {len(data)} bytes is not whole rows or too long")
    rows = []
    for first, last, size, term, previous_chain, last_chain in _ROW.iter_unpack(data):
        if not 1 <= first <= last <= NUMBER_MAX or not 1 <= size <= NUMBER_MAX or term > NUMBER_MAX:
            raise BulkWireError(f"segment [{first}, {last}] of {size} bytes cannot be")
        rows.append(
            SegmentRow(
                first_index=RaftIndex(first),
                last_index=RaftIndex(last),
                size_bytes=size,
                last_term=Term(term),
                previous_chain=previous_chain,
                last_chain=last_chain,
            )
        )
    return rows
