"""Bytes that never change: one batch, and a request and a response of every API, annotated in frames.hex.

Each line of the file is hex, `#`, and what the bytes are; `== name` begins a frame. Both directions are compared.
`pytest tests/golden/wire --rewrite` writes the file anew: review every changed line before keeping it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from georelay.wire import requests as q
from georelay.wire import responses as r
from georelay.wire.api import (
    CODED,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_flexible,
)
from georelay.wire.api import REQUESTS as CLASSES_OF_REQUESTS
from georelay.wire.api import RESPONSES as CLASSES_OF_RESPONSES
from georelay.wire.batch import RecordDraft, build_batch, iterate_records, parse_header, validate
from georelay.wire.codec import _field_codec
from georelay.wire.control_batch import Marker, build_marker, parse_marker
from georelay.wire.primitives import write_compact_length, write_length32, write_uvarint
from georelay.wire.schema import Field, Kind, fields_of
from tests.tiers import in_one_test

FILE = Path(__file__).with_name("frames.hex")
TOPIC_ID = bytes(range(16))
BATCH = build_batch(
    [RecordDraft(b"value", b"key", [("h", b"x")]), RecordDraft(None)],
    timestamps_ms=[1_700_000_000_000, 1_700_000_000_002],
    producer_id=(3 << 48) + 7,
    producer_epoch=1,
    base_sequence=40,
    base_offset=17,
    epoch=2,
)
HEADER_ROWS = [
    ("base_offset", 8),
    ("length", 4),
    ("epoch", 4),
    ("magic", 1),
    ("crc", 4),
    ("attributes", 2),
    ("last_offset_delta", 4),
    ("first_timestamp_ms", 8),
    ("max_timestamp_ms", 8),
    ("producer_id", 8),
    ("producer_epoch", 2),
    ("base_sequence", 4),
    ("record_count", 4),
    ("record 0: length, attributes, deltas, key, value, headers", 19),
    ("record 1", 7),
]
MARKERS = {
    "abort": Marker((3 << 48) + 7, 1, False, 9, 1_700_000_000_000),
    "commit": Marker((3 << 48) + 7, 1, True, 2**31 - 1, 1_700_000_000_000),
}
REQUESTS: dict[ApiKey, Any] = {
    ApiKey.PRODUCE: q.ProduceRequest(
        None, -1, 30_000, (q.TopicProduceData("orders", (q.PartitionProduceData(3, BATCH),)),)
    ),
    ApiKey.FETCH: q.FetchRequest(
        -1,
        500,
        1,
        1 << 20,
        0,
        0,
        -1,
        (q.FetchTopic("orders", (q.FetchPartition(3, 2, 17, -1, -1, 1 << 19),)),),
        (q.ForgottenTopic("old", (1,)),),
        "eu",
        "mesh-1",
    ),
    ApiKey.LIST_OFFSETS: q.ListOffsetsRequest(
        -1, 0, (q.ListOffsetsTopic("orders", (q.ListOffsetsPartition(3, 2, -2),)),)
    ),
    ApiKey.METADATA: q.MetadataRequest((q.MetadataRequestTopic(name="orders"), q.MetadataRequestTopic(TOPIC_ID)), True),
    ApiKey.SASL_HANDSHAKE: q.SaslHandshakeRequest("PLAIN"),
    ApiKey.API_VERSIONS: q.ApiVersionsRequest("librdkafka", "2.6.0", "mesh-1", 1001),
    ApiKey.CREATE_TOPICS: q.CreateTopicsRequest(
        (
            q.CreatableTopic(
                "orders",
                -1,
                -1,
                (q.CreatableReplicaAssignment(0, (1001, 1002)),),
                (q.CreatableTopicConfig("retention.ms", "1000"), q.CreatableTopicConfig("homes", None)),
            ),
        ),
        5000,
        True,
    ),
    ApiKey.DELETE_TOPICS: q.DeleteTopicsRequest(
        (q.DeleteTopicState("orders"), q.DeleteTopicState(None, TOPIC_ID)), (), 5000
    ),
    ApiKey.DELETE_RECORDS: q.DeleteRecordsRequest(
        (q.DeleteRecordsTopic("orders", (q.DeleteRecordsPartition(3, 17), q.DeleteRecordsPartition(4, -1))),), 5000
    ),
    ApiKey.INIT_PRODUCER_ID: q.InitProducerIdRequest(None, 60_000, 7, 1),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: q.OffsetForLeaderEpochRequest(
        -1, (q.OffsetForLeaderTopic("orders", (q.OffsetForLeaderPartition(3, 2, 1),)),)
    ),
    ApiKey.DESCRIBE_CONFIGS: q.DescribeConfigsRequest(
        (q.DescribeConfigsResource(2, "orders", ("retention.ms",)), q.DescribeConfigsResource(4, "1001")), True, True
    ),
    ApiKey.ALTER_CONFIGS: q.AlterConfigsRequest(
        (q.AlterConfigsResource(2, "orders", (q.AlterableConfig("retention.ms", "1000"),)),), True
    ),
    ApiKey.SASL_AUTHENTICATE: q.SaslAuthenticateRequest(b"\0user\0secret"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: q.IncrementalAlterConfigsRequest(
        (
            q.IncrementalAlterConfigsResource(
                2,
                "orders",
                (
                    q.IncrementalAlterableConfig("retention.ms", 0, "1000"),
                    q.IncrementalAlterableConfig("retention.bytes", 1),
                ),
            ),
        ),
        True,
    ),
}
RESPONSES: dict[ApiKey, Any] = {
    ApiKey.PRODUCE: r.ProduceResponse(
        (
            r.TopicProduceResponse(
                "orders",
                (
                    r.PartitionProduceResponse(3, 0, 17, -1, 0),
                    r.PartitionProduceResponse(4, 87, -1, -1, 0, (r.BatchIndexAndErrorMessage(1, "bad"),), "refused"),
                ),
            ),
        ),
        0,
    ),
    ApiKey.FETCH: r.FetchResponse(
        0,
        0,
        0,
        (
            r.FetchableTopicResponse(
                "orders",
                (
                    r.FetchPartitionData(3, 0, 19, 19, 0, records=(BATCH,)),
                    r.FetchPartitionData(
                        4,
                        74,
                        -1,
                        -1,
                        0,
                        r.DivergingEpoch(1, 9),
                        r.LeaderIdAndEpoch(2001, 2),
                        r.SnapshotId(5, 1),
                        (r.AbortedTransaction(7, 8),),
                        2001,
                        None,
                    ),
                ),
            ),
        ),
    ),
    ApiKey.LIST_OFFSETS: r.ListOffsetsResponse(
        0, (r.ListOffsetsTopicResponse("orders", (r.ListOffsetsPartitionResponse(3, 0, -1, 17, 2),)),)
    ),
    ApiKey.METADATA: r.MetadataResponse(
        0,
        (r.MetadataResponseBroker(1001, "127.0.0.1", 21000, "eu"),),
        "mesh-1",
        1001,
        (
            r.MetadataResponseTopic(
                0, "orders", TOPIC_ID, False, (r.MetadataResponsePartition(0, 3, 1001, 2, (1001,), (1001,)),)
            ),
        ),
    ),
    ApiKey.SASL_HANDSHAKE: r.SaslHandshakeResponse(0, ("PLAIN",)),
    ApiKey.API_VERSIONS: r.ApiVersionsResponse(
        0,
        (r.ApiVersion(18, 0, 3),),
        0,
        (r.SupportedFeatureKey("f", 0, 1),),
        5,
        (r.FinalizedFeatureKey("f", 1, 0),),
        True,
    ),
    ApiKey.CREATE_TOPICS: r.CreateTopicsResponse(
        0,
        (
            r.CreatableTopicResult(
                "orders",
                TOPIC_ID,
                36,
                "there already",
                29,
                3,
                3,
                (r.CreatableTopicConfigs("retention.ms", "1000", False, 1, False),),
            ),
        ),
    ),
    ApiKey.DELETE_TOPICS: r.DeleteTopicsResponse(0, (r.DeletableTopicResult("orders", TOPIC_ID, 3, "unknown"),)),
    ApiKey.DELETE_RECORDS: r.DeleteRecordsResponse(
        0,
        (
            r.DeleteRecordsTopicResult(
                "orders", (r.DeleteRecordsPartitionResult(3, 17), r.DeleteRecordsPartitionResult(4, -1, 1))
            ),
        ),
    ),
    ApiKey.INIT_PRODUCER_ID: r.InitProducerIdResponse(0, 0, (1 << 48) + 1, 0),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: r.OffsetForLeaderEpochResponse(
        0, (r.OffsetForLeaderTopicResult("orders", (r.EpochEndOffset(0, 3, 1, 17),)),)
    ),
    ApiKey.DESCRIBE_CONFIGS: r.DescribeConfigsResponse(
        0,
        (
            r.DescribeConfigsResult(
                0,
                None,
                2,
                "orders",
                (
                    r.DescribeConfigsResourceResult(
                        "retention.ms",
                        "1000",
                        False,
                        1,
                        False,
                        (r.DescribeConfigsSynonym("retention.ms", "1000", 1),),
                        5,
                        "how long",
                    ),
                ),
            ),
            r.DescribeConfigsResult(3, "no such topic", 2, "ghost"),
        ),
    ),
    ApiKey.ALTER_CONFIGS: r.AlterConfigsResponse(0, (r.AlterConfigsResourceResponse(40, "not a number", 2, "orders"),)),
    ApiKey.SASL_AUTHENTICATE: r.SaslAuthenticateResponse(58, "wrong user or password", b"", 0),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: r.IncrementalAlterConfigsResponse(
        0, (r.AlterConfigsResourceResponse(0, None, 2, "orders"),)
    ),
}
LAST = {key: versions.stop - 1 for key, versions in CODED.items()}


def filled(cls: type, version: int, numbers: Iterator[int]) -> Any:
    """Return a value whose texts are the names of their fields and whose numbers count up; arrays have two elements."""
    rows = fields_of(cls)
    return cls(**{row.name: filled_field(row, version, numbers) if row.is_in(version) else row.default for row in rows})


def filled_field(row: Field, version: int, numbers: Iterator[int]) -> Any:
    if row.kind is Kind.ARRAY:
        assert row.element is not None
        return tuple(filled_field(row.element, version, numbers) for _ in range(2))
    if row.kind is Kind.STRUCT:
        assert row.cls is not None
        return filled(row.cls, version, numbers)
    number = next(numbers)
    plain = {
        Kind.BOOL: True,
        Kind.UUID: TOPIC_ID,
        Kind.FLOAT64: number + 0.5,
        Kind.STRING: row.name or "text",
        Kind.BYTES: row.name.encode(),
    }
    return plain.get(row.kind, number)


for _key in CODED.keys() - REQUESTS.keys():
    REQUESTS[_key] = filled(CLASSES_OF_REQUESTS[_key], LAST[_key], itertools.count(1))
    RESPONSES[_key] = filled(CLASSES_OF_RESPONSES[_key], LAST[_key], itertools.count(1))


def frame_of(value: Any, key: ApiKey) -> bytes:
    version = LAST[key]
    if value is REQUESTS[key]:
        return b"".join(encode_request(value, api_version=version, correlation_id=7, client_id="golden"))
    return b"".join(encode_response(value, api_version=version, correlation_id=7))


def annotated(value: Any, version: int, flexible: bool, path: str = "") -> list[tuple[bytes, str]]:
    lines: list[tuple[bytes, str]] = []
    tagged = []
    for row in fields_of(type(value)):
        if row.is_in(version) and row.at.tag < 0:
            lines += annotated_field(row, getattr(value, row.name), version, flexible, path + row.name)
        elif row.is_in(version) and getattr(value, row.name) != row.default:
            tagged.append(row)
    if flexible:
        lines.append((bytes([len(tagged)]), f"{path}tags"))
    for row in tagged:
        body = annotated_field(row, getattr(value, row.name), version, True, f"{path}{row.name}")
        out = bytearray()
        write_uvarint(out, row.at.tag)
        write_uvarint(out, sum(len(raw) for raw, _ in body))
        lines += [(bytes(out), f"{path}{row.name}: tag, size"), *body]
    return lines


def annotated_field(row: Field, value: Any, version: int, flexible: bool, path: str) -> list[tuple[bytes, str]]:
    out = bytearray()
    if row.kind is Kind.STRUCT and row.is_nullable(version) and row.at.tag < 0:
        return [(b"\x01", f"{path}: it is there"), *annotated(value, version, flexible, path + ".")]
    if row.kind is Kind.STRUCT:
        return annotated(value, version, flexible, path + ".")
    if row.kind is Kind.ARRAY and value is not None:
        assert row.element is not None
        (write_compact_length if flexible else write_length32)(out, len(value))
        lines = [(bytes(out), f"{path}: count")]
        for index, element in enumerate(value):
            lines += annotated_field(row.element, element, version, flexible, f"{path}[{index}]")
        return lines
    _field_codec(row, version, flexible).encode(out, value)
    text = "a batch" if row.kind in (Kind.RECORDS, Kind.BUFFERS) and value else repr(value)
    return [(bytes(out), f"{path} {text}")]


def lines_of(value: Any, key: ApiKey) -> list[tuple[bytes, str]]:
    frame, version = frame_of(value, key), LAST[key]
    body = annotated(value, version, is_flexible(key, version))
    start = len(frame) - sum(len(raw) for raw, _ in body)
    return [(frame[:4], "length"), (frame[4:start], "header"), *body]


def written() -> str:
    text, position = ["== batch"], 0
    for name, size in HEADER_ROWS:
        text.append(f"{BATCH[position : position + size].hex()}  # {name}")
        position += size
    for table, side in ((REQUESTS, "request"), (RESPONSES, "response")):
        for key, value in sorted(table.items()):
            text.append(f"== {key.name} {side}, version {LAST[key]}")
            text += [f"{raw.hex()}  # {what}" for raw, what in lines_of(value, key)]
    for name, marker in MARKERS.items():
        text += [f"== {name} marker", f"{build_marker(**marker._asdict()).hex()}  # a control batch"]
    return "\n".join(text) + "\n"


def stored() -> dict[str, bytes]:
    frames: dict[str, bytes] = {}
    for section in FILE.read_text().split("== ")[1:]:
        title, _, rest = section.partition("\n")
        frames[title.split(",")[0]] = bytes.fromhex("".join(line.partition("#")[0] for line in rest.splitlines()))
    return frames


@pytest.fixture(scope="module", autouse=True)
def _rewrite(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        FILE.write_text(written())


def test_the_batch_is_built_and_read_as_stored() -> None:
    assert stored()["batch"] == BATCH
    header = validate(BATCH, from_client=True)
    assert header == parse_header(BATCH)
    assert (header.base_offset, header.epoch, header.producer_id, header.record_count) == (17, 2, (3 << 48) + 7, 2)
    first, second = iterate_records(BATCH)
    assert (first.offset, first.timestamp_ms, first.key, first.value) == (17, 1_700_000_000_000, b"key", b"value")
    assert first.headers == (("h", b"x"),)
    assert (second.offset, second.timestamp_ms, second.key, second.value) == (18, 1_700_000_000_002, None, None)


@pytest.mark.parametrize("name", MARKERS)
def test_the_marker_that_ends_a_transaction_has_the_stored_bytes(name: str) -> None:
    raw = stored()[f"{name} marker"]
    assert build_marker(**MARKERS[name]._asdict()) == raw
    assert parse_marker(raw) == MARKERS[name]


@in_one_test("key", list(ApiKey))
def test_a_request_of_every_api_has_the_stored_bytes(key: ApiKey) -> None:
    raw = stored()[f"{key.name} request"]
    assert frame_of(REQUESTS[key], key) == raw
    header, request = decode_request(raw[4:])
    assert (header[:4], request) == ((key, LAST[key], 7, "golden"), REQUESTS[key])


@in_one_test("key", list(ApiKey))
def test_a_response_of_every_api_has_the_stored_bytes(key: ApiKey) -> None:
    raw = stored()[f"{key.name} response"]
    assert frame_of(RESPONSES[key], key) == raw
    assert decode_response(key, LAST[key], raw[4:]) == (7, RESPONSES[key])
