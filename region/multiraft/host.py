"""Many Raft groups in one broker: drives the pure cores, never waits inside them.

Per loop turn: inputs (frames, proposals, durable writes, ticks) step the cores and mark groups dirty; one
callback per turn takes each dirty group's Ready, hands writes to the flusher, frames to the peer transport and
committed entries to the state machine. Responses that promise something leave only when the flusher says
that the write which makes them true is on disk.

Rule 1: the loop waits for one small sync of a quick disk (write_queue), and for nothing else of a disk: other writes go
to the flusher's thread, cold reads to an executor.
Rule 2: a group that meets a broken invariant stops alone; a failed disk stops the whole broker.
Rule 3: after a stall the sockets are drained before time is allowed to pass.
Rule 4: a turn ends after TURN_MS; what is left is done in the next one, behind whatever arrived meanwhile.
Rule 5: what is received and not durable is bounded: beyond it Appends are not read, heartbeats are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from mesh.listening.addresses_core import Source
from region.log.data_directory import DataDirectory
from region.log.entry import Entry
from region.log.flusher import GroupWrite
from region.log.hard_state import HardState
from region.multiraft.beats import Beats
from region.multiraft.bulk_client import BYTES_PER_S
from region.multiraft.bulk_lane import BulkLane
from region.multiraft.campaigns import Campaigns
from region.multiraft.catch_up import BULK_BEHIND_BYTES
from region.multiraft.cold_reads import ColdReads
from region.multiraft.disk_watch import UNFLUSHED_BYTES_MAX, DiskPace, DiskWatch
from region.multiraft.followed_log import FollowedLog
from region.multiraft.group import ELECTION_TICKS, Group, check_snapshot
from region.multiraft.group_opening import follow_group, follow_now
from region.multiraft.hand_over import hand_all_over, hand_over, heirs_of
from region.multiraft.leader_book import LeaderBook
from region.multiraft.leader_hints import LeaderHints
from region.multiraft.log_end import GroupStopped
from region.multiraft.machine import StateMachine
from region.multiraft.quiet_commits import QuietCommits
from region.multiraft.timers import Timers
from region.multiraft.transport import Address, FrameKind, Lane, Part, Transport
from region.multiraft.watchdog import Watchdog
from region.multiraft.write_queue import FlushQueue, WriteQueue
from region.raft.core import Append, AppendResponse, Message, Snapshot, StorageWrite, Ticks
from region.raft.wire import decode_message, encode_message

log = structlog.get_logger()

STALL_TICKS: Final = 3
TURN_MS: Final = 3.0
WATCH_MS: Final = 5
WATCH_IDLE_FACTOR: Final = 40  # a loop that turns for no group is looked at so much more rarely
BULK_REVIEW_TICKS: Final = 5
HAND_OVER_TICKS: Final = 10  # between two attempts of a broker with a slow disk
_RAFT_LENGTH_BYTES: Final = 4  # the peer frame has its own length


class Host:
    """All groups of one broker. Everything runs on the event loop that called `start`.

    Args:
        tick_ms: Raft's unit of time; elections take 10 to 20 of them.
        on_group_stopped: told once for each group that meets a broken invariant.
        bulk_bytes_per_s: of all segments this broker fetches from others.
        bulk_behind_bytes: a follower that lacks more than this of sealed segments fetches them.
        unflushed_bytes_max: received or proposed and not durable; beyond it Appends are not read.
        watch_ms: how often the event loop is looked at; 0 never.
        admits_entries: False while the disk is full: Appends with entries are dropped then.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        directory: DataDirectory,
        flusher: FlushQueue,
        hard_states: dict[GroupId, HardState],
        clock: Clock,
        rng: random.Random,
        tick_ms: int,
        executor: Executor,
        on_group_stopped: Callable[[GroupId, str], None],
        bulk_bytes_per_s: int = BYTES_PER_S,
        bulk_behind_bytes: int = BULK_BEHIND_BYTES,
        unflushed_bytes_max: int = UNFLUSHED_BYTES_MAX,
        watch_ms: int = WATCH_MS,
        admits_entries: Callable[[], bool] = lambda: True,
    ) -> None:
        self.me = me
        self.leaders = LeaderBook()
        self.transport: Transport | None = None
        self.groups: dict[GroupId, Group] = {}
        self.tick_ms = tick_ms
        self.watchdog = Watchdog(clock=clock, every_ms=watch_ms, idle_every_ms=watch_ms * WATCH_IDLE_FACTOR)
        self.appends_paused = False
        self.silent = False  # the disk hangs: others shall lead
        self._ticks = Ticks()
        self._timers = Timers(self._ticks)
        self.beats = Beats(self, rng, self._ticks)
        self._directory = directory
        self._hard_states = hard_states
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._on_group_stopped = on_group_stopped
        self._admits_entries = admits_entries
        self._dirty: dict[GroupId, Group] = {}
        self._turn_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._last_tick_ns = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._halted = False
        self._tick_stall_ms_max = 0.0
        self._hints = LeaderHints(me=me, book=self.leaders, transport=lambda: self.transport)
        self._writes = WriteQueue(
            flusher=flusher,
            clock=clock,
            watch=DiskWatch(unflushed_bytes_max=unflushed_bytes_max, hung_ms=ELECTION_TICKS * tick_ms),
            written=self._written,
            guard=self.guard,
            paused=self._pause_appends,
        )
        self._quiet = QuietCommits(self._send_quiet)
        self._campaigns = Campaigns(me=me, rng=rng, campaign=self._campaign)
        self._cold = ColdReads(
            executor=executor,
            guard=self.guard,
            mark_dirty=self.mark_dirty,
            repair=self._repair_soon,
        )
        self.bulk = BulkLane(
            host=self,
            executor=executor,
            clock=clock,
            rng=rng,
            bytes_per_s=bulk_bytes_per_s,
            behind_bytes=bulk_behind_bytes,
        )

    # --- life ------------------------------------------------------------------------------------

    async def start(self, transport: Transport) -> None:
        """Listen for the region's brokers and let time pass."""
        self._loop = asyncio.get_running_loop()
        self.transport = transport
        await transport.start()
        self._last_tick_ns = self._clock.monotonic_ns()
        self._ticker = self._loop.call_later(pause_s(self.tick_ms / 1000), self._on_tick_timer)
        self.watchdog.start()

    async def stop(self) -> None:
        """Stop time, groups and connections; the flusher is its owner's to stop, and nothing is submitted any more.

        What is applied is checkpointed first, so that the next start has nothing to follow.
        """
        if not self._halted:
            for group in self.groups.values():
                group.checkpoint()
                self._writes.submit_upkeep(group)
        self.halt()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.transport is not None:
            await self.transport.stop()
        self._writes.hand_over()

    def halt(self) -> None:
        """Stop every group at once: from here on this broker promises nothing, votes for nobody and sends no beat."""
        self._halted = True
        self._quiet.stop()
        self.watchdog.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        for group in self.groups.values():
            group.stop()

    def open_group(self, group_id: GroupId, voters: tuple[BrokerId, ...], machine: StateMachine) -> Group:
        """Recover a group from disk, here and now, and let it run."""
        return self._run_group(group_id, voters, machine, follow_now(self._directory.open_group(group_id), machine))

    async def open_group_async(
        self, group_id: GroupId, voters: tuple[BrokerId, ...], machine: StateMachine, *, joins_after: int = -1
    ) -> Group:
        """Recover a group from disk without holding the event loop, and let it run.

        Args:
            voters: the founding voters; () for a replica that joins later.
            joins_after: see RaftConfig.

        Raises:
            LogCorrupt, DataDirectoryError, StorageFailed: its log cannot be used.
        """
        followed = await follow_group(
            group_id=group_id, machine=machine, directory=self._directory, executor=self._executor, clock=self._clock
        )
        return self._run_group(group_id, voters, machine, followed, joins_after)

    def _run_group(
        self,
        group_id: GroupId,
        voters: tuple[BrokerId, ...],
        machine: StateMachine,
        followed: FollowedLog,
        joins_after: int = -1,
    ) -> Group:
        group = Group(
            group_id=group_id,
            me=self.me,
            voters=voters,
            disk=followed.disk,
            hard_state=self._hard_states.get(group_id),
            machine=machine,
            rng=self._rng,
            on_dirty=self.mark_dirty,
            followed=followed,
            joins_after=joins_after,
            on_corrupt=self._repair_soon,
            wall_ms=lambda: self._clock.wall_ns() // 1_000_000,
            ticks=self._ticks,
        )
        self._timers.opened(group)
        self.groups[group_id] = group
        if group.disk.corrupt_segments() or group.disk.damaged_manifests():
            self._repair_soon(group)
        self._campaigns.opened(group, self._loop)
        self.mark_dirty(group)
        return group

    def close_group(self, group_id: GroupId) -> asyncio.Future[None]:
        """Let a group go; resolves once no write is on its way to its files, which the caller may remove then.

        Who leads it is still known: its other replicas serve it, and nobody says again who it is.
        """
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.leaders.leader(group_id) == self.me:
            self.leaders.forget(group_id)
        group = self.groups.pop(group_id, None)
        if group is None:
            closed.set_result(None)
            return closed
        # What the core had no time to hand out is written as well: the group may be opened again, and would take it
        # for durable.
        hard_state = self._hard_states[group_id] = HardState(Term(group.node.term), group.node.vote)
        group.stop()
        self.beats.stirred(group_id)
        self._dirty.pop(group_id, None)
        if not self._halted:
            self._writes.submit_last(group, closed, hard_state if hard_state.term else None)
        return closed

    def add_peer(self, broker: BrokerId, address: Address, source: Source) -> None:
        """Speak with one more broker of the region, or know one more address of it."""
        if self.transport is not None:
            self.transport.add_peer(broker, address, source)

    def remove_peer(self, broker: BrokerId) -> None:
        """Speak with a broker no longer."""
        if self.transport is not None:
            self.transport.remove_peer(broker)

    # --- what others ask -------------------------------------------------------------------------

    def is_alive(self, broker: BrokerId) -> bool:
        """Return whether a broker of this region was heard lately."""
        return broker == self.me or broker in self.beats.alive

    def quiet_ns(self, broker: BrokerId) -> int | None:
        """Return for how long a broker of this region was not heard; None while no beats go both ways."""
        return None if self.silent else self.beats.quiet_ns(broker, tick_ms=self.tick_ms)

    @property
    def liveness_version(self) -> int:
        """Return a number that changes whenever `is_alive` does."""
        return self.beats.version

    @property
    def stall_ms_max(self) -> float:
        """Return the longest that the event loop was late, in ms."""
        return max(self.watchdog.stall_ms_max, self._tick_stall_ms_max)

    @property
    def unflushed_bytes(self) -> int:
        """Return what was received or proposed and is not durable yet."""
        return self._writes.unflushed_bytes

    def heirs_of(self, group: Group) -> frozenset[BrokerId]:
        """Return the voters that could lead `group` at once: alive, replicating and near its end."""
        return frozenset(heirs_of(group, self.is_alive))

    def hand_over(self, group: Group) -> bool:
        """Give the leadership of a group to the voter that could lead soonest; False when there is none."""
        return hand_over(group, self.is_alive)

    async def hand_all_over(self) -> None:
        """Give every leadership away that somebody can take; call it before `stop`, while everything still runs."""
        await hand_all_over(list(self.groups.values()), self.is_alive, clock=self._clock)

    def repair_segment(self, group_id: GroupId, first_index: RaftIndex) -> None:
        """Fetch a damaged segment again from another replica; reads of it fail until that is done."""
        group = self.groups.get(group_id)
        if group is not None and not group.stopped:
            group.disk.mark_corrupt(first_index)
            self._repair_soon(group)

    def _repair_soon(self, group: Group) -> None:
        self.spawn(self.bulk.repair.repair(group))

    # --- one turn --------------------------------------------------------------------------------

    def mark_dirty(self, group: Group) -> None:
        """Have the group looked at in this turn."""
        self._dirty[group.group_id] = group
        self.beats.stirred(group.group_id)
        if not self._turn_scheduled and self._loop is not None:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def mark_if_ready(self, group: Group) -> None:
        """Have the group looked at in this turn if its core wants anything done, and by the next beat anyway.

        Of a record's answers and writes every other one changes nothing but what is known of a follower, or of the own
        disk: those do not cost a turn.
        """
        if group.node.has_ready():
            self.mark_dirty(group)
        else:
            self.beats.stirred(group.group_id)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self.watchdog.stirred = True
        dirty, self._dirty = self._dirty, {}
        until_ns = self._clock.monotonic_ns() + int(TURN_MS * 1e6)
        while dirty:
            group = dirty.pop(next(iter(dirty)))
            if not group.stopped:
                self.guard(group, self._advance, group, until_ns)
            if dirty and self._clock.monotonic_ns() >= until_ns:
                for late in dirty.values():
                    self.mark_dirty(late)
                return

    def guard(self, group: Group, action: Callable[..., None], *arguments: object) -> None:
        """Run a step of a group; the group stops when it breaks."""
        try:
            action(*arguments)
        except GroupStopped as error:
            self.stop_group(group, str(error))
        except Exception as error:  # half a step was taken: it must not vote or acknowledge any more
            log.exception("group.broken", group=group.group_id)
            self.stop_group(group, repr(error))

    def stop_group(self, group: Group, reason: str) -> None:
        """Stop one group for good."""
        if group.stopped:
            return
        group.stop()
        self.beats.stirred(group.group_id)
        log.critical("group.stopped", group=group.group_id, reason=reason)
        self._on_group_stopped(group.group_id, reason)

    def advance(self, group: Group) -> None:
        """Take what a group's core wants done, now."""
        if not group.stopped:
            self.guard(group, self._advance, group, self._clock.monotonic_ns() + int(TURN_MS * 1e6))

    def _advance(self, group: Group, until_ns: int) -> None:
        more = group.node.has_ready()
        while more:
            ready = group.take_ready()
            more = ready.more
            if ready.write is not None:
                self._writes.submit_core(group, ready.write)
            for message in ready.messages:
                if message.to not in group.unsafe:
                    self._send(group.group_id, message)
            group.apply(ready)
            for fetch in ready.fetches:
                self.spawn(self._cold.fetch(group, fetch))
            for request in ready.snapshot_requests:
                self.spawn(self._cold.snapshot(group, request))
            if ready.committed is not None and self._clock.monotonic_ns() >= until_ns:
                self.mark_dirty(group)
                break
        self.beats.stirred(group.group_id)  # again: a beat may have left since it was marked
        if group.node.is_asking:
            self._timers.asking(group)
        self._writes.submit_upkeep(group)
        if group.leadership_moved():
            self._hints.leader_changed(group)

    # --- writes ----------------------------------------------------------------------------------

    def durable(self, tokens: list[Any]) -> None:
        """The flusher made these writes durable (called on the event loop, in order)."""
        self._writes.durable(tokens)

    async def write(self, write: GroupWrite) -> None:
        """Submit a write and wait until it is durable."""
        await self._writes.write(write)

    def _pause_appends(self, paused: bool) -> None:
        self.appends_paused = paused
        if self.transport is None:
            return
        if paused:
            self.transport.pause_appends()
        else:
            self.transport.resume_appends()

    def _written(self, group: Group, write: StorageWrite[Entry]) -> None:
        group.node.written(write)
        for message in write.responses:
            if message.to not in group.unsafe:
                self._send(group.group_id, message)
        self.mark_if_ready(group)

    def _send(self, group_id: GroupId, message: Message[Entry]) -> None:
        if isinstance(message, Append):
            if self.silent:
                return
            if self._loop is not None and self._quiet.takes(group_id, message, self._loop):
                return
        self._send_now(group_id, message)

    def _send_quiet(self, group_id: GroupId, message: Append[Entry]) -> None:
        """Send a commit index that was held back, unless it means nothing any more."""
        group = self.groups.get(group_id)
        if group is None or group.stopped or self.silent or self._halted or message.to in group.unsafe:
            return
        if group.node.is_leader and group.node.term == message.term:
            self._send_now(group_id, message)

    def _send_now(self, group_id: GroupId, message: Message[Entry]) -> None:
        assert self.transport is not None
        lane = Lane.APPEND if isinstance(message, Append | AppendResponse | Snapshot) else Lane.CONTROL
        first, *frames = encode_message(group_id, message)
        parts: list[Part] = [memoryview(first)[_RAFT_LENGTH_BYTES:], *frames]
        can_wait = isinstance(message, Append) and message.quiet
        if not self.transport.send(BrokerId(message.to), lane, FrameKind.RAFT, parts, can_wait=can_wait):
            group = self.groups.get(group_id)
            if group is not None:
                group.node.report_unreachable(message.to)
                self.beats.stirred(group_id)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as long as this host runs."""
        if self._halted:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.broken", reason=repr(error))

    # --- time ------------------------------------------------------------------------------------

    def _on_tick_timer(self) -> None:
        assert self._loop is not None
        now_ns = self._clock.monotonic_ns()
        late_ms = (now_ns - self._last_tick_ns) / 1e6 - self.tick_ms
        self._tick_stall_ms_max = max(self._tick_stall_ms_max, late_ms)
        self._last_tick_ns = now_ns
        self._ticker = self._loop.call_later(pause_s(self.tick_ms / 1000), self._on_tick_timer)
        if late_ms > STALL_TICKS * self.tick_ms:
            # Frames that arrived during the stall are read first; they may well be heartbeats.
            self._loop.call_later(0.002, self._tick)
        else:
            self._tick()

    def _tick(self) -> None:
        if self._halted:
            return
        self._ticks.now += 1
        self._judge_disk()
        for group in self._timers.take():
            self.guard(group, group.node.look_at_time)
            if group.node.has_ready():
                self.mark_dirty(group)
        self.beats.tick(silent=self.silent)
        if self._ticks.now % BULK_REVIEW_TICKS == 0:
            self.bulk.review(self.beats.unsettled())

    def _judge_disk(self) -> None:
        """Give leadership away while the own disk is slow; when it hangs, look dead, so that others lead."""
        pace = self._writes.pace
        if pace is DiskPace.HUNG and not self.silent:
            log.error("disk.hung", groups=len(self.groups))
        self.silent = pace is DiskPace.HUNG
        if pace is not DiskPace.FINE and self._ticks.now % HAND_OVER_TICKS == 0:
            for group in self.groups.values():
                if not group.stopped:
                    self.hand_over(group)

    # --- frames ----------------------------------------------------------------------------------

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        """Handle one frame of a peer. Raises ValueError on garbage: the connection is closed."""
        if self._halted:
            return
        self.beats.heard(peer)
        if kind is FrameKind.RAFT:
            self._raft_received(peer, body)
        elif kind is FrameKind.BEAT:
            self.beats.beat_received(peer, body, connection)
        elif kind is FrameKind.BEAT_ACK:
            self.beats.beat_answered(peer, body)
        elif kind is FrameKind.HINTS:
            self._hints.received(peer, body)
        elif kind is FrameKind.BULK:
            self.bulk.received(peer, body)
        else:
            raise ValueError(f"frame kind {kind.name} is out of place")

    def _raft_received(self, peer: BrokerId, body: memoryview) -> None:
        group_id, message = decode_message(body)
        if message.from_ != peer or message.to != self.me:
            raise ValueError(f"broker {peer} sent a frame of {message.from_} for {message.to}")
        if isinstance(message, Snapshot):
            check_snapshot(message)
        group = self.groups.get(GroupId(group_id))
        if group is None or group.stopped or peer in group.unsafe:
            return
        if isinstance(message, Append) and message.entries and not self._admits_entries():
            return  # the disk is full: the leader sends them again
        self.guard(group, group.step, message)
        self.mark_if_ready(group)

    # --- connections and leaders -----------------------------------------------------------------

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is up: the beats of a new connection start from nothing."""
        if lane is Lane.CONTROL:
            self.beats.connected(peer)
            self._hints.tell_new_peer(peer, self.groups)

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is gone."""
        if self._halted or lane is Lane.BULK:
            return
        if lane is Lane.CONTROL:
            self.beats.lost(peer)
        for group in self.groups.values():
            if group.stopped:
                continue
            if group.node.is_leader:
                group.node.report_unreachable(peer)
                self.beats.stirred(group.group_id)
            elif group.node.forget_leader(peer) and self._loop is not None:
                self._campaigns.leader_lost(group, peer, self._loop)

    def _campaign(self, group: Group) -> None:
        if not group.stopped and not group.adopting and group.node.leader_id == 0:
            self.guard(group, group.node.campaign)
            self.mark_dirty(group)

    def connection_closed(self, connection: object) -> None:
        """An incoming connection is gone."""
        self.beats.connection_closed(connection)
