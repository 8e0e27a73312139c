"""REST at the gateway with nothing but an HTTP client."""

from __future__ import annotations

import base64
from typing import Any

import pytest


@pytest.fixture(scope="module")
def topic(mesh: Any) -> str:
    """A topic of one partition for refusals; nothing is stored in it."""
    return str(mesh.new_topic("rest", partitions=1))


@pytest.fixture(scope="module")
def written(mesh: Any) -> str:
    """A topic of one partition for records that are read back one by one."""
    return str(mesh.new_topic("rest-one", partitions=1))


def test_an_array_is_read_back_in_every_region_and_paged_by_next_offset(mesh: Any) -> None:
    topic = mesh.new_topic("rest-array", partitions=1)
    records = [{"key": f"k{n % 3}", "value": f"v{n}", "headers": {"n": str(n), "ü": "ß"}} for n in range(25)]
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", records)
    assert answer.status == 200
    assert [row["offset"] for row in answer.document["records"]] == list(range(25))
    for region in mesh.regions:
        mesh.wait_for_records(topic, region=region, partitions=1, count=25)
        read: list[dict[str, Any]] = []
        offset = 0
        while offset < 25:
            page = mesh.http("GET", f"/v1/topics/{topic}/records?partition=0&offset={offset}&max=7&region={region}")
            read += page.document["records"]
            offset = page.document["next_offset"]
        assert [{name: record[name] for name in ("key", "value", "headers")} for record in read] == records
        assert [record["offset"] for record in read] == list(range(25))


@pytest.mark.parametrize(
    "record",
    [
        {"value": "one"},
        {"value": "with key", "key": "k"},
        {"value": None, "key": "tombstone"},
        {"value": ""},
        {"value_b64": base64.b64encode(bytes(range(256))).decode()},
        {"value": "binary key", "key_b64": base64.b64encode(b"\xff\x00").decode()},
        {"value": "x", "headers": {"trace": "abc"}, "headers_b64": {"raw": base64.b64encode(b"\xfe").decode()}},
        {"value": "dated", "timestamp_ms": 1_700_000_000_000},
    ],
    ids=lambda record: "+".join(record),
)
def test_one_record_comes_back_as_it_was_written(mesh: Any, written: str, record: dict[str, Any]) -> None:
    (place,) = mesh.http("POST", f"/v1/topics/{written}/records", record).document["records"]
    assert (place["partition"], place["epoch"]) == (0, 1)
    (stored,) = mesh.read(written, region="eu", offset=place["offset"], wait_ms=10_000).document["records"]
    assert {name: stored[name] for name in record} == record


def test_a_record_goes_to_the_partition_that_was_asked_for(mesh: Any) -> None:
    topic = mesh.new_topic("rest-partition", partitions=3)
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", [{"value": "x", "partition": p} for p in (2, 0, 2)])
    assert [(row["partition"], row["offset"]) for row in answer.document["records"]] == [(2, 0), (0, 0), (2, 1)]


def test_reading_waits_for_a_record_that_is_published_elsewhere(mesh: Any) -> None:
    topic = mesh.new_topic("rest-wait", partitions=1)
    empty = mesh.read(topic, region=mesh.regions[-1]).document
    assert (empty["records"], empty["next_offset"], empty["high_watermark"]) == ([], 0, 0)
    mesh.http("POST", f"/v1/topics/{topic}/records?region=us", {"value": "soon"})
    waited = mesh.read(topic, region=mesh.regions[-1], offset=empty["next_offset"], wait_ms=20_000).document
    assert [record["value"] for record in waited["records"]] == ["soon"]


def test_the_latest_position_is_the_end(mesh: Any) -> None:
    topic = mesh.new_topic("rest-latest", partitions=1)
    mesh.http("POST", f"/v1/topics/{topic}/records", [{"value": str(n)} for n in range(3)])
    mesh.wait_for_records(topic, region="eu", partitions=1, count=3)
    answer = mesh.read(topic, region="eu", offset="latest").document
    assert (answer["records"], answer["next_offset"]) == ([], 3)


def test_resolve_ranks_every_region(mesh: Any) -> None:
    answer = mesh.http("GET", "/v1/resolve")
    assert answer.status == 200
    assert sorted(region["region"] for region in answer.document["regions"]) == sorted(mesh.regions)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff", "UTF-8"),
        (b"7", "record"),
        (b"[]", "empty"),
        (b'{"valeu": "x"}', "valeu"),
        (b'{"value": 1}', "value"),
        (b'{"value": "a", "value_b64": "YQ=="}', "value_b64"),
        (b'{"value_b64": "*"}', "value_b64"),
        (b'[{"value": "a"}, {"value": "b", "partition": -1}]', "records[1].partition"),
        (b'{"value": "a", "headers": ["x"]}', "headers"),
        (b'{"value": NaN}', "NaN"),
        (b"[" * 50_000, "deep"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_a_bad_body_is_a_problem_that_names_the_field(mesh: Any, topic: str, body: bytes, word: str) -> None:
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", raw=body)
    assert (answer.status, answer.content_type.split(";")[0]) == (400, "application/problem+json")
    assert word in answer.document["detail"]
    assert answer.document["outcome"] == "not_stored"
    assert mesh.read(topic, region="us").document["high_watermark"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "records?partition=x", 400),
        ("GET", "records?offset=-1", 400),
        ("GET", "records?offset=99999999999999999999", 400),
        ("GET", "records?max=0", 400),
        ("GET", "records?wait_ms=1000000", 400),
        ("GET", "records?region=mars", 400),
        ("GET", "records?ofset=1", 400),
        ("GET", "records?partition=5", 404),
        ("PUT", "records", 405),
        ("GET", "nothing", 404),
    ],
)
def test_a_bad_request_is_a_problem_document(mesh: Any, topic: str, method: str, path: str, status: int) -> None:
    answer = mesh.http(method, f"/v1/topics/{topic}/{path}")
    assert (answer.status, answer.content_type.split(";")[0]) == (status, "application/problem+json")
    assert answer.document["status"] == status
    assert answer.document["detail"]


def test_a_body_over_the_limit_is_refused(mesh: Any, topic: str) -> None:
    answer = mesh.http("POST", f"/v1/topics/{topic}/records", [{"value": "x" * 9_000_000}])
    assert (answer.status, answer.content_type.split(";")[0]) == (413, "application/problem+json")


def test_topics_are_made_described_and_deleted(mesh: Any) -> None:
    name = mesh.new_topic("rest-topic", partitions=2, home="eu")
    document = mesh.http("GET", f"/v1/topics/{name}").document
    assert (document["name"], document["partitions"], document["home"]) == (name, 2, 2)
    again = mesh.http("POST", "/v1/topics", {"name": name})
    assert (again.status, again.document["code"]) == (409, "TOPIC_EXISTS")
    assert mesh.http("DELETE", f"/v1/topics/{name}").status in (200, 204)
    assert mesh.http("DELETE", f"/v1/topics/{name}").status == 404
