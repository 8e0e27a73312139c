"""What a gateway remembers of its clients: what is measured, what they say, and how much of it is kept."""

from __future__ import annotations

import pytest

from gateway.routing.client_book_core import IDLE_S, ClientBook, ClientKey, Observation
from gateway.routing.distance_core import Leg, Source, estimate
from mesh.distance.kernel_sample import KernelSample
from mesh.distance.prefix_core import Prefix, prefix_named, prefix_of
from mesh.distance.prefix_table_core import PrefixDistance

ANN = ClientKey("ann", "10.1.2.3")


def sample(srtt_ms: float, *, min_rtt_ms: float = 1.0, is_young: bool = False, last_ack_s: float = 0.0) -> KernelSample:
    return KernelSample(srtt_ms=srtt_ms, min_rtt_ms=min_rtt_ms, is_young=is_young, last_ack_s=last_ack_s)


def book() -> ClientBook:
    made = ClientBook()
    made.know_regions(["us", "eu"])
    return made


def test_the_lowest_round_trip_of_the_window_counts_until_it_is_too_old() -> None:
    clients = book()
    for now_s, srtt_ms in ((0, 40), (2, 65), (4, 66)):
        clients.saw(ANN, sample(srtt_ms), now_s)
    assert clients.kernel_ms(ANN, 5) == 40
    assert clients.kernel_ms(ANN, 121) == 65
    for now_s in range(10, 16):
        clients.saw(ANN, sample(80), now_s)
    assert clients.kernel_ms(ANN, 16) == 80  # a step of the path is seen after six samples


def test_samples_of_one_second_count_once_and_those_of_a_silent_connection_not_at_all() -> None:
    clients = book()
    clients.saw(ANN, sample(40), 0)
    clients.saw(ANN, sample(10), 0.5)
    clients.saw(ANN, sample(10, last_ack_s=31), 5)
    assert clients.kernel_ms(ANN, 6) == 40


def test_a_young_connection_counts_by_the_kernels_minimum() -> None:
    clients = book()
    clients.saw(ANN, sample(300, min_rtt_ms=20, is_young=True), 0)
    assert clients.kernel_ms(ANN, 0) == 20


def test_a_client_without_a_connection_is_as_far_as_the_median_of_its_prefix() -> None:
    clients = book()
    for last, rtt_ms in ((1, 10), (2, 12), (3, 500)):
        clients.saw(ClientKey("x", f"10.1.2.{last}"), sample(rtt_ms), 0)
    assert clients.kernel_ms(ANN, 1) == 12
    assert clients.kernel_ms(ClientKey("ann", "10.1.3.3"), 1) is None


def test_one_address_has_one_vote_in_its_prefix_however_many_names_it_uses() -> None:
    clients = book()
    for last in (1, 2, 3):
        clients.saw(ClientKey("x", f"10.1.2.{last}"), sample(10), 0)
    for number in range(20):
        clients.saw(ClientKey(f"liar-{number}", "10.1.2.66"), sample(900), 1)
    assert clients.kernel_ms(ANN, 1) == 10


def test_what_a_client_says_counts_for_itself_only_and_only_when_it_can_be() -> None:
    clients = book()
    clients.told(ANN, [Observation(region="eu", rtt_ms=30, samples=3)], 0)
    for odd in (
        Observation(region="us", rtt_ms=5, samples=2),
        Observation(region="us", rtt_ms=-1, samples=3),
        Observation(region="us", rtt_ms=float("nan"), samples=3),
        Observation(region="us", rtt_ms=5, samples=3, age_s=181),
        Observation(region="mars", rtt_ms=5, samples=3),
    ):
        clients.told(ANN, [odd], 0)
    assert clients.observed_ms(ANN, 1) == {"eu": 30}
    assert clients.observed_ms(ClientKey("ann", "10.1.2.4"), 1) == {}
    assert clients.observed_ms(ANN, 181) == {}


def test_the_kernel_counts_before_what_the_client_says_and_bounds_the_rest() -> None:
    near = estimate(leg=Leg(rtt_ms=0.3), kernel_ms=80, observed_ms=1)
    assert (near.source, near.rtt_ms) == (Source.KERNEL, 80.3)
    claimed = estimate(leg=Leg(rtt_ms=100), kernel_ms=10, observed_ms=1)
    assert (claimed.source, claimed.rtt_ms) == (Source.OBSERVED, 45)  # half of what the triangle allows at least
    assert estimate(leg=Leg(rtt_ms=100), kernel_ms=10, observed_ms=9_000).rtt_ms == 330


def test_without_an_observation_the_triangle_says_how_far_it_may_be() -> None:
    found = estimate(leg=Leg(rtt_ms=75), kernel_ms=10)
    assert (found.source, found.rtt_ms, found.error_ms) == (Source.LINKS, 75, 10)
    assert estimate(leg=Leg(rtt_ms=75), kernel_ms=10, far=PrefixDistance(Prefix(b"abc"), 70, 6)).source is Source.PREFIX
    assert estimate(leg=Leg(rtt_ms=75)).source is Source.GATEWAY
    guessed = estimate(leg=Leg(rtt_ms=75, is_measured=False))
    assert (guessed.source, guessed.error_ms) == (Source.COORDINATES, 22.5)
    assert estimate(leg=None).source is Source.NOTHING


def test_a_flood_of_names_takes_nobodys_place() -> None:
    clients = ClientBook(clients_max=10, prefix_clients_max=4)
    clients.memory(ANN, 0).region = "eu"
    for number in range(100):
        clients.memory(ClientKey(f"flood-{number}", "10.9.9.9"), 1)
    assert len(clients) == 5
    for number in range(100):
        clients.memory(ClientKey("flood", f"10.{number}.0.1"), 2)
    assert len(clients) == 10
    assert clients.without_place == 96 + 95
    assert clients.memory(ANN, 3).region == "eu"


def test_who_was_silent_for_long_gives_way() -> None:
    clients = ClientBook(clients_max=2)
    clients.memory(ANN, 0).region = "eu"
    clients.memory(ClientKey("b", "10.1.1.1"), 1)
    clients.memory(ClientKey("c", "10.1.1.2"), IDLE_S + 0.5)
    assert len(clients) == 2
    assert clients.remembered(ANN).region == ""


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("unix:/run/x", "None"),
    ],
)
def test_an_address_has_a_prefix(text: str, prefix: str) -> None:
    assert str(prefix_of(text)) == prefix


@pytest.mark.parametrize("text", ["10.1.2.3/24", "10.1.2.0/16", "x/24", "2001:db8::/32"])
def test_what_is_not_quite_a_prefix_is_none(text: str) -> None:
    assert prefix_named(text) is None


def test_what_a_client_observes_falls_at_once_and_rises_when_it_is_seen_twice() -> None:
    book, ann = ClientBook(), ClientKey("ann", "10.0.0.1")
    book.know_regions(["eu"])
    seen = []
    for at_s, rtt_ms in ((0, 40), (60, 140), (120, 41), (180, 46), (240, 46), (300, 30), (360, 33), (600, 90)):
        book.told(ann, [Observation(region="eu", rtt_ms=rtt_ms, samples=3)], at_s)
        seen.append(round(book.observed_ms(ann, at_s)["eu"], 1))
    # Late once is nothing; the last one comes when those before are too old to count.
    assert seen == [40, 40, 40.3, 40.6, 42.4, 30, 30, 90]
