"""The table of Locust's page judges as the end does, on what was counted so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtest.load.campaign import Campaign, Stage, Target, Topic, Users
from loadtest.load.live_core import live_rows
from loadtest.load.samples_core import Samples

CAMPAIGN = Campaign(
    name="unit",
    about="",
    topics=(Topic(name="orders"),),
    stages=(Stage(seconds=60, users=1, rate=10),),
    users=(Users(kind="kafka", topics=("orders",)),),
    target=Target(deliver_p99_ms_max=50, floor_ms={"us->ap": 75}, published_share_min=1.0),
)


def samples(*latencies: float, failed: int = 0) -> Samples:
    made = Samples(failed=failed)
    for latency in latencies:
        made.add(latency)
    return made


TOTALS = {
    ("publish", "orders"): samples(*[5.0] * 100),
    ("deliver", "us->us"): samples(*[20.0] * 100),
    ("deliver", "us->ap"): samples(*[110.0] * 100),
}


def second(at: float, **more: Any) -> dict[str, Any]:
    row = {"second": at, "role": "publish", "worker": "eu", "done": [], "cpu_share": 0.1, "lag_p99_ms": 0.5}
    return row | more


def verdicts(totals: Any = TOTALS, *, now_s: float = 110, trouble: Any = (), **more: Any) -> dict[str, str]:
    told = [second(100 + at, **more) for at in range(10)]
    rows = live_rows(CAMPAIGN, totals, told, trouble, began_s=100, now_s=now_s)
    return {row["what"]: row["verdict"] for row in rows}


def test_each_pair_has_its_own_bound_while_it_runs() -> None:
    assert verdicts() == {
        "verdict so far": "PASS",
        "deliver us->ap": "kept",
        "deliver us->us": "kept",
        "publish orders": "",
        "acknowledged": "kept",
    }
    late = verdicts(TOTALS | {("deliver", "us->us"): samples(*[60.0] * 100)})
    assert (late["verdict so far"], late["deliver us->us"], late["deliver us->ap"]) == ("BREACH", "BROKEN", "kept")


def test_a_row_has_what_was_measured_and_what_is_wanted() -> None:
    rows = live_rows(CAMPAIGN, TOTALS, [second(105)], (), began_s=100, now_s=110)
    (row,) = (row for row in rows if row["what"] == "deliver us->ap")
    assert (row["records"], row["p50"], row["p99"], row["max"]) == ("100", "110", "110", "110.0")
    assert (row["wanted"], row["found"]) == ("<= 125 ms", "110 ms of 100")


def test_a_pair_without_a_bound_is_shown_all_the_same() -> None:
    campaign = replace(CAMPAIGN, target=Target())
    rows = live_rows(campaign, TOTALS, [second(105)], (), began_s=100, now_s=110)
    assert [(row["what"], row["wanted"]) for row in rows[1:]] == [
        ("deliver us->ap", ""),
        ("deliver us->us", ""),
        ("publish orders", ""),
    ]


def test_a_generator_that_is_the_bottleneck_is_said_at_once() -> None:
    assert verdicts(cpu_share=0.97)["verdict so far"] == "INVALID"
    lost = verdicts(trouble=[{"what": "the worker eu was lost"}])
    assert (lost["verdict so far"], lost["generator"]) == ("INVALID", "INVALID")


def test_nothing_is_judged_before_the_load_has_begun() -> None:
    assert verdicts(now_s=101) == {"verdict so far": ""}
