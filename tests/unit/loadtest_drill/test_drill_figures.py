"""What a drill's report says in its lines: complaints of readers, goals that were missed, what came after the heal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loadtest.drill.drill_core import SECOND_NS, broken_promises, judge
from loadtest.drill.report_core import document_of, heal_figures, markdown_of, rto_s, summary_of
from loadtest.drill.run_result import RunResult
from loadtest.drill.values import Branch, Fate, Home, Observed, Reading, RecordName, Sent, StoredRecord
from loadtest.wan.heals_core import Delivery

HEAD = {"kind": "region-loss", "began": "now", "mesh": "m", "where": "here", "machine": "2 cores."}
STREAM = tuple(StoredRecord(offset, 1, RecordName("p", offset)) for offset in range(2))
FAULT_NS = 100 * SECOND_NS


def acknowledged(number: int, *, who: str = "p", at_s: float = 1.0, epoch: int = 1) -> Sent:
    at_ns = int(at_s * SECOND_NS)
    return Sent(
        name=RecordName(who, number), asked=1, fate=Fate.STORED, due_ns=at_ns, at_ns=at_ns, epoch=epoch, offset=number
    )


QUIET = Observed(
    sent=[acknowledged(0), acknowledged(1)],
    streams={"us": STREAM, "eu": STREAM},
    branches=[],
    readings=[],
    fault_ns=FAULT_NS,
    old_epoch=1,
    away=frozenset(),
    moves_home=True,
)


def result(observed: Observed = QUIET, **changes: Any) -> RunResult:
    plain = RunResult(
        topic="t",
        victim="us",
        how="kill",
        control_leader="eu",
        old_epoch=1,
        new_home=Home(region="eu", epoch=2, start=9),
        findings=judge(observed),
        audit=("agrees", ""),
        marks={},
        notes=(),
        broken=(),
        deliveries={},
        fault_ns=FAULT_NS,
        healed_ns=FAULT_NS,
    )
    return replace(plain, **changes)


def text_of(*results: RunResult) -> str:
    return markdown_of(json.loads(json.dumps(document_of(HEAD, results))))


# --- what is broken -------------------------------------------------------------------------------


def test_where_no_region_could_be_read_every_acknowledged_record_is_lost_and_no_log_differs() -> None:
    found = judge(replace(QUIET, streams={}))
    assert (found.region_lost, found.differing) == (2, ())


def test_the_first_record_in_which_a_log_differs_is_named() -> None:
    other = (STREAM[0], StoredRecord(1, 2, RecordName("q", 7)))
    found = judge(replace(QUIET, streams={"us": STREAM, "eu": STREAM, "ap": other}))
    assert found.differing == (f"ap has {other[1]} where others have {STREAM[1]}",)
    assert broken_promises(found) == [f"the log in {found.differing[0]}"]


def test_records_that_no_drill_wrote_are_neither_twice_nor_out_of_order() -> None:
    strangers = tuple(StoredRecord(offset, 1, None) for offset in (2, 3))
    found = judge(replace(QUIET, streams={"us": (*STREAM, *strangers), "eu": (*STREAM, *strangers)}))
    assert (found.duplicated, found.reordered, broken_promises(found)) == (0, 0, [])


def test_a_reader_that_could_not_go_on_says_why_beside_what_it_did_not_get() -> None:
    reading = Reading(region="us", deliveries=[Delivery(0, 0, 0)], moved_to="ap", complaint="no position")
    assert broken_promises(judge(replace(QUIET, readings=[reading]))) == [
        "the reader in us, then ap, did not get 1 records",
        "the reader in us, then ap, could not go on: no position",
    ]


def test_each_count_that_is_not_zero_breaks_a_promise_of_its_own() -> None:
    plain = judge(QUIET)
    fields = (
        "geo_lost",
        "region_lost",
        "orphan_strangers",
        "orphans_unlisted",
        "stored_twice",
        "duplicated",
        "reordered",
    )
    changes: list[dict[str, Any]] = [{field: 7} for field in fields]
    lines = {broken_promises(replace(plain, **change))[0] for change in changes}
    assert len(lines) == len(fields)
    assert all(line.startswith(("7 records", "7 acknowledged records")) for line in lines)


def test_an_old_home_that_ended_within_the_allowance_breaks_no_promise() -> None:
    assert broken_promises(replace(judge(QUIET), overlap_s=0.25)) == []
    assert len(broken_promises(replace(judge(QUIET), overlap_s=0.26))) == 1


# --- what is told ---------------------------------------------------------------------------------


def test_a_run_in_which_one_publisher_was_never_answered_has_no_rto() -> None:
    served = [acknowledged(2, at_s=103, epoch=2), acknowledged(3, who="q", at_s=105, epoch=2)]
    both = replace(QUIET, sent=[*QUIET.sent, *served], away=frozenset({"p", "q"}))
    assert rto_s(result(both)) == 5.0
    assert rto_s(result(replace(both, away=frozenset({"p", "silent"})))) is None
    assert rto_s(result()) is None


def test_runs_without_an_rto_are_told_with_a_dash_and_miss_no_goal() -> None:
    summary = summary_of([result()])
    assert (summary["rto_median_s"], summary["rto_worst_s"], summary["missed"]) == (None, None, [])
    assert "- RTO: median -, worst - over 1 runs" in text_of(result())


def test_audits_that_differ_between_runs_are_all_told() -> None:
    assert summary_of([result(), result(audit=("differs", "at 3"))])["audit"] == "agrees, differs"
    assert "- audit: differs (at 3)" in text_of(result(audit=("differs", "at 3")))


@pytest.mark.parametrize(("late_s", "said"), [(1.0, None), (3.0, "after 3.00 s"), (None, "never")])
def test_a_reader_behind_a_healed_link_has_two_seconds_to_catch_up(late_s: float | None, said: str | None) -> None:
    deliveries: dict[str, tuple[Delivery, ...]] = {"ap": ()}
    if late_s is not None:
        at_ns = FAULT_NS + int(late_s * SECOND_NS)
        deliveries = {"ap": (Delivery(0, FAULT_NS - SECOND_NS, at_ns), Delivery(1, at_ns, at_ns))}
    run = result(how="link", deliveries=deliveries)
    missed = [f"run 1: ap caught up {said}, goal 2 s"] if said else []
    assert summary_of([run])["missed"] == missed
    assert heal_figures(run)["ap"]["flowing_s"] == late_s
    assert summary_of([replace(run, how="kill")])["missed"] == []


def test_the_report_of_a_healed_link_says_when_each_region_flowed_again() -> None:
    run = result(how="link", deliveries={"ap": (), "eu": ()})
    assert "- ap after the heal: flowing -, caught up -" in text_of(run)
    assert "after the heal" not in text_of(replace(run, how="kill"))


@pytest.mark.parametrize(("at_s", "said"), [(101, "2.00 s before the first"), (104, "1.00 s AFTER the first")])
def test_the_report_says_on_which_side_of_the_new_epoch_the_old_home_ended(at_s: int, said: str) -> None:
    rows = [*QUIET.sent, acknowledged(2, at_s=at_s), acknowledged(9, who="q", at_s=103, epoch=2)]
    branch = Branch(region="us", epoch=2, listed_records=1, records=(StoredRecord(2, 1, RecordName("p", 2)),))
    text = text_of(result(replace(QUIET, sent=rows, branches=[branch])))
    assert f"- last acknowledgement of what only the old home had: {said} of the new epoch" in text
    assert "of what only the old home had" not in text_of(result())


def test_the_report_of_a_run_lists_its_readers_marks_notes_and_what_broke() -> None:
    stayed = Reading(region="us", deliveries=[Delivery(0, 0, 0), Delivery(1, 0, 0)])
    moved = Reading(region="us", deliveries=[Delivery(0, 0, 0), Delivery(0, 0, 0)], moved_to="ap", in_flight=1)
    text = text_of(
        result(
            replace(QUIET, readings=[stayed, moved]),
            marks={"fail_back_s": 4.0},
            notes=("a note",),
            broken=("it broke",),
        )
    )
    assert "- reader in us: 2 records, 0 missing, 0 twice (in flight 0), 0 out of order" in text
    assert "- reader in us, then ap: 1 records, 1 missing, 1 twice (in flight 1), 0 out of order" in text
    assert "\n- fail_back_s: 4.00 s\n- a note\n- audit: agrees\n- BROKEN: it broke\n" in text
    assert "| 1 | us | kill | no | - | 0 | 0 | 0 | 0.00 s | 4.00 s | agrees |" in text
