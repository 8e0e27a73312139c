"""The overview: verdicts of pairs, what would be lost, alarms with what to do, topics."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.console.loss_core import if_lost
from gateway.console.overview_core import overview, verdict
from gateway.console.samples import gauges_of, taken
from gateway.console.sla_core import judge
from mesh.distance.rule_set_core import Rule
from tests.unit.console.world import NOW_NS, heard, link, mesh, session, silent, stream


def whole() -> dict[str, Any]:
    us = heard("us", streams=[stream("orders", home="us", at="us", end=9)], links=[session("home", "eu")])
    row = stream("orders", home="us", at="eu", end=9, heard=9)
    eu = heard("eu", streams=[row], links=[link("us"), session("mirror", "us")], rtts_us={"us": 70_000})
    return {"us": us, "eu": eu}


def test_a_whole_mesh_has_no_alarm_and_one_look_shows_it_all() -> None:
    document = overview(mesh(**whole()))
    assert (verdict(document), document["alarms"]) == ("ok", [])
    assert [(row["name"], row["homes"], row["state"]) for row in document["regions"]] == [
        ("eu", 0, "ready"),
        ("us", 1, "ready"),
    ]
    assert document["topics"] == [
        {"name": "orders", "streams": 1, "records": 9, "records_per_s": 0.0, "homes": {"us": 1}}
    ]
    json.dumps(document, allow_nan=False)


def test_a_region_that_is_silent_is_an_alarm_with_what_to_do() -> None:
    parts = whole()
    document = overview(mesh(us=silent(parts["us"]), eu=parts["eu"]))
    assert verdict(document) == "alarm"
    first = document["alarms"][0]
    assert first["what"].startswith("region us does not answer (1001: connection refused)")
    assert first["advice"] == "if it is lost: georelay home failover --region us"
    assert next(row["state"] for row in document["regions"] if row["name"] == "us") == "silent"


def test_a_cut_is_an_alarm_and_a_mirror_that_is_behind_a_warning() -> None:
    parts = whole()
    cut = heard("eu", links=[link("us", is_open=False, why="timed out")])
    assert verdict(overview(mesh(us=parts["us"], eu=cut))) == "alarm"
    late = heard("eu", links=[link("us"), session("mirror", "us", state="lagging", cause="network", records=3)])
    document = overview(mesh(us=parts["us"], eu=late))
    assert verdict(document) == "warning"
    assert all(alarm["what"] and alarm["advice"] for alarm in document["alarms"])


def test_a_control_without_a_majority_is_an_alarm_unless_some_region_reaches_it() -> None:
    cut_off = {"has_majority": False, "error": "its leader does not answer", "alarms": []}
    nobody = replace(mesh(**whole()), controls={"us": cut_off, "eu": cut_off})
    assert [(row["severity"], "no majority" in row["what"]) for row in overview(nobody)["alarms"]] == [("alarm", True)]
    leads = {"has_majority": True, "leader": 1001, "replicas": [{"broker": 1001, "region": 1, "role": "voter"}]}
    document = overview(replace(nobody, controls={"us": leads, "eu": cut_off}))
    assert [row["what"] for row in document["alarms"]] == [
        "region eu does not reach mesh control: its leader does not answer"
    ]
    assert (verdict(document), document["control"]["leader_region"]) == ("warning", "us")


def test_what_waits_for_a_person_is_a_warning_with_the_command() -> None:
    drained = Rule("drain", "us", "clients", 1_767_225_600_000_000, "User:ann")
    frozen = Rule("freeze", "switching", "frozen", 1_767_225_600_000_000)
    parts = whole()
    metrics = 'georelay_stream_orphan_records{topic="a",partition="0",origin=""} 7.0\n'
    metrics += 'georelay_stream_orphan_records{topic="__georelay_coordinators",partition="0",origin=""} 9.0\n'
    parts["us"] = replace(parts["us"], gauges=gauges_of(metrics))
    document = overview(replace(mesh(**parts), rules=[drained, frozen, Rule("pin", "ann", "us", 1)]))
    assert [(row["what"], row["advice"]) for row in document["alarms"]] == [
        (
            "region us keeps 7 records of orphan branches: a failover cut them off",
            "see Audit: export them before retention deletes them (30 days, 10 GiB); nothing merges them",
        ),
        (
            "us is drained for clients, since 2026-01-01 00:00 UTC, by User:ann",
            "when it is over: georelay route keep us",
        ),
        (
            "no client moves to a nearer region: switching is frozen since 2026-01-01 00:00 UTC, by nobody known",
            "when it is over: georelay route thaw",
        ),
    ]
    assert verdict(document) == "warning"


def test_mirrors_that_are_behind_for_a_cut_are_no_second_alarm() -> None:
    parts = whole()
    late = stream("orders", home="us", at="eu", end=1, heard=9) | {"lag_ms": 60_000.0}
    cut = heard("eu", streams=[late], links=[link("us", is_open=False, why="no sign of life for 1504 ms")])
    whats = [row["what"] for row in overview(mesh(us=parts["us"], eu=cut))["alarms"]]
    assert whats == ["us to eu: no connection: eu cannot reach us: no sign of life for 1504 ms"]


def live(n: int, surely: int, perhaps: int, *, made_at_s: float = 999_990.0, state: str = "live") -> dict[str, Any]:
    window = {"n": n, "n_good_lo": surely, "n_good_hi": perhaps, "p50_us": 35_100, "p99_us": 38_200}
    return {"made_at_s": made_at_s, "pairs": [{"origin": "us", "dest": "eu", "state": state, "last_5m": window}]}


@pytest.mark.parametrize(
    ("surely", "perhaps", "state"),
    [
        (10_000, 10_000, "PASS"),
        (9_999, 10_000, "PASS"),
        (9_998, 9_999, "NOT PROVEN"),
        (9_990, 9_998, "BREACH"),
    ],
)
def test_a_pair_passes_only_when_surely_and_breaches_only_when_surely(surely: int, perhaps: int, state: str) -> None:
    judged, why = judge(live(10_000, surely, perhaps), now_s=1_000_000.0)
    assert (judged["us", "eu"]["state"], judged["us", "eu"]["p99_ms"], why) == (state, 38.2, "")


def test_nothing_is_proven_by_silence_or_by_a_view_that_nobody_keeps() -> None:
    judged, _ = judge(live(0, 0, 0), now_s=1_000_000.0)
    assert judged["us", "eu"]["state"] == "NOT PROVEN"
    judged, _ = judge(live(10, 10, 10, state="degraded"), now_s=1_000_000.0)
    assert judged["us", "eu"]["state"] == "NOT PROVEN"
    assert "still running" in judge(live(10, 10, 10, made_at_s=999_000.0), now_s=1_000_000.0)[1]
    assert judge(None, now_s=0.0, no_live="live_file is not there")[1] == "live_file is not there"


def test_a_breach_alone_makes_a_warning() -> None:
    assert verdict(overview(mesh(live(10_000, 9_000, 9_000), **whole()))) == "warning"


def test_what_only_a_region_has_would_be_lost_with_it() -> None:
    rows = [
        session("home", "eu", records=5, ms=90.0) | {"stream": "a"},
        session("home", "ap", records=2, ms=40.0) | {"stream": "a"},  # ap has more of it: 2 are nowhere else
        session("home", "eu", records=0) | {"stream": "b"},
        session("home", "ap", records=9, ms=99.0) | {"stream": "b"},  # eu has all of it
    ]
    homes = [
        {"topic": "a", "partition": 0, "home": "us", "failover": {"policy": "auto", "in_force": True}},
        {"topic": "b", "partition": 0, "home": "us"},
        {"topic": "c", "partition": 0, "home": "eu"},
    ]
    names = ("a", "b", "every")
    us = heard("us", links=rows, streams=[stream(name, home="us", at="us", end=9) for name in names])
    lost = next(
        row for row in if_lost(mesh(homes=homes, us=us, eu=heard("eu"), ap=heard("ap"))) if row["region"] == "us"
    )
    assert (lost["records"], lost["records_streams"], lost["records_ms"]) == (2, 1, 40.0)
    assert (lost["automatic"], lost["manual"], lost["own"]) == (1, 1, 1)


def test_of_a_region_that_is_gone_already_the_last_word_counts_with_its_age() -> None:
    us = heard("us", links=[session("home", "eu", records=3, ms=10.0)])
    lost = if_lost(mesh(us=silent(us), eu=heard("eu")))[1]
    assert (lost["region"], lost["records"], lost["age_ms"], lost["heir"]) == ("us", 3, 4_000, "eu")
    assert if_lost(mesh(us=silent(), eu=heard("eu")))[1]["known"] is False


def test_records_per_second_are_those_between_two_answers_of_one_broker() -> None:
    first = heard("us", streams=[stream("orders", home="us", at="us", end=100)]).status
    second = heard("us", streams=[stream("orders", home="us", at="us", end=160)]).status
    sample = taken(None, at_ns=NOW_NS - 2_000_000_000, status=first)
    assert sample.rates == {}
    sample = taken(sample, at_ns=NOW_NS, status=second)
    document = overview(mesh(us=sample))
    assert document["topics"][0]["records_per_s"] == 30.0
    assert document["regions"][0]["records_per_s"] == 30.0
    gone = taken(sample, at_ns=NOW_NS + 1, status=None, error="timed out")
    assert (gone.last_status, gone.rates) == (second, {})


def test_neither_streams_of_brokers_nor_one_that_moved_away_are_lost_with_a_region() -> None:
    rows = {"here": "orders", "moved": "orders", "own": "__georelay_probes"}
    links = [session("home", "eu", records=9) | {"stream": name} for name in rows]
    streams = [
        stream(topic, home="eu" if name == "moved" else "us", at="us", end=9) | {"stream": name}
        for name, topic in rows.items()
    ]
    us = heard("us", links=links, streams=streams)
    lost = if_lost(mesh(us=us, eu=heard("eu")))[1]
    assert (lost["records"], lost["records_streams"], lost["homes"]) == (9, 1, 1)


def test_gauges_are_summed_over_labels_and_a_full_disk_is_an_alarm() -> None:
    text = "\n".join(
        (
            "# HELP georelay_consumer_groups Groups",
            'georelay_consumer_groups{state="Empty"} 2.0',
            'georelay_consumer_groups{state="Stable"} 3.0',
            'georelay_consumer_group_lag_records{group="georelay_queues 9"} 11.0',
            "georelay_disk_writable 0.0",
            "georelay_queues nonsense",
        )
    )
    gauges = gauges_of(text)
    assert gauges == {"georelay_consumer_groups": 5.0, "georelay_disk_writable": 0.0}
    parts = whole()
    document = overview(mesh(us=replace(parts["us"], gauges=gauges), eu=parts["eu"]))
    assert "its disk is down to its reserve" in document["alarms"][0]["what"]
    assert [(row["name"], row["groups"]) for row in document["regions"]] == [("eu", None), ("us", 5)]
