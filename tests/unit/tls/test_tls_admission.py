"""Who is let in, with a clock that only tests move."""

from __future__ import annotations

import pytest

from mesh.listening.admission_core import (
    ADDRESSES_MAX,
    CROWD,
    Admission,
    AdmissionCounters,
    AdmissionLimits,
    Refusal,
    group_of,
)

NONE = AdmissionLimits()


def admission(**limits: int) -> Admission:
    return Admission(AdmissionLimits(**limits), AdmissionCounters(), now_s=0.0)


def test_the_listener_is_full_at_its_limit_and_has_room_after_a_close() -> None:
    books = admission(connections_max=2)
    first = books.admit("10.0.0.1", 0, handshake=False)
    books.admit("10.0.0.2", 0, handshake=False)
    assert books.admit("10.0.0.3", 0, handshake=False) is Refusal.TOO_MANY
    assert isinstance(first, str)
    books.closed(first)
    assert books.admit("10.0.0.3", 0, handshake=False) == "10.0.0.3"
    assert books.counters.refused == {Refusal.TOO_MANY: 1}


def test_one_address_cannot_take_the_room_of_others() -> None:
    books = admission(connections_per_address_max=1)
    books.admit("10.0.0.1", 0, handshake=False)
    assert books.admit("10.0.0.1", 0, handshake=False) is Refusal.TOO_MANY_OF_ADDRESS
    assert books.admit("10.0.0.2", 0, handshake=False) == "10.0.0.2"


def test_one_address_has_half_of_a_room_that_is_smaller_than_its_share_of_the_listeners() -> None:
    books = Admission(AdmissionLimits().within(4), AdmissionCounters(), now_s=0.0)
    answers = [books.admit("10.0.0.1", 0, handshake=False) for _ in range(3)]
    assert answers == ["10.0.0.1", "10.0.0.1", Refusal.TOO_MANY_OF_ADDRESS]
    assert [books.admit(f"10.0.0.{number}", 0, handshake=False) for number in (2, 3, 4)] == [
        "10.0.0.2",
        "10.0.0.3",
        Refusal.TOO_MANY,
    ]
    assert AdmissionLimits(connections_max=3, connections_per_address_max=1).within(1_000) == AdmissionLimits(
        connections_max=3, connections_per_address_max=1
    )


def test_handshakes_that_do_not_end_hold_up_their_own_address_first() -> None:
    books = admission(handshakes_max=3, handshakes_per_address_max=2)
    keys = [books.admit("10.0.0.1", 0, handshake=True) for _ in range(2)]
    assert books.admit("10.0.0.1", 0, handshake=True) is Refusal.TOO_MANY_HANDSHAKES
    assert books.admit("10.0.0.2", 0, handshake=True) == "10.0.0.2"
    assert books.admit("10.0.0.3", 0, handshake=True) is Refusal.TOO_MANY_HANDSHAKES
    assert isinstance(keys[0], str)
    books.handshaken(keys[0])
    assert books.admit("10.0.0.3", 0, handshake=True) == "10.0.0.3"


def test_an_address_that_connects_too_fast_is_refused_until_time_has_passed() -> None:
    books = admission(admits_per_address_per_s=10, admits_per_address_burst=2)
    assert [books.admit("a", 0, handshake=False) for _ in range(3)] == ["a", "a", Refusal.TOO_FAST]
    assert books.admit("b", 0, handshake=False) == "b"
    assert books.admit("a", 0.09, handshake=False) is Refusal.TOO_FAST
    assert books.admit("a", 0.21, handshake=False) == "a"


def test_an_address_pays_for_handshakes_that_lead_nowhere_and_others_do_not() -> None:
    books = admission(admits_per_address_per_s=100, admits_per_address_burst=100)
    for _ in range(50):
        if books.admit("a", 0, handshake=False) == "a":
            books.handshake_failed("a", 0)
    assert books.counters.accepted == 10  # eleven tokens each
    assert books.admit("b", 0, handshake=False) == "b"
    assert books.admit("a", 0.05, handshake=False) is Refusal.TOO_FAST
    assert books.admit("a", 1.2, handshake=False) == "a"  # the debt is bounded


def test_the_rate_of_accepting_counts_refused_ones_too() -> None:
    books = admission(accepts_per_s=100, accepts_burst=2)
    assert [books.may_accept(0) for _ in range(3)] == [True, True, False]
    assert books.wait_s(0) == pytest.approx(0.01)
    assert books.may_accept(0.011)


def test_a_clock_that_goes_back_gives_no_tokens() -> None:
    books = admission(accepts_per_s=100, accepts_burst=1)
    assert books.may_accept(10)
    assert not books.may_accept(5)
    assert not books.may_accept(10)


def test_an_address_without_connections_is_forgotten() -> None:
    books = admission()
    key = books.admit("10.0.0.1", 0, handshake=False)
    books.admit("10.0.0.2", 0, handshake=False)
    assert isinstance(key, str)
    books.closed(key)
    books.admit("10.0.0.3", 60, handshake=False)
    assert set(books.rows) == {"10.0.0.2", "10.0.0.3"}


def test_more_addresses_than_are_remembered_share_one_row() -> None:
    books = admission(connections_max=10**6, connections_per_address_max=3)
    for number in range(ADDRESSES_MAX):
        books.admit(f"a{number}", 0, handshake=False)
    keys = [books.admit(f"late{number}", 0, handshake=True) for number in range(4)]
    assert keys == [CROWD, CROWD, CROWD, Refusal.TOO_MANY_OF_ADDRESS]
    books.handshaken(CROWD)
    books.closed(CROWD)
    assert len(books.rows) == ADDRESSES_MAX + 1


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2"),
        ("2001:db8:1:2::9", "2001:db8:1:2"),
        ("2001:db8::9", "2001:db8:0:0"),
        ("::1", "0:0:0:0"),
        ("fe80::1%eth0", "fe80:0:0:0"),
    ],
)
def test_an_ipv6_client_counts_by_its_network(address: str, group: str) -> None:
    assert group_of(address) == group
