"""Who is asked for the time, and which answers count."""

from __future__ import annotations

from georelay.ids import BrokerId, RegionNumber
from mesh.clock.book_core import ClockBook
from mesh.clock.estimate import Exchange
from mesh.clock.exchanger import ClockExchanger, NoHostClock
from mesh.clock.host_bound import STA_UNSYNC, TIME_ERROR, KernelClock, judge

MS = 1_000_000
US, EU, AP = RegionNumber(1), RegionNumber(2), RegionNumber(3)


class Clock:
    """Both clocks of a broker, moved by the test."""

    def __init__(self, ahead_ns: int = 0) -> None:
        self.now_ns = 0
        self.ahead_ns = ahead_ns

    def wall_ns(self) -> int:
        return 10**18 + self.now_ns + self.ahead_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


class Links:
    """Remembers what was asked."""

    def __init__(self, *opened: int, brokers: tuple[int, ...] = (1002, 2001, 2002)) -> None:
        self.opened = set(opened)
        self.brokers = brokers
        self.asked: list[tuple[int, int]] = []
        self.dialled: list[int] = []

    def brokers_of(self, region: RegionNumber) -> list[BrokerId]:
        return [BrokerId(broker) for broker in self.brokers if broker // 1000 == region]

    def ask_clock(self, broker: BrokerId, t1_ns: int, *, dial: bool) -> bool:
        if dial:
            self.dialled.append(broker)
        if broker not in self.opened:
            return False
        self.asked.append((broker, t1_ns))
        return True


def exchanger(links: Links, clock: Clock, heard: list[tuple[int, Exchange]] | None = None) -> ClockExchanger:
    return ClockExchanger(
        ClockBook(region=US, broker=BrokerId(1001)),
        links=links,
        regions=lambda: [US, EU],
        own=US,
        clock=clock,
        host=NoHostClock(),
        on_exchange=lambda broker, exchange: (heard if heard is not None else []).append((broker, exchange)),
    )


def test_one_open_link_of_every_other_region_is_asked_and_every_neighbour() -> None:
    links = Links(1002, 2002)
    exchanger(links, Clock()).tick()
    assert [broker for broker, _ in links.asked] == [1002, 2002]
    assert links.dialled == [1002]  # neighbours are always wanted; of another region what is open is enough


def test_a_link_is_dialled_where_none_is_open() -> None:
    links = Links()
    ours = exchanger(links, Clock())
    ours.tick()
    ours.tick()
    assert sorted(set(links.dialled)) == [1002, 2001, 2002]  # in turn


def test_the_same_broker_is_asked_as_long_as_its_link_is_open() -> None:
    links = Links(2001, 2002)
    ours = exchanger(links, Clock())
    ours.tick()
    links.opened.discard(1002)
    ours.tick()
    links.opened.discard(2001)
    ours.tick()
    assert [broker for broker, _ in links.asked] == [2001, 2001, 2002]


def test_a_few_neighbours_are_asked_each_second_and_all_of_them_in_turn() -> None:
    brokers = tuple(range(1002, 1012))
    links = Links(*brokers, brokers=brokers)
    ours = exchanger(links, Clock())
    ours.tick()
    assert len(links.asked) == 4
    for _ in range(4):
        ours.tick()
    assert {broker for broker, _ in links.asked} == set(brokers)


def test_an_answer_to_the_newest_question_is_an_exchange() -> None:
    links, clock = Links(2001), Clock()
    heard: list[tuple[int, Exchange]] = []
    ours = exchanger(links, clock, heard)
    ours.tick()
    ((_, t1_ns),) = links.asked
    clock.now_ns += 20 * MS
    their_ns = t1_ns + 90 * MS
    ours.answered(BrokerId(2001), t1_ns=t1_ns, t2_ns=their_ns, t3_ns=their_ns, host_error_us=-1, spread_us=0)
    ((broker, exchange),) = heard
    assert (broker, exchange.theta_ns, exchange.delta_ns) == (2001, 80 * MS, 20 * MS)


def test_answers_to_older_questions_and_to_none_are_dropped() -> None:
    links, clock = Links(2001), Clock()
    heard: list[tuple[int, Exchange]] = []
    ours = exchanger(links, clock, heard)
    ours.tick()
    clock.now_ns += 1
    ours.tick()
    old, new = (t1_ns for _, t1_ns in links.asked)
    for broker, t1_ns in ((2001, old), (2002, new), (2001, new), (2001, new)):
        ours.answered(BrokerId(broker), t1_ns=t1_ns, t2_ns=new, t3_ns=new, host_error_us=-1, spread_us=0)
    assert [(broker, exchange.t1_ns) for broker, exchange in heard] == [(2001, new)]


def test_an_answer_has_our_clock_and_no_bound_that_we_do_not_know() -> None:
    clock = Clock(ahead_ns=7)
    assert exchanger(Links(), clock).answer(123) == (123, 10**18 + 7, 10**18 + 7, -1, 0)


def test_the_kernel_is_believed_only_while_somebody_disciplines_its_clock() -> None:
    assert judge(0, 0x2001, 1_500) == 1_500
    assert judge(TIME_ERROR, 0x2001, 1_500) is None
    assert judge(0, STA_UNSYNC, 1_500) is None
    assert judge(-1, 0, 0) is None
    assert judge(0, 0, 16_000_000) is None


def test_the_kernel_answers_or_says_that_it_cannot() -> None:
    bound_us = KernelClock().max_error_us()
    assert bound_us is None or 0 <= bound_us < 16_000_000
