"""What an inventory must not say is refused in one line, before anything is made of it: the assertions of the roles.

Ansible's own words are played here: expressions and messages are those of the task files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jinja2
import pytest

from tests.unit.deploy.test_plays import nodes

yaml = pytest.importorskip("yaml")
ROLES: Final = Path(__file__).resolve().parents[3] / "deploy" / "ansible" / "roles"
HOSTS: Final = {
    "broker-1.us": "10.1.1.1",
    "broker-2.us": "10.1.1.2",
    "broker-3.us": "10.1.1.3",
    "gateway-1.us": "10.1.1.4",
}


class Tasks:
    """The assertions of one task file, with what Ansible knows when they run."""

    def __init__(self, file: str, **known: Any) -> None:
        environment = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=False)
        environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
        environment.filters["difference"] = lambda found, others: [one for one in found if one not in others]
        environment.filters["zip"] = zip
        environment.filters["extract"] = lambda name, table, key: table[name][key]
        self._environment = environment
        self._rows = [
            row for row in nodes(yaml.safe_load((ROLES / file).read_text())) if "ansible.builtin.assert" in row
        ]
        self._known = known

    def refusals(self) -> Iterator[str]:
        """Yield the messages of all assertions that do not hold."""
        for row in self._rows:
            rule = row["ansible.builtin.assert"]
            items = self._value(row["loop"], self._variables(row, "")) if "loop" in row else [""]
            for item in items:
                known = self._variables(row, item)
                conditions = rule["that"] if isinstance(rule["that"], list) else [rule["that"]]
                if not all(self._holds(condition, known) for condition in conditions):
                    yield " ".join(
                        self._environment.from_string(rule["fail_msg"]).render(**self._known, **known).split()
                    )

    def _variables(self, row: dict[str, Any], item: str) -> dict[str, Any]:
        known: dict[str, Any] = {"item": item}
        for name, text in row.get("vars", {}).items():
            known[name] = self._value(text, known)
        return known

    def _holds(self, condition: str, known: dict[str, Any]) -> bool:
        return bool(self._evaluate(condition, known))

    def _value(self, text: str, known: dict[str, Any]) -> Any:
        value = self._evaluate(text.strip().removeprefix("{{").removesuffix("}}"), known)
        return value if isinstance(value, (list, dict, str)) else list(value)

    def _evaluate(self, expression: str, known: dict[str, Any]) -> Any:
        as_ansible_reads_it = expression.replace("\\", "\\\\")
        return self._environment.compile_expression(as_ansible_reads_it)(**self._known, **known)


def inventory(hosts: dict[str, str], *, home: str = "us", joined: tuple[str, ...] = ()) -> list[str]:
    """Return what roles/mesh says against an inventory of these hosts."""
    brokers = [name for name in hosts if name.startswith("broker")]
    known = {
        "georelay_mesh_id": "shop",
        "georelay_home": home,
        "georelay_release": "georelay.tar.gz",
        "georelay_regions": sorted({name.partition(".")[2] for name in brokers}),
        "georelay_record": {"regions": dict.fromkeys(joined)},
        "groups": {"brokers": brokers, "gateways": [name for name in hosts if name not in brokers]},
        "hostvars": {name: {"georelay_address": address} for name, address in hosts.items()},
    }
    return list(Tasks("mesh/tasks/inventory.yml", **known).refusals())


def test_an_inventory_of_three_brokers_and_a_gateway_is_taken() -> None:
    assert inventory(HOSTS) == []


def test_a_home_that_is_no_region_of_the_brokers_is_refused() -> None:
    (said,) = inventory(HOSTS, home="eu")
    assert said.startswith("Set georelay_mesh_id, georelay_home (one of the regions of the group brokers)")


def test_a_name_that_says_no_region_is_refused() -> None:
    assert any(
        "broker4 is no name of a host: broker-N.REGION" in said for said in inventory({**HOSTS, "broker4": "10.1.1.9"})
    )


def test_two_hosts_of_one_address_are_refused() -> None:
    said = "broker-1.us and gateway-1.us have the address 10.1.1.1: give each its own"
    assert inventory({**HOSTS, "gateway-1.us": "10.1.1.1"}) == [said, said]


@pytest.mark.parametrize("joined", [(), ("us",)])
def test_an_even_number_of_brokers_founds_no_region_and_stays_where_brokers_left(joined: tuple[str, ...]) -> None:
    found = inventory({**HOSTS, "broker-4.us": "10.1.1.9"}, joined=joined)
    assert [said.partition(" would ")[2] for said in found] == (
        []
        if joined
        else ["found region us: name an odd number of brokers, such as 3; an even number bears no more losses"]
    )


def disk(*, exists: bool = True, holds: str = "") -> list[str]:
    known = {
        "georelay_data_device": "/dev/data",
        "inventory_hostname": "broker-1.us",
        "data_disk_device": {"stat": {"exists": exists}},
        "data_disk_type": {"stdout": holds},
    }
    return list(Tasks("data_disk/tasks/main.yml", **known).refusals())


def test_a_disk_that_is_not_there_or_not_ours_is_named() -> None:
    assert disk() == disk(holds="ext4") == []
    (missing,) = disk(exists=False)
    assert missing.startswith("broker-1.us has no /dev/data: attach it")
    assert disk(holds="xfs") == ["/dev/data holds xfs: empty it (wipefs), or name another device"]


@pytest.mark.parametrize(
    ("free", "said"), [("1024", ""), ("1023", "broker-1.us: 1023 MiB are free at /var/lib, 1024 are wanted: grow it")]
)
def test_a_disk_without_room_is_refused_before_anything_is_installed(free: str, said: str) -> None:
    known = {
        "inventory_hostname": "broker-1.us",
        "room_free": {"stdout_lines": ["  Avail", f"   {free}"]},
        "room_path": "/var/lib",
        "room_mib": 1024,
        "room_advice": "grow it",
    }
    assert list(Tasks("../tasks/room.yml", **known).refusals()) == ([said] if said else [])


@pytest.mark.parametrize(
    ("play", "said"),
    [
        ("retire-region.yml", "say -e region=NAME with one of us, eu"),
        ("add-region.yml", "say -e region=NAME; brokers of that region (broker-1.NAME) have to stand in the inventory"),
    ],
)
def test_a_region_that_nobody_knows_is_refused_by_the_plays_of_regions(play: str, said: str) -> None:
    regions = ["us", "eu"]
    known = {"region": "mars", "georelay_regions": regions, "georelay_record": {"regions": dict.fromkeys(regions)}}
    assert next(Tasks(f"../{play}", **known).refusals()) == said
    assert said not in list(Tasks(f"../{play}", **{**known, "region": "eu"}).refusals())
