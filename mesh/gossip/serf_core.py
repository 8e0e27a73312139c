"""The Serf layer over the member list: statuses with tags, user events, queries, keys, state exchange. Pure.

It hands the member list its delegate and passes on its effects; the shell drives one object: this one. All times are
monotonic seconds. After every call the shell does what `take()` returns.

Rule 1: clocks witness before anything is judged; what is accepted is told on, what is not is dropped without a word.
Rule 2: nothing a peer sends raises: bad bytes are counted (`counts`), foreign meshes are refused by name (tag `cl`).
Rule 3: names that begin with `_serf_` are never shown to the application.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.codec import user_message
from mesh.gossip.coordinate_core import Coordinate
from mesh.gossip.effects import (
    BroadcastSent,
    MemberJoined,
    MemberLeft,
    MemberUpdated,
    NameConflict,
    PushPull,
    SendPacket,
    StreamPing,
)
from mesh.gossip.faults import CodecError
from mesh.gossip.foreigners_core import Foreigners
from mesh.gossip.keyring import Keyring
from mesh.gossip.lamport_core import LamportClock
from mesh.gossip.member import Address, Member, MemberState
from mesh.gossip.member_table_core import MemberRow
from mesh.gossip.memberlist_core import Memberlist
from mesh.gossip.query_core import TagMatch
from mesh.gossip.randomness import Randomness
from mesh.gossip.serf_effects import MemberChanged, SerfEffect
from mesh.gossip.serf_events_core import EVENT_BYTES_MAX, SerfEvents
from mesh.gossip.serf_intents_core import SerfIntents
from mesh.gossip.serf_map_core import SerfMap
from mesh.gossip.serf_messages import (
    JoinIntent,
    LeaveIntent,
    Query,
    QueryResponse,
    Relay,
    UserEvent,
    UserState,
    decode,
)
from mesh.gossip.serf_queries_core import SerfQueries, TooLong
from mesh.gossip.tags import encode_tags
from mesh.gossip.timing import Timing
from mesh.gossip.view import MemberChange, MemberStatus, MemberView

REAP_EVERY_S: Final = 15.0
RECONNECT_EVERY_S: Final = 30.0
PRUNE_EVERY_S: Final = 30.0
QUEUE_MIN: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class SerfSettings:
    """What one member is. `mesh`: members whose tag `cl` names another one are refused; "" lets everybody in."""

    name: str
    address: Address
    tags: Mapping[str, str]
    timing: Timing
    mesh: str = ""
    reconnect_timeout_s: float = 86_400.0
    tombstone_timeout_s: float = 86_400.0
    messages_bytes_max: int = 1_300


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The newest time seen by each of the three logical clocks, as a snapshot keeps them; 0: none."""

    members: int = 0
    events: int = 0
    queries: int = 0


class Serf:
    """One member of one pool.

    Args:
        rng: every random choice. incarnation: of the start, above every earlier one.
        keyring: changed by key queries; the shell seals and opens packets with the same object.
        clocks: of the last run; events and queries older than that are not heard again.
        match: whether a regular expression of a peer occurs in a text, in linear time.
    """

    def __init__(
        self,
        settings: SerfSettings,
        *,
        rng: Randomness,
        incarnation: int,
        match: TagMatch,
        keyring: Keyring | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._now = 0.0
        self._tags = dict(settings.tags)
        self._effects: list[SerfEffect] = []
        clocks = clocks or Clocks()
        mult = settings.timing.retransmit_mult
        self._intents = SerfIntents(
            me=settings.name,
            clock=LamportClock(clocks.members + 1),
            queue=BroadcastQueue(retransmit_mult=mult),
            told=self._tell,
            counts=self.counts,
        )
        self._events = SerfEvents(
            clock=LamportClock(clocks.events + 1),
            floor=clocks.events + 1,
            queue=BroadcastQueue(retransmit_mult=mult),
            effects=self._effects,
        )
        self._query_queue = BroadcastQueue(retransmit_mult=mult)
        self._map = SerfMap(me=settings.name, rng=rng, counts=self.counts)
        self._foreigners = Foreigners(settings.mesh, self.counts)
        self._own_news_sent = True
        self._ignore_old_events = True
        self.table = self._intents.table
        self.memberlist = Memberlist(
            name=settings.name,
            address=settings.address,
            meta=encode_tags(self._tags),
            timing=settings.timing,
            rng=rng,
            incarnation=incarnation,
            delegate=self,
            messages_bytes_max=settings.messages_bytes_max,
        )
        self._queries = SerfQueries(
            me=settings.name,
            address=settings.address,
            clock=LamportClock(clocks.queries + 1),
            floor=clocks.queries + 1,
            rng=rng,
            keyring=keyring,
            rows=self.table.rows,
            tags=lambda: self._tags,
            match=match,
            gossip_interval_s=settings.timing.gossip_interval_s,
            spread=self._query_queue.push,
            effects=self._effects,
            counts=self.counts,
            relays=self._relays,
        )
        self._reap_at = self._reconnect_at = self._prune_at = 0.0

    # --- driving it --------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Become a member of a pool of one."""
        self._now = now
        self._reap_at = now + REAP_EVERY_S
        self._reconnect_at = now + RECONNECT_EVERY_S * (0.5 + self._rng.random())
        self._prune_at = now + PRUNE_EVERY_S
        self.memberlist.start(now)
        self._drain()
        self._intents.tell_join(now)

    def next_due(self) -> float:
        """Return when `tick` has something to do."""
        return min(
            self.memberlist.next_due(), self._reap_at, self._reconnect_at, self._prune_at, self._queries.next_due()
        )

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        self.memberlist.tick(now)
        self._drain()
        self._queries.tick(now)
        if now >= self._reap_at:
            self._reap_at = now + REAP_EVERY_S
            self._reap()
        if now >= self._reconnect_at:
            self._reconnect_at = now + RECONNECT_EVERY_S
            self._reconnect()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            keep = max(QUEUE_MIN, 2 * self.memberlist.member_count)
            for queue in self._queues.values():
                queue.prune(keep)

    def packet_received(self, messages: bytes, source: Address, now: float) -> None:
        """Take in a packet whose envelopes are off."""
        self._now = now
        self.memberlist.packet_received(messages, source, now)
        self._drain()

    def stream_received(self, blob: bytes, now: float) -> bytes | None:
        """Take in what somebody sent over a connection; returns the answer, if there is one.

        Raises:
            CodecError: not ours. MergeRefused: a member of another mesh.
        """
        self._now = now
        self._foreigners.refuse(blob)
        answer = self.memberlist.stream_received(blob, now)
        self._drain()
        return answer

    def join(self, address: Address, now: float, *, ignore_old: bool = True) -> None:
        """Ask for an exchange of states with the member at an address."""
        self._now = now
        self._ignore_old_events = ignore_old
        self.memberlist.join(address, now)
        self._drain()

    def stream_state(self, *, join: bool) -> bytes:
        """Return what we send in an exchange of states."""
        return self.memberlist.stream_state(join=join)

    def merge_stream_state(self, blob: bytes, now: float) -> None:
        """Take in the answer of an exchange.

        Raises:
            CodecError: not one. MergeRefused: the peer refused us, or is of another mesh.
        """
        self._now = now
        self._foreigners.refuse(blob)
        known = len(self.table.rows)
        self.memberlist.merge_stream_state(blob, now)
        self._drain()
        if len(self.table.rows) > known:
            self._intents.tell_join(now)

    def stream_ping_answered(self, seq_no: int, reply: bytes, now: float) -> None:
        """Take in the answer to a ping over a connection."""
        self._now = now
        self.memberlist.stream_ping_answered(seq_no, reply, now)
        self._drain()

    def take(self) -> list[SerfEffect]:
        """Return what is to be done, and forget it."""
        self._drain()
        taken = list(self._effects)
        self._effects.clear()
        return taken

    # --- what the application asks -------------------------------------------------------------------

    def set_tags(self, tags: Mapping[str, str], now: float) -> None:
        """Change the tags (TagsTooLong)."""
        self._now = now
        meta = encode_tags(tags)
        self._tags = dict(tags)
        self._own_news_sent = False
        self.memberlist.set_meta(meta, now)
        self._drain()

    @property
    def tags(self) -> Mapping[str, str]:
        """Return the tags of this member."""
        return self._tags

    def stalled(self, seconds: float, now: float) -> None:
        """Believe less in own suspicions: this process did not run for so long."""
        self._now = now
        self.memberlist.stalled(seconds, now)
        self._drain()

    def user_event(self, name: str, payload: bytes, now: float, *, coalesce: bool = False) -> None:
        """Tell every member something small.

        Raises:
            TooLong: over EVENT_BYTES_MAX.
        """
        self._now = now
        self._events.send(name, payload, coalesce=coalesce)

    def query(
        self,
        name: str,
        payload: bytes,
        now: float,
        *,
        filters: Sequence[bytes] = (),
        ack: bool = False,
        relay_factor: int = 0,
        timeout_s: float = 0.0,
    ) -> int:
        """Ask members; returns the id that answers carry. `timeout_s` 0.0: as many members need.

        Raises:
            TooLong: over QUERY_BYTES_MAX.
        """
        self._now = now
        return self._queries.ask(
            name,
            payload,
            now,
            filters=filters,
            ack=ack,
            relay_factor=relay_factor,
            timeout_s=timeout_s,
            alive=self.memberlist.alive_count,
        )

    def respond(self, query: Query, payload: bytes, now: float) -> None:
        """Answer a question that the application was told. Raises TooLong."""
        self._now = now
        self._queries.respond(query, payload)

    def force_leave(self, name: str, now: float, *, prune: bool = False) -> None:
        """Say for a member that failed that it has left; `prune`: forget it."""
        self._now = now
        self._intents.leave_heard(LeaveIntent(ltime=self._intents.clock.take(), name=name, prune=prune), now)

    def begin_leave(self, now: float) -> None:
        """Leave, first step: say so. `leave_is_told` says when the second may follow."""
        self._now = now
        self._intents.begin_leave()

    @property
    def leave_is_told(self) -> bool:
        """Return whether the intent went out as often as is needed."""
        return self.memberlist.alive_count <= 1 or self._intents.leave_is_told

    def leave(self, now: float) -> None:
        """Leave, second step: the member list says that we are gone. `own_news_sent` says when all is told."""
        self._now = now
        self._own_news_sent = self.memberlist.alive_count <= 1
        self.memberlist.leave(now)
        self._drain()

    @property
    def own_news_sent(self) -> bool:
        """Return whether the newest word about this member (tags, leave) went out as often as is needed."""
        return self._own_news_sent

    # --- what is shown -------------------------------------------------------------------------------

    @property
    def clocks(self) -> Clocks:
        """Return the newest times that were seen."""
        return Clocks(
            members=self._intents.clock.time - 1,
            events=self._events.clock.time - 1,
            queries=self._queries.clock.time - 1,
        )

    def members(self) -> list[MemberView]:
        """Return every member, by name."""
        return [self._view(self.table.rows[name]) for name in sorted(self.table.rows)]

    def rtt_s(self, first: str, second: str) -> float | None:
        """Return the estimated round trip between two members, None while unknown. Own name, and those pinged."""
        return self._map.rtt_s(first, second)

    @property
    def coordinate(self) -> Coordinate:
        """Return where this member is."""
        return self._map.own

    def queued(self) -> dict[str, int]:
        """Return how many broadcasts wait, by kind."""
        return {kind: len(queue) for kind, queue in self._queues.items()}

    @property
    def _queues(self) -> Mapping[str, BroadcastQueue]:
        """Return the queues in the order in which they are sent."""
        return {"intent": self._intents.queue, "query": self._query_queue, "event": self._events.queue}

    def _view(self, row: MemberRow) -> MemberView:
        return row.view(self._map.rtt_s(self.settings.name, row.name))

    # --- delegate of the member list -------------------------------------------------------------------

    def ack_payload(self) -> bytes:
        """Return our coordinate."""
        return self._map.payload()

    def ping_completed(self, member: Member, rtt_s: float, payload: bytes) -> None:
        """Learn where a member is."""
        self._map.pinged(member.name, rtt_s, payload)

    def user_packet(self, body: bytes) -> None:
        """Take in a message of this layer. Raises CodecError."""
        self._drain()
        message = decode(body)
        match message:
            case LeaveIntent():
                self._intents.leave_heard(message, self._now)
            case JoinIntent():
                self._intents.join_heard(message, self._now)
            case UserEvent():
                self._events.heard(message, body)
            case Query():
                self._queries.heard(message, body, self._now)
            case QueryResponse():
                self._queries.response_heard(message, self._now)
            case Relay():
                self.counts["relayed"] += 1
                self._effects.append(
                    SendPacket(address=message.address, messages=user_message(message.body), with_crc=False)
                )
            case UserState():
                raise CodecError("a user state travels in an exchange of states only")

    def has_broadcasts(self) -> bool:
        """Return whether anything is to be told on."""
        return any(len(queue) for queue in self._queues.values())

    def user_broadcasts(self, *, overhead_bytes: int, limit_bytes: int) -> list[bytes]:
        """Return what is to be told on: intents before queries before events."""
        taken: list[bytes] = []
        for queue in self._queues.values():
            more = queue.take(
                members=self.memberlist.member_count, overhead_bytes=overhead_bytes, limit_bytes=limit_bytes
            )
            limit_bytes -= sum(overhead_bytes + len(body) for body in more)
            taken += more
        return taken

    def local_state(self, *, join: bool) -> bytes:
        """Return what we send of this layer in an exchange of states."""
        return UserState(
            ltime=self._intents.clock.time,
            statuses=self._intents.statuses(),
            left=self._intents.left(),
            event_ltime=self._events.clock.time,
            events=self._events.remembered(),
            query_ltime=self._queries.clock.time,
        ).encode()

    def merge_remote_state(self, raw: bytes, *, join: bool) -> None:
        """Take in what another member sent. Raises CodecError."""
        self._drain()
        state = decode(raw)
        if not isinstance(state, UserState):
            raise CodecError("an exchange of states without a user state")
        for clock, ltime in (
            (self._intents.clock, state.ltime),
            (self._events.clock, state.event_ltime),
            (self._queries.clock, state.query_ltime),
        ):
            if ltime > 0:
                clock.witness(ltime - 1)
        self._intents.merge(state.statuses, state.left, self._now)
        if join and self._ignore_old_events:
            self._events.raise_floor(state.event_ltime)
            self._queries.raise_floor(state.query_ltime)
        self._events.merge(state.events)

    # --- member list -> members ---------------------------------------------------------------------------

    def _drain(self) -> None:
        for effect in self.memberlist.take():
            match effect:
                case SendPacket() | PushPull() | StreamPing():
                    self._effects.append(effect)
                case MemberJoined(member=member):
                    self._joined(member)
                case MemberLeft(member=member):
                    self._gone(member.name)
                case MemberUpdated(member=member):
                    self._updated(member)
                case NameConflict(member=member, address=address):
                    self._conflict(member, address)
                case BroadcastSent(name=name):
                    self._own_news_sent |= name == self.settings.name

    def _joined(self, member: Member) -> None:
        tags = self._foreigners.tags_of(member)
        if tags is not None:
            self._tell(MemberChange.JOINED, self.table.joined(member.name, member.address, tags))

    def _gone(self, name: str) -> None:
        change = self.table.gone(name, self._now)
        if change is not None:
            self._tell(change, self.table.rows[name])

    def _updated(self, member: Member) -> None:
        tags = self._foreigners.tags_of(member)
        row = None if tags is None else self.table.updated(member.name, member.address, tags)
        if row is not None:
            self._tell(MemberChange.UPDATED, row)

    def _conflict(self, member: Member, address: Address) -> None:
        self.counts["name_conflict"] += 1
        if member.name == self.settings.name:
            self._queries.settle_conflict(self._now, alive=self.memberlist.alive_count)

    def _tell(self, change: MemberChange, row: MemberRow) -> None:
        if change is MemberChange.REAPED:
            self._map.forget(row.name)
        self._effects.append(MemberChanged(change, self._view(row)))

    # --- housekeeping -------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for row in self.table.reap(
            self._now,
            failed_after_s=self.settings.reconnect_timeout_s,
            left_after_s=self.settings.tombstone_timeout_s,
        ):
            self._tell(MemberChange.REAPED, row)

    def _reconnect(self) -> None:
        failed = self.table.of_status(MemberStatus.FAILED)
        alive = len(self.table.of_status(MemberStatus.ALIVE))
        if failed and self._rng.random() < len(failed) / max(1, alive):
            row = self._rng.sample(failed, 1)[0]
            self.counts["reconnects"] += 1
            self._effects.append(PushPull(address=row.address, name=row.name, join=False))

    def _relays(self, count: int) -> list[Member]:
        """Return up to `count` other members that pass messages on."""
        others = [
            member
            for member in self.memberlist.members()
            if member.state is MemberState.ALIVE and member.name != self.settings.name and member.versions.pmax >= 5
        ]
        return self._rng.sample(others, min(count, len(others)))


__all__ = ["EVENT_BYTES_MAX", "Clocks", "Serf", "SerfSettings", "TooLong"]
