"""What diaries of clients around a cut say."""

from __future__ import annotations

from collections import Counter

from loadtest.wan.moving_core import PERIOD_S, Event, kept_row, moves, regions_at, silence_row, silence_s, silences

S = 1_000_000_000


def test_the_silence_of_a_cut_lasts_from_the_last_good_one_to_the_first_after_it() -> None:
    times = [0, 1 * S, 2 * S, 2 * S + S // 20, *(second * S for second in range(5, 28))]
    assert silence_s(times, 2 * S) == 2.95, "what was on its way still came"
    assert silence_s([*times, int((2 + PERIOD_S) * S) + 2, int((30 + PERIOD_S) * S)], 2 * S) == 2.95, "the next cut's"
    assert silence_s(times, 27 * S) is None


def test_a_silence_without_an_end_is_none_although_what_was_on_its_way_still_came() -> None:
    times = [at * S // 100 for at in range(201)] + [2 * S + S // 50]
    assert silence_s(times, 2 * S) is None
    assert silence_s([*times, int((40 + PERIOD_S) * S)], 2 * S) is None, "it came long after"


def test_only_cuts_that_met_a_client_count_for_it_and_one_without_an_end_is_said() -> None:
    events = [Event("a", "read", at, "") for at in (1 * S, *range(3 * S, 28 * S, S))] + [
        Event("b", "read", at, "") for at in (1 * S, 2 * S)
    ]
    found = silences(events, {2 * S: {"a"}, 50 * S: {"a", "b"}})
    assert found == {("a", "read"): [2.0, None], ("b", "read"): [None]}
    assert silence_row("a", "read", [2.0, None]).split(":")[1] == " p50 2.00 s, p99 2.00 s, most 2.00 s, 1 without end"
    assert "no cut met it" in silence_row("b", "read", [])


def test_what_was_lost_stored_twice_or_read_twice_is_counted() -> None:
    events = [Event("a", "acked", 1, f"a {n}") for n in range(3)] + [Event("a", "failed", 1, "a 9")]
    events += [Event("a", "read", 2, value) for value in ("a 0", "a 0", "b 0")]
    row = kept_row("a", events, Counter({"a 0": 2, "a 1": 1, "b 0": 1}))
    assert "3 acknowledged, 1 lost, 1 stored twice, 1 of unknown outcome; read 2 of 3, 1 missing, 1 twice" in row


def test_followers_are_where_they_said_last_and_their_moves_count_from_a_moment() -> None:
    events = [Event("followers", "region", at * S, text) for at, text in ((1, "f us"), (9, "f eu"), (2, "g us"))]
    assert regions_at(events, 5 * S) == {"us": 2}
    assert regions_at(events, 9 * S) == {"us": 1, "eu": 1}
    assert moves(events, 3 * S) == {"f": [(6.0, "eu")]}
