"""Markers of transactions: what kafka-python writes and reads, limits, and what clients may not send."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from georelay.errors import CorruptRecordBatch, TooLarge
from georelay.wire.batch import RecordDraft, build_batch, parse_header, validate
from georelay.wire.control_batch import MARKER_BYTES, Marker, build_marker, parse_marker
from georelay.wire.crc import crc32c

MARKER: dict[str, Any] = {
    "producer_id": 77,
    "producer_epoch": 3,
    "is_commit": True,
    "coordinator_epoch": 5,
    "timestamp_ms": 1_700_000_000_123,
}


@pytest.mark.parametrize("is_commit", [False, True])
def test_kafka_python_reads_our_marker_as_the_end_of_the_transaction(is_commit: bool) -> None:
    theirs = DefaultRecordBatch(build_marker(**MARKER | {"is_commit": is_commit}))
    assert (theirs.is_control_batch, theirs.is_transactional, theirs.validate_crc()) == (True, True, True)
    (record,) = list(theirs)
    assert (record.version, record.type) == (0, int(is_commit))
    assert record.value == struct.pack(">hi", 0, 5)


@pytest.mark.parametrize("kind", [0, 1])
def test_our_marker_has_the_bytes_of_a_record_that_kafka_python_builds(kind: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=1, producer_id=77, producer_epoch=3, base_sequence=-1,
        batch_size=1000,
    )  # fmt: skip
    builder.append(
        0, timestamp=1_700_000_000_123, key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 5), headers=[]
    )
    theirs = bytes(builder.build())
    ours = build_marker(**MARKER | {"is_commit": bool(kind)})
    assert len(ours) == len(theirs) == MARKER_BYTES
    assert ours[61:] == theirs[61:]  # the record
    assert ours[23:61] == theirs[23:61]  # the header from behind the attributes on, where only the control bit differs
    assert parse_header(ours).attributes == parse_header(theirs).attributes | 0x20


def test_a_marker_comes_back_as_it_was() -> None:
    for marker in (Marker(0, 0, False, 0, 0), Marker(2**63 - 1, 2**15 - 1, True, 2**31 - 1, 2**53)):
        assert parse_marker(build_marker(**marker._asdict())) == marker


@pytest.mark.parametrize(
    "wrong",
    [{"producer_id": -1}, {"producer_epoch": -1}, {"producer_epoch": 2**15}, {"coordinator_epoch": 2**31}],
)
def test_a_marker_with_a_number_out_of_range_is_not_built(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="marker"):
        build_marker(**MARKER | wrong)


def test_other_batches_are_no_markers() -> None:
    plain = build_batch([RecordDraft(b"x")], timestamps_ms=1)
    with pytest.raises(CorruptRecordBatch, match="no marker"):
        parse_marker(plain)
    with pytest.raises(CorruptRecordBatch, match="checksum"):
        parse_marker(build_marker(**MARKER)[:-1] + b"\x01")


def test_a_damaged_marker_raises_only_the_errors_of_batches() -> None:
    rng, marker = random.Random(1), build_marker(**MARKER)
    for _ in range(2_000):
        raw = bytearray(marker)
        raw[rng.randrange(21, len(raw))] ^= 1 << rng.randrange(8)
        struct.pack_into(">I", raw, 17, crc_of(raw))
        try:
            parse_marker(bytes(raw))
        except (CorruptRecordBatch, TooLarge):
            continue


def crc_of(raw: bytes | bytearray) -> int:
    return crc32c(bytes(raw[21:]))


def test_clients_may_never_write_markers() -> None:
    for transactional_ok in (False, True):
        with pytest.raises(CorruptRecordBatch, match="brokers only"):
            validate(build_marker(**MARKER), from_client=True, transactional_ok=transactional_ok)
    assert validate(build_marker(**MARKER), from_client=False).is_control


def test_a_clients_transactional_batch_passes_only_where_it_is_asked_for() -> None:
    raw = build_batch(
        [RecordDraft(b"x")], timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    with pytest.raises(CorruptRecordBatch, match="not supported"):
        validate(raw, from_client=True)
    assert validate(raw, from_client=True, transactional_ok=True).is_transactional
    stray = build_batch([RecordDraft(b"x")], timestamps_ms=1, is_transactional=True)
    with pytest.raises(CorruptRecordBatch, match="no producer id"):
        validate(stray, from_client=True, transactional_ok=True)
