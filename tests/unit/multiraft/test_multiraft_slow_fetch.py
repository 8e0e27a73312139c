"""A replica that fetches slowly, or waits for its turn, says so and is left to it: Appends are not throttled."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.multiraft import catch_up
from region.multiraft.bulk_client import BulkClient, BulkFailed
from region.multiraft.bulk_wire import BulkFetched, BulkFrame, BulkOffer
from region.multiraft.catch_up import OFFER_NEWS_MS, BulkOffers, CatchUp
from region.multiraft.group import Group
from region.raft.core import ProgressState
from region.raft.core.progress import ProgressView

GROUP, LEADER, FOLLOWER = GroupId(1), BrokerId(1001), BrokerId(1002)


class SetClock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def wall_ns(self) -> int:
        return 0


class LeaderNode:
    """What an offer asks of a leader's core, and how often it was told to send no Appends."""

    is_leader = True
    term = 3
    commit_index = 100
    peers = (FOLLOWER,)

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    def progress(self, _: BrokerId) -> ProgressView:
        return ProgressView(ProgressState.REPLICATE, 5, 6, True, False)

    def begin_bulk(self, _: BrokerId) -> bool:
        self.begun += 1
        return True

    def end_bulk(self, _: BrokerId) -> None:
        self.ended += 1


class SealedLog:
    sealed_index = 90

    def sealed_segments(self) -> list[Any]:
        return [type("Info", (), {"size_bytes": 1_000, "last_index": 90})]


class LedGroup:
    group_id = GROUP
    stopped = False

    def __init__(self) -> None:
        self.node = LeaderNode()
        self.disk = SealedLog()

    def end_bulk(self, peer: BrokerId) -> None:
        self.node.end_bulk(peer)


def news(*, more: bool) -> BulkFetched:
    return BulkFetched(group=GROUP, term=Term(3), index=RaftIndex(5), more=more)


def test_every_sign_of_life_of_a_fetch_keeps_the_leader_from_sending_appends() -> None:
    clock, led = SetClock(), LedGroup()
    offers = BulkOffers(clock=clock, send=lambda peer, frame: True, behind_bytes=10)
    group = cast("Group", led)
    offers.review({GROUP: group}, {GROUP})
    for _ in range(5):
        clock.now_ms += OFFER_NEWS_MS - 1
        offers.fetched(group, FOLLOWER, news(more=True))
        offers.review({GROUP: group}, {GROUP})
        assert offers.is_fetching(GROUP, FOLLOWER)
    assert (led.node.begun, led.node.ended) == (6, 0)  # the core counts its own patience from the last one
    clock.now_ms += OFFER_NEWS_MS + 1
    offers.review({GROUP: group}, {GROUP})
    assert (offers.is_fetching(GROUP, FOLLOWER), led.node.ended) == (False, 1)


class WaitingClient:
    """Does not answer before it is told to."""

    def __init__(self) -> None:
        self.turn = asyncio.Event()

    async def list_segments(self, *_: object) -> Any:
        await self.turn.wait()
        raise BulkFailed("nobody there")


class FollowingGroup:
    group_id = GROUP
    stopped = False
    adopting = False
    me = FOLLOWER

    def __init__(self) -> None:
        self.node = type("Node", (), {"last_index": 5})()
        self.membership = type("Members", (), {"electors": staticmethod(lambda: (LEADER, FOLLOWER))})()


async def test_a_follower_says_again_and_again_that_it_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "TELL_AGAIN_MS", 1)
    told: list[BulkFrame] = []
    enough = asyncio.Event()

    def send(to: BrokerId, frame: BulkFrame) -> bool:
        told.append(frame)
        if len(told) == 3:
            enough.set()
        return True

    async def write(_: object) -> None:
        raise AssertionError("nothing was fetched")

    client = WaitingClient()
    with ThreadPoolExecutor(1) as executor:
        fetcher = CatchUp(
            client=cast("BulkClient", client),
            executor=executor,
            rng=random.Random(1),
            is_alive=lambda _: True,
            send=send,
            write=write,
            advance=lambda _: None,
            stop_group=lambda _group, _reason: None,
        )
        group = cast("Group", FollowingGroup())
        fetch = asyncio.create_task(fetcher.offered(group, LEADER, BulkOffer(group=GROUP, term=Term(3))))
        async with asyncio.timeout(10):
            await enough.wait()
        client.turn.set()
        await fetch
    assert told[:3] == [news(more=True)] * 3
    assert told[-1] == news(more=False)


async def test_a_leader_that_offers_while_a_fetch_is_under_way_is_told_how_it_ends() -> None:
    told: list[tuple[BrokerId, BulkFrame]] = []

    def send(to: BrokerId, frame: BulkFrame) -> bool:
        told.append((to, frame))
        return True

    async def write(_: object) -> None:
        raise AssertionError("nothing was fetched")

    client, successor = WaitingClient(), BrokerId(1003)
    with ThreadPoolExecutor(1) as executor:
        fetcher = CatchUp(
            client=cast("BulkClient", client),
            executor=executor,
            rng=random.Random(1),
            is_alive=lambda _: True,
            send=send,
            write=write,
            advance=lambda _: None,
            stop_group=lambda _group, _reason: None,
        )
        group = cast("Group", FollowingGroup())
        fetch = asyncio.create_task(fetcher.offered(group, LEADER, BulkOffer(group=GROUP, term=Term(3))))
        await asyncio.sleep(0)
        await fetcher.offered(group, successor, BulkOffer(group=GROUP, term=Term(4)))
        client.turn.set()
        await fetch
    # Without the last word the new leader would send nothing until it gave the fetch up.
    assert told[-1] == (successor, BulkFetched(group=GROUP, term=Term(4), index=RaftIndex(5), more=False))
