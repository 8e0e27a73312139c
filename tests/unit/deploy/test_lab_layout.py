"""Which hosts and steps a lab has."""

from __future__ import annotations

import tomllib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from runpy import run_path
from typing import Final

import pytest

from deploy.lab.layout import OUTPUTS, REGIONS, addressing, layout, networks, outputs_of
from deploy.lab.needs import LabError
from deploy.lab.steps import asked, chosen
from mesh.testbed.plan_core import parse_wan

SHIPPED: Final = Path(__file__).parents[3] / "deploy/ansible/inventory/terraform.py"


def test_the_lab_has_the_hosts_of_its_regions_toml_with_the_networks_that_stand_there() -> None:
    with (OUTPUTS.with_name("regions.toml")).open("rb") as file:
        tables = {table["name"]: table for table in tomllib.load(file)["regions"]}
    three = layout(3)
    assert networks(three.hosts) == {name: IPv4Network(table["cidr"]) for name, table in tables.items()}
    assert {host.name for host in three.hosts} == {
        f"{role}-{number}.{name}"
        for name, table in tables.items()
        for role in ("broker", "gateway")
        for number in range(1, table[f"{role}s"] + 1)
    }
    assert all(IPv4Address(host.address) in host.network for host in three.hosts)


def test_the_test_beds_router_knows_the_region_of_every_address() -> None:
    hosts = layout(3).hosts
    known = addressing(networks(hosts), {region: index for index, region in enumerate(REGIONS, start=1)})
    for host in hosts:
        octet = IPv4Address(host.address).packed[known.octet]
        assert REGIONS[known.index_of[octet] - 1] == host.region
    assert known.index_of[11] == 0, "nobody's"


def test_every_pair_of_regions_has_a_delay() -> None:
    assert parse_wan(layout(3).round_trips).require(REGIONS).regions == REGIONS
    assert not layout(1).has_wan


def test_hosts_that_come_later_are_no_founders() -> None:
    one, three = layout(1), layout(3)
    home = "us-east-1"
    assert one.founders == (*(f"broker-{number}.{home}" for number in (1, 2, 3)), f"gateway-1.{home}")
    assert {f"{role}-1.{region}" for role in ("broker", "gateway") for region in REGIONS[:3]} < set(three.founders)
    assert {host.name for host in three.hosts} - set(three.founders) == {
        "broker-4.us-east-1",
        "broker-5.us-east-1",
        "broker-1.sa-east-1",
        "gateway-1.sa-east-1",
    }


def test_ansible_is_told_what_terraform_would_say_of_the_hosts_that_are_there() -> None:
    said = run_path(str(SHIPPED))["inventory"](
        {name: row["value"] for name, row in outputs_of(layout(1).founders).items()}
    )
    assert said["brokers"]["hosts"] == [f"broker-{number}.us-east-1" for number in (1, 2, 3)]
    assert said["gateways"]["hosts"] == ["gateway-1.us-east-1"]
    for host in layout(1).hosts[:3]:
        told = said["_meta"]["hostvars"][host.name]
        assert (told["ansible_host"], told["georelay_data_device"]) == (host.address, host.device)
    assert "georelay_secrets" not in said["mesh"]["vars"], "there is no AWS to ask"


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
