"""The spool after a crash: whole frames are rows, everything behind the first damage is missing, nothing is guessed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from georelay.trace.files import broker_of_spool, spool_name
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from georelay.trace.spool import (
    PLAIN_BYTES_MAX,
    ROWS_PER_FRAME_MAX,
    SpoolError,
    SpoolHeader,
    SpoolRows,
    encode_frame,
    read_spool,
)

HEADER = SpoolHeader(kind=TraceKind.PROBE, region="eu", broker=2001, boot_id="b0", opened_ns=1_700_000_000 * 10**9)


def batch(first: int, rows: int) -> Any:
    columns = {
        "origin": "us", "dest": "eu", "prober": "us/1001", "sent_ns": 5, "published_ns": 6, "delivered_ns": None,
        "outcome": "ok", "timeout_ms": 5_000, "schema_version": 2,
    }  # fmt: skip
    rows_ = [columns | {"seq": number} for number in range(first, first + rows)]
    return pa.RecordBatch.from_pylist(rows_, schema=SCHEMAS[TraceKind.PROBE])


def frame(first: int, rows: int = 2, dropped: int = 0) -> bytes:
    return SpoolRows.of(TraceKind.PROBE, batch(first, rows), first_row_seq=first, dropped=dropped).encode()


FRAMES = [HEADER.encode(), frame(0), frame(2, dropped=1), frame(5)]
SPOOL = b"".join(FRAMES)


def ends() -> list[int]:
    """Return where each frame ends."""
    return [sum(map(len, FRAMES[: count + 1])) for count in range(len(FRAMES))]


def test_a_spool_reads_back() -> None:
    spool = read_spool(SPOOL)
    assert (spool.header, spool.lost_bytes) == (HEADER, 0)
    assert [(rows.first_row_seq, rows.rows, rows.dropped) for rows in spool.rows] == [(0, 2, 0), (2, 2, 1), (5, 2, 0)]
    assert [rows.batch(TraceKind.PROBE) for rows in spool.rows] == [batch(0, 2), batch(2, 2), batch(5, 2)]


def test_a_spool_torn_at_any_byte_has_the_whole_frames_before_it() -> None:
    for size in range(len(SPOOL)):
        whole = sum(end <= size for end in ends())
        if whole == 0:
            with pytest.raises(SpoolError):
                read_spool(SPOOL[:size])
            continue
        spool = read_spool(SPOOL[:size])
        assert (len(spool.rows), spool.lost_bytes) == (whole - 1, size - ends()[whole - 1])


def test_a_spool_with_any_bit_flipped_has_the_frames_before_it_and_no_other() -> None:
    for position in range(len(SPOOL)):
        raw = bytearray(SPOOL)
        raw[position] ^= 1 << (position % 8)
        whole = sum(end <= position for end in ends())
        if whole == 0:
            with pytest.raises(SpoolError):
                read_spool(bytes(raw))
            continue
        spool = read_spool(bytes(raw))
        assert [rows.first_row_seq for rows in spool.rows] == [0, 2, 5][: whole - 1]
        assert spool.lost_bytes == len(SPOOL) - ends()[whole - 1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"spool":1}',
        HEADER.encode()[8:].replace(b'"spool":1', b'"spool":2'),
        HEADER.encode()[8:].replace(b'"schema_version":3', b'"schema_version":4'),
        HEADER.encode()[8:].replace(b'"eu"', b'"../../etc"'),
        HEADER.encode()[8:].replace(b"probe", b"gossip"),
    ],
    ids=["empty", "list", "fields", "version", "schema", "region", "kind"],
)
def test_a_header_of_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(SpoolError):
        read_spool(encode_frame(body))


@pytest.mark.parametrize("rows", [0, ROWS_PER_FRAME_MAX + 1])
def test_a_frame_with_an_impossible_count_ends_the_spool(rows: int) -> None:
    bad = encode_frame(SpoolRows(first_row_seq=7, rows=rows, dropped=0, message=b"x").encode()[8:])
    assert len(read_spool(SPOOL + bad + frame(7)).rows) == 3


def test_rows_that_are_no_record_batch_are_refused() -> None:
    for message in (b"x", b"\xff" * 64, SPOOL):
        with pytest.raises(SpoolError):
            SpoolRows(first_row_seq=0, rows=1, dropped=0, message=message).batch(TraceKind.PROBE)


def test_rows_of_another_kind_are_refused() -> None:
    rows = SpoolRows.of(TraceKind.PROBE, batch(0, 2), first_row_seq=0, dropped=0)
    with pytest.raises(SpoolError):
        rows.batch(TraceKind.LEDGER)


def test_a_count_that_disagrees_with_the_rows_is_refused() -> None:
    rows = SpoolRows.of(TraceKind.PROBE, batch(0, 2), first_row_seq=0, dropped=0)
    with pytest.raises(SpoolError, match="3 rows"):
        SpoolRows(first_row_seq=0, rows=3, dropped=0, message=rows.message).batch(TraceKind.PROBE)


def test_the_broker_stands_in_the_name() -> None:
    assert broker_of_spool(spool_name(TraceKind.LATENCY_HIST, 2001, "b0", 7)) == 2001
    assert broker_of_spool("latency_hist-2001-b0-000007.parquet") is None


@pytest.mark.parametrize("topic_chars", [10, 2_000])
def test_only_a_large_frame_is_compressed(topic_chars: int) -> None:
    row = {"second": 1, "region": "eu", "gateway": "g" * topic_chars, "op": "publish", "attempts": 1, "ok": 1,
           "client_error": 0, "server_error": 0, "timeout": 0, "offered": 1, "schema_version": 3}  # fmt: skip
    whole = pa.RecordBatch.from_pylist([row] * 1_000, schema=SCHEMAS[TraceKind.OUTCOME])
    rows = SpoolRows.of(TraceKind.OUTCOME, whole, first_row_seq=0, dropped=0)
    assert rows.batch(TraceKind.OUTCOME) == whole
    assert (whole.nbytes > PLAIN_BYTES_MAX) == (topic_chars == 2_000)
    assert (len(rows.message) < whole.nbytes) == (topic_chars == 2_000)
