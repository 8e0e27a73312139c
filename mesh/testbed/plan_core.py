"""What a test bed looks like: its regions, their addresses, and how far they are from each other.

Rule 1: pure; the same text, name and slot give the same plan.
Rule 2: addresses are of 198.18.0.0/15, which RFC 2544 gave to test networks: no host has a real neighbour there. A bed
        has a slot of 16 consecutive /24 in both halves, so that 16 beds of one machine do not meet:
        198.18.(16 slot + i).k    address k of region i, on its TUN device; between regions it is delayed
        198.19.(16 slot).(10+i)   region i on the management network, which no cut touches
        198.19.(16 slot).1 and .2 the hub (gateway, supervisor) and the host
Rule 3: every pair of regions has a round trip; half of it is the delay of each direction.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from georelay.errors import ConfigError
from georelay.fields import FieldError, Fields, JsonObject
from georelay.limits import REGION_NAME_CHARS_MAX
from mesh.testbed.quantities_core import DURATION_US_MAX, parse_duration_us

REGIONS_MAX: Final = 15  # the third octet's low half, and 0 is the management network's
SLOTS: Final = 16
ADDRESSES_MAX: Final = 250
ADDRESSES_DEFAULT: Final = 9
MTU_DEFAULT: Final = 1_500
HUB: Final = "hub"  # the namespace of the gateway, also as an argument of `wan exec`
CONGESTION_CONTROLS: Final = ("", "reno", "cubic", "bbr")
NAME: Final = re.compile(r"[a-z0-9-]{1,20}")
_REGION: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")
_WAN_NETWORK: Final = "198.18"
_MANAGEMENT_NETWORK: Final = "198.19"
_FIRST_REGION_HOST: Final = 10


class Engine(enum.StrEnum):
    """Who makes the delays."""

    AUTO = "auto"  # netem, where the kernel has it and it was seen to work, else the router
    ROUTER = "router"  # a process of ours: also jitter without reordering, and its lag is known
    NETEM = "netem"  # the kernel, or no bed


@dataclass(frozen=True, slots=True, kw_only=True)
class WanSpec:
    """Regions in the order in which they were named, and the round trip of each pair, in microseconds."""

    regions: tuple[str, ...]
    rtt_us: Mapping[frozenset[str], int]

    def require(self, regions: Sequence[str]) -> WanSpec:
        """Return the same with these regions first, in this order. Others are places of clients: no broker is there.

        Raises:
            ConfigError: a region is missing.
        """
        if not set(regions) <= set(self.regions):
            raise ConfigError(f"--wan names the regions {','.join(self.regions)}, --regions {','.join(regions)}")
        return WanSpec(regions=tuple(dict.fromkeys((*regions, *self.regions))), rtt_us=self.rtt_us)


def parse_wan(text: str) -> WanSpec:
    """Return what "us-eu=70ms,us-ap=150ms,eu-ap=120ms" says; "us-east:eu-west=70ms" where names have a hyphen.

    Raises:
        ConfigError: a pair is malformed, named twice or missing, or there are too many regions.
    """
    rtt_us: dict[frozenset[str], int] = {}
    regions: dict[str, None] = {}
    for item in text.split(","):
        names, _, duration = item.strip().partition("=")
        pair = names.split(":") if ":" in names else names.split("-")
        if len(pair) != 2 or not all(_REGION.fullmatch(name) for name in pair) or pair[0] == pair[1]:
            raise ConfigError(f"--wan: {item.strip()[:80]!r} is not REGION-REGION=RTT, such as us-eu=70ms")
        if HUB in pair:
            raise ConfigError(f"--wan: a region cannot be called {HUB}")
        if frozenset(pair) in rtt_us:
            raise ConfigError(f"--wan: the pair {names} is there twice")
        rtt_us[frozenset(pair)] = parse_duration_us(duration)
        regions |= dict.fromkeys(pair)
    if len(regions) > REGIONS_MAX:
        raise ConfigError(f"--wan: {len(regions)} regions; a test bed has at most {REGIONS_MAX}")
    missing = [f"{a}-{b}" for a, b in combinations(regions, 2) if frozenset((a, b)) not in rtt_us]
    if missing:
        raise ConfigError(f"--wan: no round trip for {', '.join(missing[:8])}")
    return WanSpec(regions=tuple(regions), rtt_us=rtt_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlace:
    """One region: `index` counts from 1 and is the low half of its addresses' third octet."""

    name: str
    index: int
    slot: int

    def wan(self, number: int) -> str:
        """Return address `number` (1..250): what a broker of this region binds."""
        return f"{_WAN_NETWORK}.{SLOTS * self.slot + self.index}.{number}"

    @property
    def network(self) -> str:
        """Return the region's addresses as a network."""
        return f"{self.wan(0)}/24"

    @property
    def management(self) -> str:
        """Return its address on the network that cuts do not touch."""
        return f"{_MANAGEMENT_NETWORK}.{SLOTS * self.slot}.{_FIRST_REGION_HOST + self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BedPlan:
    """Everything a test bed is made of.

    Args:
        slot: 0..15, which block of addresses.
        addresses: how many each region has.
        mtu_bytes: of the devices between regions.
        congestion_control: what TCP uses in the regions; "" for what the kernel has.
        token: marks every process of this bed, in its environment.
        engine: who makes the delays.
    """

    name: str
    slot: int
    spec: WanSpec
    token: str
    addresses: int = ADDRESSES_DEFAULT
    mtu_bytes: int = MTU_DEFAULT
    congestion_control: str = ""
    engine: Engine = Engine.AUTO

    def __post_init__(self) -> None:
        """Refuse what cannot be built. Raises ConfigError."""
        if NAME.fullmatch(self.name) is None:
            raise ConfigError(f"{self.name[:40]!r} is no name of a test bed (1..20 of a-z, 0-9, '-')")
        if not 1 <= self.addresses <= ADDRESSES_MAX:
            raise ConfigError(f"{self.addresses} addresses per region are not 1..{ADDRESSES_MAX}")
        if not 576 <= self.mtu_bytes <= 9_000:
            raise ConfigError(f"an MTU of {self.mtu_bytes} bytes is not 576..9000")
        if self.congestion_control not in CONGESTION_CONTROLS:
            raise ConfigError(f"congestion control {self.congestion_control[:20]!r} is not reno, cubic or bbr")

    @property
    def regions(self) -> tuple[RegionPlace, ...]:
        """Return the regions in order."""
        return tuple(
            RegionPlace(name=name, index=index, slot=self.slot) for index, name in enumerate(self.spec.regions, start=1)
        )

    def region(self, name: str) -> RegionPlace:
        """Return one region. Raises ConfigError when there is none of that name."""
        for place in self.regions:
            if place.name == name:
                return place
        raise ConfigError(f"there is no region {name[:80]!r} in this test bed ({', '.join(self.spec.regions)})")

    def delay_us(self, one: str, other: str) -> int:
        """Return half of the pair's round trip."""
        return self.spec.rtt_us[frozenset((one, other))] // 2

    @property
    def hub_address(self) -> str:
        """Return where the gateway listens."""
        return f"{_MANAGEMENT_NETWORK}.{SLOTS * self.slot}.1"

    @property
    def host_address(self) -> str:
        """Return the host's end of the management network."""
        return f"{_MANAGEMENT_NETWORK}.{SLOTS * self.slot}.2"

    @property
    def core_address(self) -> str:
        """Return the address of the kernel's delay line, where the kernel has one."""
        return f"{_WAN_NETWORK}.{SLOTS * self.slot}.1"

    @property
    def wan_network(self) -> str:
        """Return the addresses of all regions as a network."""
        return f"{_WAN_NETWORK}.{SLOTS * self.slot}.0/20"

    @property
    def host_device(self) -> str:
        """Return the name of the device on the host; device names have at most 15 characters."""
        return f"georelay-wan{self.slot}"

    def to_json(self) -> JsonObject:
        """Return it as JSON, for the process that builds it."""
        pairs = [[*sorted(pair), rtt] for pair, rtt in self.spec.rtt_us.items()]
        return {
            "name": self.name,
            "slot": self.slot,
            "token": self.token,
            "regions": list(self.spec.regions),
            "rtt_us": sorted(pairs, key=str),
            "addresses": self.addresses,
            "mtu_bytes": self.mtu_bytes,
            "congestion_control": self.congestion_control,
            "engine": self.engine.value,
        }

    @classmethod
    def from_json(cls, value: object) -> BedPlan:
        """Return the plan that `to_json` wrote. Raises FieldError, ConfigError."""
        fields = Fields(value, "plan")
        regions = [_text(row, "regions") for row in fields.items("regions", count_max=REGIONS_MAX)]
        rtt_us = dict(_pair(row, regions) for row in fields.items("rtt_us", count_max=REGIONS_MAX**2))
        if len(rtt_us) != len(regions) * (len(regions) - 1) // 2:
            raise FieldError("plan.rtt_us does not name every pair once")
        plan = cls(
            name=fields.text("name", chars_max=20),
            slot=fields.integer("slot", low=0, high=SLOTS - 1),
            token=fields.text("token", chars_max=64),
            spec=WanSpec(regions=tuple(regions), rtt_us=rtt_us),
            addresses=fields.integer("addresses", low=1, high=ADDRESSES_MAX),
            mtu_bytes=fields.integer("mtu_bytes", low=576, high=9_000),
            congestion_control=fields.text("congestion_control", chars_max=20),
            engine=fields.member("engine", Engine),
        )
        fields.done()
        return plan


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or _REGION.fullmatch(value) is None:
        raise FieldError(f"plan.{what} holds something else than names of regions")
    return value


def _pair(value: object, regions: list[str]) -> tuple[frozenset[str], int]:
    if isinstance(value, list) and len(value) == 3:
        one, other, rtt_us = value
        known = one in regions and other in regions and one != other
        if known and type(rtt_us) is int and 0 <= rtt_us <= DURATION_US_MAX:
            return frozenset((str(one), str(other))), rtt_us
    raise FieldError("plan.rtt_us holds something else than [region, region, microseconds]")
