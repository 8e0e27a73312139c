"""Who of one pool must be brought into the other: brokers of the own region are members of both. Pure.

The tag `wan` of a LAN member says where it listens in the WAN pool, the tag `lan` of a WAN member the reverse. One seed
in either pool is therefore enough for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from mesh.gossip.member import Address
from mesh.gossip.snapshot_core import read_address
from mesh.gossip.view import MemberStatus, MemberView

LAN_TAG = "lan"
WAN_TAG = "wan"


def missing_in(
    other: Sequence[MemberView], known: Sequence[MemberView], *, tag: str, region: str = ""
) -> list[Address]:
    """Return the addresses in `tag` of living members of `known` that no living member of `other` has.

    Args:
        region: only of members with this tag `rg`; "": of all.
    """
    there = {member.address for member in other if member.status is MemberStatus.ALIVE}
    found: dict[Address, None] = {}
    for member in known:
        if member.status is not MemberStatus.ALIVE or (region and member.tags.get("rg") != region):
            continue
        address = read_address(member.tags.get(tag, ""))
        if address is not None and address not in there:
            found[address] = None
    return list(found)
