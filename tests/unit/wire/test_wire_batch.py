"""Record batches: what is accepted, what is refused, and that clients of others agree."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch as AioReader
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch as PyReader
from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

from georelay.errors import CorruptRecordBatch, TooLarge
from georelay.limits import DECOMPRESSED_BATCH_BYTES_MAX, HEADERS_PER_RECORD_MAX, MIB, RECORD_BATCH_BYTES_MAX
from georelay.wire.batch import (
    Compression,
    RecordDraft,
    build_batch,
    decompress,
    iterate_records,
    parse_header,
    split_batches,
    stamp,
    stamp_time,
    validate,
)
from georelay.wire.crc import crc32c

DRAFTS = [
    RecordDraft(b"v" * 300, b"k"),
    RecordDraft(None, b"tombstone", [("trace", b"1"), ("trace", b"2"), ("é", None)]),
    RecordDraft(b"", None),
]
TIMES_MS = [1_700_000_000_000, 1_699_999_999_000, 1_700_000_000_500]
CODECS = list(Compression)
OTHERS = [(client, codec) for client in ("aiokafka", "kafka-python") for codec in CODECS]
OTHERS.remove(("kafka-python", Compression.SNAPPY))  # wants a library of its own; aiokafka covers snappy
BUILDERS = {"aiokafka": AioBuilder, "kafka-python": PyBuilder}


def batch(**options: int) -> bytes:
    return build_batch(DRAFTS, timestamps_ms=TIMES_MS, **options)  # type: ignore[arg-type]


def resealed(raw: bytes) -> bytes:
    return raw[:8] + struct.pack(">i", len(raw) - 12) + raw[12:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:]


def patched(position: int, layout: str, *values: int) -> bytes:
    raw = bytearray(batch())
    struct.pack_into(">" + layout, raw, position, *values)
    return resealed(bytes(raw))


def with_body(body: bytes, codec: int = 0, count: int = 1) -> bytes:
    raw = bytearray(batch()[:61])
    struct.pack_into(">hi", raw, 21, codec, count - 1)
    struct.pack_into(">i", raw, 57, count)
    return resealed(bytes(raw) + body)


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_built(codec: Compression) -> None:
    raw = build_batch(DRAFTS, timestamps_ms=TIMES_MS, compression=codec, base_offset=40)
    got = list(iterate_records(raw))
    assert [(r.value, r.key, list(r.headers)) for r in got] == [(d.value, d.key, list(d.headers)) for d in DRAFTS]
    assert [r.offset for r in got] == [40, 41, 42]
    assert [r.timestamp_ms for r in got] == TIMES_MS
    assert validate(raw, from_client=True).max_timestamp_ms == max(TIMES_MS)
    assert validate(raw, from_client=True).compression is codec


@pytest.mark.parametrize(("client", "codec"), OTHERS)
def test_batches_of_other_clients_are_accepted(client: str, codec: Compression) -> None:
    make = BUILDERS[client](
        magic=2, compression_type=int(codec), is_transactional=0, producer_id=7, producer_epoch=1, base_sequence=5,
        batch_size=100_000,
    )  # fmt: skip
    for index in range(200):
        make.append(index, timestamp=1000 + index, key=b"k%d" % index, value=b"v" * 50, headers=[("h", b"x")])
    raw = bytes(make.build())
    header = validate(raw, from_client=True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (7, 1, 5, 200)
    got = list(iterate_records(raw))
    assert [(r.key, r.timestamp_ms) for r in got] == [(b"k%d" % i, 1000 + i) for i in range(200)]
    assert {(r.value, r.headers) for r in got} == {(b"v" * 50, (("h", b"x"),))}


@pytest.mark.parametrize(("client", "codec"), OTHERS)
def test_other_clients_read_our_batches(client: str, codec: Compression) -> None:
    raw = build_batch(DRAFTS, timestamps_ms=TIMES_MS, compression=codec, base_offset=9)
    theirs = AioReader(bytearray(raw)) if client == "aiokafka" else PyReader(raw)
    assert theirs.validate_crc()
    got = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs]
    assert got == [(9 + i, TIMES_MS[i], d.key, d.value, list(d.headers)) for i, d in enumerate(DRAFTS)]


def test_an_uncompressed_batch_has_the_bytes_that_aiokafka_writes() -> None:
    make = AioBuilder(2, 0, 0, -1, -1, -1, 100_000)
    for index, draft in enumerate(DRAFTS):
        make.append(index, TIMES_MS[index], draft.key, draft.value, list(draft.headers))
    assert batch()[21:] == bytes(make.build())[21:]


def test_stamping_changes_offset_and_epoch_and_leaves_the_checksum_right() -> None:
    raw = bytearray(batch())
    before = bytes(raw)
    stamp(raw, base_offset=2**40, epoch=12)
    header = validate(raw, from_client=True)
    assert (header.base_offset, header.epoch, header.last_offset, header.next_offset) == (
        2**40,
        12,
        2**40 + 2,
        2**40 + 3,
    )
    assert (bytes(raw[8:12]), bytes(raw[16:])) == (before[8:12], before[16:])


def test_log_append_time_replaces_the_records_timestamps() -> None:
    raw = patched(21, "h", 0x08)
    assert {record.timestamp_ms for record in iterate_records(raw)} == {max(TIMES_MS)}
    assert (parse_header(raw).timestamp_type, parse_header(raw).is_log_append_time) == (1, True)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (batch()[:60], "needs 61 bytes"),
        (batch()[:-1], "are here"),
        (batch() + b"\x00", "are here"),
        (batch()[:8] + struct.pack(">i", 48) + batch()[12:], "below the 49"),
        (patched(16, "b", 1), "only 2 is"),
        (batch()[:-1] + b"\xff", "checksum"),
        (patched(21, "h", 5), "codec 5 is unknown"),
        (patched(21, "h", 0x40), "unknown attribute bits"),
        (patched(21, "h", 0x20), "by brokers only"),
        (patched(21, "h", 0x10), "transactions are not supported"),
        (patched(57, "i", 0), "below 1"),
        (patched(57, "i", 4), "does not fit 4 records"),
        (patched(23, "i", 3), "does not fit 3 records"),
        (with_body(b"\x00" * 20, count=3), "cannot stand in 20 bytes"),
        (patched(43, "q", -2), "below -1"),
        (patched(43, "qhi", 5, -1, 0), "without epoch"),
        (patched(43, "qhi", 5, 0, -1), "without epoch or sequence"),
    ],
)
def test_a_malformed_batch_is_refused_with_its_flaw_named(raw: bytes, says: str) -> None:
    with pytest.raises(CorruptRecordBatch, match=says):
        validate(raw, from_client=True)


def test_only_brokers_may_hand_on_control_batches() -> None:
    assert validate(patched(21, "h", 0x30), from_client=False).is_control
    assert validate(patched(21, "h", 0x30), from_client=False).is_transactional


def test_too_many_bytes_or_records_are_refused_as_too_large() -> None:
    with pytest.raises(TooLarge, match="RECORD_BATCH_BYTES_MAX"):
        validate(batch()[:8] + struct.pack(">i", RECORD_BATCH_BYTES_MAX) + batch()[12:], from_client=True)
    with pytest.raises(TooLarge, match="RECORDS_PER_BATCH_MAX"):
        validate(with_body(b"", codec=1, count=100_001), from_client=True)
    with pytest.raises(TooLarge, match="RECORDS_PER_STORED_BATCH_MAX"):
        validate(with_body(b"", codec=1, count=1_000_001), from_client=True, is_forwarded=True)
    with pytest.raises(TooLarge, match="RECORD_BATCH_BYTES_MAX"):
        build_batch([RecordDraft(bytes(RECORD_BATCH_BYTES_MAX))], timestamps_ms=0)
    with pytest.raises(TooLarge, match="HEADERS_PER_RECORD_MAX"):
        build_batch([RecordDraft(b"", None, [("h", None)] * (HEADERS_PER_RECORD_MAX + 1))], timestamps_ms=0)
    with pytest.raises(TooLarge, match="RECORDS_PER_BATCH_MAX"):
        build_batch([RecordDraft(b"")] * 100_001, timestamps_ms=0)


def test_a_batch_of_more_records_than_clients_may_publish_now_is_read_and_handed_on_as_before() -> None:
    count = 100_001
    raw = build_batch([RecordDraft(b"")] * count, timestamps_ms=0, compression=Compression.GZIP, records_max=count)
    with pytest.raises(TooLarge, match="publish them in several batches"):
        validate(raw, from_client=True)
    assert validate(raw, from_client=True, is_forwarded=True).record_count == count
    assert sum(1 for _ in iterate_records(raw)) == count


def test_building_refuses_nothing_and_a_wrong_number_of_timestamps() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([], timestamps_ms=0)
    with pytest.raises(ValueError, match="2 timestamps for 1 records"):
        build_batch([RecordDraft(b"")], timestamps_ms=[1, 2])


RECORD = b"\x10\x00\x00\x00\x01\x04vv\x00"  # 8 bytes: attributes, deltas 0 and 0, null key, value vv, no headers


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\x40" + RECORD[1:], "record 0 of the batch says it has 32 bytes"),
        (b"\x0e" + RECORD[1:], r"ends \+1 bytes"),
        (RECORD[:3] + b"\x02" + RECORD[4:], "offset delta 1"),
        (RECORD + b"\x00", "1 bytes follow the last record"),
        (RECORD[:4] + b"\x03" + RECORD[5:], "a length inside a record is -2"),
        (RECORD[:5] + b"\x40" + RECORD[6:], "does not fit its record"),
        (b"\xff" * 11, "longer than 10 bytes"),
        (RECORD[:-1] + b"\x01", "has -1 headers"),
        (b"\x14" + RECORD[1:-1] + b"\x02\x01\x01", "has no name"),
        (b"\x16" + RECORD[1:-1] + b"\x02\x02\xff\x01", "not UTF-8"),
        (b"\x0e\x00\x00\x00\x01\x04vv", "cut short"),
    ],
)
def test_a_malformed_record_is_refused_with_its_flaw_named(body: bytes, says: str) -> None:
    with pytest.raises(CorruptRecordBatch, match=says):
        list(iterate_records(with_body(body)))


def test_every_cut_of_a_batch_is_refused() -> None:
    raw = batch()
    for size in range(len(raw)):
        with pytest.raises(CorruptRecordBatch):
            validate(raw[:size], from_client=True)
        with pytest.raises(CorruptRecordBatch):
            list(iterate_records(resealed(raw[:size])) if size >= 61 else iterate_records(raw[:size]))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_every_cut_of_compressed_records_is_refused(codec: Compression) -> None:
    raw = build_batch(DRAFTS, timestamps_ms=TIMES_MS, compression=codec)
    for size in range(61, len(raw)):
        with pytest.raises(CorruptRecordBatch):
            list(iterate_records(resealed(raw[:size])))


def bombs() -> dict[str, tuple[Compression, bytes]]:
    import cramjam
    import lz4.frame

    size = DECOMPRESSED_BATCH_BYTES_MAX + MIB
    plain = bytes(size)
    block = bytes(cramjam.snappy.compress_raw(plain[: size // 4]))
    xerial = b"\x82SNAPPY\x00" + bytes(8) + (len(block).to_bytes(4, "big") + block) * 5
    streamed = zstandard.ZstdCompressor(write_content_size=False)
    return {
        "gzip": (Compression.GZIP, gzip.compress(plain, 1)),
        "snappy": (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(plain))),
        "xerial": (Compression.SNAPPY, xerial),
        "lz4": (Compression.LZ4, lz4.frame.compress(plain)),
        "zstd": (Compression.ZSTD, zstandard.ZstdCompressor().compress(plain)),
        "zstd without a size": (Compression.ZSTD, streamed.compress(plain)),
    }


def test_a_decompression_bomb_is_refused_in_bounded_memory() -> None:
    for name, (codec, packed) in bombs().items():
        tracemalloc.start()
        with pytest.raises(TooLarge, match="unfolds to more than"):
            decompress(codec, packed)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.2 * DECOMPRESSED_BATCH_BYTES_MAX, name


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_smaller_limit_holds_to_the_byte(codec: Compression) -> None:
    from georelay.wire.compression import compress

    packed = compress(codec, b"abc" * 1000)
    assert decompress(codec, packed, 3000) == b"abc" * 1000
    with pytest.raises(TooLarge):
        decompress(codec, packed, 2999)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_noise_is_not_a_compressed_stream(codec: Compression) -> None:
    for noise in (b"", b"\xff" * 40, b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00\x00\x09ab"):
        if codec is Compression.GZIP and not noise:
            continue  # nothing at all unfolds to nothing; the record count refuses it
        with pytest.raises(CorruptRecordBatch):
            decompress(codec, noise)


def test_gzip_members_in_a_row_are_one_stream() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"
    assert zlib.decompress(gzip.compress(b"a"), 31) == b"a"


def test_pieces_that_cost_much_and_hold_nothing_are_counted() -> None:
    import cramjam

    empty = gzip.compress(b"")
    assert decompress(Compression.GZIP, empty * 99 + gzip.compress(b"a")) == b"a"
    with pytest.raises(TooLarge, match="GZIP_MEMBERS_MAX"):
        decompress(Compression.GZIP, empty * 101)
    block = bytes(cramjam.snappy.compress_raw(b""))
    blocks = (len(block).to_bytes(4, "big") + block) * 65_537
    with pytest.raises(TooLarge, match="SNAPPY_BLOCKS_MAX"):
        decompress(Compression.SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + blocks)


def test_a_field_of_several_batches_is_cut_without_copying() -> None:
    first, second = batch(), build_batch([RecordDraft(b"2")], timestamps_ms=1)
    raw = first + second
    assert [bytes(part) for part in split_batches(raw)] == [first, second]
    assert all(part.obj is raw for part in split_batches(raw))
    assert split_batches(b"") == []


@pytest.mark.parametrize("tail", [b"\x00" * 20, batch()[:-1]])
def test_a_partial_tail_is_dropped_only_where_a_fetch_may_end_with_one(tail: bytes) -> None:
    assert [bytes(part) for part in split_batches(batch() + tail, partial_tail=True)] == [batch()]
    with pytest.raises(CorruptRecordBatch):
        split_batches(batch() + tail)


def test_splitting_refuses_lengths_that_cannot_be() -> None:
    raw = batch()
    for length, error in ((-5, CorruptRecordBatch), (0, CorruptRecordBatch), (2**31 - 1, TooLarge)):
        for partial in (False, True):
            with pytest.raises(error):
                split_batches(raw[:8] + struct.pack(">i", length) + raw[12:], partial_tail=partial)


def test_sequences_wrap_to_zero() -> None:
    header = parse_header(batch(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert (header.is_idempotent, header.last_sequence) == (True, 0)


def test_records_longer_than_the_lookup_table_are_written_right() -> None:
    drafts = [RecordDraft(b"v" * 5000, b"k" * 5000)] + [RecordDraft(b"")] * 5000
    got = list(iterate_records(build_batch(drafts, timestamps_ms=range(5001)), validated=True))
    assert (got[0].value, got[0].key) == (b"v" * 5000, b"k" * 5000)
    assert (got[-1].offset, got[-1].timestamp_ms) == (5000, 5000)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: Callable[[bytes], bytes]) -> None:
    assert validate(kind(batch()), from_client=True).record_count == 3
    assert len(list(iterate_records(kind(batch())))) == 3


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("position", [0, 7])
def test_the_time_of_the_append_is_every_records_time_for_every_client(codec: Compression, position: int) -> None:
    raw = bytearray(bytes(position) + build_batch(DRAFTS, timestamps_ms=TIMES_MS, compression=codec) + b"tail")
    before = parse_header(raw, position)
    header = stamp_time(raw, before, append_ms=42, position=position)
    assert (bytes(raw[:position]), bytes(raw[-4:])) == (bytes(position), b"tail")
    own = bytes(raw[position:-4])
    assert validate(own, from_client=True) == header
    assert [record.timestamp_ms for record in iterate_records(own)] == [42, 42, 42]
    assert [(record.timestamp, record.timestamp_type) for record in PyReader(own)] == [(42, 1)] * 3
    stamp_time(raw, header, append_ms=None, position=position)
    assert [record.timestamp_ms for record in iterate_records(bytes(raw[position:-4]))] == TIMES_MS


def test_a_batch_that_has_its_own_times_already_is_not_touched() -> None:
    raw = bytearray(batch())
    header = parse_header(raw)
    assert stamp_time(raw, header, append_ms=None) is header
    assert bytes(raw) == batch()
