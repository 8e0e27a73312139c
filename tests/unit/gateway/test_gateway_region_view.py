"""Ranking of regions and health of brokers, without sockets or clocks."""

from __future__ import annotations

import itertools
import random

import pytest

from gateway.routing.broker_health import TRANSITIONS, Health, Probe
from gateway.routing.client_book_core import ClientBook, ClientKey
from gateway.routing.client_routes import ClientRoutes, Question
from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from gateway.routing.region_view_core import SAMPLE_AGE_NS_MAX, RegionView
from gateway.routing.router import Router
from gateway.routing.rules_core import Kind
from georelay.errors import BadRequest
from georelay.ids import BrokerId, RegionNumber, broker_id

MS = 1_000_000


def region(name: str, number: int, brokers: int = 1) -> RegionEndpoints:
    return RegionEndpoints(
        name=name,
        number=RegionNumber(number),
        brokers=tuple(
            BrokerEndpoints(id=broker_id(RegionNumber(number), n), kafka=f"{name}-{n}:1", grpc="", admin="")
            for n in range(1, brokers + 1)
        ),
    )


def three_regions() -> RegionView:
    return RegionView([region("us", 1), region("eu", 2), region("ap", 3)])


def measure(view: RegionView, broker: int, rtt_ms: float, *, times: int = 6, now_ns: int = 0) -> None:
    for _ in range(times):
        view.on_probe(BrokerId(broker), Probe.OK, now_ns=now_ns, rtt_ns=int(rtt_ms * MS), warm=True)


def names(view: RegionView, now_ns: int = 0) -> list[str]:
    return [seen.name for seen in Router(view, monotonic_ns=lambda: now_ns).ranking()]


def test_every_pair_of_health_and_probe_is_decided() -> None:
    assert set(TRANSITIONS) == set(itertools.product(Health, Probe))


def test_one_failed_probe_does_not_take_a_broker_out_but_two_do() -> None:
    view = three_regions()
    measure(view, 1001, 5)
    assert not view.on_probe(BrokerId(1001), Probe.FAILED, now_ns=0)
    assert view.on_probe(BrokerId(1001), Probe.FAILED, now_ns=0)
    assert view.health(BrokerId(1001)) is Health.UNREADY


def test_a_refused_connection_takes_a_broker_out_at_once() -> None:
    view = three_regions()
    measure(view, 1001, 5)
    assert view.on_probe(BrokerId(1001), Probe.REFUSED, now_ns=0)


def test_a_broker_comes_back_after_two_good_probes() -> None:
    view = three_regions()
    view.on_probe(BrokerId(1001), Probe.REFUSED, now_ns=0)
    assert not view.on_probe(BrokerId(1001), Probe.OK, now_ns=0)
    assert view.on_probe(BrokerId(1001), Probe.OK, now_ns=0)


def test_a_broker_is_late_when_it_owes_an_answer_for_longer_than_a_new_connection_takes() -> None:
    view = three_regions()
    measure(view, 1001, 100)
    view.on_asked(BrokerId(1001), now_ns=1_000 * MS)
    assert not view.is_late(BrokerId(1001), 1_600 * MS)
    assert view.is_late(BrokerId(1001), 1_601 * MS)
    assert not view.is_silent(BrokerId(1001), 2_050 * MS), "it may be busy"
    assert view.is_silent(BrokerId(1001), 2_051 * MS)
    view.on_probe(BrokerId(1001), Probe.OK, now_ns=1_700 * MS, rtt_ns=700 * MS, warm=False)
    assert not view.is_late(BrokerId(1001), 9_000 * MS)


def test_a_broker_whose_probe_was_not_answered_is_late_until_one_is() -> None:
    view = three_regions()
    measure(view, 1001, 1)
    view.on_probe(BrokerId(1001), Probe.FAILED, now_ns=0)
    assert view.health(BrokerId(1001)).ready
    assert view.is_late(BrokerId(1001), 0) and view.is_silent(BrokerId(1001), 0)
    view.on_probe(BrokerId(1001), Probe.OK, now_ns=0)
    assert not view.is_late(BrokerId(1001), 0)


def test_a_broker_that_says_that_it_is_not_ready_is_not_late() -> None:
    view = three_regions()
    measure(view, 1001, 1)
    view.on_probe(BrokerId(1001), Probe.FAILED, now_ns=0, rtt_ns=MS, warm=True)
    assert not view.is_late(BrokerId(1001), 9_000 * MS)


def test_ready_regions_are_ordered_by_round_trip_and_unready_ones_come_last() -> None:
    view = three_regions()
    measure(view, 2001, 80)
    measure(view, 3001, 20)
    assert names(view) == ["ap", "eu", "us"]


def test_the_first_exchange_on_a_connection_is_not_a_sample() -> None:
    view = three_regions()
    view.on_probe(BrokerId(1001), Probe.OK, now_ns=0, rtt_ns=300 * MS, warm=False)
    assert view.seen(0)[0].ready
    assert view.seen(0)[0].rtt_ns is None


def test_a_single_spike_does_not_move_the_median() -> None:
    view = three_regions()
    measure(view, 1001, 10, times=5)
    measure(view, 1001, 900, times=1)
    assert view.seen(0)[0].rtt_ns == 10 * MS


def test_old_samples_are_forgotten() -> None:
    view = three_regions()
    measure(view, 1001, 10)
    assert view.seen(SAMPLE_AGE_NS_MAX)[0].rtt_ns == 10 * MS
    assert view.seen(SAMPLE_AGE_NS_MAX + 1)[0].rtt_ns is None


def test_a_region_is_as_near_as_its_nearest_ready_broker() -> None:
    view = RegionView([region("us", 1, brokers=2)])
    measure(view, 1001, 3)
    measure(view, 1002, 9)
    assert view.seen(0)[0].rtt_ns == 3 * MS
    view.on_probe(BrokerId(1001), Probe.REFUSED, now_ns=0)
    assert view.seen(0)[0].rtt_ns == 9 * MS


def test_equal_distances_follow_the_configured_order() -> None:
    view = three_regions()
    measure(view, 2001, 0.4)
    measure(view, 1001, 0.5)
    assert names(view)[0] == "us"


def test_a_gateway_does_not_stay_with_a_region_that_it_took_before_anything_was_measured() -> None:
    view = three_regions()
    router = Router(view, monotonic_ns=lambda: 0)
    for broker in (1001, 2001):
        view.on_probe(BrokerId(broker), Probe.OK, now_ns=0, rtt_ns=MS, warm=False)
    assert router.nearest == "us"
    measure(view, 2001, 1)
    assert router.nearest == "eu"


def test_a_region_that_was_lost_does_not_get_the_first_place_back_at_once() -> None:
    view = three_regions()
    router = Router(view, monotonic_ns=lambda: 0)
    measure(view, 1001, 10)
    measure(view, 2001, 12)
    assert router.nearest == "us"
    view.on_probe(BrokerId(1001), Probe.REFUSED, now_ns=0)
    assert router.nearest == "eu"
    measure(view, 1001, 2)
    assert router.nearest == "eu"


def test_a_drained_region_takes_no_request_that_another_one_can_take() -> None:
    view = three_regions()
    router = Router(view, monotonic_ns=lambda: 0)
    measure(view, 1001, 10)
    measure(view, 2001, 90)
    router.rules.make(Kind.DRAIN, "us", "clients", now_us=1, now_s=0, by="ann")
    assert router.nearest == "eu"
    view.on_probe(BrokerId(2001), Probe.REFUSED, now_ns=0)
    assert router.nearest == "us"


def test_requests_of_a_pinned_client_go_to_its_region_while_that_is_ready() -> None:
    view = three_regions()
    router = Router(view, monotonic_ns=lambda: 0)
    measure(view, 1001, 10)
    measure(view, 2001, 90)
    router.rules.make(Kind.PIN, "10.1.2.0/24", "eu", now_us=1, now_s=0, by="ann")
    assert [broker.id for broker in router.candidates(client=ClientKey("", "10.1.2.9"))] == [2001, 1001]
    assert [broker.id for broker in router.candidates(client=ClientKey("", "10.1.3.9"))] == [1001, 2001]
    view.on_probe(BrokerId(2001), Probe.REFUSED, now_ns=0)
    assert [broker.id for broker in router.candidates(client=ClientKey("", "10.1.2.9"))] == [1001]
    measure(view, 2001, 90)
    assert router.first_for(ClientKey("", "10.1.2.9")) == "eu"
    router.rules.make(Kind.DRAIN, "eu", "clients", now_us=1, now_s=0, by="ann")
    assert router.first_for(ClientKey("", "10.1.2.9")) == "us"


def test_a_region_that_drains_is_for_a_client_that_finds_no_other_one() -> None:
    view = three_regions()
    for broker, rtt_ms in ((1001, 10), (2001, 20), (3001, 30)):
        measure(view, broker, rtt_ms)
    router = Router(view, monotonic_ns=lambda: 0)
    routes = ClientRoutes(router, ClientBook(), rng=random.Random(1))

    def order(name: str) -> list[list[str]]:
        return [[row.name for row in rows] for rows in routes.order_for(Question(client=ClientKey(name, "10.1.2.3")))]

    router.rules.make(Kind.DRAIN, "eu", "clients", now_us=1, now_s=0, by="ann")
    assert order("one") == [["us", "ap"], ["eu"]]
    view.on_probe(BrokerId(1001), Probe.REFUSED, now_ns=0)
    assert order("two") == [["ap"], ["eu", "us"]]
    for name in ("us", "ap"):
        router.rules.make(Kind.DRAIN, name, "clients", now_us=1, now_s=0, by="ann")
    assert order("three") == [["eu", "ap"], ["us"]], "all drain: it is no reason against one"


def test_a_region_came_back_when_it_was_ready_away_and_ready_again() -> None:
    view = three_regions()
    measure(view, 1001, 10)
    assert view.seen(0)[0].returned_ns is None
    view.on_probe(BrokerId(1001), Probe.REFUSED, now_ns=7)
    assert view.seen(8)[0].is_refused
    measure(view, 1001, 10, now_ns=9)
    assert view.seen(9)[0].returned_ns == 9
    assert not view.seen(9)[0].is_refused
    assert not view.seen(9)[1].was_ready


def test_what_stayed_with_a_gateway_that_was_cut_off_came_back_when_that_hears_the_others() -> None:
    view = three_regions()
    for broker in (1001, 2001, 3001):
        measure(view, broker, 10)
    for broker in (2001, 2001, 3001, 3001):
        view.on_probe(BrokerId(broker), Probe.FAILED, now_ns=7)
    assert [row.returned_ns for row in view.seen(8)] == [None, None, None]
    measure(view, 2001, 10, now_ns=9)
    assert [row.returned_ns for row in view.seen(9)] == [9, 9, None]
    measure(view, 3001, 10, now_ns=11)
    assert [row.returned_ns for row in view.seen(11)] == [9, 9, 11]


def test_a_region_that_others_were_lost_beside_was_not_away_itself() -> None:
    view = three_regions()
    for broker in (1001, 2001, 3001):
        measure(view, broker, 10)
    view.on_probe(BrokerId(2001), Probe.REFUSED, now_ns=7)
    view.on_probe(BrokerId(3001), Probe.REFUSED, now_ns=7)
    measure(view, 2001, 10, now_ns=9)
    assert view.seen(9)[0].returned_ns is None


def test_a_region_sheds_the_mean_of_what_its_ready_brokers_say() -> None:
    view = RegionView([region("us", 1, brokers=3)])
    for broker, shed in ((1001, 0.2), (1002, 0.4), (1003, None)):
        view.on_probe(BrokerId(broker), Probe.OK, now_ns=5, shed=shed)
    assert view.seen(6)[0].shed == pytest.approx(0.3)
    assert view.seen(6)[0].heard_ns == 5
    view.on_probe(BrokerId(1002), Probe.REFUSED, now_ns=7)
    assert view.seen(8)[0].shed == pytest.approx(0.2)


def test_brokers_of_a_region_take_turns_as_first_candidate() -> None:
    view = RegionView([region("us", 1, brokers=3), region("eu", 2)])
    for broker in (1001, 1002, 1003, 2001):
        measure(view, broker, 1)
    router = Router(view, monotonic_ns=lambda: 0)
    chosen = [router.candidates() for _ in range(3)]
    assert {candidates[0].id for candidates in chosen} == {1001, 1002, 1003}
    assert all(candidates[3].id == 2001 for candidates in chosen)


def test_a_broker_of_another_region_is_among_those_to_try_however_many_the_first_one_has() -> None:
    view = RegionView([region("us", 1, brokers=6), region("eu", 2)])
    for broker in (*range(1001, 1007), 2001):
        measure(view, broker, 1)
    router = Router(view, monotonic_ns=lambda: 0)
    assert {router.candidates()[-1].id for _ in range(6)} == {2001}
    assert len(router.candidates("us")) == 4


def test_what_is_gathered_goes_to_one_broker_for_a_moment_and_then_to_the_next_one() -> None:
    view = RegionView([region("us", 1, brokers=3)])
    for broker in (1001, 1002, 1003):
        measure(view, broker, 1)
    clock = [0]
    router = Router(view, monotonic_ns=lambda: clock[0])
    chosen = []
    for clock[0] in (0, 9, 10, 19, 20, 30):
        router.candidates()  # other requests in between do not end the moment
        chosen.append(int(router.candidates(stay_ns=10)[0].id))
    assert chosen == [1001, 1001, 1002, 1002, 1003, 1001]


def test_an_unready_broker_is_no_candidate() -> None:
    view = RegionView([region("us", 1, brokers=2)])
    measure(view, 1002, 1)
    assert [broker.id for broker in Router(view, monotonic_ns=lambda: 0).candidates()] == [1002]


def test_an_unknown_region_is_refused_with_the_known_names() -> None:
    with pytest.raises(BadRequest, match="known: us, eu, ap"):
        Router(three_regions(), monotonic_ns=lambda: 0).candidates("mars")


def test_a_broker_at_the_same_addresses_keeps_what_was_measured_and_another_one_begins_anew() -> None:
    view = three_regions()
    for broker in (1001, 2001, 3001):
        measure(view, broker, 10)
    moved = RegionEndpoints(
        name="eu",
        number=RegionNumber(2),
        brokers=(BrokerEndpoints(id=BrokerId(2001), kafka="eu-1:2", grpc="", admin=""),),
    )
    view.replace([region("us", 1), moved, region("sa", 4)])
    assert view.health(BrokerId(1001)) is Health.READY
    assert view.health(BrokerId(2001)) is Health.UNKNOWN
    assert {ranked.name: ranked.rtt_ns for ranked in view.seen(0)} == {"us": 10 * MS, "eu": None, "sa": None}


def test_estimates_order_what_was_never_measured_and_end_with_the_first_measured_round_trip() -> None:
    view = three_regions()
    for broker in (1001, 2001, 3001):
        view.on_probe(BrokerId(broker), Probe.OK, now_ns=0)
    view.replace(view.regions, {BrokerId(1001): 90 * MS, BrokerId(2001): 50 * MS, BrokerId(3001): 20 * MS})
    assert names(view) == ["ap", "eu", "us"]
    assert [seen.rtt_ns for seen in view.seen(0)] == [None, None, None]
    measure(view, 1001, 200)
    assert view.seen(SAMPLE_AGE_NS_MAX + 1)[0].estimate_ns is None
