"""Which hosts a lab has, where they are, and how far its regions are from each other. Pure.

Rule: the third octet of an address is the number of its region: by that the router of the test bed knows where a packet
      goes (mesh/testbed/delay_line_core.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HOME: Final = "us"
JOINS: Final = "sa"
RETIRES: Final = "ap"
REGIONS: Final = (HOME, "eu", RETIRES, JOINS)
GATEWAYS: Final = (HOME, "eu", RETIRES)
LATER: Final = ("broker-4.us", "broker-5.us")
ROUND_TRIPS: Final = "us-eu=70ms,us-ap=150ms,eu-ap=120ms,us-sa=130ms,eu-sa=190ms,ap-sa=300ms"


@dataclass(frozen=True)
class HostPlan:
    """One host: `name` as in the inventory (broker-1.us), its address, and the prefix length of its region."""

    name: str
    address: str
    prefix: int = 16

    @property
    def region(self) -> str:
        """Return the region that the name ends with."""
        return self.name.partition(".")[2]

    @property
    def has_disk(self) -> bool:
        """Return whether it keeps data."""
        return self.name.startswith("broker-")

    @property
    def router(self) -> str:
        """Return the address of its region's end of the lab."""
        first, second, _, _ = self.address.split(".")
        return f"{first}.{second}.255.254"


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


def layout(regions: int) -> Layout:
    """Return the hosts of a lab of one region of three brokers, or of three: two more of one, and one that joins.

    Raises:
        ValueError: another number of regions.
    """
    if regions not in (1, 3):
        raise ValueError(f"a lab has 1 or 3 regions, not {regions}")
    names = [f"broker-{number}.{HOME}" for number in range(1, 6)]
    if regions == 3:
        names += [f"broker-1.{region}" for region in REGIONS[1:]]
    names += [f"gateway-1.{region}" for region in (GATEWAYS if regions == 3 else GATEWAYS[:1])]
    hosts = tuple(HostPlan(name, _address(name)) for name in names)
    founders = tuple(name for name in names if name not in LATER and not name.endswith(f".{JOINS}"))
    return Layout(hosts, founders, ROUND_TRIPS if regions == 3 else "")


def networks(hosts: tuple[HostPlan, ...]) -> Mapping[str, str]:
    """Return the network of each region that has a host."""
    return {host.region: f"{host.address.rsplit('.', 2)[0]}.0.0/{host.prefix}" for host in hosts}


def _address(name: str) -> str:
    role, _, rest = name.partition("-")
    number, _, region = rest.partition(".")
    index = REGIONS.index(region) + 1
    return f"10.{10 * index}.{index}.{(10 if role == 'broker' else 100) + int(number)}"
