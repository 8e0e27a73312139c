"""Rows of single batches are in no figure: that some of them are missing is worth a line, and no warning."""

from __future__ import annotations

from typing import Any

import pytest

from sla.judging.facts import Facts, HourFacts
from sla.judging.judge import judge
from sla.targets_file import load_targets
from tests.sla import judging_facts as build


def notes_of(*inputs: Any) -> dict[str, tuple[bool, str]]:
    report = judge(
        Facts(now=build.period(inputs=inputs), before=build.period()),
        load_targets(),
        made=build.MADE,
        hours=HourFacts(expected=1, rolled_up=1, revised=0, not_final=0),
    )
    named = ("ROWS_MISSING", "ROWS_DROPPED", "SAMPLES_MISSING")
    return {note.code: (note.is_warning, note.text) for note in report.notes if note.code in named}


def test_missing_rows_of_single_batches_are_a_hint_that_says_so() -> None:
    dropped = build.inputs(kind="delivery", missing_rows=7, dropped_rows=7)
    text = "7 rows of single batches are missing (delivery of eu); they are in no figure"
    assert notes_of(dropped) == {"SAMPLES_MISSING": (False, text)}


@pytest.mark.parametrize("kind", ["ledger", "latency_hist", "outcome", "probe", "clock"])
def test_missing_rows_that_figures_are_made_of_are_a_warning_without_the_others(kind: str) -> None:
    found = notes_of(
        build.inputs(kind=kind, missing_rows=3, dropped_rows=1), build.inputs(kind="delivery", missing_rows=9)
    )
    assert found["ROWS_MISSING"] == (True, f"3 rows of traces are missing: {kind} of eu")
    text = f"1 row was dropped by brokers that could not keep up: {kind} of eu"
    assert found["ROWS_DROPPED"] == (True, text)
    assert found["SAMPLES_MISSING"][1].startswith("9 rows of single batches")
