"""What only missing rows, or an hour that is not over, make look like a loss is not told as one. No Spark."""

from __future__ import annotations

from typing import Any

import pytest

from sla.judging.facts import Facts, HourFacts, MirrorFacts, PeriodFacts
from sla.judging.judge import judge
from sla.report.html import to_html
from sla.report.markdown import to_markdown
from sla.report.model import Report
from sla.targets import IntegrityTarget, Targets
from tests.sla import judging_facts as build

BEHIND = tuple(
    MirrorFacts(topic="orders", origin="", partition=0, region=region, replicated=90, missing=missing)
    for region, missing in (("ap", 2_195), ("eu", 7))
)
WHOLE = (build.inputs(), build.inputs(region="ap"))


def report(*, not_final: int = 0, hours: int = 1, **now: Any) -> Report:
    facts = Facts(now=build.period(**now), before=PeriodFacts(span=build.HOUR.previous))
    state = HourFacts(expected=hours, rolled_up=hours, revised=0, not_final=not_final)
    return judge(facts, Targets(targets=(IntegrityTarget(name="integrity"),)), made=build.MADE, hours=state)


def mirror_notes(made: Report) -> list[tuple[str, bool]]:
    return [(note.text, note.is_warning) for note in made.notes if note.code == "MIRROR_BEHIND"]


def test_a_mirror_that_is_behind_when_all_is_known_is_a_warning() -> None:
    text = "committed records that a mirror did not have when they had settled: orders/0 in ap (2,195), "
    assert mirror_notes(report(mirrors=BEHIND, inputs=WHOLE)) == [(f"{text}orders/0 in eu (7)", True)]


@pytest.mark.parametrize("gone", [
    (build.inputs(), build.inputs(region="ap", rows=900, missing_rows=100)),
    (build.inputs(), build.inputs(region="ap", rows=0, files=0, quarantined_files=2)),
    (build.inputs(),),
])  # fmt: skip
def test_a_mirror_whose_rows_are_missing_lacks_up_to_so_many(gone: tuple[Any, ...]) -> None:
    assert mirror_notes(report(mirrors=BEHIND, inputs=gone)) == [
        ("committed records that a mirror did not have when they had settled: orders/0 in eu (7)", True),
        (
            "committed records that a mirror may lack, rows about them are missing: orders/0 in ap (up to 2,195)",
            True,
        ),
    ]


def test_a_mirror_in_an_hour_that_is_not_final_does_not_have_them_yet() -> None:
    (note,) = mirror_notes(report(mirrors=BEHIND[:1], inputs=WHOLE, not_final=1))
    assert note == ("committed records that a mirror does not have yet: orders/0 in ap (2,195)", False)
    ((text, is_warning),) = mirror_notes(report(mirrors=BEHIND[:1], inputs=WHOLE, not_final=1, hours=3))
    assert text == (
        "committed records that a mirror did not have when they had settled, or, of the newest hour, does not have "
        "yet: orders/0 in ap (2,195)"
    )
    assert is_warning


@pytest.mark.parametrize(("gone", "not_final", "words"), [
    (0, 0, "12 in all"), (100, 0, "up to 12 in all"), (0, 1, "12 in all so far"), (100, 1, "up to 12 in all so far"),
])  # fmt: skip
def test_records_that_look_lost_are_up_to_so_many_where_rows_are_missing(gone: int, not_final: int, words: str) -> None:
    reader = build.reader(lost=12)
    made = report(integrity=(reader,), inputs=(build.inputs(rows=900, missing_rows=gone),), not_final=not_final)
    for text in (to_html(made), to_markdown(made)):
        assert words in text
        assert ("up to 12" in text, "so far" in text) == (gone > 0, not_final > 0)
