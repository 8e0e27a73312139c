"""What a target means and nobody could read is a doubt; what it names and nobody counted is no pass. No Spark."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sla.judging.facts import Facts, NamedFacts, PeriodFacts
from sla.judging.judge import judge
from sla.judging.verdict import Verdict
from sla.report.html import to_html
from sla.report.junit import to_junit
from sla.report.model import Report, TargetResult
from sla.report.next_steps import next_steps
from sla.targets import (
    IntegrityTarget,
    LatencyTarget,
    MinutesTarget,
    ProbesTarget,
    RequestsTarget,
    Scope,
    Target,
    Targets,
    ThroughputTarget,
)
from tests.sla import judging_facts as build
from tests.sla.test_sla_judging import commits_and_deliveries

PASS, DOUBT, NO_DATA = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.NO_DATA
NONE_READ = "none of its traces can be read"
CLOCKS = tuple(build.inputs(kind="clock", region=region) for region in ("us", "eu", "ap"))
GATEWAY = "eu/900000001"


def named(*names: str) -> Scope:
    return Scope(word="named", names=frozenset(names))


def whole(kind: str, *regions: str) -> tuple[Any, ...]:
    return tuple(build.inputs(kind=kind, region=region) for region in regions)


def torn(kind: str, region: str = "eu", **changes: Any) -> Any:
    """Build the input of a region of whose files none can be read."""
    lost: dict[str, Any] = {"files": 0, "rows": 0, "quarantined_files": 2, "writers": ()}
    return build.inputs(kind=kind, region=region, **(lost | changes))


def report(target: Target, before: dict[str, Any] | None = None, **now: Any) -> Report:
    earlier = PeriodFacts(span=build.HOUR.previous, **(before or {}))
    facts = Facts(now=build.period(**now), before=earlier)
    return judge(facts, Targets(targets=(target,)), made=build.MADE, hours=build.HOURS)


def judged(target: Target, before: dict[str, Any] | None = None, **now: Any) -> TargetResult:
    (result,) = report(target, before, **now).targets
    return result


def subjects(result: TargetResult) -> dict[str, tuple[Verdict, str]]:
    return {subject.name: (subject.verdict, subject.reason) for subject in result.subjects}


READERS = tuple(build.reader(dest=dest) for dest in ("us", "ap"))
LEDGERS = (*whole("ledger", "us", "ap"), *CLOCKS)
INTEGRITY, LATENCY = IntegrityTarget(name="integrity"), LatencyTarget(name="latency")
PROBES, THROUGHPUT = ProbesTarget(name="probes"), ThroughputTarget(name="throughput")


def test_readers_of_a_region_whose_ledger_cannot_be_read_are_a_doubt() -> None:
    result = judged(INTEGRITY, integrity=READERS, inputs=(*LEDGERS, torn("ledger")))
    assert subjects(result) == {
        "orders/0 in us": (PASS, ""), "orders/0 in ap": (PASS, ""), "readers in eu": (DOUBT, NONE_READ),
    }  # fmt: skip
    assert (result.verdict, result.worst_subject, result.reason) == (DOUBT, "readers in eu", NONE_READ)


def test_a_region_that_is_whole_and_merely_had_no_readers_is_no_subject() -> None:
    result = judged(INTEGRITY, integrity=READERS, inputs=(*LEDGERS, build.inputs(region="eu")))
    assert (result.verdict, len(result.subjects)) == (PASS, 2)
    some = judged(INTEGRITY, integrity=READERS, inputs=(*LEDGERS, build.inputs(rows=900, missing_rows=100)))
    text = "10 % of its traces are missing, and none of the others is about this"
    assert subjects(some)["readers in eu"] == (DOUBT, text)


def test_a_region_that_has_a_subject_is_judged_by_it_alone() -> None:
    readers = (*READERS, build.reader(dest="eu"))
    result = judged(INTEGRITY, integrity=readers, inputs=(*LEDGERS, build.inputs(missing_rows=100)))
    assert subjects(result)["orders/0 in eu"] == (DOUBT, "rows of the ledger are missing")
    assert "readers in eu" not in subjects(result)


def test_a_region_outside_the_scope_is_no_doubt() -> None:
    target = IntegrityTarget(name="integrity", scope=named("us", "ap"))
    assert judged(target, integrity=READERS, inputs=(*LEDGERS, torn("ledger"))).verdict is PASS


def test_pairs_to_a_region_whose_latencies_cannot_be_read_are_a_doubt() -> None:
    inputs = (*whole("latency_hist", "us", "ap"), *CLOCKS, torn("latency_hist"))
    pairs = tuple(build.latency(origin=origin, dest=dest) for origin in ("us", "ap") for dest in ("us", "ap"))
    result = judged(LATENCY, latency=pairs, inputs=inputs)
    assert result.verdict is DOUBT
    doubts = {name for name, (verdict, _) in subjects(result).items() if verdict is DOUBT}
    assert doubts == {"us -> eu", "ap -> eu"}
    intra = LatencyTarget(name="latency", scope=Scope(word="intra"))
    inside = judged(intra, latency=pairs, inputs=inputs)
    assert (inside.verdict, inside.worst_subject, inside.reason) == (DOUBT, "eu -> eu", NONE_READ)
    one = LatencyTarget(name="latency", scope=named("us -> us", "eu -> eu"))
    assert subjects(judged(one, latency=pairs, inputs=inputs))["eu -> eu"] == (DOUBT, NONE_READ)


def test_where_records_entered_only_in_the_region_that_cannot_be_read_any_pair_to_it_is_a_doubt() -> None:
    inter = LatencyTarget(name="latency", scope=Scope(word="inter"))
    pairs = (build.latency(origin="eu", dest="us"), build.latency(origin="eu", dest="ap"))
    inputs = (*whole("latency_hist", "us", "ap"), *CLOCKS, torn("latency_hist"))
    result = judged(inter, latency=pairs, inputs=inputs)
    doubts = {name for name, (verdict, _) in subjects(result).items() if verdict is DOUBT}
    assert (result.verdict, doubts) == (DOUBT, {"ap -> eu", "us -> eu"})


ORDERS = LatencyTarget(name="orders", topics=frozenset({"orders"}))
TOLD = build.latency(target="orders")
UNTOLD = build.latency({10_000: 1_000}, dest="ap", target="orders", is_untold=True)
NAMED_ORDERS = (NamedFacts(target="orders", topic="orders", group=""),)
WITHOUT_A_NAME = "1,000 records without the name of their topic, and none with it"


def test_a_pair_whose_records_have_no_name_of_their_topic_is_a_doubt() -> None:
    result = judged(ORDERS, latency=(build.latency(),), narrowed=(TOLD, UNTOLD), named=NAMED_ORDERS)
    assert subjects(result) == {"us -> eu": (PASS, ""), "us -> ap": (DOUBT, WITHOUT_A_NAME)}
    assert result.verdict is DOUBT
    elsewhere = dataclasses.replace(ORDERS, scope=named("us -> eu"))
    assert judged(elsewhere, latency=(build.latency(),), narrowed=(TOLD, UNTOLD), named=NAMED_ORDERS).verdict is PASS


def test_a_target_all_of_whose_records_have_no_name_of_their_topic_is_a_doubt_and_not_without_data() -> None:
    result = judged(ORDERS, latency=(build.latency(),), narrowed=(UNTOLD,))
    assert (result.verdict, result.worst_subject, result.reason) == (DOUBT, "us -> ap", WITHOUT_A_NAME)
    none = judged(ORDERS, latency=(build.latency(),), narrowed=(dataclasses.replace(UNTOLD, n=0, hist=()),))
    assert none.verdict is NO_DATA
    other = judged(ORDERS, latency=(build.latency(),), narrowed=(dataclasses.replace(UNTOLD, stage="commit"),))
    assert other.verdict is NO_DATA


def test_a_region_that_took_part_in_probes_and_of_which_nothing_was_read_is_a_doubt() -> None:
    inputs = (*whole("latency_hist", "us", "ap"), *CLOCKS[::2])
    probes = tuple(build.probes(origin=origin, dest=dest) for origin in ("us", "eu") for dest in ("us", "ap"))
    now: dict[str, Any] = {"latency": (build.latency(dest="ap"),), "inputs": inputs}
    assert subjects(judged(LATENCY, **now, probes=probes))["us -> eu"] == (DOUBT, NONE_READ)
    assert subjects(judged(LATENCY, {"probes": probes}, **now))["us -> eu"] == (DOUBT, NONE_READ)
    assert judged(LATENCY, **now).verdict is PASS
    there = (*inputs, build.inputs(kind="clock", region="eu"))
    assert judged(LATENCY, {"probes": probes}, latency=now["latency"], inputs=there).verdict is PASS


def test_a_region_whose_writers_fell_silent_is_a_doubt() -> None:
    silent = build.inputs(kind="clock", region="eu", files=0, rows=0, writer_hours=0, silent_writer_hours=2)
    of_us = commits_and_deliveries("us", "us")
    inputs = (*LEDGERS[:2], CLOCKS[0], silent)
    result = judged(THROUGHPUT, throughput=(build.throughput(dest="us"),), accounts=of_us, inputs=inputs)
    assert subjects(result) == {"us": (PASS, ""), "eu": (DOUBT, NONE_READ)}


NO_FILE_READ = torn("outcome")
SOME_FILES_READ = torn("outcome", rows=900)
ROWS_GONE = build.inputs(kind="outcome", missing_rows=100)  # numbered, so of a writer that is known
SILENT = build.inputs(kind="clock", silent_writer_hours=1)


@pytest.mark.parametrize(("source", "writers", "row", "expected"), [
    ("broker", (), NO_FILE_READ, DOUBT), ("gateway", (), NO_FILE_READ, DOUBT),
    ("broker", ("eu/2001",), SOME_FILES_READ, DOUBT), ("gateway", (GATEWAY,), SOME_FILES_READ, DOUBT),
    # Whose the unreadable files are nobody knows, whoever wrote the others.
    ("broker", (GATEWAY,), SOME_FILES_READ, DOUBT), ("gateway", ("eu/2001",), SOME_FILES_READ, DOUBT),
    ("broker", ("eu/2001",), ROWS_GONE, DOUBT), ("gateway", (GATEWAY,), ROWS_GONE, DOUBT),
    ("broker", (GATEWAY,), ROWS_GONE, PASS), ("gateway", ("eu/2001",), ROWS_GONE, PASS),
])  # fmt: skip
def test_requests_of_a_region_whose_outcomes_are_missing_are_a_doubt_where_somebody_may_have_counted_them(
    source: str, writers: tuple[str, ...], row: Any, expected: Verdict
) -> None:
    target = RequestsTarget(name="requests", source=source, objective=0.99)
    inputs = (*whole("outcome", "us"), *CLOCKS, dataclasses.replace(row, writers=writers))
    result = judged(target, requests=(build.requests(region="us", source=source),), inputs=inputs)
    assert result.verdict is expected
    assert ("requests in eu" in subjects(result)) is (expected is DOUBT)


@pytest.mark.parametrize(("source", "writer", "expected"), [("broker", GATEWAY, DOUBT), ("gateway", "eu/2001", PASS)])
def test_brokers_that_fell_silent_may_have_counted_requests_whoever_wrote_on(
    source: str, writer: str, expected: Verdict
) -> None:
    target = RequestsTarget(name="requests", source=source, objective=0.99)
    inputs = (*whole("outcome", "us"), CLOCKS[0], SILENT, build.inputs(kind="outcome", writers=(writer,)))
    result = judged(target, requests=(build.requests(region="us", source=source),), inputs=inputs)
    assert result.verdict is expected


def test_an_operation_without_a_valid_request_is_a_doubt_where_outcomes_are_missing() -> None:
    target = RequestsTarget(name="requests", objective=0.9)
    only_wrong = build.requests(region="eu", attempts=5, ok=0, client_error=5)
    counted = (build.requests(region="us"), only_wrong)
    assert judged(target, requests=counted, inputs=(*whole("outcome", "us", "eu"), *CLOCKS)).verdict is PASS
    result = judged(target, requests=counted, inputs=(*whole("outcome", "us"), *CLOCKS, ROWS_GONE))
    assert subjects(result) == {
        "publish in us": (PASS, ""),
        "publish in eu": (DOUBT, "10 % of its traces are missing, and none of the others is about this"),
    }
    assert result.verdict is DOUBT


def test_expected_pairs_of_probes_with_an_end_that_cannot_be_read_are_a_doubt() -> None:
    target = ProbesTarget(name="probes", objective=0.9)
    probes = tuple(build.probes(origin=origin, dest=dest) for origin in ("us", "eu") for dest in ("us", "ap"))
    inputs = (*whole("probe", "us", "ap"), *CLOCKS)
    assert judged(target, probes=probes, inputs=inputs).verdict is PASS
    result = judged(target, probes=probes, inputs=(*inputs, torn("probe")))
    doubts = {name for name, (verdict, _) in subjects(result).items() if verdict is DOUBT}
    assert doubts == {"us -> eu", "eu -> eu", "ap -> eu"}
    alone = judged(target, inputs=(*CLOCKS, torn("probe")))
    assert set(subjects(alone)) == {"us -> eu", "eu -> eu", "ap -> eu"}
    assert alone.verdict is DOUBT


NAMED: tuple[tuple[Target, dict[str, Any], str], ...] = (
    (LatencyTarget(name="t", scope=named("us -> eu", "us -> mars")), {"latency": (build.latency(),)}, "us -> mars"),
    (
        ThroughputTarget(name="throughput", scope=named("eu", "mars")),
        {"throughput": (build.throughput(),)},
        "mars",
    ),
    (IntegrityTarget(name="t", scope=named("eu", "mars")), {"integrity": (build.reader(),)}, "readers in mars"),
    (
        RequestsTarget(name="t", objective=0.9, scope=named("eu", "mars")),
        {"requests": (build.requests(),)},
        "requests in mars",
    ),
    (
        ProbesTarget(name="t", objective=0.9, scope=named("us -> eu", "us -> mars")),
        {"probes": (build.probes(),)},
        "us -> mars",
    ),
    (
        MinutesTarget(name="minutes", objective=0.9, scope=named("us -> eu", "us -> mars")),
        {"probes": (build.probes(),), "minutes": (build.minutes(),)},
        "us -> mars",
    ),
)


@pytest.mark.parametrize(("target", "now", "name"), NAMED)
def test_what_a_scope_names_and_nobody_counted_is_no_pass(target: Target, now: dict[str, Any], name: str) -> None:
    made = report(target, **now)
    (result,) = made.targets
    assert subjects(result)[name] == (NO_DATA, "nothing was counted")
    assert (result.verdict, result.worst_subject, result.reason) == (DOUBT, name, "nothing was counted")
    assert made.headline == f"INCONCLUSIVE: {target.name} {name}: nothing was counted"
    assert next_steps(made) == (
        f"{target.name}: nothing was counted of {name}; check the name in the targets file, or find its traces",
    )
    assert "1 of 2" in to_html(made)
    assert f'name="{name}"'.replace(">", "&gt;") in to_junit(made)
    (nothing,) = report(target).targets
    assert nothing.verdict is NO_DATA
    assert all(verdict is NO_DATA for verdict, _ in subjects(nothing).values())


def test_a_breach_is_not_taken_back_by_a_name_without_data() -> None:
    target = LatencyTarget(name="latency", scope=named("us -> eu", "us -> mars"))
    assert judged(target, latency=(build.latency(bad=5_000),)).verdict is Verdict.BREACH


def test_what_cannot_be_read_has_a_next_step_and_no_sentence_that_all_is_well() -> None:
    made = report(INTEGRITY, integrity=READERS, inputs=(*LEDGERS, torn("ledger")))
    text = "nothing is known of readers in eu (none of its traces can be read)"
    assert next_steps(made) == (f"integrity: {text}; find the files, or see why its brokers wrote none",)
    news = "Of what was read, nothing was lost, repeated without saying so, or reordered: 2 readers."
    assert f"{news} Not known: readers in eu." in to_html(made)
