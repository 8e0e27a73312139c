"""What a drill's report says, and what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest.drill.drill_core import findings_of, worst_rto_s
from loadtest.drill.drill_run import line_of, victim_of
from loadtest.drill.report_core import SUMMED, document_of, markdown_of, summary_of
from loadtest.history.checker_core import check
from loadtest.load.orphans_core import orphans_of

HEAD = {"kind": "region-loss", "began": "now", "mesh": "m", "where": "here", "machine": "2 cores."}
NOTHING = findings_of([], orphans_of([], [], []), check([]), [], fault_ns=0, away=(), moves_home=False)
ZERO: dict[str, Any] = dict.fromkeys(NOTHING, 0)


def result(rto: float | None = 3.0, **changes: Any) -> dict[str, Any]:
    run: dict[str, Any] = ZERO | {
        "victim": "us",
        "how": "kill",
        "control_leader": "us",
        "overlap_s": None,
        "rto_s": rto,
    }
    run |= {"rto_by_publisher_s": {"away-geo": rto}, "silence_s": {"away-geo": 2.5}, "marks": {"fail_back_s": 4.0}}
    lists: dict[str, Any] = {name: [] for name in ("judged", "notes", "broken", "invalid", "after_heal")}
    return run | lists | {"audit": audit("agrees")} | changes


def audit(result: str, said: str = "") -> dict[str, str]:
    return {"result": result, "said": said}


def healed(flowing_s: float | None, caught_up_s: float | None) -> dict[str, Any]:
    return {"of": "us-ap", "region": "ap", "flowing_s": flowing_s, "caught_up_s": caught_up_s}


def text_of(*results: dict[str, Any]) -> str:
    return markdown_of(json.loads(json.dumps(document_of(HEAD, results))))


def test_a_drill_that_kept_everything_says_so() -> None:
    summary = summary_of([result(), result(4.0)])
    assert (summary["verdict"], summary["missed"], summary["broken"]) == ("KEPT", [], [])
    assert (summary["rto_median_s"], summary["rto_worst_s"]) == (3.5, 4.0)


def test_a_broken_promise_fails_the_drill_and_names_the_run() -> None:
    summary = summary_of([result(), result(broken=["1 records are lost"])])
    assert (summary["verdict"], summary["broken"]) == ("FAILED", ["run 2: 1 records are lost"])
    assert line_of(2, result(broken=["1 records are lost"])).endswith("; BROKEN: 1 records are lost")


def test_a_run_that_says_nothing_does_not_fail_the_drill_and_does_not_hide_a_promise_that_another_broke() -> None:
    idle = result(broken=["1 records are lost"], invalid=["the generator was late"])
    summary = summary_of([result(), idle])
    assert (summary["verdict"], summary["invalid"]) == ("INVALID", ["run 2: the generator was late"])
    assert summary_of([idle, result(broken=["it broke"])])["verdict"] == "FAILED"
    assert line_of(2, idle).endswith("; BROKEN: 1 records are lost; INVALID: the generator was late")
    text = text_of(result(), idle)
    assert text.startswith("# Drill region-loss: INVALID")
    assert "\n- INVALID: run 2: the generator was late\n" in text
    assert text.endswith("\n- BROKEN: 1 records are lost\n- INVALID: the generator was late\n")


def test_times_over_the_goals_are_said_and_do_not_break_a_promise() -> None:
    summary = summary_of([result(9.0)])
    assert summary["verdict"] == "KEPT"
    assert summary["missed"] == ["median RTO 9.00 s, goal 5 s", "worst RTO 9.00 s, goal 8 s"]


def test_an_audit_that_was_not_run_is_not_called_clean() -> None:
    assert "the audit was not run in every run" in summary_of([result(audit=audit("not run"))])["missed"]


def test_audits_that_differ_between_runs_are_all_told() -> None:
    assert summary_of([result(), result(audit=audit("differs", "at 3"))])["audit"] == "agrees, differs"
    assert "- audit: differs (at 3)" in text_of(result(audit=audit("differs", "at 3")))


def test_the_last_publisher_that_is_answered_again_says_when_the_mesh_works_again() -> None:
    for seconds, worst in (({"a": 3.0, "b": 5.0}, 5.0), ({"a": 3.0, "b": None}, None), ({}, None)):
        assert worst_rto_s(seconds.values()) == worst


def test_what_is_summed_is_a_finding() -> None:
    assert set(SUMMED) <= ZERO.keys()


def test_runs_without_an_rto_are_told_with_a_dash_and_miss_no_goal() -> None:
    summary = summary_of([result(None)])
    assert (summary["rto_median_s"], summary["rto_worst_s"], summary["missed"]) == (None, None, [])
    assert "- RTO: median -, worst - over 1 runs" in text_of(result(None))
    assert "RTO -," in line_of(1, result(None))


@pytest.mark.parametrize(("late_s", "said"), [(1.0, None), (3.0, "after 3.00 s"), (None, "never")])
def test_a_reader_behind_a_healed_link_has_two_seconds_to_catch_up(late_s: float | None, said: str | None) -> None:
    run = result(how="link", after_heal=[healed(0.5, late_s)])
    assert summary_of([run])["missed"] == ([f"run 1: ap caught up {said}, goal 2 s"] if said else [])


def test_the_report_of_a_healed_link_says_when_each_region_flowed_again() -> None:
    run = result(how="link", after_heal=[healed(None, None)])
    assert "- ap after the heal: flowing -, caught up -" in text_of(run)
    assert "after the heal" not in text_of(result())


@pytest.mark.parametrize(("overlap_s", "said"), [(-2.0, "2.00 s before the first"), (1.0, "1.00 s AFTER the first")])
def test_the_report_says_on_which_side_of_the_new_epoch_the_old_home_ended(overlap_s: float, said: str) -> None:
    text = text_of(result(overlap_s=overlap_s))
    assert f"- last acknowledgement of what only the old home had: {said} of the new epoch" in text
    assert "of what only the old home had" not in text_of(result())


def test_json_and_markdown_hold_every_run_with_what_was_judged_noted_and_broken() -> None:
    noted = result(judged=["history: 9 acknowledged"], notes=["a note"], broken=["it broke"])
    text = text_of(result(), noted)
    assert text.startswith("# Drill region-loss: FAILED")
    assert "| 1 | us | kill | yes | 3.00 s | 0 | 0 | 0 | 0.00 s | 4.00 s | agrees |" in text
    told = "\n- history: 9 acknowledged\n- fail_back_s: 4.00 s\n- a note\n- audit: agrees\n- BROKEN: it broke\n"
    assert told in text


def test_control_s_leader_is_the_first_victim_and_all_regions_follow() -> None:
    regions = ["us", "eu", "ap"]
    assert [victim_of(number, regions, "eu") for number in range(4)] == ["eu", "us", "ap", "eu"]
