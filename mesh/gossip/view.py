"""What the rest of a broker or gateway sees of gossip: members of a pool, and how they change.

Rule 1: everything here is a hint. Who answers at an address is checked by the connection to it (certificate, greeting);
        ownership of a stream is never decided by gossip.
Rule 2: a view may be read and subscribed to from the main loop only; changes are told there, one after the other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class MemberStatus(enum.StrEnum):
    """How the pool sees a member; the values are those that `serf members` prints."""

    ALIVE = "alive"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


class MemberChange(enum.StrEnum):
    """What happened to a member."""

    JOINED = "joined"
    LEFT = "left"
    FAILED = "failed"
    UPDATED = "updated"
    REAPED = "reaped"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member. `rtt_s`: estimated round trip to it, None while nothing is known."""

    name: str
    address: tuple[str, int]
    status: MemberStatus
    tags: Mapping[str, str]
    rtt_s: float | None = None


OnMember: TypeAlias = Callable[[MemberChange, MemberView], None]


class PoolView(Protocol):
    """The members of one pool, as other rooms use them."""

    @property
    def name(self) -> str:
        """Name of the pool: "lan" or "wan"."""

    def members(self) -> Sequence[MemberView]:
        """Return every member that is known, this one included, by name."""

    def subscribe(self, on_member: OnMember) -> None:
        """Call `on_member` in the main loop for every change from now on."""
