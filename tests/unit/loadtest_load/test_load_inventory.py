"""Ansible's inventory becomes the mesh of a campaign: where clients reach it, and how a broker is killed and mended."""

from __future__ import annotations

import copy
import json
import os
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load.campaign import Campaign, Fault, Topology
from loadtest.load.inventory_core import ADDRESS, PORTS, InventoryError, commands_of, endpoints_of, folder_of
from loadtest.load.running_mesh import InventoryMesh
from loadtest.load.stage import Stage, meshed

ROOT = Path(__file__).resolve().parents[3]
ANSIBLE = ROOT / "deploy" / "ansible"
SHARED = {
    "ansible_user": "admin",
    "georelay_home": "us",
    "georelay_mesh_id": "shop",
    "georelay_release": "../../dist/georelay-0.1.0.tar.gz",
}
# What ansible-inventory 2.19 prints of inventory/static.example.yml and group_vars/mesh.example.yml.
LISTED: dict[str, Any] = {
    "_meta": {
        "hostvars": {
            "broker-1.us": {"ansible_host": "10.10.0.11", **SHARED},
            "broker-2.us": {"ansible_host": "10.10.0.12", **SHARED},
            "broker-3.us": {"ansible_host": "10.10.0.13", **SHARED},
            "broker-1.eu": {"ansible_host": "10.20.0.11", **SHARED},
            "broker-1.ap": {"ansible_host": "10.30.0.11", **SHARED},
            "gateway-1.us": {"ansible_host": "10.10.0.101", **SHARED},
            "gateway-1.eu": {"ansible_host": "10.20.0.101", **SHARED},
            "gateway-1.ap": {"ansible_host": "10.30.0.101", **SHARED},
            "localhost": {"ansible_connection": "local", **SHARED},
        },
        "profile": "inventory_legacy",
    },
    "all": {"children": ["ungrouped", "mesh"]},
    "brokers": {"hosts": ["broker-1.us", "broker-2.us", "broker-3.us", "broker-1.eu", "broker-1.ap"]},
    "gateways": {"hosts": ["gateway-1.us", "gateway-1.eu", "gateway-1.ap"]},
    "mesh": {"children": ["brokers", "gateways"], "hosts": ["localhost"]},
}
# The mesh.json of that one, as roles/mesh writes it.
RECORD: dict[str, Any] = {
    "founding_regions": 3,
    "home": "us",
    "mesh_id": "shop",
    "regions": {
        "ap": {"brokers": [1], "founders": 1, "join": [], "number": 3, "seeds": ["10.30.0.11"]},
        "eu": {"brokers": [1], "founders": 1, "join": [], "number": 2, "seeds": ["10.20.0.11"]},
        "us": {"brokers": [1, 2, 3], "founders": 3, "join": [], "number": 1, "seeds": ["10.10.0.11"]},
    },
    "wan_seeds": ["10.10.0.11", "10.20.0.11", "10.30.0.11"],
}
TOPOLOGY = Topology(kind="inventory", inventory="static.yml")


def endpoints(
    listed: dict[str, Any] = LISTED,
    record: dict[str, Any] = RECORD,
    *,
    topology: Topology = TOPOLOGY,
    is_broken: bool = False,
) -> dict[str, Any]:
    return endpoints_of(listed, record, topology=topology, ca="/m/pki/bundle.crt", is_broken=is_broken)


def changed(host: str, **more: Any) -> dict[str, Any]:
    listed = copy.deepcopy(LISTED)
    listed["_meta"]["hostvars"][host].update(more)
    return listed


def test_hosts_of_an_inventory_become_the_endpoints_that_up_writes_in_the_order_of_the_regions_numbers() -> None:
    document = endpoints(is_broken=True)
    assert list(document["regions"]) == ["us", "eu", "ap"]
    assert document == {
        "version": 1,
        "mesh": "shop",
        "ca": "/m/pki/bundle.crt",
        "regions": {
            "us": {
                "kafka": ["10.10.0.11:9092", "10.10.0.12:9092", "10.10.0.13:9092"],
                "grpc": ["10.10.0.11:9093", "10.10.0.12:9093", "10.10.0.13:9093"],
                "admin": ["10.10.0.11:9096", "10.10.0.12:9096", "10.10.0.13:9096"],
            },
            "eu": {"kafka": ["10.20.0.11:9092"], "grpc": ["10.20.0.11:9093"], "admin": ["10.20.0.11:9096"]},
            "ap": {"kafka": ["10.30.0.11:9092"], "grpc": ["10.30.0.11:9093"], "admin": ["10.30.0.11:9096"]},
        },
        "gateway": {
            "http": ["10.10.0.101:8080", "10.20.0.101:8080", "10.30.0.101:8080"],
            "kafka": ["10.10.0.101:19092", "10.20.0.101:19092", "10.30.0.101:19092"],
            "grpc": ["10.10.0.101:8090", "10.20.0.101:8090", "10.30.0.101:8090"],
        },
    }


def test_hosts_of_terraform_are_those_of_its_outputs() -> None:
    script = runpy.run_path(str(ANSIBLE / "inventory" / "terraform.py"))
    listed = script["inventory"](script["read_outputs"](str(ROOT / "deploy" / "lab" / "outputs.json")))
    rows = {"us-east-1": (1, [1, 2, 3]), "eu-west-1": (2, [1])}  # those that were let in
    record = {
        "mesh_id": "shop",
        "regions": {name: {"number": number, "brokers": brokers} for name, (number, brokers) in rows.items()},
    }
    document = endpoints(listed, record, topology=Topology(kind="inventory", regions=tuple(rows)))
    assert {name: row["kafka"] for name, row in document["regions"].items()} == {
        "us-east-1": ["10.10.48.11:9092", "10.10.64.12:9092", "10.10.80.13:9092"],
        "eu-west-1": ["10.20.48.11:9092"],
    }
    assert document["gateway"]["http"][0] == "10.30.48.101:8080"


def test_ports_and_the_address_are_those_that_the_plays_use_where_the_inventory_says_nothing() -> None:
    said = (ANSIBLE / "group_vars" / "all.yml").read_text()
    ports = {
        role: {name: int(port) for name, port in re.findall(r"(\w+): (\d+)", row)}
        for role, row in re.findall(r"^  (broker|gateway): \{(.*)\}$", said, re.M)
    }
    assert {"broker": {**PORTS["broker"], "peers": 9094, "link": 9095}, "gateway": PORTS["gateway"]} == ports
    assert f'georelay_address: "{ADDRESS}"\n' in said
    assert endpoints(changed("broker-1.eu", georelay_address=ADDRESS, georelay_ports=ports)) == endpoints()


def test_ports_and_an_address_that_the_inventory_says_are_used() -> None:
    ports = {"broker": {"kafka": 1, "grpc": 2, "admin": 3, "text": 4, "link": 5}}
    document = endpoints(changed("broker-1.eu", georelay_address="192.0.2.1", georelay_ports=ports))
    assert document["regions"]["eu"] == {
        "kafka": ["192.0.2.1:1"],
        "grpc": ["192.0.2.1:2"],
        "admin": ["192.0.2.1:3"],
        "text": ["192.0.2.1:4"],
    }


def test_hosts_of_groups_below_the_group_are_there_once() -> None:
    listed = LISTED | {
        "brokers": {"children": ["here", "there"]},
        "here": {"hosts": LISTED["brokers"]["hosts"]},
        "there": {"hosts": ["broker-1.eu"]},
    }
    assert endpoints(listed) == endpoints()


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"_meta": {"hostvars": {}}, "all": {"children": ["ungrouped"]}}, "no host is in its group brokers"),
        (changed("broker-1.us", georelay_mesh_id="{{ name }}"), "georelay_mesh_id is not set: the name of the mesh"),
    ],
)
def test_an_inventory_of_no_mesh_has_no_folder(listed: dict[str, Any], said: str) -> None:
    with pytest.raises(InventoryError, match=f"^{said}$"):
        folder_of(listed, home="home-of-me")


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({}, "home-of-me/.georelay/shop"),
        (
            {"georelay_mesh_dir": "{{ lookup('env', 'HOME') }}/.georelay/{{ georelay_mesh_id }}"},
            "home-of-me/.georelay/shop",
        ),
        ({"georelay_mesh_dir": "mesh-of-shop"}, "mesh-of-shop"),
    ],
)
def test_the_folder_of_the_mesh_is_where_the_plays_keep_it(more: dict[str, str], folder: str) -> None:
    assert folder_of(changed("broker-1.us", **more), home="home-of-me") == folder


@pytest.mark.parametrize(
    ("listed", "record", "topology", "said"),
    [
        (LISTED, {}, Topology(regions=("us", "sa")), "no broker of sa is in it and was let in; there are us, eu, ap"),
        (LISTED, {}, Topology(brokers_per_region=3), "brokers_per_region is 3, and eu has 1"),
        (LISTED | {"gateways": {}}, {}, TOPOLOGY, "no host is in its group gateways"),
        (changed("broker-1.eu", georelay_address="{{ private }}"), {}, TOPOLOGY, "broker-1.eu has no address: write"),
        (changed("broker-1.eu", ansible_host=""), {}, TOPOLOGY, "broker-1.eu has no address: write out its ansible_"),
        (LISTED, {"us": [1, 3]}, TOPOLOGY, r"its brokers of us have the numbers \[1, 3\]: faults need them without"),
        (LISTED, {"eu": []}, Topology(regions=("us",)), r"its regions have the numbers \[1, 3\]: faults need them wit"),
    ],
)
def test_a_mesh_that_the_campaign_cannot_use_is_refused_in_one_line(
    listed: dict[str, Any], record: dict[str, list[int]], topology: Topology, said: str
) -> None:
    known = copy.deepcopy(RECORD)
    for region, brokers in record.items():
        known["regions"][region]["brokers"] = brokers
    with pytest.raises(InventoryError, match=f"^{said}"):
        endpoints(listed, known, topology=topology, is_broken=True)


def test_a_broker_that_is_not_in_the_inventory_any_more_is_left_out() -> None:
    listed = LISTED | {"brokers": {"hosts": ["broker-1.us", "broker-2.us", "broker-1.eu", "broker-1.ap"]}}
    assert endpoints(listed)["regions"]["us"]["kafka"] == ["10.10.0.11:9092", "10.10.0.12:9092"]


def test_gaps_in_numbers_are_no_harm_where_nothing_is_broken() -> None:
    known = copy.deepcopy(RECORD)
    known["regions"]["us"]["brokers"] = [1, 3]
    assert endpoints(record=known)["regions"]["us"]["kafka"] == ["10.10.0.11:9092", "10.10.0.13:9092"]


def test_a_broker_is_killed_for_good_and_started_again_by_its_unit_on_its_host() -> None:
    break_command, mend_command = commands_of("my hosts.yml")
    words = ["ansible", "broker-{number}.{region}", "-i", "my hosts.yml", "-b", "-m", "ansible.builtin.shell", "-a"]
    unit = "georelay-broker"
    assert (ROOT / "deploy" / "systemd" / f"{unit}.service").is_file()
    assert shlex.split(break_command) == [*words, f"systemctl kill -s KILL {unit} && systemctl stop {unit}"]
    assert shlex.split(mend_command) == [*words, f"systemctl reset-failed {unit}; systemctl start --no-block {unit}"]


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the folder of the mesh, and an Ansible that notes what it is told."""
    folder = tmp_path / ".georelay" / "shop"
    (folder / "pki").mkdir(parents=True)
    (folder / "pki" / "bundle.crt").write_text("authorities")
    (folder / "mesh.json").write_text(json.dumps(RECORD))
    (tmp_path / "listed.json").write_text(json.dumps(LISTED))
    for name, does in {"ansible-inventory": f"cat {tmp_path}/listed.json", "ansible": ":"}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $@" >>{tmp_path}/told\n{does}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GEORELAY_USER", "admin:secret")
    return tmp_path


def campaign(**more: Any) -> Campaign:
    topology = Topology(kind="inventory", inventory="static.yml", **more)
    fault = Fault(at_s=0, do="region-loss", what="us")
    return Campaign(name="it", about="it", topics=(), stages=(), users=(), topology=topology, faults=(fault,))


async def test_the_mesh_that_ansible_deployed_is_one_that_runs(plays: Path) -> None:
    async with meshed(campaign(), plays / "mesh") as mesh:
        assert json.loads((plays / "endpoints.json").read_text()) == mesh.endpoints
        stage = Stage(plays, mesh)
        assert (stage.regions, stage.admins("eu")) == (("us", "eu", "ap"), {"eu-1": "10.20.0.11:9096"})
        assert stage.settings["ssl.ca.location"] == str(plays / ".georelay/shop/pki/bundle.crt")
        assert (stage.settings["sasl.username"], mesh.scheme) == ("admin", "https")
        assert (stage.pids(), stage.hold_file("us-1").exists()) == ({}, False)
        await stage.break_it(Fault(at_s=0, do="kill", what="us-3"))
    asked, killed, mended = (plays / "told").read_text().splitlines()
    assert asked == "ansible-inventory -i static.yml --list"
    assert killed.startswith("ansible broker-3.us -i static.yml -b -m ansible.builtin.shell -a systemctl kill -s KILL")
    assert mended.startswith("ansible broker-3.us ") and "systemctl start" in mended


async def test_commands_of_the_campaign_go_before_those_of_ansible(plays: Path) -> None:
    own = {"break_command": "ansible off {number} {region}", "mend_command": "ansible on {broker}"}
    async with meshed(campaign(**own), plays / "mesh") as mesh:
        await Stage(plays, mesh).break_it(Fault(at_s=0, do="kill", what="us-3"))
    assert (plays / "told").read_text().splitlines()[1:] == ["ansible off 3 us", "ansible on us-3"]


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ("rm bin/ansible-inventory", r"ansible-inventory cannot be run \(No such file .*\): is it installed, and on"),
        (
            "printf '#!/bin/sh\necho no\necho hosts >&2; exit 4' >bin/ansible-inventory",
            "ansible-.* ended with 4: hosts$",
        ),
        ("printf '#!/bin/sh\nprintf \"UNREACHABLE\\n.\"; exit 4' >bin/ansible-inventory", r".* 4: UNREACHABLE \.$"),
        ("echo '[]' >listed.json", "static.yml is no mesh that can be loaded: "),
        ("echo nothing >listed.json", "static.yml is no mesh that can be loaded: Expecting value"),
        ("echo '{}' >listed.json", "static.yml is no mesh that can be loaded: no host is in its group brokers$"),
        ("rm .georelay/shop/mesh.json", r".*/shop/mesh.json or .* is not there: set georelay_mesh_dir in static.yml$"),
        ("rm -r .georelay/shop/pki", r".*/pki/bundle.crt is not there: set georelay_mesh_dir in static.yml$"),
        ("echo '{}' >.georelay/shop/mesh.json", "static.yml is no mesh that can be loaded: 'regions'"),
    ],
)
async def test_a_mesh_that_is_not_to_be_had_is_one_line(
    plays: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str, said: str
) -> None:
    subprocess.run(["sh", "-c", spoiled], cwd=plays, check=True)
    monkeypatch.setenv("PATH", f"{plays}/bin:/bin")
    with pytest.raises(CampaignFailed, match=f"^{said}") as failed:
        await InventoryMesh(campaign(), plays).__aenter__()
    assert "\n" not in str(failed.value)


async def test_who_does_not_say_who_signs_in_is_told_what_to_set(plays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEORELAY_USER")
    with pytest.raises(CampaignFailed, match=r"^set GEORELAY_USER to NAME:PASSWORD; that of admin is in .*/shop/admin"):
        await InventoryMesh(campaign(), plays).__aenter__()
