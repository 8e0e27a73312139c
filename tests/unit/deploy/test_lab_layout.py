"""Which hosts and steps a lab has."""

from __future__ import annotations

import pytest

from deploy.lab.layout import REGIONS, layout, networks
from deploy.lab.needs import LabError
from deploy.lab.steps import asked, chosen
from mesh.testbed.plan_core import parse_wan


def test_an_address_says_which_region_of_the_test_beds_router_it_is_in() -> None:
    for host in layout(3).hosts:
        assert int(host.address.split(".")[2]) == REGIONS.index(host.region) + 1


def test_every_pair_of_regions_has_a_delay() -> None:
    assert parse_wan(layout(3).round_trips).require(REGIONS).regions == REGIONS
    assert not layout(1).has_wan


def test_hosts_that_come_later_are_no_founders() -> None:
    one, three = layout(1), layout(3)
    assert one.founders == ("broker-1.us", "broker-2.us", "broker-3.us", "gateway-1.us")
    assert {"broker-1.ap", "gateway-1.us", "gateway-1.eu", "gateway-1.ap"} < set(three.founders)
    assert {host.name for host in three.hosts} - set(three.founders) == {
        "broker-4.us",
        "broker-5.us",
        "broker-1.sa",
    }
    assert networks(three.hosts) == {region: f"10.{10 * i}.0.0/16" for i, region in enumerate(REGIONS, start=1)}


def test_another_number_of_regions_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or 3"):
        layout(2)


def test_steps_are_chosen_by_name_and_keep_the_order_of_the_lab() -> None:
    assert list(chosen("one removed, site again", regions=1)) == ["site again", "one removed"]
    every = list(chosen("", regions=3))
    assert every[0] == "site again" and every[-1] == "site at the end" and "region retired" in every
    assert "region retired" not in chosen("", regions=1)


def test_a_step_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(LabError, match="no step is called region retired; there are: site again"):
        chosen("region retired", regions=1)


def test_steps_that_are_asked_for_one_by_one_may_come_twice_and_a_wrong_name_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ["site again\n", "\n", "nothing\n", "site again\n"]
    assert [name for name, _ in asked(lines, regions=1)] == ["site again", "site again"]
    assert "no step is called nothing" in capsys.readouterr().out
