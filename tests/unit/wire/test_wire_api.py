"""Frames: every cut, every mutated field, the frame reader, headers, error codes, and the hand-written twins."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from georelay.limits import KAFKA_FRAME_BYTES_MAX, PRODUCE_FRAME_BYTES_MAX
from georelay.wire import hot
from georelay.wire import requests as q
from georelay.wire import responses as r
from georelay.wire.api import (
    CODED,
    REQUESTS,
    RESPONSES,
    SUPPORTED,
    ApiKey,
    ErrorCode,
    FrameReader,
    WireError,
    api_versions_response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    frame_bytes_max,
    is_flexible,
    parse_request_header,
    refuse_api_versions,
    response_frame_bytes_max,
)
from georelay.wire.codec import codec_of
from georelay.wire.primitives import REQUEST_ITEMS_MAX, Reader
from georelay.wire.schema import Field, Kind, fields_of
from georelay.wire.scram_users import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from tests.tiers import in_one_test

EACH_API = in_one_test("key", CODED)
PLAIN: dict[Kind, tuple[Any, Any]] = {
    Kind.BOOL: (False, True),
    Kind.INT8: (1, 2),
    Kind.INT16: (3, 4),
    Kind.INT32: (5, 6),
    Kind.INT64: (7, 8),
    Kind.FLOAT64: (0.5, -1e300),
    Kind.UUID: (bytes(16), bytes(15) + b"\x01"),
    Kind.STRING: ("text", "other"),
    Kind.BYTES: (b"blob", b"other"),
    Kind.RECORDS: (b"batch", b"other"),
    Kind.BUFFERS: ((b"batch",), (b"other",)),
}


def sample(cls: type, version: int) -> Any:
    """Return a value with every field of the version set and one element in every array."""
    rows = fields_of(cls)
    return cls(**{row.name: sample_field(row, version) if row.is_in(version) else row.default for row in rows})


def sample_field(row: Field, version: int) -> Any:
    if row.kind is Kind.ARRAY:
        assert row.element is not None
        return (sample_field(row.element, version),)
    if row.kind is Kind.STRUCT:
        assert row.cls is not None
        return sample(row.cls, version)
    return PLAIN[row.kind][0]


def variants(value: Any, version: int) -> Iterator[Any]:
    """Yield copies of `value` that differ in one field each, at any depth."""
    for row in fields_of(type(value)):
        if row.is_in(version):
            for changed in field_variants(row, getattr(value, row.name), version):
                yield dataclasses.replace(value, **{row.name: changed})


def field_variants(row: Field, value: Any, version: int) -> Iterator[Any]:
    if row.kind is Kind.STRUCT:
        yield from variants(value, version)
    elif row.kind is Kind.ARRAY:
        assert row.element is not None
        yield ()
        yield from ((changed,) for changed in field_variants(row.element, value[0], version))
    else:
        yield PLAIN[row.kind][1]
    if row.is_nullable(version) and row.kind is not Kind.STRUCT:
        yield None


def request_frame(request: Any, version: int) -> bytes:
    return b"".join(encode_request(request, api_version=version, correlation_id=1, client_id="c"))[4:]


def response_frame(response: Any, version: int) -> bytes:
    return b"".join(encode_response(response, api_version=version, correlation_id=1))[4:]


@EACH_API
def test_each_field_of_a_request_changes_the_frame_and_comes_back(key: ApiKey) -> None:
    for version in CODED[key]:
        request = sample(REQUESTS[key], version)
        seen = {request_frame(request, version)}
        for changed in variants(request, version):
            frame = request_frame(changed, version)
            assert frame not in seen, changed
            seen.add(frame)
            assert decode_request(frame)[1] == changed


@EACH_API
def test_each_field_of_a_response_changes_the_frame_and_comes_back(key: ApiKey) -> None:
    for version in CODED[key]:
        response = sample(RESPONSES[key], version)
        seen = {response_frame(response, version)}
        for changed in variants(response, version):
            frame = response_frame(changed, version)
            assert frame not in seen, changed
            seen.add(frame)
            assert decode_response(key, version, frame) == (1, changed)


@EACH_API
def test_every_cut_and_every_extra_byte_is_a_wire_error(key: ApiKey) -> None:
    for version in CODED[key]:
        frame = request_frame(sample(REQUESTS[key], version), version)
        extra = b"\x01" if key is ApiKey.ALTER_USER_SCRAM_CREDENTIALS else b"\x00"  # librdkafka may add 00 to that one
        for cut in [*(frame[:size] for size in range(len(frame))), frame + extra]:
            with pytest.raises(WireError):
                decode_request(cut)
        frame = response_frame(sample(RESPONSES[key], version), version)
        for cut in [*(frame[:size] for size in range(len(frame))), frame + b"\x00"]:
            with pytest.raises(WireError):
                decode_response(key, version, cut)


def test_the_empty_tag_section_that_librdkafka_writes_twice_is_taken_once() -> None:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    frame = request_frame(sample(REQUESTS[key], 0), 0)
    assert decode_request(frame + b"\x00")[1] == decode_request(frame)[1]
    for more in (b"\x00\x00", b"\x01"):
        with pytest.raises(WireError):
            decode_request(frame + more)


@EACH_API
def test_each_byte_of_a_request_may_be_anything(key: ApiKey) -> None:
    for version in CODED[key]:
        frame = request_frame(sample(REQUESTS[key], version), version)
        for position in range(len(frame)):
            for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
                mutated = frame[:position] + bytes([byte]) + frame[position + 1 :]
                try:
                    decode_request(mutated)
                except WireError as error:
                    assert str(error)  # noqa: PT017


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.PRODUCE])
def test_the_hand_written_produce_codec_does_what_the_tables_say(version: int) -> None:
    flexible = is_flexible(ApiKey.PRODUCE, version)
    request = sample(q.ProduceRequest, version)
    for value in [request, *variants(request, version)]:
        out = bytearray()
        codec_of(q.ProduceRequest, version, flexible).encode(out, value)
        assert hot.decode_produce_request(Reader(bytes(out), 0, 100), version) == value
    plain = r.ProduceResponse((r.TopicProduceResponse("t", (r.PartitionProduceResponse(1, 2, 3),)),), 4)
    response = sample(r.ProduceResponse, version)
    for answer in [plain, response, *variants(response, version)]:
        out = bytearray()
        codec_of(r.ProduceResponse, version, flexible).encode(out, answer)
        assert b"".join(hot.encode_produce_response(bytearray(), answer, version)) == out


@in_one_test("name", ["t", "n" * 126, "n" * 127, "n" * 249, "\u00e9"])
@in_one_test("size", [1, 63, 64, 127, 128, 16_383, 16_384, 300_000])
def test_a_produce_of_one_batch_is_read_alike_by_the_short_way_and_by_the_tables(name: str, size: int) -> None:
    batch = bytes(size)
    request = q.ProduceRequest(None, -1, 30_000, (q.TopicProduceData(name, (q.PartitionProduceData(7, batch),)),))
    frame = request_frame(request, 9)
    assert decode_request(frame)[1] == request
    for cut in (*range(30, 60), len(frame) - 3, len(frame) - 2, len(frame) - 1):
        if cut < len(frame):
            with pytest.raises(WireError):
                decode_request(frame[:cut])
    with pytest.raises(WireError):
        decode_request(frame + b"\x00")


@in_one_test("version", SUPPORTED[ApiKey.PRODUCE])
@in_one_test("name", ["t", "n" * 126, "n" * 127, "n" * 249, "\u00e9"])
def test_the_answer_to_one_batch_has_the_bytes_of_the_general_path(version: int, name: str) -> None:
    refused = (r.BatchIndexAndErrorMessage(1, "bad"),)
    rows = [
        (r.PartitionProduceResponse(3, 0, 17, -1, 5), len(name.encode()) <= 126),
        (r.PartitionProduceResponse(3, 6, -1, 1_700_000_000_000, -1), len(name.encode()) <= 126),
        (r.PartitionProduceResponse(3, 87, error_message="no"), False),
        (r.PartitionProduceResponse(3, 87, record_errors=refused), False),
    ]
    for row, is_short in rows:
        short = hot.encode_one_produced(name.encode(), row, version=version, correlation_id=77)
        general = r.ProduceResponse((r.TopicProduceResponse(name, (row,)),))
        assert (short is not None) == is_short
        if short is not None:
            assert short == b"".join(encode_response(general, api_version=version, correlation_id=77))


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.FETCH])
def test_the_hand_written_fetch_codec_does_what_the_tables_say(version: int) -> None:
    flexible = is_flexible(ApiKey.FETCH, version)
    request = sample(q.FetchRequest, version)
    for value in [request, dataclasses.replace(request, cluster_id=None), *variants(request, version)]:
        out = bytearray()
        codec_of(q.FetchRequest, version, flexible).encode(out, value)
        assert hot.decode_fetch_request(Reader(bytes(out), 0, 100), version) == codec_of(
            q.FetchRequest, version, flexible
        ).decode(Reader(bytes(out), 0, 100))
    big = r.FetchPartitionData(1, records=(bytes(3000), memoryview(bytes(2000))))
    response = sample(r.FetchResponse, version)
    plain = r.FetchResponse(1, 0, 0, (r.FetchableTopicResponse("t", (big, r.FetchPartitionData(2))),))
    for answer in [plain, response, *variants(response, version)]:
        out = bytearray()
        codec_of(r.FetchResponse, version, flexible).encode(out, answer)
        assert b"".join(hot.encode_fetch_response(bytearray(), answer, version)) == out


def test_fetched_and_produced_records_are_never_copied() -> None:
    records = bytes(5000)
    partition = r.FetchPartitionData(0, records=(records,))
    buffers = encode_response(
        r.FetchResponse(responses=(r.FetchableTopicResponse("t", (partition,)),)), api_version=12, correlation_id=1
    )
    assert any(buffer is records for buffer in buffers)
    topic = q.TopicProduceData("t", (q.PartitionProduceData(0, records),))
    frame = request_frame(q.ProduceRequest(None, 1, 1, (topic,)), 9)
    request = decode_request(frame)[1]
    assert isinstance(request, q.ProduceRequest)
    decoded = request.topic_data[0].partition_data[0].records
    assert isinstance(decoded, memoryview)
    assert decoded.obj is frame


def test_counts_are_checked_before_anything_is_made_for_them() -> None:
    for count in (-2, 2**31 - 1, 100):
        body = b"\xff\xff\x00\x01\x00\x00\x00\x01" + struct.pack(">i", count) + bytes(20)
        with pytest.raises(WireError, match="does not fit"):
            decode_request(struct.pack(">hhih", 0, 3, 1, -1) + body)


def test_a_frame_of_tiny_elements_overdraws_its_budget() -> None:
    names = REQUEST_ITEMS_MAX + 1
    body = struct.pack(">i", names) + bytes(2 * names) + bytes(4)
    with pytest.raises(WireError, match="more elements"):
        decode_request(struct.pack(">hhih", 20, 1, 1, -1) + body)


@pytest.mark.parametrize("tags", [b"\x02\x05\x00\x05\x00", b"\x01\x05\x09", b"\x7f", b"\xff\xff\xff\xff\xff\x01"])
def test_malformed_tags_are_refused(tags: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(struct.pack(">hhih", 18, 3, 1, -1) + b"\x00\x02a\x02b" + tags)


def test_unknown_tags_are_stepped_over() -> None:
    frame = struct.pack(">hhih", 18, 3, 1, -1) + b"\x01\x63\x01x" + b"\x02a\x02b" + b"\x02\x05\x00\x63\x02yz"
    assert decode_request(frame)[1] == q.ApiVersionsRequest("a", "b")


def test_text_must_be_utf8_and_null_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(WireError, match="UTF-8"):
        decode_request(struct.pack(">hhih", 17, 1, 1, -1) + b"\x00\x01\xff")
    with pytest.raises(WireError, match="mechanism must not be null"):
        decode_request(struct.pack(">hhih", 17, 1, 1, -1) + b"\xff\xff")
    with pytest.raises(ValueError, match="topics must not be null"):
        encode_request(q.MetadataRequest(None), api_version=0, correlation_id=1, client_id=None)


def test_a_header_is_read_even_of_an_api_that_is_not_spoken() -> None:
    header = parse_request_header(struct.pack(">hhih", 18, 6, 77, 3) + b"abc" + b"anything")
    assert (header[:4], header.is_supported) == ((18, 6, 77, "abc"), False)
    assert not parse_request_header(struct.pack(">hhih", 99, 0, 1, -1)).is_supported
    with pytest.raises(WireError, match="API 18 version 6 is not supported"):
        decode_request(struct.pack(">hhih", 18, 6, 77, -1))


def test_a_newer_api_versions_is_answered_in_version_0_with_the_list() -> None:
    raw = b"".join(refuse_api_versions(77))
    expected = dataclasses.replace(api_versions_response(), error_code=35)
    assert decode_response(ApiKey.API_VERSIONS, 0, raw[4:]) == (77, expected)
    shown = {a.api_key: (a.min_version, a.max_version) for a in expected.api_keys}
    assert shown == {int(k): (v.start, v.stop - 1) for k, v in SUPPORTED.items()} | {0: (0, 9)}
    assert list(shown) == sorted(shown)


def test_what_is_coded_and_not_served_is_read_and_shown_as_not_supported() -> None:
    for key in CODED.keys() - SUPPORTED.keys():
        version = CODED[key].start
        frame = request_frame(sample(REQUESTS[key], version), version)
        assert not parse_request_header(frame).is_supported
        assert type(decode_request(frame)[1]) is REQUESTS[key]


def test_encoding_refuses_versions_and_numbers_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="PRODUCE version 10"):
        encode_response(r.ProduceResponse(), api_version=10, correlation_id=1)
    with pytest.raises(ValueError, match="out of range"):
        encode_response(r.InitProducerIdResponse(2**31), api_version=0, correlation_id=1)
    with pytest.raises(ValueError, match="out of range"):
        encode_request(q.InitProducerIdRequest(None, 2**31), api_version=0, correlation_id=1, client_id=None)


def test_a_secret_is_not_shown() -> None:
    assert "secret" not in repr(q.SaslAuthenticateRequest(b"\0user\0secret"))
    user = ScramCredentialUpsertion("alice", 1, 4096, b"a salt", b"a proof")
    shown = repr(AlterUserScramCredentialsRequest(upsertions=(user,)))
    assert "alice" in shown
    assert "salt'" not in shown
    assert "proof" not in shown


def test_error_codes_and_their_retry_rule_are_kafkas() -> None:
    for code in ErrorCode:
        kio = KioErrorCode(int(code))
        assert (code.value, code.retriable) == (kio.value, kio.retriable), code
        names = {code.name, code.name.replace("_EXCEPTION", "")}
        assert kio.name.upper() in names, code


def frames() -> list[bytes]:
    rng = random.Random(4)
    return [struct.pack(">hhi", 3, 0, n) + rng.randbytes(rng.randrange(300)) for n in range(40)]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, 1000, 100_000])
def test_frames_come_out_whole_however_the_stream_is_cut(step: int) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames())
    reader, got = FrameReader(), []
    for start in range(0, len(stream), step):
        got += [bytes(frame) for frame in reader.feed(stream[start : start + step])]
    assert got == frames()
    assert reader.buffered_bytes == 0


def test_the_cap_depends_on_the_api_and_holds_before_the_frame_is_there() -> None:
    fits = struct.pack(">ih", PRODUCE_FRAME_BYTES_MAX, 0)
    assert FrameReader().feed(fits) == []
    for length, key in ((PRODUCE_FRAME_BYTES_MAX + 1, 0), (KAFKA_FRAME_BYTES_MAX + 1, 3), (3, 0), (-1, 0)):
        with pytest.raises(WireError, match="outside"):
            FrameReader().feed(struct.pack(">ih", length, key))
    assert FrameReader(response_frame_bytes_max).feed(struct.pack(">ih", KAFKA_FRAME_BYTES_MAX + 1, 3)) == []
    assert frame_bytes_max(0) > frame_bytes_max(1) == frame_bytes_max(-7)


def test_the_leader_of_a_group_may_send_more_and_who_is_not_signed_in_less() -> None:
    assert frame_bytes_max(ApiKey.SYNC_GROUP) > frame_bytes_max(ApiKey.JOIN_GROUP)
    for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
        assert frame_bytes_max(key) < frame_bytes_max(ApiKey.JOIN_GROUP)
