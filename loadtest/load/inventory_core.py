"""What Ansible knows of a mesh that it deployed, as campaigns want it: its endpoints, and how a broker is broken.

Rule 1: a name says what a host is: broker-N.REGION or gateway-N.REGION. A broker that mesh.json does not have was not
        let in, and is left out.
Rule 2: nothing is rendered: `ansible-inventory` prints templates as they are written. One that is not known is refused.
Rule 3: campaigns count regions and brokers from 1. Where something is broken their numbers have no gaps, as else
        another broker would be struck than the one that is meant.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.load.campaign import Topology

PORTS: Final = {  # where the inventory says no others; those of deploy/ansible/group_vars/all.yml
    "broker": {"kafka": 9092, "grpc": 9093, "admin": 9096},
    "gateway": {"http": 8080, "kafka": 19092, "grpc": 8090},
}
CLIENT_PORTS: Final = ("http", "kafka", "grpc", "admin", "text")  # the others are the mesh's own
TEMPLATE: Final = "{{"
ADDRESS: Final = "{{ ansible_host }}"  # as group_vars/all.yml has it
UNIT: Final = "georelay-broker"
Listed = Mapping[str, Any]  # what `ansible-inventory --list` prints


class InventoryError(ValueError):
    """An inventory of no mesh that a campaign can use; the text is one line."""


def folder_of(listed: Listed, *, home: str) -> str:
    """Return where this machine keeps the folder of the mesh (authority, mesh.json). Raises InventoryError."""
    brokers = _hosts(listed, "brokers")
    if not brokers:
        raise InventoryError("no host is in its group brokers")
    known = _variables(listed, brokers[0])
    folder, mesh = str(known.get("georelay_mesh_dir", TEMPLATE)), str(known.get("georelay_mesh_id", TEMPLATE))
    if TEMPLATE not in folder:
        return folder
    if TEMPLATE in mesh:
        raise InventoryError("georelay_mesh_id is not set: the name of the mesh")
    return f"{home}/.georelay/{mesh}"


def endpoints_of(
    listed: Listed, record: Mapping[str, Any], *, topology: Topology, ca: str, is_broken: bool
) -> dict[str, Any]:
    """Return what `georelay up --endpoints` would write of this mesh.

    Args:
        record: the mesh's mesh.json.
        topology: what the campaign wants to be there.
        ca: file of whom clients trust.
        is_broken: the campaign has faults.

    Raises:
        InventoryError: the campaign cannot use it.
    """
    known, regions, numbers = set(_hosts(listed, "brokers")), {}, {"regions": list[int]()}
    for region, row in sorted(record["regions"].items(), key=lambda item: int(item[1]["number"])):
        own = [number for number in sorted(row["brokers"]) if f"broker-{number}.{region}" in known]
        if own:
            regions[region] = _addresses(listed, "broker", [f"broker-{number}.{region}" for number in own])
            numbers["regions"].append(int(row["number"]))
            numbers[f"brokers of {region}"] = own
    for region in topology.regions:
        if region not in regions:
            raise InventoryError(f"no broker of {region} is in it and was let in; there are {', '.join(regions)}")
        if (count := len(numbers[f"brokers of {region}"])) < topology.brokers_per_region:
            raise InventoryError(f"brokers_per_region is {topology.brokers_per_region}, and {region} has {count}")
    for what, found in numbers.items():
        if is_broken and found != list(range(1, len(found) + 1)):
            raise InventoryError(f"its {what} have the numbers {found}: faults need them without gaps, from 1")
    gateways = _hosts(listed, "gateways")
    if not gateways:
        raise InventoryError("no host is in its group gateways")
    gateway = _addresses(listed, "gateway", gateways)
    return {"version": 1, "mesh": record["mesh_id"], "regions": regions, "gateway": gateway, "ca": ca}


def commands_of(inventory: str) -> tuple[str, str]:
    """Return what kills a broker for good, and what starts it again, with {number} and {region} to be filled in.

    A shell there, as its unit starts again what was killed: it has to be stopped at once. Ten starts in ten minutes are
    all that systemd allows, so they are forgotten; and nobody waits for a broker that waits for others.
    """
    words = f"ansible broker-{{number}}.{{region}} -i {shlex.quote(inventory)} -b -m ansible.builtin.shell -a"
    return (
        f"{words} 'systemctl kill -s KILL {UNIT} && systemctl stop {UNIT}'",
        f"{words} 'systemctl reset-failed {UNIT}; systemctl start --no-block {UNIT}'",
    )


def _hosts(listed: Listed, group: str) -> list[str]:
    """Return the hosts of a group and of those below it."""
    row = listed.get(group, {})
    below = (name for child in row.get("children", ()) for name in _hosts(listed, child))
    return list(dict.fromkeys((*row.get("hosts", ()), *below)))


def _variables(listed: Listed, host: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = listed["_meta"]["hostvars"].get(host, {})
    return found


def _addresses(listed: Listed, role: str, hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return where clients reach these hosts, by listener."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        known = _variables(listed, host)
        address = known.get("georelay_address", ADDRESS)
        address = str(known.get("ansible_host", "") if address == ADDRESS else address)
        if not address or TEMPLATE in address:
            raise InventoryError(f"{host} has no address: write out its ansible_host or georelay_address")
        ports = known.get("georelay_ports", PORTS)[role]
        for listener in ports:
            if listener in CLIENT_PORTS:
                found.setdefault(listener, []).append(f"{address}:{ports[listener]}")
    return found
