"""Frames of the bulk lane: golden bytes, every truncation, nonsense; and the frames cut out of a segment."""

from __future__ import annotations

import pytest

from georelay.ids import Epoch, GroupId, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType
from region.log.entry import EntryDraft, EntryError, control_header, seal_entry
from region.multiraft.bulk_wire import (
    CHUNK_BYTES_MAX,
    Ask,
    BulkAnswer,
    BulkFetched,
    BulkFrame,
    BulkOffer,
    BulkRequest,
    BulkWireError,
    SegmentRow,
    Status,
    decode_bulk,
    decode_rows,
    encode_bulk,
    encode_rows,
)
from region.multiraft.frame_cutter import FrameCutter
from region.multiraft.token_bucket import TokenBucket

GOLDEN: list[tuple[BulkFrame, str]] = [
    (
        BulkRequest(ask=Ask.READ, request=7, group=GroupId(3), first=RaftIndex(21), position=4096, size=65536),
        "01 02 00000007 00000003 0000000000000015 0000000000001000 00010000",
    ),
    (BulkAnswer(request=7, status=Status.OK, data=b"data"), "02 00000007 00 64617461"),
    (BulkAnswer(request=8, status=Status.GONE), "02 00000008 01"),
    (BulkOffer(group=GroupId(3), term=Term(5)), "03 00000003 0000000000000005"),
    (
        BulkFetched(group=GroupId(3), term=Term(5), index=RaftIndex(40), more=True),
        "04 00000003 0000000000000005 0000000000000028 01",
    ),
]
ROW = SegmentRow(
    first_index=RaftIndex(21),
    last_index=RaftIndex(40),
    size_bytes=4096,
    last_term=Term(5),
    previous_chain=0xA1B2C3D4,
    last_chain=0x01020304,
)
ROW_BYTES = "0000000000000015 0000000000000028 0000000000001000 0000000000000005 a1b2c3d4 01020304"


@pytest.mark.parametrize(("frame", "golden"), GOLDEN)
def test_bulk_frames_have_golden_bytes(frame: BulkFrame, golden: str) -> None:
    raw = bytes.fromhex(golden)
    assert b"".join(bytes(part) for part in encode_bulk(frame)) == raw
    assert decode_bulk(memoryview(raw)) == frame


def test_a_segment_row_has_golden_bytes() -> None:
    raw = bytes.fromhex(ROW_BYTES)
    assert encode_rows([ROW]) == raw
    assert decode_rows(raw + raw) == [ROW, ROW]


@pytest.mark.parametrize(("frame", "golden"), [row for row in GOLDEN if not isinstance(row[0], BulkAnswer)])
def test_a_bulk_frame_of_another_length_is_refused(frame: BulkFrame, golden: str) -> None:
    raw = bytes.fromhex(golden)
    for wrong in [raw[:cut] for cut in range(len(raw))] + [raw + b"\0"]:
        with pytest.raises(BulkWireError):
            decode_bulk(memoryview(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        "09 00000003 0000000000000005",
        "01 09 00000007 00000003 0000000000000015 0000000000001000 00010000",
        "01 02 00000007 00000003 ffffffffffffffff 0000000000001000 00010000",
        f"01 02 00000007 00000003 0000000000000015 0000000000001000 {CHUNK_BYTES_MAX + 1:08x}",
        "02 00000007 09",
        "04 00000003 0000000000000005 0000000000000028 02",
    ],
)
def test_a_bulk_frame_of_nonsense_is_refused(wrong: str) -> None:
    with pytest.raises(BulkWireError):
        decode_bulk(memoryview(bytes.fromhex(wrong)))


@pytest.mark.parametrize(
    "wrong",
    [bytes(39), bytes(40), bytes.fromhex(ROW_BYTES) * 65, bytes.fromhex(ROW_BYTES.replace("15", "29", 1))],
    ids=["half a row", "index 0", "too many", "first after last"],
)
def test_a_segment_list_of_nonsense_is_refused(wrong: bytes) -> None:
    with pytest.raises(BulkWireError):
        decode_rows(wrong)


def frames(first: int, count: int) -> list[bytes]:
    made, chain = [], 0
    for number in range(first, first + count):
        payload = bytes([number]) * (number % 5 * 40)
        header = control_header(
            EntryType.NOOP, next_offset=Offset(0), epoch=Epoch(1), append_us=0, digest=bytes(16), payload=payload
        )
        draft = EntryDraft(header=header, payload=payload)
        entry = seal_entry(draft, term=Term(1), index=RaftIndex(number), previous_chain=chain)
        chain = entry.chain
        made.append(bytes(entry.frame))
    return made


@pytest.mark.parametrize("step", [1, 7, 128, 129, 1_000, 100_000])
def test_a_range_is_cut_out_however_the_segment_is_sliced(step: int) -> None:
    made = frames(1, 20)
    stream = b"".join(made)
    cutter = FrameCutter(first_index=4, last_index=15)
    kept = b"".join(b"".join(cutter.feed(stream[at : at + step])) for at in range(0, len(stream), step))
    assert kept == b"".join(made[3:15])
    assert (cutter.kept_index, cutter.whole) == (15, True)


def test_a_stream_that_stops_inside_a_frame_is_not_whole() -> None:
    made = frames(1, 3)
    for missing in (1, 127):
        cutter = FrameCutter(first_index=1, last_index=3)
        cutter.feed(b"".join(made)[:-missing])
        assert not (cutter.whole and cutter.kept_index == 3)


def test_a_gap_or_a_damaged_header_is_found_while_cutting() -> None:
    made = frames(1, 5)
    cutter = FrameCutter(first_index=1, last_index=5)
    with pytest.raises(EntryError, match="gap"):
        cutter.feed(made[0] + made[2])
    spoiled = bytearray(made[0])
    spoiled[20] ^= 1
    with pytest.raises(EntryError):
        FrameCutter(first_index=1, last_index=5).feed(bytes(spoiled))


def test_a_bucket_lets_a_burst_pass_and_then_its_rate() -> None:
    bucket = TokenBucket(rate_per_s=100, burst=50, now_ns=0)
    assert bucket.take(50, now_ns=0) == 0
    assert bucket.take(10, now_ns=0) == pytest.approx(0.1)
    assert bucket.take(10, now_ns=0) == pytest.approx(0.2)  # behind the one before
    assert bucket.take(10, now_ns=200_000_000) == pytest.approx(0.1)
    assert bucket.take(50, now_ns=10_000_000_000) == 0  # never more than the burst is saved up
    assert bucket.take(1, now_ns=9_000_000_000) == pytest.approx(0.01)  # a clock that goes back gives nothing


def test_a_bucket_needs_a_rate_and_a_burst() -> None:
    for rate, burst in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="positive"):
            TokenBucket(rate_per_s=rate, burst=burst, now_ns=0)
