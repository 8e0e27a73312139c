"""Rules of the verdicts; no Spark."""

from __future__ import annotations

import pytest

from sla.report.verdict import Verdict, combine, judge_integrity, judge_latency, judge_throughput
from sla.targets import Targets

TARGETS = Targets()


@pytest.mark.parametrize(
    ("n", "lo", "hi", "unknown", "expected"),
    [
        (0, 0, 0, 0, Verdict.NO_DATA),
        (2_000, 1_980, 1_980, 0, Verdict.PASS),
        (2_000, 1_979, 1_979, 0, Verdict.BREACH),
        (1_999, 1_999, 1_999, 0, Verdict.INCONCLUSIVE),
        (100, 81, 81, 0, Verdict.INCONCLUSIVE),
        (100, 80, 80, 0, Verdict.BREACH),
        (2_000, 1_900, 2_000, 0, Verdict.INCONCLUSIVE),
        (2_000, 0, 2_000, 2_000, Verdict.INCONCLUSIVE),
    ],
    ids=["none", "at-target", "below", "few", "few-slow", "few-but-many-slow", "clock-decides", "clock-unknown"],
)
def test_latency(n: int, lo: int, hi: int, unknown: int, expected: Verdict) -> None:
    judgement = judge_latency(n=n, n_good_lo=lo, n_good_hi=hi, n_clock_unknown=unknown, targets=TARGETS)
    assert judgement.verdict is expected
    assert bool(judgement.reason) is (expected is not Verdict.PASS)


@pytest.mark.parametrize(
    ("delivered", "offered", "expected"),
    [
        (1_000.0, 1_000.0, Verdict.PASS),
        (999.0, 1_049.0, Verdict.NO_DATA),
        (999.0, 1_050.0, Verdict.BREACH),
    ],
)
def test_throughput_is_judged_only_where_enough_was_offered(
    delivered: float, offered: float, expected: Verdict
) -> None:
    assert judge_throughput(max_window=delivered, offered_max_window=offered, targets=TARGETS).verdict is expected


@pytest.mark.parametrize(
    ("lost", "unexplained", "duplicated", "out_of_order", "is_complete", "expected"),
    [
        (0, 0, 0, 0, True, Verdict.PASS),
        (1, 0, 0, 0, True, Verdict.BREACH),
        (0, 0, 1, 0, True, Verdict.BREACH),
        (0, 0, 0, 1, True, Verdict.BREACH),
        (0, 1, 0, 0, True, Verdict.INCONCLUSIVE),
        (0, 0, 0, 0, False, Verdict.INCONCLUSIVE),
        (1, 0, 0, 0, False, Verdict.INCONCLUSIVE),
        (1, 0, 1, 0, False, Verdict.BREACH),
    ],
)
def test_integrity(
    lost: int, unexplained: int, duplicated: int, out_of_order: int, *, is_complete: bool, expected: Verdict
) -> None:
    judgement = judge_integrity(
        delivered=100,
        lost=lost,
        unexplained=unexplained,
        duplicated=duplicated,
        out_of_order=out_of_order,
        is_ledger_complete=is_complete,
    )
    assert judgement.verdict is expected


P, B, I, N = Verdict.PASS, Verdict.BREACH, Verdict.INCONCLUSIVE, Verdict.NO_DATA  # noqa: E741


@pytest.mark.parametrize(
    ("required", "optional", "expected"),
    [
        ([[P], [P]], [P, N], P),
        ([[P, N], [P]], [], P),
        ([[P, I], [P]], [], I),
        ([[P], [P]], [I], I),
        ([[I], [B]], [I], B),
        ([[P], []], [], N),
        ([[N], [P]], [I], N),
        ([[], []], [B], B),
    ],
)
def test_the_whole(required: list[list[Verdict]], optional: list[Verdict], expected: Verdict) -> None:
    assert combine(required=required, optional=optional) is expected
