"""What a cut and the loss of the home cost, counted from what readers got."""

from __future__ import annotations

from loadtest.bench.figures_core import Row
from loadtest.bench.schedule_core import NS_PER_S
from loadtest.peers.failover_core import after_loss, caught_up_s

RATE = 10
LOST_NS = 100 * NS_PER_S
FIRST_NS, SECOND_NS = LOST_NS - 2 * NS_PER_S, LOST_NS + NS_PER_S  # when the two producers began


def _rows(began_ns: int, *numbers: int) -> list[Row]:
    """Return records of a producer, each delivered a second after it was due."""
    due = [(number, began_ns + number * NS_PER_S // RATE) for number in numbers]
    return [(number, due_ns, due_ns + NS_PER_S) for number, due_ns in due]


def _figures(acknowledged: list[int], stayed: list[Row], before: list[Row], after: list[Row]) -> dict[str, float]:
    return after_loss(
        acknowledged=acknowledged, stayed=stayed, before=before, after=after, rate_per_s=RATE, lost_ns=LOST_NS
    )


def test_catching_up_ends_with_the_first_coming_of_the_last_record_that_was_due_before_the_heal() -> None:
    healed_ns = 10 * NS_PER_S
    rows = [(1, 8, 13), (2, 9, 15), (2, 9, 19), (3, 11, 30)]
    assert caught_up_s([(number, due * NS_PER_S, at * NS_PER_S) for number, due, at in rows], healed_ns) == 5.0


def test_a_region_that_had_everything_before_the_heal_caught_up_at_once() -> None:
    assert caught_up_s([(1, 1, 2)], 10) == 0.0


def test_what_was_acknowledged_and_never_came_to_the_other_region_is_lost() -> None:
    figures = _figures([0, 1, 2], _rows(FIRST_NS, 0, 1, 3), [], _rows(FIRST_NS, 0, 1, 3))
    assert figures == {"lost": 1, "again": 0, "skipped": 0}


def test_what_was_read_before_the_move_or_twice_after_it_is_read_again() -> None:
    everything = _rows(FIRST_NS, 0, 1, 2)
    assert _figures([], everything, _rows(FIRST_NS, 0, 1), _rows(FIRST_NS, 1, 2, 2))["again"] == 2


def test_what_the_other_region_has_and_the_consumer_never_got_is_skipped() -> None:
    assert _figures([], _rows(FIRST_NS, 0, 1, 2), _rows(FIRST_NS, 0), _rows(FIRST_NS, 2))["skipped"] == 1


def test_numbers_of_the_producer_that_follows_are_not_those_of_the_first() -> None:
    stayed = _rows(FIRST_NS, 0) + _rows(SECOND_NS, 0, 1)
    figures = _figures([0, 1], stayed, _rows(FIRST_NS, 0), _rows(SECOND_NS, 0, 1))
    assert figures == {"lost": 1, "again": 0, "skipped": 0, "flows_again_s": 2.0}
