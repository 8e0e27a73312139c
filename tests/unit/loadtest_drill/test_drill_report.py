"""What a drill's report says, and what it does not."""

from __future__ import annotations

import json

import pytest

from loadtest.drill.drill_core import judge
from loadtest.drill.drill_run import victim_of
from loadtest.drill.load import name_of, value_of
from loadtest.drill.report_core import document_of, markdown_of, summary_of
from loadtest.drill.run_result import RunResult
from loadtest.drill.values import Fate, Home, Observed, RecordName, Sent, StoredRecord
from loadtest.wan.heals_core import Delivery

HEAD = {"kind": "region-loss", "began": "now", "mesh": "m", "where": "here", "machine": "2 cores."}


def result(*, rto_s: float = 3.0, audit: str = "agrees", broken: tuple[str, ...] = (), how: str = "kill") -> RunResult:
    name = RecordName("away", 0)
    sent = Sent(name=name, asked=2, fate=Fate.STORED, due_ns=10**9, at_ns=int((1 + rto_s) * 10**9), epoch=2, offset=0)
    observed = Observed(
        sent=[sent],
        streams={"us": [StoredRecord(0, 2, name)]},
        branches=[],
        readings=[],
        fault_ns=10**9,
        old_epoch=1,
        away=frozenset({"away"}),
        moves_home=True,
    )
    return RunResult(
        topic="t",
        victim="us",
        how=how,
        control_leader="us",
        old_epoch=1,
        new_home=Home(region="us", epoch=3, start=9),
        findings=judge(observed),
        audit=(audit, ""),
        marks={"fail_back_s": 4.0},
        notes=(),
        broken=broken,
        deliveries={"eu": (Delivery(0, 1, 2 * 10**9),)},
        fault_ns=10**9,
        healed_ns=10**9,
    )


def test_a_drill_that_kept_everything_says_so() -> None:
    summary = summary_of([result(), result(rto_s=4.0)])
    assert (summary["verdict"], summary["missed"], summary["broken"]) == ("KEPT", [], [])
    assert (summary["rto_median_s"], summary["rto_worst_s"]) == (3.5, 4.0)


def test_a_broken_promise_fails_the_drill_and_names_the_run() -> None:
    summary = summary_of([result(), result(broken=("1 records are lost",))])
    assert (summary["verdict"], summary["broken"]) == ("FAILED", ["run 2: 1 records are lost"])


def test_times_over_the_goals_are_said_and_do_not_break_a_promise() -> None:
    summary = summary_of([result(rto_s=9.0)])
    assert summary["verdict"] == "KEPT"
    assert summary["missed"] == ["median RTO 9.00 s, goal 5 s", "worst RTO 9.00 s, goal 8 s"]


def test_an_audit_that_was_not_run_is_not_called_clean() -> None:
    assert "the audit was not run in every run" in summary_of([result(audit="not run")])["missed"]


def test_a_healed_link_on_which_nobody_caught_up_misses_its_goal() -> None:
    late = result(how="link")
    assert any("caught up" in text for text in summary_of([late])["missed"])


def test_json_and_markdown_hold_every_run() -> None:
    document = json.loads(json.dumps(document_of(HEAD, [result(), result(how="link", broken=("it broke",))])))
    text = markdown_of(document)
    assert text.startswith("# Drill region-loss: FAILED")
    assert "| 1 | us | kill | yes | 3.00 s |" in text
    assert "BROKEN: it broke" in text


def test_control_s_leader_is_the_first_victim_and_all_regions_follow() -> None:
    regions = ["us", "eu", "ap"]
    assert [victim_of(number, regions, "eu") for number in range(4)] == ["eu", "us", "ap", "eu"]


def test_a_record_is_named_by_its_value() -> None:
    assert name_of(value_of(RecordName("away-geo", 7), 12)) == (RecordName("away-geo", 7), 12)


@pytest.mark.parametrize("value", [None, b"", b"hello", b"a:b:c:d", b"a:1:2"])
def test_a_value_that_no_drill_wrote_has_no_name(value: bytes | None) -> None:
    assert name_of(value) == (None, 0)
