"""Leases under clocks that run wrong, answers that come late, and control leaders that change: never two homes at once.

Times of the model are true seconds; every broker and every control leader reads a clock of its own, up to 5 % too fast
or too slow. A control leader grants only what a majority confirmed after the renewal arrived, so what was sent after
another's election is not granted by it any more.
"""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given

from georelay.ids import BrokerId, RegionNumber
from mesh.home.lease_core import HELD_MS, LEASE_MS, BrokerLease, LeaseBook

HOME = RegionNumber(1)
BROKER = BrokerId(1001)
DRIFT = 0.05
NS_PER_S = 1_000_000_000


class Clock(NamedTuple):
    rate: float
    origin_s: float

    def ns(self, true_s: float) -> int:
        return int((true_s * self.rate + self.origin_s) * NS_PER_S)


clocks = st.builds(Clock, rate=st.floats(1 - DRIFT, 1 + DRIFT), origin_s=st.floats(0, 1000))
delays = st.floats(0, 2.5)


@st.composite
def elections(draw: st.DrawFn) -> list[float]:
    times = [0.0]
    for _ in range(draw(st.integers(0, 3))):
        times.append(times[-1] + draw(st.floats(0.2, 4.0)))
    return times


@given(
    broker_clock=clocks,
    leader_clocks=st.lists(clocks, min_size=4, max_size=4),
    elected=elections(),
    renewals=st.lists(st.tuples(st.floats(0, 8), delays, delays, delays), max_size=12),
    looks=st.lists(st.floats(0, 20), min_size=1, max_size=20),
)
def test_nobody_acknowledges_once_the_newest_leader_of_control_may_begin_the_next_epoch(
    broker_clock: Clock,
    leader_clocks: list[Clock],
    elected: list[float],
    renewals: list[tuple[float, float, float, float]],
    looks: list[float],
) -> None:
    books = [LeaseBook() for _ in elected]
    lease = BrokerLease()
    for book, clock, at in zip(books, leader_clocks, elected, strict=False):
        book.elected(clock.ns(at))
    told: list[tuple[float, int]] = []  # (when the broker hears it, when it asked)
    granted: list[tuple[float, int]] = []  # (when, by which leader)
    for sent, way, confirming, back in sorted(renewals):
        arrived = sent + way
        leader = max(row for row, at in enumerate(elected) if at <= arrived)
        answered = arrived + confirming
        granted.append((answered, leader))
        told.append((answered + back, broker_clock.ns(sent)))
    for now in sorted({*looks, *(at for at, _ in told)}):
        for answered, leader in granted:
            if answered <= now:
                books[leader].granted(BROKER, now_ns=leader_clocks[leader].ns(answered))
        granted = [row for row in granted if row[0] > now]
        for heard, sent_ns in told:
            if heard <= now:
                lease.granted(sent_ns=sent_ns)
        newest = max(row for row, at in enumerate(elected) if at <= now)
        pending = any(leader == newest for _, leader in granted)  # granted later: the leader refuses while it moves
        if not pending and books[newest].is_free(HOME, leader_clocks[newest].ns(now)):
            assert not lease.holds(broker_clock.ns(now))


def test_a_broker_that_restarted_has_no_lease() -> None:
    assert not BrokerLease().holds(0)


def test_the_broker_stops_before_the_leader_goes_on_by_more_than_twice_the_drift() -> None:
    assert HELD_MS / (1 - DRIFT) < LEASE_MS / (1 + DRIFT)


@given(sent=st.lists(st.integers(0, 10**12), min_size=1, max_size=5))
def test_answers_out_of_order_never_shorten_a_lease(sent: list[int]) -> None:
    lease = BrokerLease()
    for sent_ns in sent:
        lease.granted(sent_ns=sent_ns)
    assert lease.holds(max(sent) + HELD_MS * 1_000_000 - 1)
    assert not lease.holds(max(sent) + HELD_MS * 1_000_000)
    assert lease.left_ms(max(sent)) == HELD_MS


def test_whoever_does_not_lead_control_can_say_of_nobody_that_it_stopped() -> None:
    book = LeaseBook()
    assert not book.is_free(HOME, 10**18)
    book.elected(0)
    assert not book.is_free(HOME, LEASE_MS * 1_000_000 - 1)
    assert book.is_free(HOME, LEASE_MS * 1_000_000)
    book.deposed()
    assert not book.is_free(HOME, 10**18)
