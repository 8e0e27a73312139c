"""The formats on disk, byte by byte. These files never change: a broker must read what an older one wrote.

The .hex files hold the bytes in lines of 16 or 32; `#` begins a comment. Rewrite them with GEORELAY_GOLDEN=rewrite and
explain every changed line.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from mesh.replication.stream_header import EntryType
from region.log.entry import Entry, decode_entry
from region.log.entry_journal import FoundRow, decode_frames
from region.log.entry_journal import encode_frame as encode_frame_of_rows
from region.log.filesystem import Buffer, OsFileSystem
from region.log.flushed_marks import FlushedMark, FlushedMarks
from region.log.group_log import GroupLog
from region.log.hard_state import HardState, decode_journal, encode_file_header, encode_frame
from region.log.manifest import Manifest

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker

HERE = Path(__file__).parent


def check(name: str, actual: bytes, comment: str) -> None:
    """Compare with the golden file (or rewrite it)."""
    path = HERE / f"{name}.hex"
    if os.environ.get("GEORELAY_GOLDEN") == "rewrite":
        lines = [actual[at : at + 16].hex(" ") for at in range(0, len(actual), 16)]
        path.write_text(f"# {comment}\n" + "\n".join(lines) + "\n")
    expected = bytes.fromhex("".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    assert actual.hex(" ", 4) == expected.hex(" ", 4)


def one_of_each(make: EntryMaker) -> list[Entry]:
    """Every entry type once, in the order of their numbers, with terms that grow."""
    entries = [make.data(b"golden payload", records=3, term=1)]
    entries += [make.control(kind, term=kind) for kind in (EntryType.NOOP, EntryType.CONF, EntryType.START)]
    entries.append(make.marker(b"marker", term=5))
    entries.append(make.begin_epoch(2, 4, term=6))
    entries += [make.control(kind, term=kind) for kind in (EntryType.PROMISE, EntryType.SEAL, EntryType.SKIP)]
    return entries


@pytest.mark.parametrize("kind", list(EntryType))
def test_entry_format_1(make: EntryMaker, kind: EntryType) -> None:
    entry = next(entry for entry in one_of_each(make) if entry.type is kind)
    check(
        f"entry_{kind.name.lower()}",
        bytes(entry.frame),
        f"{kind.name}: 48 bytes LOCAL part, 80 bytes STREAM part, payload",
    )


@pytest.mark.parametrize("kind", list(EntryType))
def test_the_golden_entries_decode(kind: EntryType) -> None:
    text = (HERE / f"entry_{kind.name.lower()}.hex").read_text()
    frame = bytes.fromhex("".join(line for line in text.splitlines() if not line.startswith("#")))
    entry = decode_entry(frame)
    assert (entry.type, int(entry.index), int(entry.term)) == (kind, int(kind), int(kind))


def test_an_index_file_of_format_1_is_known_and_made_again(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=700, index_interval_bytes=256)
    log.append([make.data(b"x" * 100, records=2, timestamp_ms=1000 + n, term=3) for n in range(4)])
    log.sync()
    log.close()
    path = tmp_path / f"{1:020d}.index"
    newest = path.read_bytes()
    text = (HERE / "index.hex").read_text()
    path.write_bytes(bytes.fromhex("".join(line for line in text.splitlines() if not line.startswith("#"))))
    again = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=700, index_interval_bytes=256)
    assert path.read_bytes() == newest and again.last_index == 4 and again.corrupt_segments() == []


def test_index_format_2(tmp_path: Path, make: EntryMaker) -> None:
    log = GroupLog.open(tmp_path, OsFileSystem(), segment_bytes_max=700, index_interval_bytes=256)
    log.append([make.data(b"x" * 100, records=2, timestamp_ms=1000 + n, term=3) for n in range(4)])
    log.close()
    index = (tmp_path / f"{1:020d}.index").read_bytes()
    comment = "header 96 bytes; points of 32 bytes; term runs of 16 bytes; EPOCH entries of 24 bytes; CRC"
    check("index_2", index, comment)


def test_manifest_format_1(make: EntryMaker) -> None:
    entry = make.data(b"golden payload", records=3, term=7)
    manifest = Manifest(
        index=entry.index,
        term=entry.term,
        chain=entry.chain,
        stream_part=entry.stream_part,
        membership=b"members",
        state=b"",
        created_ms=1_700_000_000_000,
    )
    # The state is empty here: its compressed form belongs to zlib, and another zlib may choose other bytes.
    check("manifest", manifest.encode(), "header 48 bytes, STREAM part 80 bytes, membership, packed state, CRC")
    assert Manifest.decode(manifest.encode()) == manifest


def test_flushed_marks_format_1(tmp_path: Path) -> None:
    marks = FlushedMarks.open(OsFileSystem(), tmp_path)
    marks.note({GroupId(7): FlushedMark(RaftIndex(9), Term(3), 0xDEADBEEF)})
    marks.note({GroupId(0): FlushedMark(RaftIndex(1), Term(1), 5)})
    marks.close()
    raw = (tmp_path / "flushed-marks").read_bytes()
    check("flushed_marks", raw[:96], "rows of 32 bytes: header; group, chain, index, term, MARK, CRC")
    assert raw[96:] == bytes(4096 - 96)  # rows that are free


def test_hard_state_format_1() -> None:
    first = {GroupId(0): HardState(Term(1), BrokerId(1001)), GroupId(7): HardState(Term(5), BrokerId(0))}
    raw = encode_file_header() + encode_frame(first, 0)
    raw += encode_frame({GroupId(7): HardState(Term(6), BrokerId(1002))}, 1)
    check("hard_state", raw, "file header 32 bytes; frames: header 32 bytes, records of 16 bytes, filled to 32 with ff")
    assert decode_journal(raw, Path("x")) == {0: (1, 1001), 7: (6, 1002)}


def test_entry_journal_format_1() -> None:
    rows: list[Buffer] = [struct.pack(">IIQQ", 7, 5, 3, 228), b"fr", b"ame", struct.pack(">IIQQ", 9, 0, 0, 0)]
    raw = b"".join(encode_frame_of_rows(rows, 2, 41))
    check("entry_journal", raw, "header 32 bytes; rows: group, bytes, segment, position, content; filled to 32")
    assert list(decode_frames(raw)) == [(41, [FoundRow(GroupId(7), 3, 228, b"frame"), FoundRow(GroupId(9), 0, 0, b"")])]


def test_segments_are_frames_back_to_back(tmp_path: Path, entry_maker: Callable[[], EntryMaker]) -> None:
    entries = one_of_each(entry_maker())
    log = GroupLog.open(tmp_path, OsFileSystem())
    log.append(entries)
    log.close()
    raw = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.log")))
    assert raw == b"".join(entry.frame for entry in entries)
