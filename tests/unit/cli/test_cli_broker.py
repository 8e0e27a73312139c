"""`georelay broker` and the commands that change a topic, against a fake gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from georelay.cli import waiting
from georelay.cli.broker import broker_lines
from georelay.cli.topic_changes import parse_brokers, parse_settings, unsettled
from georelay.cli.topics import moving_text, partition_line

STATUS = (200, {"mesh": "m", "regions": [{"region": "us", "number": 1}, {"region": "eu", "number": 2}]})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.0)


def row(**changed: object) -> dict[str, Any]:
    broker = {"id": 1002, "state": "active", "alive": True, "replicas": 3, "leaders": 1, "moving": 0, "kafka": "h:1"}
    return broker | changed


def listing(*rows: dict[str, Any], region: str = "us") -> tuple[int, Any]:
    return 200, {"region": region, "brokers": list(rows)}


def paths(gateway: Any) -> list[tuple[str, str]]:
    return [(path, query.get("region", "")) for path, query, _ in gateway.seen]


def test_the_brokers_of_every_region_are_listed(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/status"] = STATUS
    gateway.answers["GET /v1/brokers"] = lambda query, _: listing(
        row(id=2001 if query["region"] == "eu" else 1001, moving=2, detail="group 7"), region=query["region"]
    )
    lines = georelay("broker", "list", "--gateway", gateway.url).out.splitlines()
    assert lines[0].split() == ["region", "broker", "state", "alive", "replicas", "leaders", "moving", "kafka", "note"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["eu", "2001", "active", "yes", "3"],
        ["us", "1001", "active", "yes", "3"],
    ]
    document = json.loads(georelay("broker", "list", "--json", "--gateway", gateway.url).out)
    assert [answer["region"] for answer in document["regions"]] == ["eu", "us"]


def test_a_region_that_does_not_answer_is_told_and_the_others_are_shown(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/status"] = STATUS
    gateway.answers["GET /v1/brokers"] = lambda query, _: (
        gateway.problem(503, "UNAVAILABLE", "no broker") if query["region"] == "eu" else listing(row())
    )
    ran = georelay("broker", "list", "--gateway", gateway.url)
    assert ran.code == 1
    assert "1002" in ran.out
    assert ran.err == "georelay: eu: no broker\n"
    assert georelay("broker", "list", "--region", "eu", "--gateway", gateway.url).out == ""


def test_unknown_numbers_are_a_dash() -> None:
    (line,) = broker_lines({"region": "us", "brokers": [row(replicas=None)]})
    assert (line["replicas"], line["moving"]) == ("-", "")


def test_a_broker_is_added_in_the_region_that_its_id_names(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/status"] = STATUS
    gateway.answers["POST /v1/brokers/2004"] = (200, row(id=2004))
    ran = georelay("broker", "add", "2004", "--peers", "h:9", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "broker 2004 may take replicas\n")
    assert gateway.seen[-1] == ("POST /v1/brokers/2004", {"region": "eu"}, {"peers": "h:9"})


def test_a_region_that_is_named_is_not_looked_up(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/brokers/1004"] = (200, row(id=1004))
    assert georelay("broker", "add", "1004", "--region", "us", "--gateway", gateway.url).code == 0
    assert paths(gateway) == [("POST /v1/brokers/1004", "us")]


def test_an_id_of_no_region_is_one_line(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/status"] = STATUS
    ran = georelay("broker", "drain", "7001", "--gateway", gateway.url)
    assert ran.code == 1
    assert ran.err == "georelay: no region has the number 7 of broker 7001; there are us (1), eu (2)\n"


def test_a_drain_begins_and_returns(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/brokers/1002/drain"] = (202, row(state="draining", replicas=3, detail="group 7"))
    ran = georelay("broker", "drain", "1002", "--region", "us", "--gateway", gateway.url)
    assert ran.out == "broker 1002 is draining and holds 3 replicas (group 7)\n"


def test_a_drain_is_waited_for_and_its_progress_is_told_once_per_change(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/brokers/1002/drain"] = (202, row(state="draining"))
    gateway.answers["GET /v1/brokers"] = [
        listing(row(state="active")),  # this broker has not heard of it yet
        listing(row(state="draining", replicas=3)),
        gateway.problem(503, "UNAVAILABLE", "electing", retry="later"),
        listing(row(state="draining", replicas=1)),
        listing(row(state="draining", replicas=1)),
        listing(row(state="draining", replicas=0)),
        listing(row(state="drained", replicas=0)),
    ]
    ran = georelay("broker", "drain", "1002", "--region", "us", "--wait", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "broker 1002 is drained\n")
    assert [line.partition(": ")[2] for line in ran.err.splitlines()] == [
        "3 replicas left",
        "1 replicas left",
        "0 replicas left",
        "done",
    ]


def test_a_drain_that_somebody_undoes_ends_the_waiting(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/brokers/1002/drain"] = (202, row(state="draining"))
    gateway.answers["GET /v1/brokers"] = listing(row(state="active"))
    ran = georelay("broker", "drain", "1002", "--region", "us", "--wait", "--gateway", gateway.url)
    assert ran.code == 1
    assert ran.err.endswith("georelay: broker 1002 was added again meanwhile; it is not drained\n")


def test_a_timeout_ends_the_waiting_and_says_that_the_work_goes_on(
    georelay: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 60.0)
    gateway.answers["POST /v1/brokers/1002/drain"] = (202, row(state="draining"))
    gateway.answers["GET /v1/brokers"] = listing(row(state="draining"))
    ran = georelay("broker", "drain", "1002", "--region", "us", "--wait", "--timeout", "5", "--gateway", gateway.url)
    assert ran.code == 1
    assert "draining broker 1002 is not done after 5 s (3 replicas left); it goes on" in ran.err


def test_a_broker_that_is_not_empty_is_not_removed(georelay: Any, gateway: Any) -> None:
    gateway.answers["DELETE /v1/brokers/1002"] = gateway.problem(403, "POLICY_VIOLATION", "drain it first")
    ran = georelay("broker", "remove", "1002", "--region", "us", "--gateway", gateway.url)
    assert (ran.code, ran.err) == (1, "georelay: drain it first\n")
    assert paths(gateway) == [("DELETE /v1/brokers/1002", "us")]


def test_a_broker_is_drained_before_it_is_removed(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/brokers/1002/drain"] = (202, row(state="draining"))
    gateway.answers["GET /v1/brokers"] = [listing(row(state="draining")), listing(row(state="drained"))]
    gateway.answers["DELETE /v1/brokers/1002"] = (200, {})
    ran = georelay("broker", "remove", "1002", "--wait", "--region", "us", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "removed broker 1002\n")
    assert [path for path, _ in paths(gateway)] == [
        "POST /v1/brokers/1002/drain",
        "GET /v1/brokers",
        "GET /v1/brokers",
        "DELETE /v1/brokers/1002",
    ]


# --- topics -------------------------------------------------------------------------------------------


def test_settings_are_altered(georelay: Any, gateway: Any) -> None:
    gateway.answers["PATCH /v1/topics/t"] = (
        200,
        {"name": "t", "retention_ms": 1000, "retention_bytes": -1, "segment_bytes": 9},
    )
    ran = georelay("topics", "alter", "t", "retention.ms=1000", "retention.bytes=default", "--gateway", gateway.url)
    assert ran.out == "altered topic t: retention.ms=1000 retention.bytes=-1 segment.bytes=9\n"
    assert gateway.seen[-1][2] == {"retention_ms": 1000, "retention_bytes": None}
    assert parse_settings(["retention.ms=-1"]) == {"retention_ms": -1}
    assert parse_settings(["cleanup.policy=compact", "flush.ms=default", "segment.bytes=99"]) == {
        "segment_bytes": 99,
        "settings": {"cleanup.policy": "compact", "flush.ms": None},  # the broker knows the table
    }


@pytest.mark.parametrize(("before", "sent"), [("17", 17), ("latest", "latest")])
def test_records_are_deleted(georelay: Any, gateway: Any, before: str, sent: Any) -> None:
    gateway.answers["POST /v1/topics/t/delete-records"] = (200, {"topic": "t", "partition": 2, "log_start": 17})
    ran = georelay("topics", "delete-records", "t", "--partition", "2", "--before", before, "--gateway", gateway.url)
    assert ran.out == "partition 2 of t starts at offset 17\n"
    assert gateway.seen[-1][2] == {"partition": 2, "before": sent}


def partition(number: int, *, settled: bool, learners: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    replicas = [1002, 1003] if settled else [1001, 1002]
    return {
        "partition": number,
        "leader": 1002,
        "replicas": replicas,
        "wanted": [1002, 1003],
        "learners": list(learners),
        "is_settled": settled,
    } | more


def test_a_topic_is_moved_and_waited_for(georelay: Any, gateway: Any) -> None:
    moving = [partition(0, settled=True), partition(1, settled=False, learners=(1003,))]
    moved = [partition(0, settled=True), partition(1, settled=True)]
    gateway.answers["GET /v1/status"] = STATUS
    gateway.answers["POST /v1/topics/t/reassign"] = (202, {"partition_states": moving})
    gateway.answers["GET /v1/topics/t"] = [(200, {"partition_states": moving}), (200, {"partition_states": moved})]
    begun = georelay("topics", "reassign", "t", "--replicas", "1002,1003", "--gateway", gateway.url)
    assert begun.out.startswith("topic t moves to 1002,1003; `georelay topics describe t`")
    ran = georelay("topics", "reassign", "t", "--replicas", "1002,1003", "--wait", "--gateway", gateway.url)
    assert (ran.code, ran.out) == (0, "topic t is on 1002,1003\n")
    assert ran.err == "moving t: 1 partitions left, catching up: 1 on 1003\nmoving t: done\n"
    assert gateway.seen[-1][1] == {"region": "us"}


def test_one_partition_is_moved(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/topics/t/reassign"] = (202, {"partition_states": [partition(1, settled=True)]})
    ran = georelay(
        "topics", "reassign", "t", "--partition", "1", "--replicas", "1002,1003", "--region", "us",
        "--gateway", gateway.url,
    )  # fmt: skip
    assert ran.out == "partition 1 of t is on 1002,1003\n"
    assert gateway.seen[-1][2] == {"replicas": [1002, 1003], "partition": 1}


def test_a_partition_that_another_broker_has_not_heard_of_moving_is_not_done() -> None:
    stale = partition(0, settled=True) | {"replicas": [1001, 1002], "wanted": [1001, 1002]}
    assert unsettled([stale], -1, [1002, 1003]) == [stale]
    assert unsettled([stale], 1, [1002, 1003]) == []
    assert parse_brokers("1002,1003") == [1002, 1003]


def test_what_moves_and_how_far_it_is_stands_in_the_description(georelay: Any, gateway: Any) -> None:
    states = [
        partition(0, settled=True, log_start=4, high_watermark=9, epoch=1),
        partition(1, settled=False, learners=(1003,), behind_entries={"1003": 77}, leader=-1),
    ]
    gateway.answers["GET /v1/topics/t"] = (200, {"name": "t", "partitions": 2, "partition_states": states})
    out = georelay("topics", "describe", "t", "--region", "us", "--gateway", gateway.url).out.splitlines()
    assert out[:2] == ["name: t", "partitions: 2"]
    assert out[3].split() == ["0", "1002", "1002,1003", "4", "9", "1"]
    assert out[4].split()[:6] == ["1", "-", "1001,1002", "-", "-", "-"]
    assert out[4].endswith("to 1002,1003; 1003 lacks 77 entries")
    assert gateway.seen[-1][1] == {"region": "us"}


def test_a_learner_of_which_nothing_is_known_catches_up() -> None:
    assert moving_text(partition(0, settled=False, learners=(1003,))) == "to 1002,1003; 1003 catches up"
    assert partition_line({"partition": 0})["replicas"] == "-"
