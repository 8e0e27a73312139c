"""Which hosts a lab has, where they are, and how far its regions are from each other. Pure but for one file.

Rule: hosts, addresses and volumes are those that Terraform's outputs name (outputs.json, of the mesh in regions.toml;
      `make tf` holds the two against each other), and the inventory is made of them by what Ansible ships for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

from mesh.testbed.delay_line_core import Addressing

OUTPUTS: Final = Path(__file__).with_name("outputs.json")
HOME: Final = "us-east-1"
SECOND: Final = "eu-west-1"
RETIRES: Final = "ap-southeast-1"
JOINS: Final = "sa-east-1"
REGIONS: Final = (HOME, SECOND, RETIRES, JOINS)
LATER: Final = (f"broker-4.{HOME}", f"broker-5.{HOME}")
ROUND_TRIPS: Final = ",".join(
    (
        f"{HOME}:{SECOND}=70ms,{HOME}:{RETIRES}=150ms,{SECOND}:{RETIRES}=120ms",
        f"{HOME}:{JOINS}=130ms,{SECOND}:{JOINS}=190ms,{RETIRES}:{JOINS}=300ms",
    )
)
_REGION_OCTET: Final = 1  # of 10.20.0.0/16
_VOLUME_LINK: Final = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_"  # as Nitro's udev rules call it


@dataclass(frozen=True)
class HostPlan:
    """One host.

    Args:
        name: as in the inventory, broker-1.us-east-1.
        address: private, of IPv4.
        network: of its region.
        volume: id of its data volume; "": it keeps no data.
    """

    name: str
    address: str
    network: IPv4Network
    volume: str = ""

    @property
    def region(self) -> str:
        """Return the region that the name ends with."""
        return self.name.partition(".")[2]

    @property
    def has_disk(self) -> bool:
        """Return whether it keeps data."""
        return bool(self.volume)

    @property
    def device(self) -> str:
        """Return where its data volume is found."""
        return f"{_VOLUME_LINK}{self.volume.replace('-', '')}"

    @property
    def router(self) -> str:
        """Return the address of its region's end of the lab."""
        return str(self.network.broadcast_address - 1)


@dataclass(frozen=True)
class Layout:
    """Hosts of a lab.

    Args:
        founders: names of the hosts that the first site.yml sets up; the others come later.
        round_trips: between regions, as `georelay wan up` takes them; "": no delay.
    """

    hosts: tuple[HostPlan, ...]
    founders: tuple[str, ...]
    round_trips: str

    @property
    def has_wan(self) -> bool:
        """Return whether there are regions that are apart."""
        return bool(self.round_trips)


def read_outputs() -> dict[str, Any]:
    """Return what `terraform output -json` said of the lab's mesh."""
    outputs: dict[str, Any] = json.loads(OUTPUTS.read_text(encoding="utf-8"))
    return outputs


def layout(regions: int) -> Layout:
    """Return the hosts of a lab of one region of three brokers, or of three: two more of one, and one that joins.

    Raises:
        ValueError: another number of regions.
    """
    if regions not in (1, 3):
        raise ValueError(f"a lab has 1 or 3 regions, not {regions}")
    inventory = read_outputs()["inventory"]["value"]
    hosts = tuple(
        HostPlan(f"{name}.{region}", host["ip"], IPv4Network(inventory[region]["cidr"]), host.get("volume", ""))
        for role in ("brokers", "gateways")
        for region in (REGIONS if regions == 3 else REGIONS[:1])
        for name, host in inventory[region][role].items()
    )
    founders = tuple(host.name for host in hosts if host.name not in LATER and host.region != JOINS)
    return Layout(hosts, founders, ROUND_TRIPS if regions == 3 else "")


def outputs_of(members: Collection[str]) -> dict[str, Any]:
    """Return the outputs as Terraform gives them for a mesh of these hosts alone, without secrets: there is no AWS."""
    outputs = read_outputs()
    rows: dict[str, Any] = {}
    for region, row in outputs["inventory"]["value"].items():
        kept = {
            role: {name: host for name, host in row[role].items() if f"{name}.{region}" in members}
            for role in ("brokers", "gateways")
        }
        if any(kept.values()):
            rows[region] = {key: value for key, value in row.items() if key != "secrets"} | kept
    return {"mesh": outputs["mesh"], "inventory": {"value": rows}}


def networks(hosts: tuple[HostPlan, ...]) -> Mapping[str, IPv4Network]:
    """Return the network of each region that has a host."""
    return {host.region: host.network for host in hosts}


def addressing(of: Mapping[str, IPv4Network], index: Mapping[str, int]) -> Addressing:
    """Return how the router knows the region of an address: by the second octet, in which the networks differ."""
    index_of = bytearray(256)
    for region, network in of.items():
        index_of[network.network_address.packed[_REGION_OCTET]] = index[region]
    return Addressing(octet=_REGION_OCTET, index_of=bytes(index_of))
