"""Every request and response of every version, against two codecs that others wrote: kio and kafka-python.

Our bytes must mean the same to the oracle, and what the oracle writes for that must decode to the value we began with.
kio trusts counts, so it is only ever given valid frames.

The first tier has each layout of a key once, the second every version.
"""

from __future__ import annotations

import datetime
import enum
import importlib
import io
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from georelay.wire.api import (
    CODED,
    REQUESTS,
    RESPONSES,
    ApiKey,
    ErrorCode,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from georelay.wire.keys import is_flexible
from georelay.wire.responses import NO_OPERATIONS
from georelay.wire.schema import Field, Kind, fields_of

# kio knows what Apache Kafka spoke before this version; its golden bytes are those of kafka-clients 4.4 for Java.
NEWER = {(ApiKey.API_VERSIONS, 5)}
KAFKA_PYTHON_MODULES = ("producer", "consumer", "metadata", "admin", "sasl")
INTEGERS = {Kind.INT8: 7, Kind.INT16: 15, Kind.INT32: 31, Kind.INT64: 63}
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
EXAMPLES = settings(
    max_examples=settings().max_examples // 20,  # there are hundreds of these tests
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def layout(cls: type, version: int) -> tuple[Any, ...]:
    """Return the fields that a version has, with those of the structs in them."""
    rows = [row for row in fields_of(cls) if row.is_in(version)]
    parts = [(row, row.cls or (row.element and row.element.cls)) for row in rows]
    return tuple((row.name, row.is_nullable(version), part and layout(part, version)) for row, part in parts)


def cases(classes: Mapping[ApiKey, type]) -> list[Any]:
    """Return every key and version; one that is laid out as the version before belongs to the second tier."""
    found: list[Any] = []
    for key, versions in CODED.items():
        before = None
        for version in versions:
            now = (is_flexible(key, version), layout(classes[key], version))
            marks = pytest.mark.slow if now == before else ()
            if (key, version) not in NEWER:
                found.append(pytest.param(key, version, id=f"{key.name}-{version}", marks=marks))
            before = now
    return found


def structs(cls: type, version: int) -> st.SearchStrategy[Any]:
    rows = [row for row in fields_of(cls) if row.is_in(version)]
    return st.builds(cls, **absent(cls, version), **{row.name: values(row, version) for row in rows})


def absent(cls: type, version: int) -> dict[str, Any]:
    return {row.name: st.just(row.default) for row in fields_of(cls) if not row.is_in(version)}


def values(row: Field, version: int) -> st.SearchStrategy[Any]:
    strategy = plain_values(row, version)
    return st.none() | strategy if row.is_nullable(version) and row.kind is not Kind.STRUCT else strategy


def plain_values(row: Field, version: int) -> st.SearchStrategy[Any]:
    if row.kind is Kind.ARRAY:
        assert row.element is not None
        return st.lists(values(row.element, version), max_size=3).map(tuple)
    if row.kind is Kind.STRUCT:
        assert row.cls is not None
        one = structs(row.cls, version)
        return st.none() | one if row.at.tag >= 0 else one
    if row.kind in INTEGERS:
        return integers(row)
    buffers = st.binary(min_size=1, max_size=2000).map(lambda raw: (raw,)) | st.just(())
    return {
        Kind.FLOAT64: st.floats(allow_nan=False),
        Kind.BOOL: st.booleans(),
        Kind.UUID: st.binary(min_size=16, max_size=16),
        Kind.STRING: TEXT,
        Kind.BYTES: st.binary(max_size=20),
        Kind.RECORDS: st.binary(max_size=2000),
        Kind.BUFFERS: buffers,
    }[row.kind]


def integers(row: Field) -> st.SearchStrategy[int]:
    # kio knows only real error codes, and shows times as datetimes: keep to what it can represent.
    if row.name.endswith("error_code"):
        return st.just(0) | st.sampled_from([int(code) for code in ErrorCode])
    if row.name.endswith(("_ms", "timestamp")):
        return st.integers(0, 2**31 - 1)
    bits = INTEGERS[row.kind]
    return st.integers(-(2**bits), 2**bits - 1)


def assert_same(ours: Any, theirs: Any, version: int, path: str) -> None:
    """Compare field by field; `theirs` may use richer types for the same thing."""
    if isinstance(ours, (tuple, list)) and not isinstance(theirs, bytes):
        assert len(ours) == len(theirs), path
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, version, f"{path}[{index}]")
    elif hasattr(ours, "__dataclass_fields__"):
        for row in fields_of(type(ours)):
            if row.is_in(version) and not (row.at.tag >= 0 and getattr(ours, row.name) == row.default):
                assert_same(getattr(ours, row.name), attribute(theirs, row.name), version, f"{path}.{row.name}")
    else:
        assert plain(ours) == plain(theirs), path


def attribute(theirs: Any, name: str) -> Any:
    for candidate in (name, name.removesuffix("_ms"), "authorized_operations"):
        if hasattr(theirs, candidate):
            return getattr(theirs, candidate)
    raise AssertionError(f"{type(theirs)} has no {name}")


def plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, (tuple, memoryview)):
        return b"".join(value) if isinstance(value, tuple) else bytes(value)
    if isinstance(value, set):  # kafka-python shows authorized operations as bits
        bits = sum(1 << bit for bit in value)
        return bits - 2**32 if bits >= 2**31 else bits
    return None if value in (bytes(16), NO_OPERATIONS) else value


def kafka_python_class(cls: type) -> Any:
    for name in KAFKA_PYTHON_MODULES:
        module = importlib.import_module(f"kafka.protocol.{name}")
        if hasattr(module, cls.__name__):
            return getattr(module, cls.__name__)
    raise AssertionError(f"kafka-python has no {cls.__name__}")


def through_kio(schema: Any, body: bytes, ours: Any, version: int) -> bytes:
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    assert_same(ours, entity, version, "kio")
    out = io.BytesIO()
    entity_writer(schema)(out, entity)
    return out.getvalue()


# What Hypothesis runs is two lines: it reads their source anew in each of these tests, and that took a quarter of them.


@pytest.mark.parametrize(("key", "version"), cases(REQUESTS))
def test_requests_mean_the_same_to_kio_and_kafka_python(key: ApiKey, version: int) -> None:
    @EXAMPLES
    @given(structs(REQUESTS[key], version), st.none() | TEXT)
    def check(request: Any, client_id: str | None) -> None:
        check_request(key, version, request, client_id)

    check()


def check_request(key: ApiKey, version: int, request: Any, client_id: str | None) -> None:
    frame = b"".join(encode_request(request, api_version=version, correlation_id=7, client_id=client_id))
    header, decoded = decode_request(frame[4:])
    assert (header[:4], decoded) == ((key, version, 7, client_id), request)

    start = frame[: 4 + header.body_position]
    again = through_kio(load_request_schema(int(key), version), frame[len(start) :], request, version)
    assert decode_request((start + again)[4:])[1] == request

    theirs = kafka_python_class(REQUESTS[key]).decode(frame, version=version, header=True, framed=True)
    assert theirs.header.client_id == client_id
    assert_same(request, theirs, version, "kafka-python")
    assert decode_request(theirs.encode(version=version, header=True, framed=True)[4:])[1] == request


@pytest.mark.parametrize(("key", "version"), cases(RESPONSES))
def test_responses_mean_the_same_to_kio_and_kafka_python(key: ApiKey, version: int) -> None:
    @EXAMPLES
    @given(structs(RESPONSES[key], version))
    def check(response: Any) -> None:
        check_response(key, version, response)

    check()


def check_response(key: ApiKey, version: int, response: Any) -> None:
    start_bytes = 9 if is_flexible(key, version) and key is not ApiKey.API_VERSIONS else 8
    frame = b"".join(encode_response(response, api_version=version, correlation_id=9))
    assert decode_response(key, version, frame[4:]) == (9, response)

    schema = load_response_schema(int(key), version)
    again = through_kio(schema, frame[start_bytes:], response, version)
    assert decode_response(key, version, frame[4:start_bytes] + again)[1] == response

    if key is ApiKey.API_VERSIONS and response.error_code:
        return  # kafka-python takes any error for an answer in version 0
    theirs = kafka_python_class(RESPONSES[key]).decode(frame, version=version, header=True, framed=True)
    assert_same(response, theirs, version, "kafka-python")
    theirs._header = None  # it stumbles over its own response headers while the version is set
    theirs.API_VERSION = version
    theirs.with_header(correlation_id=9)
    assert decode_response(key, version, theirs.encode(header=True, framed=True)[4:]) == (9, response)
