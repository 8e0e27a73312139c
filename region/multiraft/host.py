"""Many Raft groups in one broker: drives the pure cores, never waits inside them.

Per loop turn: inputs (frames, proposals, durable writes, ticks) step the cores and mark groups dirty; one
callback per turn takes each dirty group's Ready, hands writes to the flusher, frames to the peer transport and
committed entries to the state machine. Responses that promise something leave only when the flusher says
that the write which makes them true is on disk.

Rule 1: the loop never blocks on a disk: writes go to the flusher thread, cold reads to an executor.
Rule 2: a group that meets a broken invariant stops alone; a failed disk stops the whole broker.
Rule 3: after a stall the sockets are drained before time is allowed to pass.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from georelay.clock import Clock
from georelay.errors import StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.log.data_directory import DataDirectory
from region.log.entry import Entry
from region.log.errors import LogCorrupt
from region.log.flusher import Flusher, GroupWrite
from region.log.hard_state import HardState
from region.multiraft.group import Group, GroupStopped
from region.multiraft.heartbeat import (
    BeatReceiver,
    BeatSender,
    decode_ack,
    decode_beat,
    encode_ack,
    encode_beat,
)
from region.multiraft.leader_book import LeaderBook, decode_hints, encode_hints
from region.multiraft.machine import StateMachine
from region.multiraft.peers import FrameKind, Lane, PeerTransport
from region.raft.core import Append, AppendResponse, Fetch, Message, StorageWrite
from region.raft.wire import decode_message, encode_message

log = structlog.get_logger()

PEER_SILENT_TICKS: Final = 10  # without a beat for this long a broker counts as unreachable
STALL_TICKS: Final = 3
FAILOVER_FIRST_MS: Final = 50  # from the reset of the leader's connection to the first survivor's campaign
FAILOVER_TURN_MS: Final = 100  # to the next one's: time for an election with its syncs
FAILOVER_JITTER_MS: Final = 25
FIRST_CAMPAIGNS_MS: Final = (20, 150, 400)  # of a group's preferred leader; the other voters may open it later
_RAFT_LENGTH_BYTES: Final = 4  # the peer frame has its own length


@dataclass(frozen=True, slots=True)
class _LastWrite:
    """Token behind everything that was submitted for a group that is let go."""

    group: Group
    closed: asyncio.Future[None]


class Host:
    """All groups of one broker. Everything runs on the event loop that called `start`."""

    def __init__(
        self,
        *,
        me: BrokerId,
        directory: DataDirectory,
        flusher: Flusher,
        hard_states: dict[GroupId, HardState],
        clock: Clock,
        rng: random.Random,
        tick_ms: int,
        executor: Executor,
        on_group_stopped: Callable[[GroupId, str], None],
    ) -> None:
        self.me = me
        self.leaders = LeaderBook()
        self.liveness_version = 0
        self.transport: PeerTransport | None = None
        self.groups: dict[GroupId, Group] = {}
        self.tick_ms = tick_ms
        self._directory = directory
        self._flusher = flusher
        self._hard_states = hard_states
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._on_group_stopped = on_group_stopped
        self._dirty: dict[GroupId, Group] = {}
        self._turn_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._last_tick_ns = 0
        self._ticks = 0
        self._heard_at_tick: dict[BrokerId, int] = {}
        self._alive: set[BrokerId] = set()
        self._beat_senders: dict[BrokerId, BeatSender] = {}
        self._beat_receivers: dict[object, tuple[BrokerId, BeatReceiver]] = {}
        self._reads: set[asyncio.Task[None]] = set()
        self._halted = False
        self.stall_ms_max = 0.0

    # --- life ------------------------------------------------------------------------------------

    async def start(self, transport: PeerTransport) -> None:
        """Listen for the region's brokers and let time pass."""
        self._loop = asyncio.get_running_loop()
        self.transport = transport
        await transport.start()
        self._last_tick_ns = self._clock.monotonic_ns()
        self._ticker = self._loop.call_later(self.tick_ms / 1000, self._on_tick_timer)

    async def stop(self) -> None:
        """Stop time, groups and connections; the flusher is its owner's to stop, and nothing is submitted any more."""
        self.halt()
        for task in self._reads:
            task.cancel()
        await asyncio.gather(*self._reads, return_exceptions=True)
        if self.transport is not None:
            await self.transport.stop()

    def halt(self) -> None:
        """Stop every group at once: from here on this broker promises nothing, votes for nobody and sends no beat."""
        self._halted = True
        if self._ticker is not None:
            self._ticker.cancel()
        for group in self.groups.values():
            group.stopped = True

    def open_group(self, group_id: GroupId, voters: tuple[BrokerId, ...], machine: StateMachine) -> Group:
        """Recover a group from disk and let it run."""
        group = Group(
            group_id=group_id,
            me=self.me,
            voters=voters,
            disk=self._directory.open_group(group_id),
            hard_state=self._hard_states.get(group_id),
            machine=machine,
            rng=self._rng,
            on_dirty=self._mark_dirty,
        )
        self.groups[group_id] = group
        if len(voters) == 1:
            group.node.campaign()
        elif voters[0] == self.me and self._loop is not None:
            # The preferred leader need not wait for an election timeout: a pre-vote disturbs nobody who hears a leader.
            for delay_ms in FIRST_CAMPAIGNS_MS:
                self._loop.call_later(delay_ms / 1000, self._campaign, group)
        self._mark_dirty(group)
        return group

    def close_group(self, group_id: GroupId) -> asyncio.Future[None]:
        """Let a group go; resolves once no write is on its way to its files, which the caller may remove then."""
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaders.forget(group_id)
        group = self.groups.pop(group_id, None)
        if group is None:
            closed.set_result(None)
            return closed
        group.stopped = True
        self._dirty.pop(group_id, None)
        if not self._halted:
            self._flusher.submit(GroupWrite(group_id=group_id, log=None, token=_LastWrite(group, closed)))
        return closed

    def is_alive(self, broker: BrokerId) -> bool:
        """Return whether a broker of this region was heard lately."""
        return broker == self.me or broker in self._alive

    # --- one turn --------------------------------------------------------------------------------

    def _mark_dirty(self, group: Group) -> None:
        self._dirty[group.group_id] = group
        if not self._turn_scheduled and self._loop is not None:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for group in dirty.values():
            if not group.stopped:
                self._guard(group, self._advance, group)

    def _guard(self, group: Group, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except GroupStopped as error:
            self._stop_group(group, str(error))
        except Exception as error:  # half a step was taken: it must not vote or acknowledge any more
            log.exception("group.broken", group=group.group_id)
            self._stop_group(group, repr(error))

    def _stop_group(self, group: Group, reason: str) -> None:
        group.stopped = True
        log.critical("group.stopped", group=group.group_id, reason=reason)
        self._on_group_stopped(group.group_id, reason)

    def _advance(self, group: Group) -> None:
        while group.node.has_ready():
            ready = group.take_ready()
            if ready.write is not None:
                truncate_from = ready.write.truncate_from
                self._flusher.submit(
                    GroupWrite(
                        group_id=group.group_id,
                        log=group.disk,
                        token=(group, ready.write),
                        hard_state=ready.write.hard_state,
                        truncate_from=None if truncate_from is None else RaftIndex(truncate_from),
                        entries=ready.write.entries,
                    )
                )
            for message in ready.messages:
                self._send(group.group_id, message)
            group.apply(ready)
            for fetch in ready.fetches:
                self._spawn(self._fetch(group, fetch))
        if group.leadership_moved():
            self._tell_leader(group)

    def durable(self, tokens: list[object]) -> None:
        """The flusher made these writes durable (called on the event loop, in order)."""
        for token in tokens:
            if isinstance(token, _LastWrite):
                token.group.disk.close()
                if not token.closed.done():
                    token.closed.set_result(None)
                continue
            assert isinstance(token, tuple)
            group, write = token
            if not group.stopped:
                self._guard(group, self._written, group, write)

    def _written(self, group: Group, write: StorageWrite[Entry]) -> None:
        group.node.written(write.tag)
        for message in write.responses:
            self._send(group.group_id, message)
        self._mark_dirty(group)

    def _send(self, group_id: GroupId, message: Message[Entry]) -> None:
        assert self.transport is not None
        lane = Lane.APPEND if isinstance(message, Append | AppendResponse) else Lane.CONTROL
        first, *frames = encode_message(group_id, message)
        parts: list[bytes | bytearray | memoryview] = [memoryview(first)[_RAFT_LENGTH_BYTES:], *frames]
        can_wait = isinstance(message, Append) and message.quiet
        if not self.transport.send(BrokerId(message.to), lane, FrameKind.RAFT, parts, can_wait=can_wait):
            group = self.groups.get(group_id)
            if group is not None:
                group.node.report_unreachable(message.to)

    # --- cold entries for a follower that is far behind --------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _fetch(self, group: Group, fetch: Fetch) -> None:
        assert self._loop is not None
        read = partial(group.read_cold, fetch)
        try:
            entries = await self._loop.run_in_executor(self._executor, read)
        except (LogCorrupt, StorageFailed) as error:
            if not group.stopped:
                self._stop_group(group, str(error))
            return
        if not group.stopped:
            self._guard(group, group.fetched, fetch, entries)
            self._mark_dirty(group)

    # --- time ------------------------------------------------------------------------------------

    def _on_tick_timer(self) -> None:
        assert self._loop is not None
        now_ns = self._clock.monotonic_ns()
        late_ms = (now_ns - self._last_tick_ns) / 1e6 - self.tick_ms
        self.stall_ms_max = max(self.stall_ms_max, late_ms)
        self._last_tick_ns = now_ns
        self._ticker = self._loop.call_later(self.tick_ms / 1000, self._on_tick_timer)
        if late_ms > STALL_TICKS * self.tick_ms:
            # Frames that arrived during the stall are read first; they may well be heartbeats.
            self._loop.call_later(0.002, self._tick)
        else:
            self._tick()

    def _tick(self) -> None:
        if self._halted:
            return
        self._ticks += 1
        for group in self.groups.values():
            if not group.stopped:
                self._guard(group, group.node.tick)
                if group.node.has_ready():
                    self._mark_dirty(group)
        self._send_beats()
        self._review_liveness()

    def _send_beats(self) -> None:
        assert self.transport is not None
        rows: dict[BrokerId, list[tuple[GroupId, Term, RaftIndex]]] = {peer: [] for peer in self.transport.peers}
        for group in self.groups.values():
            if group.node.is_leader and not group.stopped:
                group.beat_rows(rows)
        for peer, sender in self._beat_senders.items():
            self.transport.send(peer, Lane.CONTROL, FrameKind.BEAT, [encode_beat(sender.next_beat(rows[peer]))])

    def _review_liveness(self) -> None:
        alive = {peer for peer, tick in self._heard_at_tick.items() if self._ticks - tick <= PEER_SILENT_TICKS}
        if alive != self._alive:
            for lost in self._alive - alive:
                self.leaders.lost(lost)
            for found in alive - self._alive:
                self.leaders.found(found)
            self._alive = alive
            self.liveness_version += 1

    # --- frames ----------------------------------------------------------------------------------

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        """Handle one frame of a peer. Raises ValueError on garbage: the connection is closed."""
        if self._halted:
            return
        self._heard_at_tick[peer] = self._ticks
        if kind is FrameKind.RAFT:
            self._raft_received(peer, body)
        elif kind is FrameKind.BEAT:
            self._beat_received(peer, body, connection)
        elif kind is FrameKind.BEAT_ACK:
            self._beat_answered(peer, body)
        elif kind is FrameKind.HINTS:
            for group_id, term, leader in decode_hints(body):
                if leader != peer:
                    raise ValueError(f"broker {peer} says that {leader} leads group {group_id}")
                self.leaders.learn(group_id, term, leader)
        else:
            raise ValueError(f"frame kind {kind.name} is out of place")

    def _raft_received(self, peer: BrokerId, body: memoryview) -> None:
        group_id, message = decode_message(body)
        if message.from_ != peer or message.to != self.me:
            raise ValueError(f"broker {peer} sent a frame of {message.from_} for {message.to}")
        group = self.groups.get(GroupId(group_id))
        if group is not None and not group.stopped:
            self._guard(group, group.step, message)
            self._mark_dirty(group)

    def _beat_received(self, peer: BrokerId, body: memoryview, connection: object) -> None:
        assert self.transport is not None
        beat = decode_beat(body)
        _, receiver = self._beat_receivers.setdefault(connection, (peer, BeatReceiver()))
        receiver.follow(beat)
        changed = {row[0] for row in beat.changed}
        exceptions = []
        for group_id, (term, commit) in receiver.told.items():
            group = self.groups.get(group_id)
            if group is None or group.stopped:
                exceptions.append(group_id)
            elif group_id in changed or not group.node.touch_leader(peer, term):
                self._guard(group, group.step_heartbeat, peer, term, commit)
                exceptions.append(group_id)  # its own answer is a Raft message
                self._mark_dirty(group)
        self.transport.send(peer, Lane.CONTROL, FrameKind.BEAT_ACK, [encode_ack(beat.sequence, exceptions)])

    def _beat_answered(self, peer: BrokerId, body: memoryview) -> None:
        sequence, exceptions = decode_ack(body)
        sender = self._beat_senders.get(peer)
        if sender is None:
            return
        apart = set(exceptions)
        for group_id, (term, _) in sender.answered(sequence).items():
            group = self.groups.get(group_id)
            if group_id in apart or group is None or group.stopped:
                continue
            if not group.node.touch_peer(peer, term):
                self._guard(group, group.step_heartbeat_answer, peer, term)
            if group.node.has_ready():
                self._mark_dirty(group)

    # --- connections and leaders -----------------------------------------------------------------

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is up: the beats of a new connection start from nothing."""
        if lane is Lane.CONTROL:
            self._beat_senders[peer] = BeatSender(self._rng.getrandbits(32))
            self._send_hints([peer], [group for group in self.groups.values() if group.node.is_leader])

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is gone."""
        if self._halted:
            return
        if lane is Lane.CONTROL:
            self._beat_senders.pop(peer, None)
            self._heard_at_tick.pop(peer, None)
            self._review_liveness()  # a client that asks now must not be sent back to the broker that just died
        for group in self.groups.values():
            if peer not in group.voters:
                continue
            if group.node.is_leader:
                group.node.report_unreachable(peer)
            elif group.node.forget_leader(peer):
                self._campaign_soon(group, peer)

    def _campaign_soon(self, group: Group, lost: BrokerId) -> None:
        """Campaign in turn with the other survivors: two at once would split the votes and wait a whole timeout."""
        assert self._loop is not None
        survivors = sorted(voter for voter in group.voters if voter != lost)
        turn = (survivors.index(self.me) + group.group_id) % len(survivors)
        delay_ms = FAILOVER_FIRST_MS + turn * FAILOVER_TURN_MS + self._rng.uniform(0, FAILOVER_JITTER_MS)
        self._loop.call_later(delay_ms / 1000, self._campaign, group)

    def _campaign(self, group: Group) -> None:
        if not group.stopped and group.node.leader_id == 0:
            self._guard(group, group.node.campaign)
            self._mark_dirty(group)

    def connection_closed(self, connection: object) -> None:
        """An incoming connection is gone."""
        self._beat_receivers.pop(connection, None)

    def _tell_leader(self, group: Group) -> None:
        leader = BrokerId(group.node.leader_id)
        if leader > 0:
            self.leaders.learn(group.group_id, Term(group.node.term), leader)
        if leader == self.me and self.transport is not None:
            self._send_hints(self.transport.peers, [group])

    def _send_hints(self, peers: Iterable[BrokerId], groups: list[Group]) -> None:
        if self.transport is None or not groups:
            return
        body = encode_hints((group.group_id, Term(group.node.term), self.me) for group in groups)
        for peer in peers:
            self.transport.send(peer, Lane.CONTROL, FrameKind.HINTS, [body])
