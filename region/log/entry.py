"""One entry of a group's log, on disk, in Raft messages and in memory: the same bytes everywhere.

Layout of format 1 (128 bytes of header, big-endian, then the payload; it never changes):

    pos  size  field
      0     2  magic           0x4752 ("GR")
      2     1  format          1
      3     1  reserved        0
      4     4  payload_bytes
      8     4  header_crc      CRC-32C of the 128 header bytes with this field as zero
     12     8  term            Raft term of the leader that appended it
     20     8  index           Raft index, +1 for each entry
     28     4  chain           crc32c(previous chain u32, header without header_crc and chain, payload_crc)
     32    16  spare           zero in format 1
     48    80  the STREAM part (mesh.replication.stream_header)

The LOCAL part (bytes 0-47) belongs to this region's log, the STREAM part to the stream.
Rule 1: the header is written once by the leader and stored verbatim by its followers.
Rule 2: a length from a header whose checksum is wrong is never trusted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from georelay.ids import Epoch, Offset, RaftIndex, Term
from georelay.limits import RECORD_BATCH_BYTES_MAX
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import OWNS_OFFSETS, STREAM_HEADER_BYTES, EntryType, StreamHeader

MAGIC: Final = 0x4752
FORMAT: Final = 1
LOCAL_PART: Final = struct.Struct(">HBBIIQQI16s")
ENTRY_HEADER_BYTES: Final = LOCAL_PART.size + STREAM_HEADER_BYTES
PAYLOAD_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX
FIRST_CHAIN: Final = 0  # chain before index 1
assert LOCAL_PART.size == 48
assert ENTRY_HEADER_BYTES == 128

# Only what an Entry keeps, from byte 12 on: term, index, chain, type, record_count, base_offset, payload_crc.
_FAST: Final = struct.Struct(">QQI16xB3xI4xq38xI")
_TYPES: Final = {int(kind): kind for kind in EntryType}
_SPARE: Final = bytes(16)
_U32: Final = struct.Struct(">I")


class EntryError(ValueError):
    """Bytes that are not an entry: `torn` when more bytes could still make it one."""

    def __init__(self, text: str, *, torn: bool = False) -> None:
        super().__init__(text)
        self.torn = torn


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDraft:
    """An entry before the leader gives it a term, an index and a chain.

    Args:
        frame: the payload once more, behind room for the header, from `frame_for`; sealing then copies nothing.
            Nobody else writes to it any more.
    """

    header: StreamHeader
    payload: bytes | bytearray | memoryview
    frame: bytearray | None = None


def frame_for(payload: bytes | bytearray | memoryview) -> tuple[bytearray, memoryview]:
    """Return a frame that holds a copy of `payload` behind room for the header, and the payload in it."""
    frame = bytearray(ENTRY_HEADER_BYTES + len(payload))
    inside = memoryview(frame)[ENTRY_HEADER_BYTES:]
    inside[:] = payload
    return frame, inside


class Entry:
    """An appended entry; `frame` holds header and payload exactly as stored.

    Invariants: 1 index >= 1   2 len(frame) == 128 + payload bytes   3 both checksums hold.
    """

    __slots__ = ("_header", "base_offset", "chain", "frame", "index", "record_count", "term", "type")

    def __init__(
        self,
        *,
        term: Term,
        index: RaftIndex,
        type: EntryType,
        base_offset: Offset,
        record_count: int,
        chain: int,
        frame: bytes | bytearray,
    ) -> None:
        self.term = term
        self.index = index
        self.type = type
        self.base_offset = base_offset
        self.record_count = record_count
        self.chain = chain
        self.frame = frame
        self._header: StreamHeader | None = None

    @property
    def size(self) -> int:
        """Return the bytes it takes on disk and on the wire."""
        return len(self.frame)

    @property
    def next_offset(self) -> Offset:
        """Return the first offset after this entry."""
        return Offset(self.base_offset + self.record_count)

    @property
    def is_conf(self) -> bool:
        """Return whether it changes the group's membership."""
        return self.type is EntryType.CONF

    @property
    def payload(self) -> memoryview:
        """Return the payload without copying it."""
        return memoryview(self.frame)[ENTRY_HEADER_BYTES:]

    @property
    def stream_part(self) -> bytes:
        """Return the 80 bytes that every region holds verbatim."""
        return bytes(self.frame[LOCAL_PART.size : ENTRY_HEADER_BYTES])

    def header(self) -> StreamHeader:
        """Return the STREAM part, decoded once."""
        if self._header is None:
            self._header = StreamHeader.decode(self.frame, LOCAL_PART.size)
        return self._header

    def __repr__(self) -> str:
        offsets = f"offset={self.base_offset}+{self.record_count}"
        return f"Entry(term={self.term}, index={self.index}, {self.type.name}, {offsets})"


def _chain(previous: int, header: bytes | bytearray) -> int:
    """Return crc32c(previous chain || header without header_crc and chain); the header holds the payload's CRC."""
    return crc32c(_U32.pack(previous) + header[:8] + header[12:28] + header[32:ENTRY_HEADER_BYTES])


def continues_chain(entry: Entry, previous_chain: int) -> bool:
    """Return whether `entry` was sealed after the entry whose chain is `previous_chain`."""
    return _chain(previous_chain, entry.frame[:ENTRY_HEADER_BYTES]) == entry.chain


def seal_entry(draft: EntryDraft, *, term: Term, index: RaftIndex, previous_chain: int) -> Entry:
    """Return the entry that the leader appends: term, index, chain and header checksum filled in."""
    header = bytearray(
        LOCAL_PART.pack(MAGIC, FORMAT, 0, len(draft.payload), 0, term, index, 0, _SPARE) + draft.header.encode()
    )
    chain = _chain(previous_chain, header)
    _U32.pack_into(header, 28, chain)
    _U32.pack_into(header, 8, int(crc32c(header)))
    frame: bytes | bytearray
    if draft.frame is None:
        frame = b"".join((header, draft.payload))
    else:
        frame = draft.frame
        frame[:ENTRY_HEADER_BYTES] = header
    stream = draft.header
    entry = Entry(
        term=term,
        index=index,
        type=stream.type,
        base_offset=stream.base_offset,
        record_count=stream.record_count,
        chain=chain,
        frame=frame,
    )
    entry._header = stream
    return entry


def frame_bytes(raw: bytes | bytearray | memoryview, position: int = 0) -> int:
    """Return the length of the entry at `position` after checking its header checksum.

    Raises:
        EntryError: not an entry (`torn` if the header is merely incomplete).
    """
    header = bytes(raw[position : position + ENTRY_HEADER_BYTES])
    if len(header) < ENTRY_HEADER_BYTES:
        raise EntryError(f"entry header needs {ENTRY_HEADER_BYTES} bytes, {len(header)} are left", torn=True)
    magic, version, _, payload_bytes, header_crc = struct.unpack_from(">HBBII", header)
    if magic != MAGIC:
        raise EntryError(f"no entry here: magic {magic:#06x}, not {MAGIC:#06x}")
    if version != FORMAT:
        raise EntryError(f"entry format {version} is unknown, this broker reads format {FORMAT}")
    if crc32c(header[:8] + bytes(4) + header[12:]) != header_crc:
        raise EntryError("entry header checksum is wrong")
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise EntryError(f"entry payload of {payload_bytes} bytes is over {PAYLOAD_BYTES_MAX}")
    return ENTRY_HEADER_BYTES + int(payload_bytes)


def _count_fits(kind: EntryType, count: int) -> bool:
    if kind is EntryType.DATA:
        return count >= 1
    return count == (1 if kind in OWNS_OFFSETS else 0)


def decode_entry(raw: bytes | bytearray | memoryview, position: int = 0, *, previous_chain: int | None = None) -> Entry:
    """Decode and check the entry at `position` (header checksum, payload checksum, and chain when given).

    Raises:
        EntryError: not a whole, intact entry.
    """
    size = frame_bytes(raw, position)
    if len(raw) - position < size:
        raise EntryError(f"entry needs {size} bytes, {len(raw) - position} are left", torn=True)
    frame = bytes(raw[position : position + size])
    term, index, chain, kind, count, base, payload_crc = _FAST.unpack_from(frame, 12)
    if crc32c(memoryview(frame)[ENTRY_HEADER_BYTES:]) != payload_crc:
        raise EntryError(f"entry {index}: payload checksum is wrong")
    if index < 1:
        raise EntryError(f"entry index {index} is below 1")
    if previous_chain is not None and _chain(previous_chain, frame[:ENTRY_HEADER_BYTES]) != chain:
        raise EntryError(f"entry {index}: chain {chain:#010x} does not continue {previous_chain:#010x}")
    entry_type = _TYPES.get(kind)
    if entry_type is None or not _count_fits(entry_type, count):
        raise EntryError(f"entry {index}: {count} records do not fit an entry of type {kind}")
    return Entry(
        term=Term(term),
        index=RaftIndex(index),
        type=entry_type,
        base_offset=Offset(base),
        record_count=count,
        chain=chain,
        frame=frame,
    )


def control_header(
    kind: EntryType, *, next_offset: Offset, epoch: Epoch, append_us: int, digest: bytes, payload: bytes = b""
) -> StreamHeader:
    """Return the STREAM part of an entry that owns no offset (noop, conf, start, EPOCH, …)."""
    return StreamHeader(
        type=kind,
        entry_region=0,
        record_count=0,
        epoch=epoch,
        base_offset=next_offset,
        append_us=append_us,
        received_ns=0,
        max_timestamp_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        payload_crc=crc32c(payload),
        digest=digest,
    )
