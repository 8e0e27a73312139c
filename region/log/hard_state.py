"""Term and vote of every group of a broker, in one append-only journal: a mass election costs one sync.

Rule 1: no promise (a vote, a higher term) leaves the broker before `sync` has returned for it.
Rule 2: the journal never silently goes back to an older vote. A frame is written only after the frame before it was
synced, so only the last frame can be torn, and only what a crash can do counts as torn; the rest refuses to start.
Rule 3: the file is begun under another name, synced and renamed, so its header and first frame are always whole. Each
open does this, with one frame that holds everything (compaction).

Layout of format 1 (big-endian; pieces are multiples of 32 bytes, so none of the headers crosses a sector):

    pos  size  field
      0     4  magic           "GRHS"
      4     2  format          1
      6    22  reserved        0
     28     4  CRC-32C of bytes 0-27
     32        frames, each:
      0     4  magic           "HSFR"
      4     4  records
      8     8  sequence        0 for the compacted frame, +1 for each
     16     8  reserved        0
     24     4  CRC-32C of the records with their padding
     28     4  CRC-32C of bytes 0-27
     32  16*n  records: group u32, vote u32 (broker id, 0 = none), term u64; the last 32 bytes are filled with 0xff
               (not with zeros: in this file a sector of zeros means a write that did not arrive);
               term 0 with vote 0 says that the group is forgotten
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from georelay.ids import BrokerId, GroupId, Term
from georelay.wire.crc import crc32c
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, read_file, replace_file, tear_explains, write_fully

JOURNAL_NAME: Final = "hard-state"
_JOIN_ANEW: Final = (
    "the votes of this broker are lost: remove its data directory and let the broker join anew, on an empty disk"
)
COMPACT_BYTES: Final = 16 * 1024 * 1024  # 500,000 single votes; beyond it the journal is compacted while running

_UNIT: Final = 32
_FILE_HEADER: Final = struct.Struct(">4sH22s")
_FRAME_HEADER: Final = struct.Struct(">4sIQ8sI")
_RECORD: Final = struct.Struct(">IIQ")
_CRC: Final = struct.Struct(">I")
_FILE_MAGIC: Final = b"GRHS"
_FRAME_MAGIC: Final = b"HSFR"
_FORMAT: Final = 1
assert _FILE_HEADER.size + _CRC.size == _UNIT
assert _FRAME_HEADER.size + _CRC.size == _UNIT


class HardState(NamedTuple):
    """What Raft must not forget. `vote` is the broker voted for in `term`, 0 for none."""

    term: Term = Term(0)
    vote: BrokerId = BrokerId(0)


_FORGOTTEN: Final = HardState()


class HardStateLike(Protocol):
    """Anything with a term and a vote, such as the Raft core's own value."""

    @property
    def term(self) -> int: ...

    @property
    def vote(self) -> int: ...


class HardStateJournal:
    """The journal of one data directory. Made by `open`; used by one thread, the flusher."""

    def __init__(self, fs: FileSystem, path: Path, states: dict[GroupId, HardState]) -> None:
        self._fs = fs
        self._path = path
        self._states = states
        self._handle: int | None = None
        self._position = 0
        self._sequence = 0
        self._compact()

    @classmethod
    def open(cls, fs: FileSystem, directory: Path) -> HardStateJournal:
        """Load the journal of `directory` and compact it; a missing one is begun empty.

        Raises:
            LogCorrupt: damage that no crash explains.
            OSError: from the file system.
        """
        path = directory / JOURNAL_NAME
        states = decode_journal(read_file(fs, path), path) if fs.exists(path) else {}
        return cls(fs, path, states)

    def load(self) -> dict[GroupId, HardState]:
        """Return the newest state of every group."""
        return dict(self._states)

    def append(self, states: Mapping[GroupId, HardStateLike], *, forgotten: Collection[GroupId] = ()) -> int:
        """Write one frame with these states; they count only after `sync`. Returns the bytes written.

        Args:
            forgotten: groups that are deleted for ever; their votes are dropped.

        Raises:
            OSError: the journal must not be used again.
        """
        if self._position > COMPACT_BYTES:
            self._compact()
        news = {group: HardState(Term(state.term), BrokerId(state.vote)) for group, state in states.items()}
        for group, new in news.items():
            old = self._states.get(group, HardState())
            assert new.term > old.term or (new.term == old.term and old.vote in (0, new.vote)), (group, old, new)
        self._states.update(news)
        for group in forgotten:
            self._states.pop(group, None)
            news[group] = _FORGOTTEN
        assert self._handle is not None
        frame = encode_frame(news, self._sequence)
        write_fully(self._fs, self._handle, [frame], self._position)
        self._position += len(frame)
        self._sequence += 1
        return len(frame)

    def sync(self) -> None:
        """Make what was appended durable.

        Raises:
            OSError: the journal must not be used again.
        """
        assert self._handle is not None
        self._fs.fdatasync(self._handle)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._fs.close(self._handle)
            self._handle = None

    def _compact(self) -> None:
        content = encode_file_header() + encode_frame(self._states, 0)
        self.close()
        replace_file(self._fs, self._path, content)
        self._handle = self._fs.open(self._path)
        self._position, self._sequence = len(content), 1


def encode_file_header() -> bytes:
    """Return the first 32 bytes of a journal."""
    header = _FILE_HEADER.pack(_FILE_MAGIC, _FORMAT, bytes(22))
    return header + _CRC.pack(crc32c(header))


def encode_frame(states: Mapping[GroupId, HardState], sequence: int) -> bytes:
    """Return one frame."""
    body = b"".join(_RECORD.pack(group, state.vote, state.term) for group, state in states.items())
    body += b"\xff" * (-len(body) % _UNIT)
    header = _FRAME_HEADER.pack(_FRAME_MAGIC, len(states), sequence, bytes(8), crc32c(body))
    return header + _CRC.pack(crc32c(header)) + body


def decode_journal(raw: bytes, path: Path) -> dict[GroupId, HardState]:
    """Return the newest state of every group; a torn last frame is left out.

    Raises:
        LogCorrupt: damage; the text names file and position.
    """
    if raw[:_UNIT] != encode_file_header():
        raise LogCorrupt(path, 0, f"not the header of a hard-state journal; {_JOIN_ANEW}")
    states: dict[GroupId, HardState] = {}
    position, sequence = _UNIT, 0
    while position < len(raw) or sequence == 0:
        body = _frame_body(raw, position, sequence)
        if body is None:
            if sequence == 0 or not _is_torn(raw, position, sequence):
                raise LogCorrupt(path, position, f"frame {sequence} of the hard-state journal is wrong; {_JOIN_ANEW}")
            break
        for group, vote, term in _RECORD.iter_unpack(body):
            state = HardState(Term(term), BrokerId(vote))
            if state == _FORGOTTEN:
                states.pop(GroupId(group), None)
            else:
                states[GroupId(group)] = state
        position += _UNIT + len(body) + -len(body) % _UNIT
        sequence += 1
    return states


def _frame_header(raw: bytes, position: int) -> tuple[int, int, int] | None:
    """Return (records, sequence, body CRC) of the frame at `position`, None if no intact header is there."""
    header = raw[position : position + _UNIT]
    if len(header) < _UNIT or _CRC.unpack_from(header, _UNIT - 4)[0] != crc32c(header[: _UNIT - 4]):
        return None
    magic, records, sequence, _, body_crc = _FRAME_HEADER.unpack_from(header)
    return (records, sequence, body_crc) if magic == _FRAME_MAGIC else None


def _body_bytes(records: int) -> int:
    return -(-records * _RECORD.size // _UNIT) * _UNIT


def _frame_body(raw: bytes, position: int, sequence: int) -> bytes | None:
    """Return the records of the frame at `position` without padding; None if the frame is not whole and intact."""
    header = _frame_header(raw, position)
    if header is None or header[1] != sequence:
        return None
    records, _, body_crc = header
    body = raw[position + _UNIT : position + _UNIT + _body_bytes(records)]
    if len(body) < _body_bytes(records) or crc32c(body) != body_crc:
        return None
    return body[: records * _RECORD.size]


def _is_torn(raw: bytes, position: int, sequence: int) -> bool:
    """Return whether an interrupted write explains the bad frame at `position`."""
    for later in range(position + _UNIT, len(raw), _UNIT):
        found = _frame_header(raw, later)
        if found is not None and found[1] > sequence:
            return False  # a later frame was begun, so this one had been synced
    header = _frame_header(raw, position)
    if header is None:
        head = raw[position : position + _UNIT]
        return not any(head) or (len(head) < _UNIT and head[: len(_FRAME_MAGIC)] == _FRAME_MAGIC[: len(head)])
    end = position + _UNIT + _body_bytes(header[0])
    return end > len(raw) or tear_explains(raw[position + _UNIT : end], position + _UNIT)
