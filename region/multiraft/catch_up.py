"""Replicas that are far behind fetch sealed segments instead of being sent entry by entry.

On the leader `BulkOffers` looks at every follower now and then: one that lacks more than `behind_bytes` of sealed,
committed segments is offered to fetch them, and is sent nothing until it has done so. On the follower `CatchUp`
fetches from any voter, links what it has verified behind its own log end, restores the machine from the manifest
that was shipped along, and tells the leader how far it has come.

Rule 1: a fetched segment is linked in only if it continues the chain of this replica's own durable log end.
Rule 2: whatever fails ends the fetch; the leader goes on with Appends, which find out what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor
from random import Random
from typing import Final, TypeVar

import structlog

from georelay.clock import Clock
from georelay.errors import StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from georelay.limits import MIB
from region.log.errors import LogCorrupt
from region.log.flusher import GroupWrite
from region.log.index import SegmentInfo
from region.multiraft.bulk_client import BulkClient, BulkFailed
from region.multiraft.bulk_wire import BulkFetched, BulkFrame, BulkOffer, SegmentRow
from region.multiraft.group import Group
from region.multiraft.log_end import GroupStopped
from region.raft.core import ProgressState

log = structlog.get_logger()

BULK_BEHIND_BYTES: Final = 64 * MIB
FETCHES_MAX: Final = 2  # groups that fetch at the same time on one broker
OFFER_NEWS_MS: Final = 15_000  # a follower that says nothing for this long (three notices) is sent Appends again
TELL_AGAIN_MS: Final = 5_000  # a follower that waits for its turn, or fetches slowly, says so
OFFER_REST_MS: Final = 10_000  # after a fetch that ended, before the same follower gets another offer
_MS: Final = 1_000_000
A = TypeVar("A")
R = TypeVar("R")


class BulkOffers:
    """Leader's side: who is fetching instead of being sent Appends."""

    def __init__(
        self, *, clock: Clock, send: Callable[[BrokerId, BulkFrame], bool], behind_bytes: int = BULK_BEHIND_BYTES
    ) -> None:
        self._clock = clock
        self._send = send
        self._behind_bytes = behind_bytes
        self._fetching: dict[tuple[GroupId, BrokerId], tuple[Term, int]] = {}  # -> term, last news ns
        self._resting: dict[tuple[GroupId, BrokerId], int] = {}  # -> until ns

    def is_fetching(self, group_id: GroupId, peer: BrokerId) -> bool:
        """Return whether that follower fetches at the moment."""
        return (group_id, peer) in self._fetching

    def review(self, groups: Mapping[GroupId, Group], unsettled: Collection[GroupId]) -> None:
        """Offer to those who are far behind, in `unsettled` groups alone; give up those who fell silent."""
        now_ns = self._clock.monotonic_ns()
        for (group_id, peer), (term, news_ns) in list(self._fetching.items()):
            group = groups.get(group_id)
            if group is None or not group.node.is_leader or group.node.term != term:
                del self._fetching[group_id, peer]
            elif now_ns - news_ns > OFFER_NEWS_MS * _MS:
                self._end(group, peer)
        for group_id in unsettled:
            group = groups.get(group_id)
            if group is not None and group.node.is_leader and not group.stopped and group.disk.sealed_index:
                for peer in group.node.peers:
                    self._consider(group, peer, now_ns)

    def _consider(self, group: Group, peer: BrokerId, now_ns: int) -> None:
        key = (group.group_id, peer)
        if key in self._fetching or now_ns < self._resting.get(key, 0):
            return
        progress = group.node.progress(peer)
        if progress is None or not progress.recent_active or progress.state is ProgressState.SNAPSHOT:
            return
        if not progress.match or self._bytes_behind(group, progress.match) <= self._behind_bytes:
            return
        term = Term(group.node.term)
        # The offer first: when the lane is not up yet, the next look finds it dialled.
        if self._send(peer, BulkOffer(group=group.group_id, term=term)) and group.node.begin_bulk(peer):
            self._fetching[key] = (term, now_ns)
            log.info("bulk.offered", group=group.group_id, peer=peer, match=progress.match)

    def _bytes_behind(self, group: Group, match: int) -> int:
        if group.disk.sealed_index <= match:
            return 0
        commit = group.node.commit_index
        return sum(info.size_bytes for info in group.disk.sealed_segments() if match < info.last_index <= commit)

    def fetched(self, group: Group, peer: BrokerId, notice: BulkFetched) -> None:
        """Take a follower's news."""
        key = (notice.group, peer)
        if key not in self._fetching or self._fetching[key][0] != notice.term:
            return
        if notice.more:
            self._fetching[key] = (notice.term, self._clock.monotonic_ns())
            group.node.begin_bulk(peer)  # again: a throttled fetch may take longer than the core waits for progress
        else:
            self._end(group, peer)

    def _end(self, group: Group, peer: BrokerId) -> None:
        key = (group.group_id, peer)
        del self._fetching[key]
        self._resting[key] = self._clock.monotonic_ns() + OFFER_REST_MS * _MS
        if group.node.is_leader and not group.stopped:
            group.end_bulk(peer)


class CatchUp:
    """Follower's side: fetches for the groups that were offered to.

    Args:
        write: submits a write for a group and waits until it is durable.
        advance: takes the group's Ready at once, so that its writes are submitted in order.
        sources: who may serve, in random order.
    """

    def __init__(
        self,
        *,
        client: BulkClient,
        executor: Executor,
        rng: Random,
        is_alive: Callable[[BrokerId], bool],
        send: Callable[[BrokerId, BulkFrame], bool],
        write: Callable[[GroupWrite], Awaitable[None]],
        advance: Callable[[Group], None],
        stop_group: Callable[[Group, str], None],
    ) -> None:
        self._client = client
        self._executor = executor
        self._rng = rng
        self._is_alive = is_alive
        self._send = send
        self._write = write
        self._advance = advance
        self._stop_group = stop_group
        self._fetching: dict[GroupId, tuple[BrokerId, BulkOffer]] = {}  # the newest offer: who wants to hear of it
        self._slots = asyncio.Semaphore(FETCHES_MAX)

    async def offered(self, group: Group, leader: BrokerId, offer: BulkOffer) -> None:
        """Fetch whatever is sealed beyond the own log end, then say so to the leader."""
        if group.stopped:
            return
        is_under_way = group.group_id in self._fetching
        self._fetching[group.group_id] = (leader, offer)
        if is_under_way:
            return  # a new leader offered as well: it is told how the fetch goes on, and not the one before
        news = asyncio.get_running_loop().create_task(self._tell_again(group))
        try:
            async with self._slots:
                while await self._fetch_one(group, self._fetching[group.group_id][0]):
                    self._tell(group, more=True)
        except (BulkFailed, LogCorrupt, StorageFailed, OSError) as error:
            log.warning("bulk.fetch_failed", group=group.group_id, reason=str(error))
        finally:
            news.cancel()
            group.adopting = False
            self._tell(group, more=False)
            del self._fetching[group.group_id]

    async def _tell_again(self, group: Group) -> None:
        while True:
            await asyncio.sleep(TELL_AGAIN_MS / 1000)
            self._tell(group, more=True)

    def _tell(self, group: Group, *, more: bool) -> None:
        leader, offer = self._fetching[group.group_id]
        index = RaftIndex(group.node.last_index)
        self._send(leader, BulkFetched(group=offer.group, term=offer.term, index=index, more=more))

    async def _fetch_one(self, group: Group, leader: BrokerId) -> bool:
        """Fetch and link one segment; False when there is none. Raises BulkFailed, LogCorrupt, OSError."""
        first = RaftIndex(group.node.last_index + 1)
        source = self._source(group, leader)
        term, rows = await self._client.list_segments(source, group.group_id, first)
        row = next((row for row in rows if row.first_index <= first <= row.last_index), None)
        if row is None or group.stopped:
            return False
        group.node.observe_term(term)
        self._advance(group)
        manifest = await self._client.manifest(source, group.group_id, row.last_index)
        staged = await self._run(group.disk.stage_segment, first)
        try:
            await self._client.fetch(source, group.group_id, [row], first=first, last=row.last_index, into=staged)
            info = await self._run(staged.verify, group.disk.last_chain)
            _check(info, row, (manifest.index, manifest.term, manifest.chain))
            if not group.can_adopt(first, term):
                raise BulkFailed("the log end moved while a segment was fetched")
        except Exception:
            self._executor.submit(staged.discard)
            raise
        group.adopting = True
        await self._write(
            GroupWrite(group_id=group.group_id, log=group.disk, token=None, adopt=[staged], manifest=manifest)
        )
        if group.stopped:
            return False
        try:
            group.adopted(info, manifest, term)
        except GroupStopped as error:
            self._stop_group(group, str(error))
            return False
        except Exception as error:  # the disk is ahead of the core, or the core of the machine: nothing may follow
            log.exception("group.broken", group=group.group_id)
            self._stop_group(group, repr(error))
            return False
        log.info("bulk.adopted", group=group.group_id, first=first, last=info.last_index, source=source)
        return True

    async def _run(self, work: Callable[[A], R], argument: A) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, argument)

    def _source(self, group: Group, leader: BrokerId) -> BrokerId:
        """Return a voter that is alive, rather not the leader: it has enough to do."""
        membership = group.membership
        others = [voter for voter in membership.electors() if voter not in (leader, group.me) and self._is_alive(voter)]
        return self._rng.choice(others) if others else leader


def _check(info: SegmentInfo, row: SegmentRow, manifest: tuple[int, int, int]) -> None:
    if (info.last_index, info.last_chain) != (row.last_index, row.last_chain):
        raise BulkFailed(f"segment {info.first_index} ends at {info.last_index}, not as it was announced")
    if manifest != (info.last_index, info.last_term, info.last_chain):
        raise BulkFailed(f"the manifest at {manifest[0]} is not that of segment {info.first_index}")
