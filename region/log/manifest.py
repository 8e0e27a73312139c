"""A manifest: the state of a group after one entry, enough to start from there without what lies before.

Layout of format 1 (big-endian), in `<index, 20 digits>.manifest` and in Raft's snapshot messages:

    pos  size  field
      0     4  magic             "GRMF"
      4     2  format            1
      6     2  reserved          0
      8     8  index             of the entry after which the state was taken
     16     8  term              of that entry
     24     8  created_ms        wall clock of the broker that made it, for people only
     32     4  chain             of that entry
     36     4  membership_bytes
     40     4  state_bytes       before compression
     44     4  packed_bytes      after compression (zlib)
     48    80  the STREAM part of that entry (mesh.replication.stream_header)
    128     …  membership, then the packed state
   last     4  CRC-32C of everything before it

Rule 1: a manifest is made only from applied entries, so it is never undone by a truncation.
Rule 2: a length is trusted only after the checksum, and the state is never unpacked beyond what it says.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from georelay.ids import Offset, RaftIndex, Term
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import STREAM_HEADER_BYTES, StreamHeader

MANIFEST_STATE_BYTES_MAX: Final = 64 * 1024 * 1024
MEMBERSHIP_BYTES_MAX: Final = 64 * 1024

_MAGIC: Final = b"GRMF"
_FORMAT: Final = 1
_HEADER: Final = struct.Struct(">4sHHQQQIIII80s")
_CRC: Final = struct.Struct(">I")
_PACK_LEVEL: Final = 1  # a manifest is written while records wait for the same thread
assert _HEADER.size == 128


class ManifestError(ValueError):
    """Bytes that are not a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The state of a group after entry `index`.

    Args:
        index: >= 1.
        term: of that entry.
        chain: of that entry.
        stream_part: of that entry, 80 bytes.
        membership: of the group after that entry, encoded; empty if it is not known.
        state: of the group's machine, in the machine's own format.
        created_ms: wall clock, milliseconds since 1970; nothing is decided by it.
    """

    index: RaftIndex
    term: Term
    chain: int
    stream_part: bytes
    membership: bytes = b""
    state: bytes = b""
    created_ms: int = 0

    @property
    def next_offset(self) -> Offset:
        """Return the first offset after the entry."""
        return StreamHeader.decode(self.stream_part).next_offset

    def encode(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            ManifestError: over one of the limits.
        """
        if len(self.state) > MANIFEST_STATE_BYTES_MAX or len(self.membership) > MEMBERSHIP_BYTES_MAX:
            raise ManifestError(
                f"a state of {len(self.state)} bytes or a membership of {len(self.membership)} is over "
                f"{MANIFEST_STATE_BYTES_MAX} or {MEMBERSHIP_BYTES_MAX}"
            )
        if self.index < 1 or len(self.stream_part) != STREAM_HEADER_BYTES:
            raise ManifestError(f"index {self.index} with a STREAM part of {len(self.stream_part)} bytes")
        packed = zlib.compress(self.state, _PACK_LEVEL)
        sizes = (len(self.membership), len(self.state), len(packed))
        header = _HEADER.pack(
            _MAGIC, _FORMAT, 0, self.index, self.term, self.created_ms, self.chain, *sizes, self.stream_part
        )
        body = b"".join((header, self.membership, packed))
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> Manifest:
        """Decode and check.

        Raises:
            ManifestError: not a whole, intact manifest of a known format.
        """
        raw = bytes(raw)
        if len(raw) < _HEADER.size + _CRC.size or raw[:4] != _MAGIC:
            raise ManifestError("this is not a manifest")
        if _CRC.unpack_from(raw, len(raw) - _CRC.size)[0] != crc32c(memoryview(raw)[: -_CRC.size]):
            raise ManifestError("the checksum of the manifest is wrong")
        _, version, _, index, term, created_ms, chain, membership_bytes, state_bytes, packed_bytes, stream = (
            _HEADER.unpack_from(raw)
        )
        if version != _FORMAT:
            raise ManifestError(f"manifest format {version} is unknown, this broker reads format {_FORMAT}")
        end = _HEADER.size + membership_bytes
        if end + packed_bytes + _CRC.size != len(raw) or index < 1:
            raise ManifestError(f"the lengths of the manifest of index {index} do not add up to {len(raw)} bytes")
        return cls(
            index=RaftIndex(index),
            term=Term(term),
            chain=chain,
            stream_part=_checked_stream_part(stream),
            membership=raw[_HEADER.size : end],
            state=_unpack(raw[end : end + packed_bytes], state_bytes),
            created_ms=created_ms,
        )


def _checked_stream_part(raw: bytes) -> bytes:
    try:
        StreamHeader.decode(raw)
    except ValueError as error:
        raise ManifestError(f"the STREAM part of the manifest is wrong: {error}") from error
    return raw


def _unpack(packed: bytes, state_bytes: int) -> bytes:
    if state_bytes > MANIFEST_STATE_BYTES_MAX:
        raise ManifestError(f"a state of {state_bytes} bytes is over {MANIFEST_STATE_BYTES_MAX}")
    unpacker = zlib.decompressobj()
    try:
        state = unpacker.decompress(packed, state_bytes + 1)
    except zlib.error as error:
        raise ManifestError(f"the state of the manifest cannot be unpacked: {error}") from error
    if len(state) != state_bytes or not unpacker.eof or unpacker.unused_data:
        raise ManifestError(f"the state of the manifest does not have the {state_bytes} bytes it says")
    return state
