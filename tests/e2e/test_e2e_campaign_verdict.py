"""The judge of the campaigns sees every kind of error."""

from __future__ import annotations

from loadtest.campaign.verdict_core import Acknowledgement, Verdict, judge


def _judge(found: list[int], acked: dict[int, int], mirrors: dict[str, list[int]] | None = None) -> Verdict:
    """Records are numbers of one producer; `acked` maps a number to its offset."""
    return judge(
        sent=10,
        failed=0,
        acknowledgements=[
            Acknowledgement(record=("a", number), offset=offset, at_ns=number * 1_000_000)
            for number, offset in acked.items()
        ],
        found=[("a", number) for number in found],
        mirrors={region: [("a", number) for number in numbers] for region, numbers in (mirrors or {}).items()},
    )


def test_what_was_acknowledged_and_is_there_is_exact() -> None:
    assert _judge([0, 1, 2], {0: 0, 2: 2}, {"eu": [0, 1, 2]}).is_exact


def test_an_acknowledged_record_that_is_not_there_is_missing() -> None:
    assert _judge([0, 1], {0: 0, 2: 2}).missing == 1


def test_an_acknowledged_record_at_another_offset_is_missing() -> None:
    assert _judge([1, 0, 2], {0: 0, 1: 1, 2: 2}).missing == 2


def test_a_record_that_is_there_twice_is_extra() -> None:
    verdict = _judge([0, 1, 1], {0: 0, 1: 1})
    assert (verdict.extra, verdict.is_exact) == (1, False)


def test_a_record_behind_a_later_one_of_its_producer_is_disordered() -> None:
    assert _judge([0, 2, 1], {0: 0}).disordered == 1


def test_a_mirror_that_lacks_a_record_differs() -> None:
    assert _judge([0, 1], {0: 0}, {"eu": [0, 1], "ap": [0]}).mirrors_differ == ("ap",)


def test_the_longest_gap_is_between_neighbouring_acknowledgements() -> None:
    assert _judge([0, 1, 2], {0: 0, 7: 1, 9: 2}).longest_gap_ms == 7
