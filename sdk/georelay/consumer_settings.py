"""How a consumer works: values, checked once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest
from georelay.limits import MIB
from georelay.positions import Place, Position, Since, Start

Rebalanced = Callable[[list[Place]], Awaitable[None] | None]
_RESET: Final = {
    Start.EARLIEST: pb.OFFSET_RESET_EARLIEST,
    Start.LATEST: pb.OFFSET_RESET_LATEST,
    Start.NONE: pb.OFFSET_RESET_NONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer works.

    Args:
        group: member of this group; empty: no group, `start` or `positions` say where to begin.
        start: where reading begins without a (committed) position.
        positions: (stream, partition) -> position, without a group.
        instance_id: of a static member of the group.
        session_timeout_s: after so long without a sign of life a member's partitions go to others.
        rebalance_timeout_s: how long the others wait for a member to come to its next record in a rebalance.
        auto_commit_s: commit what is done so often, and when partitions go; None: only `commit` commits.
        buffer_bytes: delivered and not taken yet, 64 KiB..64 MiB.
    """

    topics: tuple[str, ...] = ()
    group: str = ""
    start: Start | Since = Start.LATEST
    positions: Mapping[tuple[str, int], Position] | None = None
    instance_id: str = ""
    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 60.0
    assignors: tuple[str, ...] = ()
    auto_commit_s: float | None = None
    buffer_bytes: int = 8 * MIB
    client_id: str = "georelay-sdk"
    on_assigned: Rebalanced | None = None
    on_revoked: Rebalanced | None = None

    def check(self) -> None:
        """Raise BadRequest where settings do not fit each other."""
        if self.group and isinstance(self.start, Since):
            raise BadRequest(
                "start: a group begins at Start.EARLIEST, LATEST or NONE; Since is for reading without one"
            )
        if not self.topics and not self.positions:
            raise BadRequest("name topics, or positions")
        if self.group and self.positions:
            raise BadRequest("positions: a group keeps its own; use seek after the assignment")

    def membership(self, member_id: str) -> pb.GroupMembership:
        """Return what is asked of the group; `member_id` of an earlier call, "" for none."""
        assert isinstance(self.start, Start), "checked"
        return pb.GroupMembership(
            group=self.group,
            topics=self.topics,
            instance_id=self.instance_id,
            member_id=member_id,
            session_timeout_ms=int(self.session_timeout_s * 1000),
            rebalance_timeout_ms=int(self.rebalance_timeout_s * 1000),
            assignors=self.assignors,
            reset=_RESET[self.start],
            client_id=self.client_id,
        )
