"""The verdict of a run: INVALID before everything, BREACH for whatever was not kept or not measured, else PASS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadtest.history.checker_core import check
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.books_core import (
    Books,
    books_of,
    differences_to_locust,
    differences_to_report,
    faults_of_integrity,
    shares_in_time,
)
from loadtest.load.campaign import Campaign, Checks, Readers, Stage, Target, Topic, Topology, Users
from loadtest.load.samples_core import Samples
from loadtest.load.verdict_core import (
    Judgement,
    Line,
    faults_of_endings,
    faults_of_generator,
    faults_of_offer,
    judge_agreement,
    judge_checks,
    judge_endings,
    judge_ends,
    judge_latencies,
    judge_replicas,
    judge_slowdown,
    judge_throughput,
    totals_of,
)
from sla.report.jsonout import to_json
from tests.sla.sample_report import sample_report

CAMPAIGN = Campaign(
    name="unit",
    about="",
    topics=(Topic(name="orders"),),
    stages=(Stage(seconds=10, users=1, rate=10),),
    users=(Users(kind="kafka", topics=("orders",)),),
)


def second(at: float, **more: Any) -> dict[str, Any]:
    row = {"second": at, "role": "publish", "worker": "w1", "done": [], "cpu_share": 0.1, "lag_p99_ms": 0.5}
    return row | more


def generator(seconds: list[dict[str, Any]], **more: Any) -> list[str]:
    return faults_of_generator(CAMPAIGN, seconds, more.get("trouble", ()), from_s=100, to_s=110)


def test_a_generator_within_its_bounds_says_something() -> None:
    assert generator([second(100 + at) for at in range(11)]) == []


def test_a_generator_without_cpu_to_spare_says_nothing() -> None:
    said = generator([second(100 + at, cpu_share=0.97) for at in range(11)])
    assert said == ["publish engine of w1: 97% of a core in its busier seconds, more than 60%"]


def test_a_generator_that_sends_late_says_nothing() -> None:
    late = [second(100 + at, lag_p99_ms=30.0 if at > 7 else 0.4) for at in range(11)]
    assert generator(late) == ["publish engine of w1: it sent 30.0 ms late (p99), more than 2 ms"]


def test_seconds_in_which_nothing_is_due_do_not_hide_a_late_generator() -> None:
    late = [second(100 + at, lag_p99_ms=30.0 if at == 5 else 0.0) for at in range(11)]
    assert generator(late) == ["publish engine of w1: it sent 30.0 ms late (p99), more than 2 ms"]


def test_what_engines_do_before_and_after_the_load_is_not_judged() -> None:
    outside = [second(90, lag_p99_ms=500.0), second(120, cpu_share=1.0)]
    assert generator([*outside, *(second(100 + at) for at in range(11))]) == []
    assert generator(outside) == ["no engine told anything while there was load"]


def test_a_lost_worker_says_nothing() -> None:
    rows = [second(100 + at) for at in range(11)]
    assert generator(rows, trouble=[{"what": "worker w2 was lost"}]) == ["worker w2 was lost"]


def test_a_clock_that_stepped_records_without_an_end_and_an_engine_without_one_say_nothing() -> None:
    rows = [second(100), second(101)]
    assert faults_of_endings(rows, {"publish-w1": {"clock_stepped_ms": 0.0, "unanswered": 0}}) == []
    said = faults_of_endings(rows, {"publish-w1": {"clock_stepped_ms": 3.0}})
    assert said == ["the clock of the generator stepped by 3.0 ms"]
    said = faults_of_endings(rows, {"publish-w1": {"clock_stepped_ms": 0.0, "unanswered": 4}})
    assert said == ["4 records were never answered nor given up"]
    said = faults_of_endings(rows, {"read-w1": {"clock_stepped_ms": 0.0}})
    assert said == ["publish engine of w1: it was ended, or its last words were not brought here"]


@pytest.mark.parametrize(("n", "failed", "faults"), [(40, 20, 0), (59, 0, 0), (20, 4, 1), (0, 0, 1)])
def test_a_load_that_ended_early_says_nothing(n: int, failed: int, faults: int) -> None:
    campaign = replace(CAMPAIGN, stages=(Stage(seconds=20, users=1, rate=5),))
    said = faults_of_offer(campaign, totals_of([told([1.0] * n, "publish", "orders", failed)]))
    assert len(said) == faults
    assert all(line.endswith("records were offered, the stages say 100") for line in said)


def test_a_load_of_nothing_is_offered_whole() -> None:
    assert faults_of_offer(replace(CAMPAIGN, stages=(Stage(seconds=20, users=0, rate=0),)), {}) == []


def told(latencies: list[float], method: str = "deliver", name: str = "us->eu", failed: int = 0) -> dict[str, Any]:
    samples = Samples(failed=failed)
    for latency in latencies:
        samples.add(latency)
    return second(101, done=[{"method": method, "name": name, **samples.told()}])


@pytest.mark.parametrize(("latency", "floor", "kept"), [(49.0, 0, True), (51.0, 0, False), (80.0, 35, True)])
def test_a_pair_is_judged_by_its_p99_above_its_floor(latency: float, floor: float, *, kept: bool) -> None:
    target = Target(deliver_p99_ms_max=50, floor_ms={"us->eu": floor} if floor else {})
    totals = totals_of([told([latency] * 200)])
    (line,) = judge_latencies(replace(CAMPAIGN, target=target), totals)
    assert (line.what, line.is_kept) == ("deliver us->eu p99", kept)


def test_what_is_told_of_the_seconds_from_a_time_on_leaves_out_the_one_in_which_it_lies() -> None:
    rows = [told([900.0]), {**told([5.0]), "second": 102.5}, {**told([6.0]), "second": 103.5}]
    kept = totals_of(rows, from_s=102)["deliver", "us->eu"]
    assert (kept.n, kept.max_ms) == (1, 6.0)
    assert totals_of(rows)["deliver", "us->eu"].n == 3


def test_a_target_without_a_measurement_is_broken() -> None:
    campaign = replace(CAMPAIGN, target=Target(deliver_p99_ms_max=50, records_per_s_min=1, published_share_min=0.5))
    lines = judge_latencies(campaign, {}) + judge_throughput(campaign, {}, Books(), load_s=10)
    assert [line.is_kept for line in lines] == [False, False, False]


def test_a_pair_of_which_nothing_was_read_is_missed_beside_those_that_were() -> None:
    campaign = replace(
        CAMPAIGN,
        topology=Topology(regions=("us", "eu")),
        users=(Users(kind="kafka", topics=("orders",), regions=("us",)),),
        readers=(Readers(topics=("orders",)), Readers(topics=("orders",), pause_ms=5), Readers(topics=("bills",))),
        target=Target(deliver_p99_ms_max=50),
    )
    lines = judge_latencies(campaign, totals_of([told([1.0], name="us->us")]))
    assert [(line.what, line.is_kept) for line in lines] == [
        ("deliver us->us p99", True),
        ("deliver us->eu p99", False),
    ]


def test_records_that_failed_were_due_all_the_same() -> None:
    campaign = replace(CAMPAIGN, target=Target(publish_p99_ms_max=20, published_share_min=0.9))
    books = Books()
    books.acked["orders"] = 80
    totals = totals_of([told([5.0] * 80, "publish", "orders", failed=20)])
    lines = judge_latencies(campaign, totals) + judge_throughput(campaign, totals, books, load_s=10)
    assert [(line.found, line.is_kept) for line in lines] == [("5 ms of 80", True), ("80.0000% of 100", False)]


def produce(number: int, *, offset: int | None, at_ms: int, process: str = "w1-0-us") -> Operation:
    return Operation(
        process=process,
        number=number,
        kind=Kind.PRODUCE,
        key="orders/0",
        value=f"{process}:{number}",
        invoked_ns=at_ms * 1_000_000,
        completed_ns=(at_ms + 1) * 1_000_000,
        outcome=Outcome.UNKNOWN if offset is None else Outcome.OK,
        offset=offset,
    )


def fetch(site: str, records: list[tuple[int, str]], *, final: bool = False) -> Operation:
    return Operation(
        process=f"{site}-{final}",
        number=0,
        kind=Kind.FETCH,
        key="orders/0",
        site=site,
        position=0,
        records=tuple(records),
        invoked_ns=10_000_000_000,
        completed_ns=10_000_000_001,
        outcome=Outcome.OK,
        final=final,
    )


HISTORY = [
    produce(0, offset=0, at_ms=0),
    produce(1, offset=1, at_ms=100),
    produce(2, offset=None, at_ms=200),
    produce(3, offset=2, at_ms=2_100),
    fetch("us", [(0, "w1-0-us:0"), (1, "w1-0-us:1"), (2, "w1-0-us:3")]),
    fetch("us", [(0, "w1-0-us:0"), (1, "w1-0-us:1"), (2, "w1-0-us:3")], final=True),
]
LOCUST = [
    {"method": "publish", "name": "orders", "n": 4, "failed": 1},
    {"method": "deliver", "name": "us->us", "n": 3, "failed": 0},
]
ACCOUNT: dict[str, Any] = {"topic": "orders", "origin": "", "partition": 0, "dest": "us", "published": 3}
ACCOUNT |= {"delivered": 3, "untraced": 0, "refused": 0, "adds_up": True}


def differences(
    account: dict[str, Any], operations: Sequence[Operation] = HISTORY, *, untraced_max: int = 0, once: bool = False
) -> tuple[int, list[str]]:
    return differences_to_report(
        books_of(operations),
        [account],
        untraced_max={"us": untraced_max, "eu": 99},
        sent_once={"orders"} if once else set(),
    )


def test_counts_of_locust_histories_and_report_agree_record_by_record() -> None:
    books = books_of(HISTORY)
    assert differences_to_locust(books, LOCUST) == []
    assert differences(ACCOUNT) == (3, [])
    assert judge_agreement("report", 3, []).is_kept


def test_what_a_program_beside_the_load_reads_is_no_delivery() -> None:
    beside = replace(fetch("us", [(0, "w1-0-us:0")]), process="program-moving-reader-0.1")
    assert differences_to_locust(books_of([*HISTORY, beside]), LOCUST) == []


@pytest.mark.parametrize(
    "wrong",
    [{"n": 5}, {"failed": 0}, {"name": "stock"}],
)
def test_one_record_that_locust_counts_otherwise_is_told(wrong: dict[str, Any]) -> None:
    assert differences_to_locust(books_of(HISTORY), [LOCUST[0] | wrong, LOCUST[1]])


@pytest.mark.parametrize(
    "wrong",
    [
        {"published": 4}, {"published": 2}, {"delivered": 2}, {"delivered": 4}, {"delivered": 2, "untraced": 1},
        {"adds_up": None}, {"adds_up": False}, {"dest": "eu"}, {"origin": "us"}, {"pending": 1}, {"lost": 1},
        {"aborted": 1}, {"expired": 1}, {"not_asked": 1}, {"unnamed": 1},
    ],
)  # fmt: skip
def test_one_record_that_the_report_counts_otherwise_is_told(wrong: dict[str, Any]) -> None:
    _, found = differences(ACCOUNT | wrong)
    assert len(found) == 1
    assert not judge_agreement("report", 3, found).is_kept


def test_what_a_kill_explains_may_be_untraced_where_a_broker_was_killed() -> None:
    row = ACCOUNT | {"delivered": 2, "untraced": 1}
    assert differences(row, untraced_max=1) == (2, [])
    assert differences(row | {"delivered": 1, "untraced": 2}, untraced_max=1)[1] != []


def refused(number: int, note: str) -> Operation:
    return replace(produce(number, offset=None, at_ms=5_000 + number), outcome=Outcome.FAIL, note=note)


def test_refusals_are_equal_for_who_sends_once_and_may_be_more_for_who_sends_again() -> None:
    history = [*HISTORY, refused(4, "refused: not enough replicas"), refused(5, "not sent: too many")]
    one, unknown = ACCOUNT | {"refused": 1}, 1  # record 2 of the history
    assert differences(one, history, once=True) == (3, [])
    assert differences(one | {"refused": 1 + unknown}, history, once=True) == (3, [])
    assert differences(one | {"refused": 2 + unknown}, history, once=True)[1] != []
    assert differences(one | {"refused": 0}, history, once=True)[1] != []
    assert differences(one | {"refused": 9}, history) == (3, [])


def test_what_was_stored_of_unknown_outcome_was_not_refused() -> None:
    stored = [*HISTORY[:4], fetch("us", [(0, "w1-0-us:0"), (1, "w1-0-us:1"), (2, "w1-0-us:3"), (3, "w1-0-us:2")])]
    row = ACCOUNT | {"published": 4, "delivered": 4}
    assert differences(row, stored, once=True) == (4, [])
    assert differences(row | {"refused": 1}, stored, once=True)[1] != []


def test_repeats_and_reorderings_that_the_report_saw_are_faults() -> None:
    reader = json.loads(to_json(sample_report()))["integrity"]["readers"][0]
    row = reader | {"topic": "orders", "origin": "us", "dest": "eu", "dup_unflagged": 0, "order_violations": 0}
    assert faults_of_integrity([row]) == []
    assert faults_of_integrity([row | {"dup_unflagged": 3}]) == ["us.orders in eu: 3 repeated without saying so"]
    assert faults_of_integrity([row | {"origin": "", "order_violations": 2}]) == ["orders in eu: 2 out of order"]


def test_the_share_in_time_counts_from_the_sending_by_one_clock() -> None:
    late = replace(fetch("eu", [(0, "w1-0-us:0"), (1, "w1-0-us:1")]), completed_ns=60_000_000, invoked_ns=0)
    nobody = replace(fetch("eu", [(7, "bytes:00")]), completed_ns=60_000_000, invoked_ns=0)
    assert shares_in_time([*HISTORY[:2], late, nobody], limit_ms=50) == {"us -> eu": 0.5}


def test_nothing_compared_is_no_agreement() -> None:
    assert not judge_agreement("report", 0, []).is_kept


def test_the_longest_silence_is_that_of_one_partition() -> None:
    books = books_of(HISTORY)
    assert books.longest_silence_ms == 2_000
    lines = [
        judge_checks(replace(CAMPAIGN, checks=Checks(silence_s_max=bound)), None, books)[0].is_kept for bound in (2, 1)
    ]
    assert lines == [True, False]


def test_a_partition_is_silent_until_its_first_acknowledgement_and_after_its_last_one() -> None:
    def send(number: int, sent_s: float, outcome: Outcome) -> Operation:
        sent_ns = int(sent_s * 1e9)
        told: dict[str, Any] = {
            "outcome": outcome,
            "completed_ns": sent_ns,
            "offset": 0 if outcome is Outcome.OK else None,
        }
        row: dict[str, Any] = {"process": "w1-0-us", "number": number, "kind": Kind.PRODUCE, "value": f"v{number}"}
        return Operation(**row, key="orders/0", invoked_ns=sent_ns, **told)

    first, last = send(0, 1, Outcome.FAIL), send(2, 9, Outcome.FAIL)
    for at_s, silence_s in ((2, 7), (7, 6)):
        books = books_of([first, send(1, at_s, Outcome.OK), last])
        assert (books.longest_silence_ms, books.silent_key) == (silence_s * 1e3, "orders/0")
    assert books_of([first, last]).longest_silence_ms == 8_000


def test_ends_are_told_of_every_partition_or_nothing_is_known_of_them() -> None:
    def end(number: int, outcome: Outcome, offset: int | None) -> Operation:
        row: dict[str, Any] = {"process": "ends", "number": number, "kind": Kind.END, "key": f"orders/{number}"}
        return Operation(**row, invoked_ns=1, completed_ns=2, outcome=outcome, offset=offset)

    topics = (Topic(name="orders", partitions=2), Topic(name="filled", filled_mb=1))
    line = judge_ends(topics, [end(0, Outcome.OK, 3), end(1, Outcome.FAIL, None)])
    assert (line.found, line.is_kept) == ("1 told, none of orders/1", False)
    assert judge_ends(topics, [end(0, Outcome.OK, 3), end(1, Outcome.OK, 0)]).is_kept


def test_a_lost_record_is_a_breach() -> None:
    lost = [*HISTORY[:4], fetch("us", [(0, "w1-0-us:0"), (1, "w1-0-us:1")], final=True)]
    (line,) = judge_checks(CAMPAIGN, check(lost), books_of(lost))
    assert not line.is_kept
    assert "UNSEEN" in line.found


def test_a_loss_that_must_be_found_is_kept_by_the_loss_alone() -> None:
    campaign = replace(CAMPAIGN, checks=Checks(finds_loss=True))
    lost = [*HISTORY[:4], fetch("us", [(0, "w1-0-us:0"), (1, "w1-0-us:1")], final=True)]
    assert judge_checks(campaign, check(lost), books_of(lost))[0].is_kept
    whole = [*HISTORY[:4], fetch("us", [(0, "w1-0-us:0"), (1, "w1-0-us:1"), (2, "w1-0-us:3")], final=True)]
    assert check(whole).is_valid
    assert not judge_checks(campaign, check(whole), books_of(whole))[0].is_kept


def test_what_a_damaged_broker_showed_is_nobodys_delivery() -> None:
    shown = replace(fetch("us", [(0, "w1-0-us:0")]), process="shown-1")
    books, plain = books_of([*HISTORY, shown]), books_of(HISTORY)
    assert (books.pairs, books.read_at.keys()) == (plain.pairs, plain.read_at.keys())


def test_a_broker_that_ended_by_itself_is_a_breach() -> None:
    assert judge_endings([]) == []
    (line,) = judge_endings(["us-1", "us-3"])
    assert (line.found, line.is_kept) == ("us-1, us-3", False)


def delivered(at: float, latency_ms: float) -> dict[str, Any]:
    samples = Samples()
    samples.add(latency_ms)
    return second(at, done=[{"method": "deliver", "name": "us->us", **samples.told()}])


@pytest.mark.parametrize(
    ("before_ms", "under_ms", "kept"), [(30, 59, True), (30, 61, False), (2, 11, True), (2, 13, False)]
)
def test_twice_the_latency_is_a_breach_but_for_the_noise_of_the_machine(
    before_ms: float, under_ms: float, *, kept: bool
) -> None:
    told = [delivered(105, before_ms), delivered(115, under_ms), delivered(125, 900)]
    events = [
        {"what": "flood", "of": "us-1", "second": 110},
        {"what": "healed", "of": "us-1", "fault": "flood", "second": 120},
    ]
    (line,) = judge_slowdown(told, events, 2.0, from_s=100)
    assert line.is_kept is kept


def test_each_of_two_faults_that_overlap_is_judged_from_its_own_beginning() -> None:
    told = [delivered(105, 30), delivered(113, 40), delivered(125, 50)]
    events = [
        {"what": "flood", "of": "us-1", "second": 110},
        {"what": "slow-clients", "of": "us-1", "second": 115},
        {"what": "healed", "of": "us-1", "fault": "flood", "second": 116},
        {"what": "healed", "of": "us-1", "fault": "slow-clients", "second": 130},
    ]
    lines = judge_slowdown(told, events, 2.0, from_s=100)
    assert [line.what for line in lines] == ["deliver p99 under flood us-1", "deliver p99 under slow-clients us-1"]
    assert all(line.is_kept for line in lines)


def test_a_fault_under_which_nothing_was_read_is_a_breach() -> None:
    events = [
        {"what": "flood", "of": "us-1", "second": 110},
        {"what": "healed", "of": "us-1", "fault": "flood", "second": 120},
    ]
    for told in ([delivered(105, 1)], [delivered(115, 1)], []):
        assert not judge_slowdown(told, events, 2.0, from_s=100)[0].is_kept
    assert not judge_slowdown([delivered(105, 1)], [], 2.0, from_s=100)[0].is_kept


def test_invalid_comes_before_breach_and_breach_before_pass() -> None:
    kept = Line(what="a", wanted="", found="", is_kept=True)
    broken = replace(kept, is_kept=False)
    assert Judgement(lines=(kept,), invalid=()).verdict == "PASS"
    assert Judgement(lines=(kept, broken), invalid=()).verdict == "BREACH"
    assert Judgement(lines=(broken,), invalid=("why",)).verdict == "INVALID"
    assert Judgement(lines=(kept,), invalid=("why",)).told()["invalid"] == ["why"]


@pytest.mark.parametrize(
    ("differ", "found", "kept"),
    [([], "5 compared, none differs", True), (["us-2"], "5 compared, us-2 orders/1 differs", False)],
)
def test_replicas_are_equal_when_none_of_their_files_differs(differ: list[str], found: str, *, kept: bool) -> None:
    rows = [
        {"of": "orders/0", "compared": ["us-1", "us-2"], "differ": []},
        {"of": "orders/1", "compared": ["us-1", "us-2", "us-3"], "differ": differ},
    ]
    line = judge_replicas(rows)
    assert (line.found, line.is_kept) == (found, kept)


def test_replicas_that_nobody_compared_or_that_were_alone_are_not_equal() -> None:
    assert not judge_replicas([]).is_kept
    assert not judge_replicas([{"of": "orders/0", "compared": ["us-1"], "differ": []}]).is_kept
