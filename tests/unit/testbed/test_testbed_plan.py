"""What a test bed is made of: pairs on a command line, addresses that never meet."""

from __future__ import annotations

import ipaddress
import itertools
import json

import pytest

from georelay.errors import ConfigError
from georelay.fields import FieldError
from mesh.testbed.plan_core import SLOTS, BedPlan, parse_wan

TEXT = "us-eu=70ms,us-ap=150ms,eu-ap=120ms"


def plan(slot: int = 0, text: str = TEXT, addresses: int = 9, mtu_bytes: int = 1_500) -> BedPlan:
    spec = parse_wan(text)
    return BedPlan(name="dev", slot=slot, spec=spec, token="t", addresses=addresses, mtu_bytes=mtu_bytes)


def test_regions_are_in_the_order_in_which_they_are_named_first() -> None:
    assert parse_wan(TEXT).regions == ("us", "eu", "ap")


def test_half_of_the_round_trip_is_the_delay_of_each_direction() -> None:
    assert plan().delay_us("ap", "us") == plan().delay_us("us", "ap") == 75_000


def test_a_colon_separates_names_that_have_a_hyphen() -> None:
    spec = parse_wan("us-east:eu-west=70ms")
    assert spec.regions == ("us-east", "eu-west")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("us-eu", "''"),
        ("us=70ms", "REGION-REGION"),
        ("us-us=70ms", "REGION-REGION"),
        ("US-eu=70ms", "REGION-REGION"),
        ("us-eu=70ms,eu-us=80ms", "there twice"),
        ("us-eu=70ms,us-ap=150ms", "no round trip for eu-ap"),
        ("us-hub=1ms", "cannot be called hub"),
        ("us-eu=fast", "is not a duration"),
        ("us-eu=61s", "is not a duration"),
        (",".join(f"r{a}-r{b}=1ms" for a, b in itertools.combinations(range(16), 2)), "at most 15"),
    ],
)
def test_what_is_wrong_with_the_pairs_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_wan(text)


def test_no_address_is_there_twice_in_all_slots_of_a_machine() -> None:
    text = ",".join(f"r{a}-r{b}=1ms" for a, b in itertools.combinations(range(15), 2))
    seen: set[str] = set()
    for slot in range(SLOTS):
        one = plan(slot, text)
        addresses = [one.hub_address, one.host_address]
        for place in one.regions:
            addresses += [place.management, *(place.wan(number) for number in (1, 250))]
        assert len(set(addresses)) == len(addresses)
        assert not seen & set(addresses)
        seen |= set(addresses)
    block = ipaddress.ip_network("198.18.0.0/15")
    assert all(ipaddress.ip_address(address) in block for address in seen)


def test_every_address_of_a_slot_is_in_its_networks() -> None:
    one = plan(7)
    wan = ipaddress.IPv4Network(one.wan_network)
    for place in one.regions:
        network = ipaddress.IPv4Network(place.network)
        assert network.subnet_of(wan)
        assert ipaddress.ip_address(place.wan(9)) in network
        assert ipaddress.ip_address(place.management) in ipaddress.ip_network(f"{one.hub_address}/20", strict=False)


def test_names_of_devices_are_short_enough_for_the_kernel() -> None:
    assert len(plan(SLOTS - 1).host_device) <= 15


def test_a_plan_survives_the_way_to_the_process_that_builds_it() -> None:
    one = plan(3, mtu_bytes=9_000)
    assert BedPlan.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_plan_with_a_pair_left_out_is_refused() -> None:
    raw = plan().to_json() | {"rtt_us": [["eu", "us", 1]]}
    with pytest.raises(FieldError, match="every pair"):
        BedPlan.from_json(raw)


@pytest.mark.parametrize("changed", [{"addresses": 0}, {"addresses": 251}, {"mtu_bytes": 100}])
def test_a_plan_that_cannot_be_built_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        plan(addresses=changed.get("addresses", 9), mtu_bytes=changed.get("mtu_bytes", 1_500))


def test_a_bed_has_all_regions_of_its_mesh_and_may_have_places_of_clients_besides() -> None:
    assert parse_wan(TEXT).require(("ap", "eu", "us")).regions == ("ap", "eu", "us")
    assert parse_wan(TEXT).require(("eu", "us")).regions == ("eu", "us", "ap")
    with pytest.raises(ConfigError, match="--regions us,mars"):
        parse_wan(TEXT).require(("us", "mars"))
