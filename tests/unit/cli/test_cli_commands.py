"""The commands against a fake gateway: what they send, print and repeat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from georelay.cli import publish, subscribe
from georelay.cli.failure import CommandFailed
from georelay.cli.mesh_status_core import stream_lines
from georelay.cli.record_lines import REQUEST_BYTES_MAX, KeyRule, batches

RECORDS = "POST /v1/topics/t/records"


class Log:
    """Stores what is published in one partition."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def __call__(self, query: dict[str, str], document: Any) -> Any:
        first = len(self.records)
        self.records.extend(document)
        return 200, {"records": [{"partition": 0, "offset": first + n, "epoch": 1} for n in range(len(document))]}


@pytest.fixture
def hundred(tmp_path: Path) -> str:
    path = tmp_path / "hundred.ndjson"
    path.write_text("".join(f'{{"id": {n}, "name": "n{n}"}}\n' for n in range(100)))
    return str(path)


def test_every_line_is_published_in_order_with_its_key(georelay: Any, gateway: Any, hundred: str) -> None:
    log = gateway.answers[RECORDS] = Log()
    ran = georelay("publish", "t", hundred, "--key-field", "name", "--batch", "30", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "")
    assert "published 100 records to t" in ran.err
    assert [record["key"] for record in log.records] == [f"n{n}" for n in range(100)]
    assert [len(body) for _, _, body in gateway.seen] == [30, 30, 30, 10]


def test_publish_for_machines_names_the_offsets(georelay: Any, gateway: Any, hundred: str) -> None:
    gateway.answers[RECORDS] = Log()
    ran = georelay("publish", "t", hundred, "--region", "us", "--json", "--gateway", gateway.url)
    assert json.loads(ran.out) == {"topic": "t", "records": 100, "partitions": {"0": {"first": 0, "last": 99}}}
    assert ran.err == ""
    assert gateway.seen[0][1] == {"region": "us"}


def test_a_request_that_was_not_stored_is_repeated(
    georelay: Any, gateway: Any, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "RETRY_PAUSE_S_MAX", 0)
    log = Log()
    gateway.answers[RECORDS] = [gateway.problem(503, "BUSY", "full", retry="later"), log]
    assert georelay("publish", "t", hundred, "--gateway", gateway.url).code == 0
    assert len(log.records) == 100


@pytest.mark.parametrize("lost", ["by_the_gateway", "by_the_network"])
def test_after_an_unknown_outcome_publish_stops_and_names_the_lines(
    georelay: Any, gateway: Any, hundred: str, lost: str
) -> None:
    unknown = gateway.problem(504, "OUTCOME_UNKNOWN", "answer lost", outcome="unknown", retry="later")
    gateway.answers[RECORDS] = [Log(), unknown if lost == "by_the_gateway" else (0, None)]
    ran = georelay("publish", "t", hundred, "--batch", "40", "--gateway", gateway.url)
    assert ran.code == 1
    assert "lines 41-80 may or may not be stored" in ran.err
    assert "the 40 before them are" in ran.err
    assert ran.err.count("\n") == 1
    assert len(gateway.seen) == 2


def test_a_wrong_line_is_named_and_ends_the_command(georelay: Any, gateway: Any, tmp_path: Path) -> None:
    gateway.answers[RECORDS] = Log()
    (tmp_path / "bad").write_text('{"id": 1}\n{"no": 1}\n')
    ran = georelay("publish", "t", "bad", "--key-field", "id", "--gateway", gateway.url)
    assert (ran.code, ran.err) == (1, "georelay: line 2: no field 'id' in it\n")


def test_standard_input_is_published(gateway: Any, tmp_path: Path) -> None:
    log = gateway.answers[RECORDS] = Log()
    ran = subprocess.run(
        [sys.executable, "-m", "georelay.cli", "publish", "t", "-", "--gateway", gateway.url],
        input=b"one\r\n\ntwo",
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert log.records == [{"value": "one"}, {"value": ""}, {"value": "two"}]


def test_keys_and_values_that_are_not_text_travel_as_base64() -> None:
    (batch,) = batches([b"\xff,\xfe\n", b"k,v,w\n"], KeyRule(separator=","), records_max=10)
    assert batch.records == ({"key_b64": "/w==", "value_b64": "/g=="}, {"key": "k", "value": "v,w"})


def test_a_key_that_is_no_string_is_its_json() -> None:
    (batch,) = batches([b'{"id": [1, "\xc3\xbc"]}'], KeyRule(field="id"), records_max=10)
    assert batch.records[0]["key"] == '[1,"ü"]'


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"x", KeyRule(field="id")),
        (b"[]", KeyRule(field="id")),
        (b'{"id":null}', KeyRule(field="id")),
        (b"x", KeyRule(separator=",")),
        (b"[" * 100_000, KeyRule(field="id")),
    ],
)
def test_a_line_without_its_key_is_refused_with_its_number(line: bytes, rule: KeyRule) -> None:
    with pytest.raises(CommandFailed, match=r"^line 1: "):
        list(batches([line], rule, records_max=10))


def test_batches_are_bounded_in_bytes_too() -> None:
    line = bytes([120]) * (REQUEST_BYTES_MAX // 2)
    got = list(batches([line] * 3, KeyRule(), records_max=500))
    assert [(batch.first_line, batch.last_line) for batch in got] == [(1, 2), (3, 3)]


def partition_log(records: dict[str, list[str]]) -> Any:
    def answer(query: dict[str, str], _: Any) -> Any:
        values = records[query["partition"]]
        named = {"earliest": 0, "latest": len(values)}
        offset = named[query["offset"]] if query["offset"] in named else int(query["offset"])
        found = [{"offset": n, "value": values[n]} for n in range(offset, min(offset + 2, len(values)))]
        return 200, {"records": found, "next_offset": offset + len(found), "high_watermark": len(values)}

    return answer


def test_subscribe_prints_every_partition_in_order(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/topics/t"] = (200, {"name": "t", "partitions": 2})
    gateway.answers["GET /v1/topics/t/records"] = partition_log({"0": ["a0", "a1", "a2"], "1": ["b0", "b1"]})
    ran = georelay("subscribe", "t", "--from", "earliest", "--max", "5", "--region", "ap", "--gateway", gateway.url)
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert [line for line in lines if line[0] == "a"] == ["a0", "a1", "a2"]
    assert [line for line in lines if line[0] == "b"] == ["b0", "b1"]
    assert all(query["region"] == "ap" for _, query, _ in gateway.seen)


def test_subscribe_ends_after_the_wanted_number_or_silence(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/topics/t"] = (200, {"partitions": 1})
    gateway.answers["GET /v1/topics/t/records"] = partition_log({"0": ["a", "b", "c"]})
    at = ("subscribe", "t", "--gateway", gateway.url, "--json")
    ran = georelay(*at, "--from", "1", "--max", "1")
    assert [json.loads(line) for line in ran.out.splitlines()] == [{"partition": 0, "offset": 1, "value": "b"}]
    assert georelay(*at, "--idle-exit", "0.05").out == ""


def test_subscribe_goes_on_where_it_was_when_the_mesh_was_away(
    georelay: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "PAUSE_S", 0)
    serve = partition_log({"0": ["a", "b", "c"]})
    away = gateway.problem(503, "UNAVAILABLE", "no region is ready", retry="later")
    gateway.answers["GET /v1/topics/t"] = (200, {"partitions": 1})
    gateway.answers["GET /v1/topics/t/records"] = [serve, away, serve]
    ran = georelay("subscribe", "t", "--from", "0", "--max", "3", "--gateway", gateway.url)
    assert ran.out == "a\nb\nc\n"


def test_subscribe_merges_the_streams_of_a_topic_that_every_region_is_home_of(georelay: Any, gateway: Any) -> None:
    described = (200, {"name": "t", "partitions": 1, "homes": "every"})
    gateway.answers["GET /v1/resolve"] = (200, {"regions": [{"region": "us"}, {"region": "eu"}]})
    gateway.answers["GET /v1/topics/t"] = gateway.answers["GET /v1/topics/eu.t"] = described
    for region in ("us", "eu"):
        answers = [(200, {"records": [{"offset": 0, "value": region}], "next_offset": 1})]
        answers.append((200, {"records": [], "next_offset": 1}))
        gateway.answers[f"GET /v1/topics/{region}.t/records"] = answers
    at = ("--from", "earliest", "--gateway", gateway.url, "--json")
    rows = [json.loads(line) for line in georelay("subscribe", "t", "--max", "2", *at).out.splitlines()]
    assert sorted((row["topic"], row["value"]) for row in rows) == [("eu.t", "eu"), ("us.t", "us")]
    one = georelay("subscribe", "eu.t", "--idle-exit", "0.1", *at)
    assert all("topic" not in json.loads(line) for line in one.out.splitlines())


def test_subscribe_never_resets_a_position(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/topics/t"] = (200, {"partitions": 1})
    gateway.answers["GET /v1/topics/t/records"] = gateway.problem(416, "OFFSET_OUT_OF_RANGE", "offset 9 is beyond 3")
    ran = georelay("subscribe", "t", "--from", "9", "--gateway", gateway.url)
    assert (ran.code, ran.err) == (1, "georelay: offset 9 is beyond 3\n")


def test_a_partition_that_is_not_there_is_named(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/topics/t"] = (200, {"partitions": 2})
    ran = georelay("subscribe", "t", "--partition", "2", "--gateway", gateway.url)
    assert (ran.code, ran.err) == (1, "georelay: topic t has partitions 0..1, not 2\n")


def test_topics_are_created_with_what_was_asked_and_nothing_else(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/topics"] = (201, {"name": "t"})
    ran = georelay("topics", "create", "t", "--partitions", "3", "--homes", "every", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "created topic t\n")
    assert gateway.seen[0][2] == {"name": "t", "partitions": 3, "homes": "every"}


def test_topics_are_listed_described_and_deleted(georelay: Any, gateway: Any) -> None:
    topic = {"name": "orders", "partitions": 2, "replication_factor": 3, "homes": "one", "home": "us"}
    gateway.answers["GET /v1/topics"] = (200, {"topics": [topic]})
    gateway.answers["GET /v1/topics/orders"] = (200, {**topic, "partition_states": [{"partition": 0, "leader": 1002}]})
    gateway.answers["DELETE /v1/topics/orders"] = (200, {})
    listed = georelay("topics", "list", "--gateway", gateway.url).out.splitlines()
    assert listed[1].split() == ["orders", "2", "3", "one", "us"]
    described = georelay("topics", "describe", "orders", "--gateway", gateway.url).out
    assert "partitions: 2" in described
    assert described.splitlines()[-1].split() == ["0", "1002", "-", "-", "-", "-"]
    assert georelay("topics", "delete", "orders", "--gateway", gateway.url).out == "deleted topic orders\n"


def stream(**changed: object) -> dict[str, object]:
    return {
        "topic": "t",
        "partition": 0,
        "home": "us",
        "is_leader": True,
        "is_home": True,
        "epoch": 1,
        "high_watermark": 9,
        "home_high_watermark": -1,
        "lag_ms": 0.0,
    } | changed


def mesh_status() -> dict[str, Any]:
    follower = stream(is_leader=False, high_watermark=8)
    mirror = stream(is_home=False, high_watermark=5, home_high_watermark=9, lag_ms=12.4)
    return {
        "mesh": "m",
        "regions": [
            {
                "region": "us",
                "brokers": [
                    {
                        "id": 1001,
                        "ready": True,
                        "rtt_ms": 0.4,
                        "kafka": "k:1",
                        "status": {"controller": 1001, "streams": [stream()]},
                    },
                    {"id": 1002, "ready": False, "rtt_ms": None, "kafka": "k:2", "status": {"streams": [follower]}},
                ],
            },
            {
                "region": "eu",
                "brokers": [
                    {"id": 2001, "ready": True, "rtt_ms": 9.0, "kafka": "k:3", "status": {"streams": [mirror]}},
                    {
                        "id": 2002,
                        "ready": False,
                        "rtt_ms": None,
                        "kafka": "k:4",
                        "status": None,
                        "error": "refused\nhere",
                    },
                ],
            },
        ],
    }


def test_status_shows_leaders_and_lag_per_region() -> None:
    us, eu = (line for line in sorted(stream_lines(mesh_status()), key=lambda line: line.region, reverse=True))
    assert (us.region, us.leader, us.role, us.high_watermark, us.lag) == ("us", "1001", "home", "9", "")
    assert (eu.region, eu.leader, eu.role, eu.lag) == ("eu", "2001", "mirror", "4 (12 ms)")


def test_streams_of_several_homes_are_told_apart() -> None:
    streams = [stream(home="us"), stream(home="eu", is_home=False)]
    document = {"regions": [{"region": "us", "brokers": [{"id": 1001, "status": {"streams": streams}}]}]}
    assert [(line.home, line.role, line.lag) for line in stream_lines(document)] == [
        ("eu", "mirror", "?"),
        ("us", "home", ""),
    ]


def test_a_stream_that_nobody_leads_is_shown_without_a_leader() -> None:
    document = {"regions": [{"region": "us", "brokers": [{"id": 1, "status": {"streams": [stream(is_leader=False)]}}]}]}
    assert stream_lines(document)[0].leader == "-"


def test_the_status_command_prints_tables_or_json(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/status"] = (200, mesh_status())
    text = georelay("status", "--gateway", gateway.url).out
    for expected in ("mesh m", "not ready", "4 (12 ms)", "refused"):
        assert expected in text
    told = json.loads(georelay("status", "--json", "--gateway", gateway.url).out)
    assert told.pop("troubles")
    assert told == mesh_status()


def test_route_explain_says_what_was_chosen_and_why_no_other_region(georelay: Any, gateway: Any) -> None:
    region = {"estimate_ms": 20.0, "error_ms": 1.0, "source": "kernel", "home_ms": 0.0, "shed": 0.25, "cost_ms": 20.0}
    answer: dict[str, Any] = {"client": "ann", "address": "10.1.2.3", "chosen": "us", "reason": "it is the nearest one"}
    answer |= {"incumbent": {"region": "us", "for_s": 12.0}, "challenger": "", "kernel_ms": 20.0}
    rows = [region | {"region": "us", "why_not": []}, region | {"region": "eu", "cost_ms": None, "why_not": ["drains"]}]
    gateway.answers["GET /v1/routes/explain"] = (200, answer | {"regions": rows})
    ran = georelay("route", "explain", "ann", "--gateway", gateway.url)
    lines = ran.out.splitlines()
    assert lines[:3] == [
        "ann at 10.1.2.3: us, because it is the nearest one",
        "it has us for 12 s",
        "20 ms from this gateway (kernel)",
    ]
    assert " ".join(lines[-1].split()) == "eu unknown 20.0 ms +- 1.0 ms kernel 0.0 ms 25% drains"


def test_route_decisions_are_posted_and_told(georelay: Any, gateway: Any) -> None:
    for kind in ("pin", "drain", "freeze"):
        gateway.answers[f"POST /v1/routes/{kind}"] = (200, {})
    for words, told in (
        (("pin", "ann", "eu"), "pinned ann to eu"),
        (("unpin", "ann"), "unpinned ann"),
        (("drain", "us"), "us drains: clients are sent elsewhere"),
        (("keep", "us"), "us takes clients again"),
        (("freeze",), "switching is frozen"),
        (("thaw",), "clients move again when another region is nearer"),
    ):
        assert georelay("route", *words, "--gateway", gateway.url).out == told + "\n"
