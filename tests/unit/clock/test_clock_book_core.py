"""What a broker says of a region: all its clocks, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from georelay.ids import BrokerId, RegionNumber
from mesh.clock import book_core
from mesh.clock.book_core import UNREACHED_NS, ClockBook
from mesh.clock.estimate import Exchange

MS = 1_000_000
S = 1_000 * MS
US, EU = RegionNumber(1), RegionNumber(2)
ME, NEIGHBOUR, OTHER = BrokerId(1001), BrokerId(1002), BrokerId(2001)


def exchange(at_s: int, *, ahead_ms: int = 0, rtt_ms: int = 2, spread_us: int = 0) -> Exchange:
    middle = at_s * S + rtt_ms * MS // 2 + ahead_ms * MS
    return Exchange(
        t1_ns=at_s * S, t2_ns=middle, t3_ns=middle, t4_ns=at_s * S + rtt_ms * MS, monotonic1_ns=at_s * S,
        monotonic4_ns=at_s * S + rtt_ms * MS, spread_us=spread_us,
    )  # fmt: skip


def book_at(at_s: int, *, neighbours: tuple[BrokerId, ...] = (), override_us: int | None = None) -> ClockBook:
    book = ClockBook(region=US, broker=ME, override_us=override_us)
    tick(book, 0, neighbours)
    tick(book, at_s, neighbours)
    return book


def tick(book: ClockBook, at_s: float, neighbours: tuple[BrokerId, ...] = ()) -> None:
    now_ns = int(at_s * S)
    book.tick(wall_ns=now_ns, monotonic_ns=now_ns, own_region=neighbours)


def test_a_region_nobody_answered_from_is_unknown() -> None:
    assert book_at(1).offset_to(EU) is None


def test_a_region_is_as_uncertain_as_the_broker_that_was_asked_and_its_neighbours() -> None:
    book = book_at(1)
    book.exchanged(OTHER, exchange(1, ahead_ms=80, spread_us=700))
    found = book.offset_to(EU)
    assert found is not None
    assert (found.offset_us, found.error_us) == (80_000, book.rows([EU])[1].estimate.error_us + 700)  # type: ignore[union-attr]


def test_a_region_whose_broker_does_not_know_its_neighbours_is_unknown() -> None:
    book = book_at(1)
    book.exchanged(OTHER, exchange(1, spread_us=-1))
    assert book.offset_to(EU) is None


def test_the_best_of_several_brokers_counts() -> None:
    book = book_at(1)
    book.exchanged(OTHER, exchange(1, rtt_ms=40))
    book.exchanged(BrokerId(2002), exchange(1, rtt_ms=4))
    found = book.offset_to(EU)
    assert found is not None
    assert found.error_us < 2_100


def test_a_broker_alone_in_its_region_has_one_clock() -> None:
    book = book_at(1)
    found = book.offset_to(US, for_ns=2 * S)
    assert found is not None
    assert (found.offset_us, found.error_us, book.spread_us()) == (0, 0, 0)


def test_the_own_region_spreads_as_far_as_its_furthest_clock() -> None:
    book = book_at(1, neighbours=(NEIGHBOUR,))
    assert book.spread_us() == -1
    book.exchanged(NEIGHBOUR, exchange(1, ahead_ms=-30))
    found = book.offset_to(US)
    assert found is not None
    assert found.offset_us == 0
    assert 31_000 <= found.error_us == book.spread_us() <= 31_010


def test_a_neighbour_that_is_gone_for_long_stamps_nothing_and_is_left_out() -> None:
    book = book_at(1, neighbours=(NEIGHBOUR,))
    assert book.spread_us() == -1
    tick(book, 1 + UNREACHED_NS / S, (NEIGHBOUR,))
    assert book.spread_us() == 0


def test_a_neighbour_that_was_removed_is_forgotten() -> None:
    book = book_at(1, neighbours=(NEIGHBOUR,))
    book.exchanged(NEIGHBOUR, exchange(1, ahead_ms=-30))
    tick(book, 2, ())
    assert book.spread_us() == 0


def test_a_bound_that_must_hold_for_longer_is_wider() -> None:
    book = book_at(1)
    book.exchanged(OTHER, exchange(1))
    now, later = book.offset_to(EU), book.offset_to(EU, for_ns=2 * S)
    assert now is not None
    assert later is not None
    assert later.error_us - now.error_us == 2_000


@pytest.mark.parametrize("region", [US, EU])
def test_a_configured_bound_replaces_what_was_measured(region: RegionNumber) -> None:
    book = book_at(1, override_us=250, neighbours=(NEIGHBOUR,))
    book.exchanged(OTHER, exchange(1, ahead_ms=80))
    found = book.offset_to(region, for_ns=2 * S)
    assert found is not None
    assert (found.offset_us, found.error_us, book.spread_us()) == (0, 250, 250)


def test_rows_name_every_region_and_every_broker_that_answered() -> None:
    book = book_at(1)
    book.exchanged(OTHER, exchange(1, ahead_ms=80))
    regions, broker = book.rows([US, EU])[:2], book.rows([US, EU])[2]
    assert [(row.region, row.broker, row.estimate is not None) for row in regions] == [(US, 0, True), (EU, 0, True)]
    assert (broker.broker, broker.exchanges, broker.rtt_us) == (OTHER, 1, 2_000)


def test_the_own_region_is_unknown_while_a_neighbour_has_not_answered() -> None:
    assert book_at(1, neighbours=(NEIGHBOUR,)).offset_to(US) is None


def test_clocks_of_other_regions_and_worse_ones_do_not_count_for_a_region() -> None:
    book = book_at(2, neighbours=(NEIGHBOUR,))
    book.exchanged(NEIGHBOUR, exchange(1, ahead_ms=7))
    book.exchanged(OTHER, exchange(1, ahead_ms=80, rtt_ms=4))
    book.exchanged(BrokerId(2002), exchange(1, ahead_ms=81, rtt_ms=40))
    found = book.offset_to(EU)
    assert found is not None
    assert found.offset_us == 80_000


def test_a_refused_exchange_is_counted_and_does_not_make_a_neighbour_look_reachable() -> None:
    book = book_at(1, neighbours=(NEIGHBOUR,))
    backwards = replace(exchange(2), t3_ns=exchange(2).t2_ns - 1)
    assert not book.exchanged(NEIGHBOUR, backwards)
    assert book.rows([])[0].refused == 1
    tick(book, 1 + UNREACHED_NS / S, (NEIGHBOUR,))
    assert book.spread_us() == 0
    assert book.exchanged(NEIGHBOUR, exchange(2, ahead_ms=-30))
    assert book.spread_us() >= 30_000


def test_a_book_that_is_full_takes_nobody_new_and_goes_on_with_those_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_core, "PEERS_MAX", 1)
    book = book_at(1)
    assert book.exchanged(OTHER, exchange(1))
    assert not book.exchanged(BrokerId(2002), exchange(1))
    assert book.exchanged(OTHER, exchange(2))
    assert [(row.broker, row.exchanges) for row in book.rows([])] == [(OTHER, 2)]


def test_a_book_says_whether_its_bound_is_configured() -> None:
    assert [book_at(1, override_us=bound).is_overridden for bound in (None, 0)] == [False, True]
