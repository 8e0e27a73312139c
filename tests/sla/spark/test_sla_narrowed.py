"""Targets of some topics and groups: what they count, against the generator's own account of a world with four topics.

The same world has a region of whose ledger no file can be read, with records lost there.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterable
from typing import Any

import pytest

from georelay.trace.histogram import bucket_mid
from georelay.trace.kinds import Stage
from sla.judging.facts import Facts, NamedFacts, PeriodFacts
from sla.judging.judge import judge
from sla.judging.sentences import sentence_of
from sla.judging.verdict import Verdict
from sla.report.html import to_html
from sla.report.markdown import to_markdown
from sla.report.model import Report
from sla.targets import IntegrityTarget, LatencyTarget, Scope, Target, Targets
from tests.sla import judging_facts as build

PASS, BREACH, DOUBT, NO_DATA = Verdict.PASS, Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.NO_DATA
ORDERS = LatencyTarget(name="orders", topics=frozenset({"orders"}))
NAMED = (NamedFacts(target="orders", topic="orders", group=""),)


def report(*targets: Target, **now: Any) -> Report:
    facts = Facts(now=build.period(**now), before=PeriodFacts(span=build.HOUR.previous))
    return judge(facts, Targets(targets=targets), made=build.MADE, hours=build.HOURS)


# --- rules


def test_a_narrowed_target_judges_its_own_records_by_the_limits_of_all() -> None:
    every = (build.latency(bad=5_000), build.latency({4_000: 100}, origin="us", dest="us", stage="commit"))
    mine = (build.latency({60_000: 4_000}, target="orders"), build.latency({9_000: 9}, target="other"))
    far = (build.clock(rtt_min_us=96_000),)  # 48 ms one way, and 4 ms of work: 50 ms are out of reach
    made = report(ORDERS, LatencyTarget(name="all"), latency=every, narrowed=mine, named=NAMED, clocks=far)
    (orders,), (whole,) = (result.subjects for result in made.targets)
    assert (orders.total, orders.bad, orders.threshold_ms, orders.verdict) == (4_000, 0, 68.0, PASS)
    assert (whole.total, whole.verdict) == (10_000, BREACH)


def test_records_without_the_name_of_their_topic_may_be_of_the_target() -> None:
    mine = build.latency({10_000: 9_000}, target="orders")
    untold = build.latency({10_000: 1_000}, target="orders", is_untold=True)
    made = report(ORDERS, latency=(build.latency(),), narrowed=(mine, untold), named=NAMED)
    assert (made.targets[0].verdict, made.targets[0].reason) == (DOUBT, "10 % of the traces are missing")
    assert report(ORDERS, latency=(build.latency(),), narrowed=(mine,), named=NAMED).verdict is PASS


def test_a_named_topic_or_group_without_a_record_is_no_pass() -> None:
    target = LatencyTarget(name="orders", topics=frozenset({"orders", "ordres"}), groups=frozenset({"", "g"}))
    every = (build.latency(),)
    (result,) = report(target, latency=every, narrowed=(build.latency(target="orders"),), named=NAMED).targets
    assert (result.verdict, result.worst_subject, result.reason) == (DOUBT, "topic ordres", "nothing was counted")
    assert [(item.name, item.verdict) for item in result.subjects] == [
        ("us -> eu", PASS), ("topic ordres", NO_DATA), ("group g", NO_DATA),
    ]  # fmt: skip
    nothing = report(target, latency=every)
    assert nothing.verdict is NO_DATA


def test_readers_of_other_topics_and_groups_are_not_judged() -> None:
    readers = (
        build.reader(group="billing"), build.reader(lost=1), build.reader(topic="other", group="billing", lost=1),
    )  # fmt: skip
    target = IntegrityTarget(name="t", topics=frozenset({"orders"}), groups=frozenset({"billing"}))
    made = report(target, integrity=readers)
    assert [subject.name for subject in made.targets[0].subjects] == ["orders/0 in eu for billing"]
    assert made.verdict is PASS
    plain = IntegrityTarget(name="t", groups=frozenset({""}))
    assert report(plain, integrity=readers).targets[0].worst_subject == "orders/0 in eu"
    unknown = IntegrityTarget(name="t", topics=frozenset({"orders", "ordres"}))
    assert report(unknown, integrity=readers[:1]).targets[0].worst_subject == "topic ordres"


@pytest.mark.parametrize(("target", "sentence"), [
    (ORDERS, "99 % of records within 50 ms from publish to deliver (topic orders), every pair of regions"),
    (
        LatencyTarget(name="x", stage=Stage.DELIVER, topics=frozenset({"b", "a"}), groups=frozenset({"", "g"})),
        "99 % of records within 50 ms from commit to deliver (topics a, b; group g and consumers without a group), "
        "every pair of regions",
    ),
    (
        IntegrityTarget(name="x", groups=frozenset({""}), scope=Scope(word="named", names=frozenset({"eu"}))),
        "no record lost, repeated without saying so, or out of order (consumers without a group), eu",
    ),
    (
        IntegrityTarget(name="x", topics=frozenset("abcdefg")),
        "no record lost, repeated without saying so, or out of order (topics a, b, c, d, e and 2 more), every region",
    ),
])  # fmt: skip
def test_topics_and_groups_are_in_the_sentence(target: Target, sentence: str) -> None:
    assert sentence_of(target) == sentence
    made = report(target)
    assert sentence in to_html(made)
    assert sentence.replace("_", "\\_") in to_markdown(made)


# --- a generated world

FAULTS = ("gap:region=eu,count=2", "corrupt-file:region=eu", "corrupt-file:region=eu,at=60")
TARGETS = """
schema_version = 1
[[target]]
name = "of-topics"
kind = "latency"
objective = 0.5
topics = ["orders-0", "events-1"]
[[target]]
name = "of-a-group"
kind = "latency"
objective = 0.5
threshold_ms = 20
groups = ["workers-3"]
[[target]]
name = "without-a-group"
kind = "latency"
objective = 0.5
threshold_ms = 1
stage = "deliver"
groups = ["-"]
scope = "intra"
[[target]]
name = "typing-error"
kind = "latency"
objective = 0.5
topics = ["orders-0", "ordres-2"]
[[target]]
name = "of-all"
kind = "latency"
objective = 0.5
[[target]]
name = "streams-of-events"
kind = "integrity"
topics = ["events-1", "events-3"]
scope = ["us", "ap"]
[[target]]
name = "every-stream"
kind = "integrity"
[[burn.window]]
long = "1h"
short = "5m"
rate = 1
severity = "page"
"""


of_the_world = pytest.mark.slow  # half a minute of Spark


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> tuple[Any, dict[str, Any]]:
    """Return what the generator expects, and the report of it."""
    from sla import cli
    from sla.generate.request import Fault, GenerateRequest
    from sla.generate.run import run_generate

    out = tmp_path_factory.mktemp("gen")
    start = datetime.datetime(2026, 11, 20, 10, 0, tzinfo=datetime.UTC)
    request = GenerateRequest(
        out=out,
        start=start,
        seconds=120,
        topics=4,
        partitions=1,
        brokers=1,
        roll_s=60,
        faults=tuple(Fault.parse(text) for text in FAULTS),
    )
    expected = run_generate(request)
    (out / "own.toml").write_text(TARGETS)
    arguments = ["report", "--traces", str(out / "traces"), "--targets", str(out / "own.toml"), "--out", str(out / "r")]
    with contextlib.suppress(SystemExit):
        cli.main([*arguments, "--format", "json", "--fail-on", "never"])
    return expected, json.loads((out / "r" / "report.json").read_text())


def target_of(world: tuple[Any, dict[str, Any]], name: str) -> dict[str, Any]:
    (target,) = (target for target in world[1]["targets"] if target["name"] == name)
    return dict(target)


def way_of(row: dict[str, Any]) -> str:
    """Return the way of a row's records: those of the topics with one home go by way of it, which is us."""
    is_over_us = (
        row["stage"] == "total" and row["topic"].startswith("events") and "us" not in (row["origin"], row["dest"])
    )
    return " -> ".join([row["origin"], *["us"] * is_over_us, row["dest"]])


def counted(rows: Iterable[dict[str, Any]], subject: dict[str, Any]) -> tuple[int, int]:
    """Return the records of rows, and how many are late for a subject."""
    rows, limit_us = list(rows), subject["threshold_ms"] * 1_000
    if limit_us == 50_000:
        return sum(row["n"] for row in rows), sum(row["n"] - row["n_good"] for row in rows)
    late = sum(n for row in rows for bucket, n in row["hist"] if bucket_mid(bucket) > limit_us)
    return sum(row["n"] for row in rows), late


@of_the_world
@pytest.mark.parametrize(("name", "stage", "topics"), [
    ("of-topics", "total", {"orders-0", "events-1"}),
    ("of-a-group", "total", {"events-3"}),
    ("without-a-group", "deliver", {"orders-0", "orders-2"}),
])  # fmt: skip
def test_a_narrowed_target_counts_the_records_that_the_generator_expects(
    world: tuple[Any, dict[str, Any]], name: str, stage: str, topics: set[str]
) -> None:
    expected, made = world
    target = target_of(world, name)
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in expected.rows("minute"):
        if row["stage"] == stage and row["topic"] in topics and (stage == "total" or row["origin"] == row["dest"]):
            ways.setdefault(way_of(row), []).append(row)
    subjects = {subject["name"]: subject for subject in target["subjects"]}
    assert subjects.keys() == ways.keys()
    for way, subject in subjects.items():
        n, late = counted(ways[way], subject)
        assert (subject["total"], subject["bad"]) == (n, late), way
        (window,) = subject["burn"]
        assert window["long_rate"] == pytest.approx(late / n / 0.5, abs=1e-4)
    assert sum(subject["bad"] for subject in target["subjects"])
    worst = [row for row in made["worst"] if row["target"] == name]
    assert {row["name"].partition(":")[0] for row in worst if row["what"] == "topic"} == topics
    for minute in (row for row in worst if row["what"] == "minute"):
        at_s = datetime.datetime.fromisoformat(minute["at"]).timestamp()
        mine = (row for row in ways[minute["name"]] if row["ts_s"] == at_s)
        assert (minute["total"], minute["bad"]) == counted(mine, subjects[minute["name"]])


@of_the_world
def test_narrowed_targets_together_are_the_whole(world: tuple[Any, dict[str, Any]]) -> None:
    expected, _ = world
    rows = [row for row in expected.rows("minute") if row["stage"] == "total"]
    every = target_of(world, "of-all")["subjects"]
    assert sum(subject["total"] for subject in every) == sum(row["n"] for row in rows)


@of_the_world
def test_a_topic_with_a_typing_error_is_said_and_the_verdict_is_open(world: tuple[Any, dict[str, Any]]) -> None:
    target = target_of(world, "typing-error")
    assert (target["verdict"], target["worst_subject"]) == ("INCONCLUSIVE", "topic ordres-2")


@of_the_world
def test_integrity_of_some_topics_has_their_readers_alone(world: tuple[Any, dict[str, Any]]) -> None:
    expected, _ = world
    target = target_of(world, "streams-of-events")
    delivered: dict[str, int] = {}
    for row in expected.rows("integrity_hour"):
        if row["topic"] in ("events-1", "events-3") and row["dest"] in ("us", "ap"):
            name = f"{row['topic']}/{row['partition']} in {row['dest']} for {row['group']}"
            delivered[name] = delivered.get(name, 0) + row["delivered"]
    assert {subject["name"]: subject["total"] for subject in target["subjects"]} == delivered
    assert len(delivered) == 4


@of_the_world
def test_a_region_of_which_nobody_can_read_the_ledger_takes_the_pass_away(world: tuple[Any, dict[str, Any]]) -> None:
    expected, made = world
    assert expected.files["broken"] == {"corrupt-file": 2}
    target = target_of(world, "every-stream")
    assert (target["verdict"], target["worst_subject"]) == ("INCONCLUSIVE", "readers in eu")
    assert target["reason"] == "none of its traces can be read"
    assert not [row for row in made["integrity"]["readers"] if row["dest"] == "eu"]
    assert target_of(world, "of-all")["verdict"] == "PASS", "its latencies are whole"
