"""Bytes with right checksums that still cannot be: each rule behind a checksum refuses by itself."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import GroupId, RaftIndex, Term
from georelay.limits import RECORD_BATCH_BYTES_MAX
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import EntryType
from region.log import flushed_marks
from region.log.entry import ENTRY_HEADER_BYTES, FIRST_CHAIN, EntryError, decode_entry, frame_bytes
from region.log.errors import LogCorrupt
from region.log.filesystem import OsFileSystem
from region.log.flushed_marks import FlushedMark, FlushedMarks
from region.log.index import IndexFile, IndexFileError, SparseIndex, _big_endian
from region.log.segment import ScanStop, Segment, entry_epoch, scan_segment, verify_frames

if TYPE_CHECKING:
    from tests.unit.log.conftest import CrashFileSystem, EntryMaker

INTERVAL_BYTES = 256
DATA = Path("/data")


def resealed(frame: bytes | bytearray, position: int, layout: str, value: int) -> bytes:
    """Return the frame of an entry with one header field changed and the header's checksum right again."""
    raw = bytearray(frame)
    struct.pack_into(layout, raw, position, value)
    raw[8:12] = bytes(4)
    raw[8:12] = int(crc32c(raw[:ENTRY_HEADER_BYTES])).to_bytes(4, "big")
    return bytes(raw)


# -- entries ----------------------------------------------------------------------------------------------------


def test_the_unchanged_frame_resealed_is_the_entry(make: EntryMaker) -> None:
    frame = make.data(records=2).frame
    assert resealed(frame, 20, ">Q", 1) == frame


@pytest.mark.parametrize(
    ("position", "layout", "value", "text"),
    [
        (0, ">H", 0x4753, "no entry here: magic 0x4753, not 0x4752"),
        (2, ">B", 2, "entry format 2 is unknown, this broker reads format 1"),
        (4, ">I", RECORD_BATCH_BYTES_MAX + 1, "is over"),
        (20, ">Q", 0, "entry index 0 is below 1"),
    ],
)
def test_a_header_that_cannot_be_is_refused(
    make: EntryMaker, position: int, layout: str, value: int, text: str
) -> None:
    with pytest.raises(EntryError, match=text) as caught:
        decode_entry(resealed(make.data().frame, position, layout, value))
    assert not caught.value.torn


def test_the_largest_payload_is_believed(make: EntryMaker) -> None:
    raw = resealed(make.data().frame, 4, ">I", RECORD_BATCH_BYTES_MAX)
    assert frame_bytes(raw) == ENTRY_HEADER_BYTES + RECORD_BATCH_BYTES_MAX


@pytest.mark.parametrize(
    ("kind", "count"), [(EntryType.DATA, 0), (EntryType.NOOP, 1), (EntryType.TXN_MARKER, 0), (EntryType.TXN_MARKER, 2)]
)
def test_a_count_that_does_not_fit_the_type_is_refused(make: EntryMaker, kind: EntryType, count: int) -> None:
    if kind is EntryType.DATA:
        entry = make.data(records=1)
    else:
        entry = make.marker(b"m") if kind is EntryType.TXN_MARKER else make.control(kind)
    position = entry.frame.index(int(entry.record_count).to_bytes(4, "big"), 52)
    with pytest.raises(EntryError, match=f"{count} records do not fit an entry of type {int(kind)}"):
        decode_entry(resealed(entry.frame, position, ">I", count))


def new_segment(path: Path) -> Segment:
    return Segment(
        path=path,
        first_index=1,
        last_index=0,
        base_offset=0,
        next_offset=0,
        previous_chain=FIRST_CHAIN,
        last_chain=FIRST_CHAIN,
        last_term=0,
        index=SparseIndex(INTERVAL_BYTES),
    )


# -- index files ------------------------------------------------------------------------------------------------


@pytest.fixture
def indexed(make: EntryMaker, tmp_path: Path) -> tuple[Segment, bytes]:
    segment = new_segment(tmp_path / "1.log")
    for _ in range(6):
        segment.note(make.data(bytes(100)))
    file = IndexFile(info=segment.info(), index=segment.index, term_runs=((RaftIndex(1), Term(1)),), epoch_starts=())
    return segment, file.encode()


def checksummed(body: bytes) -> bytes:
    return body + int(crc32c(body)).to_bytes(4, "big")


def test_an_index_file_comes_back_as_it_was(indexed: tuple[Segment, bytes]) -> None:
    segment, raw = indexed
    found = IndexFile.decode(raw, interval_bytes=INTERVAL_BYTES)
    assert found.info == segment.info() and found.term_runs == ((1, 1),)
    assert found.index.columns() == segment.index.columns() and len(found.index) == 3


@pytest.mark.parametrize("kept", [0, 3, 60])
def test_an_index_file_shorter_than_its_header_is_refused(indexed: tuple[Segment, bytes], kept: int) -> None:
    with pytest.raises(IndexFileError, match=f"has more than {kept} bytes"):
        IndexFile.decode(indexed[1][:kept], interval_bytes=INTERVAL_BYTES)


def test_an_index_file_of_another_format_is_refused(indexed: tuple[Segment, bytes]) -> None:
    body = bytearray(indexed[1][:-4])
    body[4:6] = (99).to_bytes(2, "big")
    with pytest.raises(IndexFileError, match="index file format 99"):
        IndexFile.decode(checksummed(bytes(body)), interval_bytes=INTERVAL_BYTES)


@pytest.mark.parametrize("extra", [b"\0", bytes(32)], ids=["a byte", "a point"])
def test_an_index_file_with_more_than_it_counts_is_refused(indexed: tuple[Segment, bytes], extra: bytes) -> None:
    with pytest.raises(IndexFileError, match="do not add up"):
        IndexFile.decode(checksummed(indexed[1][:-4] + extra), interval_bytes=INTERVAL_BYTES)


def test_an_index_file_without_a_point_is_refused(indexed: tuple[Segment, bytes]) -> None:
    found = IndexFile.decode(indexed[1], interval_bytes=INTERVAL_BYTES)
    empty = replace(found, index=SparseIndex(INTERVAL_BYTES))
    with pytest.raises(IndexFileError, match="do not add up"):
        IndexFile.decode(empty.encode(), interval_bytes=INTERVAL_BYTES)


# -- segments ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(make: EntryMaker, tmp_path: Path) -> Iterator[tuple[Segment, int]]:
    """Give a segment of five entries and its open file."""
    segment = new_segment(tmp_path / "1.log")
    frames = []
    for _ in range(5):
        entry = make.data(bytes(50))
        segment.note(entry)
        frames.append(entry.frame)
    segment.path.write_bytes(b"".join(frames))
    fs = OsFileSystem()
    handle = fs.open(segment.path)
    yield segment, handle
    fs.close(handle)


def test_a_whole_segment_is_read_in_pieces(stored: tuple[Segment, int]) -> None:
    segment, handle = stored
    sizes = list(verify_frames(OsFileSystem(), handle, segment.path, segment.info(), piece_bytes=300))
    assert sizes == [356, 356, 178] and sum(sizes) == segment.size_bytes


@pytest.mark.parametrize("change", [{"last_index": 6}, {"last_chain": 0}, {"size_bytes": 1}])
def test_a_segment_that_is_not_what_its_info_says_is_corrupt(
    stored: tuple[Segment, int], change: dict[str, int]
) -> None:
    segment, handle = stored
    with pytest.raises(LogCorrupt, match="it ends with entry 5"):
        list(
            verify_frames(OsFileSystem(), handle, segment.path, replace(segment.info(), **change), piece_bytes=1 << 20)
        )


def test_a_segment_that_does_not_continue_the_one_before_is_corrupt_from_its_first_byte(
    stored: tuple[Segment, int],
) -> None:
    segment, handle = stored
    with pytest.raises(LogCorrupt, match="is damaged at byte 0: entry 1: chain"):
        list(
            verify_frames(
                OsFileSystem(), handle, segment.path, replace(segment.info(), previous_chain=1), piece_bytes=1 << 20
            )
        )


def test_a_damaged_entry_of_a_segment_is_named_with_its_position(stored: tuple[Segment, int]) -> None:
    segment, handle = stored
    raw = bytearray(segment.path.read_bytes())
    raw[2 * 178 + 150] ^= 1
    segment.path.write_bytes(raw)
    with pytest.raises(LogCorrupt, match="is damaged at byte 356: entry 3: payload checksum"):
        list(verify_frames(OsFileSystem(), handle, segment.path, segment.info(), piece_bytes=1 << 20))


def test_the_epoch_of_an_entry_is_read_without_its_header(make: EntryMaker) -> None:
    entries = [make.data(records=2), make.begin_epoch(7, 2), make.data()]
    assert [entry_epoch(entry) for entry in entries] == [1, 7, 7]


def test_entries_out_of_their_place_end_a_scan(stored: tuple[Segment, int]) -> None:
    _, handle = stored
    stop = next(iter(scan_segment(OsFileSystem(), handle, first_index=2, previous_chain=None)))
    assert isinstance(stop, ScanStop)
    assert (stop.position, stop.index, stop.reason) == (0, 2, "index 1 where 2 must be")
    assert not stop.is_room and not stop.tear_explains


# -- flushed marks ----------------------------------------------------------------------------------------------


def test_a_row_moved_to_another_magic_or_checksum_is_no_mark(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    one, two = FlushedMark(RaftIndex(3), Term(2), 7), FlushedMark(RaftIndex(4), Term(2), 8)
    marks.note({GroupId(1): one, GroupId(2): two})
    raw = bytearray(fs.content(DATA / flushed_marks.MARKS_NAME))
    row = raw[32:60]
    row[-4:] = b"XXXX"
    raw[32:64] = checksummed(bytes(row))
    assert flushed_marks.decode_marks(bytes(raw), DATA) == ({GroupId(2): (2, two)}, {1: bytes(raw[32:64])})


def test_closed_marks_write_nothing_and_close_once(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    assert marks.note({GroupId(1): FlushedMark(RaftIndex(1), Term(1), 1)}) == 32
    marks.close()
    marks.close()
    assert marks.note({GroupId(2): FlushedMark(RaftIndex(1), Term(1), 1)}) == 0
    marks.sync()
    assert FlushedMarks.open(fs, DATA).get(GroupId(2)) is None


def test_forgetting_a_group_without_a_mark_writes_nothing(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    before = bytes(fs.content(DATA / flushed_marks.MARKS_NAME))
    marks.forget(GroupId(9))
    assert bytes(fs.content(DATA / flushed_marks.MARKS_NAME)) == before


def test_a_lowered_mark_is_durable_before_the_log_is_cut(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    marks.note({GroupId(1): FlushedMark(RaftIndex(9), Term(2), 1), GroupId(2): FlushedMark(RaftIndex(7), Term(2), 2)})
    marks.sync()
    marks.lower(GroupId(1), FlushedMark(RaftIndex(3), Term(1), 3))
    assert marks.get(GroupId(1)) == FlushedMark(RaftIndex(3), Term(1), 3)
    fs.crash(keep=0.0)
    again = FlushedMarks.open(fs, DATA)
    assert [again.get(GroupId(n)) for n in (1, 2)] == [
        FlushedMark(RaftIndex(3), Term(1), 3),
        FlushedMark(RaftIndex(7), Term(2), 2),
    ]


@pytest.mark.parametrize(
    ("term", "index", "reached"), [(2, 5, True), (2, 6, True), (3, 1, True), (2, 4, False), (1, 9, False)]
)
def test_a_mark_is_reached_by_the_term_first_and_then_by_the_index(term: int, index: int, reached: bool) -> None:
    assert FlushedMark(RaftIndex(5), Term(2), 0).is_reached_by(Term(term), RaftIndex(index)) is reached


def mark_of(index: int) -> FlushedMark:
    return FlushedMark(RaftIndex(index), Term(1), index)


def used_rows(fs: CrashFileSystem) -> int:
    """Return how many rows of the marks are not free, the header aside."""
    content = bytes(fs.content(DATA / flushed_marks.MARKS_NAME))
    return sum(any(content[at : at + 32]) for at in range(32, len(content), 32))


def test_a_group_keeps_its_row_and_a_new_group_takes_no_other_ones(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    for index in (1, 2, 3):
        marks.note({GroupId(1): mark_of(index)})
    marks.note({GroupId(2): mark_of(8)})
    assert used_rows(fs) == 2
    again = FlushedMarks.open(fs, DATA)
    again.note({GroupId(3): mark_of(9)})
    assert used_rows(fs) == 3
    third = FlushedMarks.open(fs, DATA)
    assert [third.get(GroupId(n)) for n in (1, 2, 3)] == [mark_of(3), mark_of(8), mark_of(9)]


def test_rows_between_two_that_change_stay_as_they_are(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    marks.note({GroupId(n): mark_of(n) for n in (1, 2, 3, 4)})
    marks.note({GroupId(1): mark_of(11), GroupId(3): mark_of(13)})
    again = FlushedMarks.open(fs, DATA)
    assert [again.get(GroupId(n)) for n in (1, 2, 3, 4)] == [mark_of(n) for n in (11, 2, 13, 4)]


def test_a_mark_behind_free_rows_stays_in_its_place(crash_fs: Callable[[int], CrashFileSystem]) -> None:
    fs = crash_fs(0)
    fs.make_durable_directory(DATA)
    marks = FlushedMarks.open(fs, DATA)
    marks.note({GroupId(n): mark_of(n) for n in (1, 2, 3)})
    marks.forget(GroupId(1))
    marks.forget(GroupId(2))
    for _ in range(2):
        again = FlushedMarks.open(fs, DATA)
        assert again.get(GroupId(3)) == mark_of(3)
        again.note({GroupId(3): mark_of(3)})
        assert used_rows(fs) == 1
    again.note({GroupId(5): mark_of(5), GroupId(6): mark_of(6), GroupId(7): mark_of(7)})
    last = FlushedMarks.open(fs, DATA)
    assert [last.get(GroupId(n)) for n in (3, 5, 6, 7)] == [mark_of(n) for n in (3, 5, 6, 7)]
    assert used_rows(fs) == 4


def test_points_have_the_same_bytes_on_a_machine_of_the_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    words = array("Q", [1, 1 << 40])
    if sys.byteorder == "little":
        assert _big_endian(array("Q", words)).tobytes() == struct.pack(">QQ", *words)
    monkeypatch.setattr(sys, "byteorder", "big")
    assert _big_endian(array("Q", words)) == words
