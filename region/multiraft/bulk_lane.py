"""What travels over the BULK lane, joined: serving segments, fetching them to catch up, and to repair."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Coroutine
from concurrent.futures import Executor
from random import Random
from typing import Any, Final, Protocol

from georelay.clock import Clock
from georelay.ids import BrokerId, GroupId
from region.log.flusher import GroupWrite
from region.multiraft.bulk_client import BulkClient
from region.multiraft.bulk_server import BulkServer
from region.multiraft.bulk_wire import BulkAnswer, BulkFrame, BulkOffer, BulkRequest, decode_bulk, encode_bulk
from region.multiraft.catch_up import BulkOffers, CatchUp
from region.multiraft.group import Group
from region.multiraft.repair import Repair
from region.multiraft.transport import FrameKind, Lane, Transport

DAMAGE_GROUPS: Final = 100  # of which one look sees whether they are damaged


class BulkOwner(Protocol):
    """What the bulk lane needs of the host."""

    groups: dict[GroupId, Group]
    transport: Transport | None

    def is_alive(self, broker: BrokerId) -> bool:
        """Return whether a broker was heard lately."""

    def advance(self, group: Group) -> None:
        """Take what a group's core wants done, now."""

    def stop_group(self, group: Group, reason: str) -> None:
        """Stop one group for good."""

    def hand_over(self, group: Group) -> bool:
        """Give the leadership of a group away if somebody can take it."""

    def write(self, write: GroupWrite) -> Awaitable[None]:
        """Submit a write and wait until it is durable."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as long as the host runs."""


class BulkLane:
    """Both ends of this broker's bulk traffic."""

    def __init__(
        self,
        *,
        host: BulkOwner,
        executor: Executor,
        clock: Clock,
        rng: Random,
        bytes_per_s: int,
        behind_bytes: int,
    ) -> None:
        self._host = host
        self._left: list[Group] = []  # not looked at for damage in this round
        self.server = BulkServer(groups=host.groups, executor=executor, send=self._send)
        self.client = BulkClient(executor=executor, clock=clock, send=self._send, bytes_per_s=bytes_per_s)
        self.offers = BulkOffers(clock=clock, send=self._send, behind_bytes=behind_bytes)
        self._catch_up = CatchUp(
            client=self.client,
            executor=executor,
            rng=rng,
            is_alive=host.is_alive,
            send=self._send,
            write=host.write,
            advance=host.advance,
            stop_group=host.stop_group,
        )
        self.repair = Repair(
            client=self.client,
            executor=executor,
            rng=rng,
            is_alive=host.is_alive,
            write=host.write,
            hand_over=host.hand_over,
        )

    def review(self, unsettled: Collection[GroupId]) -> None:
        """Offer to the followers that are far behind, and repair what anybody found to be damaged.

        Who finds damage says so at once; that everybody did is looked after in turn.

        Args:
            unsettled: groups led here in which a follower may be behind.
        """
        groups = self._host.groups
        self.offers.review(groups, unsettled)
        if not self._left:
            self._left = list(groups.values())
        looked_at, self._left = self._left[-DAMAGE_GROUPS:], self._left[:-DAMAGE_GROUPS]
        for group in looked_at:
            if group.disk.is_damaged and not group.stopped and not self.repair.is_repairing(group.group_id):
                self._host.spawn(self.repair.repair(group))

    def received(self, peer: BrokerId, body: memoryview) -> None:
        """Take one frame of a peer. Raises BulkWireError."""
        frame = decode_bulk(body)
        if isinstance(frame, BulkAnswer):
            self.client.answered(peer, frame)
        elif isinstance(frame, BulkRequest):
            self._host.spawn(self.server.answer(peer, frame))
        else:
            group = self._host.groups.get(frame.group)
            if group is None or group.stopped:
                return
            if not isinstance(frame, BulkOffer):
                self.offers.fetched(group, peer, frame)
                self._host.advance(group)
            elif group.node.leader_id == peer and group.node.term == frame.term:
                self._host.spawn(self._catch_up.offered(group, peer, frame))

    def _send(self, peer: BrokerId, frame: BulkFrame) -> bool:
        transport = self._host.transport
        return transport is not None and transport.send(peer, Lane.BULK, FrameKind.BULK, encode_bulk(frame))
