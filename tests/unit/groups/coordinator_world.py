"""One coordinator of groups above a log in memory, and what tests do with it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

from georelay.ids import RegionNumber, StreamKey
from georelay.wire.api import ErrorCode
from region.coordination.in_memory import InMemoryCoordinatorLog
from region.groups.offsets_core import CommittedOffset
from region.groups.part import GroupsPart
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames
from region.groups.values import Identity, JoinWish, SyncWish

ORDERS = bytes.fromhex("0a" * 16)
KEY = StreamKey(ORDERS, RegionNumber(0), 0)
DAY_S = 86_400


class View:
    """A topic as TopicNames sees it."""

    def __init__(self, name: str, topic_id: bytes, origin: int, plain: str) -> None:
        self.name = name
        self.topic_id = topic_id
        self.origin = RegionNumber(origin)
        self.partitions = 4
        self.definition = type("Definition", (), {"name": plain})


class World:
    """One coordinator and its replicas."""

    def __init__(self) -> None:
        self.views = {
            "orders": View("orders", ORDERS, 0, "orders"),
            "clicks": View("clicks", b"c" * 16, 1, "clicks"),
            "us.clicks": View("us.clicks", b"c" * 16, 1, "clicks"),
            "eu.clicks": View("eu.clicks", b"c" * 16, 2, "clicks"),
        }
        self.deleted: set[bytes] = set()
        self.version = 1
        self.log = InMemoryCoordinatorLog()
        self.ids = itertools.count(1)
        self.part = self.make(self.log)
        self.log.add(self.part)

    def make(self, log: Any) -> GroupsPart:
        names = TopicNames(
            topic=cast("Any", self.views.get),
            topics=cast("Any", lambda: list(self.views.values())),
            version=lambda: self.version,
            is_deleted=self.deleted.__contains__,
        )
        settings = GroupSettings(initial_rebalance_delay_ms=0)
        return GroupsPart(log, names=names, settings=settings, new_id=lambda: f"id{next(self.ids)}")

    def fail_over(self) -> GroupsPart:
        """Let the leader stop, and a replica made from its snapshot lead."""
        self.log.depose(leader=1002)
        self.part = self.log.restart(self.make)  # type: ignore[assignment]
        self.log.elect()
        return self.part


def wish(member_id: str = "", *, subscription: bytes = b"t", session_ms: int = 10_000) -> JoinWish:
    return JoinWish(
        member_id=member_id,
        new_member_id=f"m-{subscription!r}",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=(("range", subscription),),
    )


async def turn() -> None:
    """Let the log commit what was proposed."""
    for _ in range(3):
        await asyncio.sleep(0)


def ignore(_: Any) -> None:
    """Nobody waits for it."""


async def stable(world: World, group: str = "g", **more: Any) -> Identity:
    """Bring one member into a group."""
    joined: list[Any] = []
    synced: list[Any] = []
    world.part.join(group, wish(**more), joined.append)
    (answer,) = joined
    assignments = {answer.member_id: b"mine"}
    world.part.sync(
        group,
        SyncWish(member_id=answer.member_id, generation=answer.generation, assignments=assignments),
        synced.append,
    )
    await turn()
    assert synced[0].assignment == b"mine"
    return Identity(member_id=answer.member_id, generation=answer.generation)


async def commit(world: World, who: Identity, offset: int, *, group: str = "g", key: StreamKey = KEY) -> ErrorCode:
    done: list[Any] = []
    world.part.commit(group, who, {key: CommittedOffset(offset=offset)}, done.append)
    await turn()
    code: ErrorCode = done[0][key]
    return code


def committed(world: World, group: str = "g", key: StreamKey = KEY) -> int:
    row, _ = world.part.fetch(group, [key])[key]
    return -1 if row is None else row.offset
