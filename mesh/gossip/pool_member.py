"""What a pool needs of its member: the native agent, or an external `serf agent` behind its RPC. In the gossip loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mesh.gossip.agent_answers import KeyReport, QueryReport
from mesh.gossip.member import Address
from mesh.gossip.view import MemberView, OnMember


@dataclass(slots=True)
class Listeners:
    """Who is told what. `on_query` returns the answer, None for none. `on_name_lost`: this member must end."""

    on_member: list[OnMember] = field(default_factory=list)
    on_event: Callable[[str, bytes], None] = lambda _name, _payload: None
    on_query: Callable[[str, bytes], bytes | None] = lambda _name, _payload: None
    on_name_lost: Callable[[Address], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHealth:
    """What metrics show. `awareness`: 0 is healthy. `queued`: broadcasts that wait, by kind."""

    awareness: int = 0
    encrypted: bool = False
    queued: Mapping[str, int] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0


class PoolMember(Protocol):
    """One member of one pool."""

    listeners: Listeners
    address: Address

    @property
    def own_name(self) -> str:
        """Name of this member in the pool."""

    async def start(self) -> None:
        """Join. Raises OSError, ConfigError."""

    async def stop(self, *, leave: bool = True) -> None:
        """Leave and end."""

    def members(self) -> list[MemberView]:
        """Return every member, by name."""

    def remembered(self) -> Mapping[str, Mapping[str, str]]:
        """Return name -> tags of everybody that earlier runs have heard of."""

    async def join_address(self, address: Address) -> None:
        """Exchange states with the member at an address. Raises ExchangeFailed, GossipFault."""

    async def change_tags(self, tags: Mapping[str, str]) -> None:
        """Change the own tags. Raises TagsTooLong."""

    def stalled(self, seconds: float) -> None:
        """Believe less in own suspicions."""

    async def tell(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        """Send a user event. Raises TooLong."""

    async def query(
        self,
        name: str,
        payload: bytes = b"",
        *,
        filters: Sequence[bytes] = (),
        ack: bool = False,
        relay_factor: int = 0,
        timeout_s: float = 0.0,
    ) -> QueryReport:
        """Ask members. Raises TooLong."""

    async def keys(self, action: str, key: bytes = b"", *, timeout_s: float = 0.0) -> KeyReport:
        """Ask every member to do something with its keyring."""

    async def make_leave(self, name: str, *, prune: bool = False) -> None:
        """Say for a member that failed that it has left."""

    async def rtt(self, first: str, second: str) -> float | None:
        """Return the estimated round trip of two members, seconds."""

    def all_counts(self) -> Mapping[str, int]:
        """Return what happened, by fixed names."""

    def health(self) -> MemberHealth:
        """Return what metrics show."""
