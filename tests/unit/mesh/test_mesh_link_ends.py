"""Which region a connection of a link leads to, told by the addresses at its ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.listening.link_ends_core import LinkEnd, LinkEnds, endpoint_of, is_name, plain_host


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.1:53100", ("10.0.0.1", 53100)),
        ("ipv4:10.0.0.1:53100", ("10.0.0.1", 53100)),
        ("[::1]:7", ("::1", 7)),
        ("ipv6:%5B::1%5D:7", ("::1", 7)),
        ("[::ffff:10.0.0.1]:7", ("10.0.0.1", 7)),
        ("[fe80::1%eth0]:7", ("fe80::1", 7)),
        ("Broker-1.EU.example:7", ("broker-1.eu.example", 7)),
    ],
)
def test_one_end_has_one_spelling_however_it_was_written(text: str, endpoint: tuple[str, int]) -> None:
    assert endpoint_of(text) == endpoint


@pytest.mark.parametrize("text", ["", "unix:/tmp/s", "host", ":7", "host:", "host:7x", "host:-7", "host:٧", "unix:"])
def test_what_names_no_port_of_a_host_is_no_end(text: str) -> None:
    assert endpoint_of(text) is None


@given(address=st.ip_addresses(), port=st.integers(0, 65_535))
def test_every_address_comes_back_from_both_ways_to_write_it(address: object, port: int) -> None:
    plain = plain_host(str(address))
    shown = f"[{address}]" if ":" in str(address) else str(address)
    assert endpoint_of(f"{shown}:{port}") == (plain, port)
    assert not is_name(plain)
    assert plain_host(plain) == plain


def test_a_name_has_to_be_resolved_and_an_address_has_not() -> None:
    assert [is_name(host) for host in ("broker-1", "10.0.0.1", "::1", "")] == [True, False, False, True]


def end(region: str, address: str, *, is_dialled: bool = True) -> LinkEnd:
    return LinkEnd(region=region, address=address, is_dialled=is_dialled)


def test_an_end_that_cannot_be_read_says_nothing_and_the_others_still_count() -> None:
    known = LinkEnds([end("eu", "unix:/tmp/s"), end("ap", "nonsense", is_dialled=False), end("us", "10.0.0.1:7")], {})
    assert (known.ports, known.region_of(("10.0.0.1", 7))) == (frozenset({7}), "us")


def test_whoever_dialled_us_is_known_by_the_port_that_it_came_from_and_by_nothing_else() -> None:
    known = LinkEnds([end("eu", "ipv4:10.0.0.9:53100", is_dialled=False)], {})
    assert known.region_of(("10.0.0.9", 53100)) == "eu"
    assert known.region_of(("10.0.0.9", 53101)) == ""
    assert known.ports == frozenset()


def test_a_name_stands_for_every_address_that_it_was_resolved_to() -> None:
    known = LinkEnds([end("eu", "eu-1:7"), end("us", "us-1:7")], {"eu-1": ["10.0.1.1", "10.0.1.2"], "us-1": []})
    assert [known.region_of((host, 7)) for host in ("10.0.1.1", "10.0.1.2", "10.0.2.1")] == ["eu", "eu", ""]


def test_the_port_alone_decides_while_it_is_one_regions() -> None:
    one = LinkEnds([end("eu", "eu-1:7"), end("eu", "eu-2:7")], {})
    two = LinkEnds([end("eu", "eu-1:7"), end("us", "us-1:7")], {})
    assert [known.region_of(("10.9.9.9", 7)) for known in (one, two)] == ["eu", ""]
    assert one.region_of(("10.9.9.9", 8)) == ""


def test_a_resolved_address_is_not_taken_for_another_port_of_its_host() -> None:
    known = LinkEnds([end("eu", "10.0.0.1:7"), end("us", "10.0.0.1:8")], {"10.0.0.1": ["10.0.0.2"]})
    assert [known.region_of(("10.0.0.1", port)) for port in (7, 8, 9)] == ["eu", "us", ""]
