"""A configuration that names its own broker only, completed by what gossip knows. Pure.

Rule 1: who founds a region is never read from gossip: it is brokers 1..expect_brokers, a number in the configuration.
        Gossip only says where they are, and addresses are hints.
Rule 2: what the configuration names stays as it is; regions and brokers that it does not name are added by number.
Rule 3: a region is known once one of its brokers was heard of; how many brokers found it, that broker says (tag `ex`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from georelay.ids import BROKERS_PER_REGION_MAX, BrokerId, region_of
from georelay.limits import REGION_NAME_CHARS_MAX, REGIONS_MAX
from mesh.gossip.directory_core import BROKER_ROLE, DRAIN_TAG, GATEWAY_ROLE, is_broker_id
from mesh.gossip.view import MemberStatus, MemberView
from region.config import BrokerAddresses, BrokerConfig, RegionSection, split_address

_REGION_NAME: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")
_NUMBER: Final = re.compile(r"[0-9]{1,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHint:
    """A broker as its tags describe it; an address that is none is "". `founders`: brokers 1..N founded its region."""

    broker: BrokerId
    region: str
    peers: str
    link: str
    founders: int

    @property
    def number(self) -> int:
        """Return the broker's number inside its region."""
        return int(self.broker) % 1000


def hint_of(tags: Mapping[str, str], *, mesh: str) -> BrokerHint | None:
    """Return what a member's tags say of a broker of this mesh; None: it is none, or it says it wrongly."""
    number, region, founders = tags.get("id", ""), tags.get("rg", ""), tags.get("ex", "0")
    if tags.get("cl") != mesh or tags.get("role") != BROKER_ROLE:
        return None
    if _NUMBER.fullmatch(number) is None or _NUMBER.fullmatch(founders) is None:
        return None
    broker = BrokerId(int(number))
    if not is_broker_id(broker) or _REGION_NAME.fullmatch(region) is None or int(founders) > BROKERS_PER_REGION_MAX:
        return None
    return BrokerHint(
        broker=broker,
        region=region,
        peers=_address_of(tags.get("peers", "")),
        link=_address_of(tags.get("link", "")),
        founders=int(founders),
    )


def _address_of(text: str) -> str:
    try:
        split_address(text)
    except ValueError:
        return ""
    return text


@dataclass(slots=True, kw_only=True)
class _Found:
    name: str
    founders: int = 0
    rows: dict[int, BrokerAddresses] = field(default_factory=dict)


def complete(config: BrokerConfig, hints: Iterable[BrokerHint]) -> BrokerConfig:
    """Return the configuration with everything that is known by now; it may still lack regions."""
    found = {
        section.number: _Found(name=section.name, rows={row.number: row for row in section.brokers})
        for section in config.regions
    }
    names = {section.name: section.number for section in config.regions}
    own = int(config.region_number)
    for hint in sorted(hints, key=lambda hint: int(hint.broker)):
        region = int(region_of(hint.broker))
        if config.control.join and region != own:
            continue  # a region that joins learns of the others from control
        if names.setdefault(hint.region, region) != region or len(names) > REGIONS_MAX:
            continue  # another region has that name
        entry = found.setdefault(region, _Found(name=hint.region))
        if entry.name != hint.region:
            continue  # another region has that number
        entry.founders = max(entry.founders, hint.founders)
        known = entry.rows.get(hint.number)
        if known is None or not (known.peers and known.link):
            entry.rows[hint.number] = BrokerAddresses(number=hint.number, peers=hint.peers, link=hint.link)
    found[own].founders = config.gossip.expect_brokers
    found[own].rows = {
        number: row
        for number, row in found[own].rows.items()
        if number == config.broker or number <= config.gossip.expect_brokers or _is_listed(config, number)
    }
    regions = [_section(number, entry) for number, entry in found.items()]
    if len(found) > len(config.regions):  # the same order on every broker, whichever region its file named first
        regions.sort(key=lambda section: section.number)
    return config.model_copy(update={"regions": regions})


def _is_listed(config: BrokerConfig, number: int) -> bool:
    return any(row.number == number for row in config.own_region.brokers)


def _section(number: int, entry: _Found) -> RegionSection:
    silent = {n: BrokerAddresses(number=n, peers="", link="") for n in range(1, entry.founders + 1)}
    rows = {**silent, **entry.rows}
    return RegionSection(name=entry.name, number=number, brokers=[rows[n] for n in sorted(rows)])


def lacks(config: BrokerConfig) -> str:
    """Return what a completed configuration still lacks before this broker can start for the first time; "" nothing."""
    expected = max(config.gossip.expect_regions, 1)
    names = [section.name for section in config.regions]
    if len(names) < expected:
        return f"{expected - len(names)} of {expected} regions (known: {', '.join(names)})"
    if config.definitions_home and config.definitions_home not in names:
        return f"region {config.definitions_home}, the definitions home (known: {', '.join(names)})"
    return ""


def region_told(members: Iterable[MemberView], *, mesh: str, region: str) -> str:
    """Return the region that gateways of a region want its clients to go to, "" when none says so."""
    told = {
        member.tags.get(DRAIN_TAG, "")
        for member in members
        if member.status is MemberStatus.ALIVE
        and member.tags.get("role") == GATEWAY_ROLE
        and (member.tags.get("cl"), member.tags.get("rg")) == (mesh, region)
    }
    return min(filter(None, told), default="")
