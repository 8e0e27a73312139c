"""One member of one pool, alive: sockets, timers and files around the pure Serf core. Lives in one event loop.

Rule 1: everything from a peer is bounded before it is read and dropped with a counter when it is bad.
Rule 2: before a timer is judged, the packets that wait are read: a stall must not make others look dead.
Rule 3: nobody is told of anything from inside the core: effects are done after each call, in order.
Rule 4: a member that stops says so first (`stop`), and stays to answer pings while that spreads.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from mesh.gossip.agent_answers import JoinFailed, KeyReport, OpenQuery, QueryReport
from mesh.gossip.effects import PushPull, SendPacket, StreamPing
from mesh.gossip.exchange import ExchangeFailed, ExchangeServer, exchange
from mesh.gossip.faults import GossipFault, MergeRefused, PacketError
from mesh.gossip.key_queries_core import LIST_KEYS
from mesh.gossip.keyring import Keyring
from mesh.gossip.keyring_file import KeyringFile
from mesh.gossip.member import Address
from mesh.gossip.packet import UDP_BUDGET_BYTES, open_packet, packet_overhead_bytes, seal_packet
from mesh.gossip.packet_gate_core import PacketGate
from mesh.gossip.pool_member import Listeners, MemberHealth
from mesh.gossip.query_payloads import KeyRequest
from mesh.gossip.seeds import resolve
from mesh.gossip.serf_core import Serf, SerfSettings
from mesh.gossip.serf_effects import (
    EventHeard,
    KeysChanged,
    MemberChanged,
    NameLost,
    QueryAnswered,
    QueryHeard,
    QueryOver,
)
from mesh.gossip.serf_messages import Query
from mesh.gossip.snapshot_file import SnapshotFile
from mesh.gossip.sockets import DatagramSocket, bind_pair
from mesh.gossip.tag_match import matches
from mesh.gossip.timing import LAN, Timing
from mesh.gossip.view import MemberChange, MemberStatus, MemberView

log = structlog.get_logger()

REJOIN_EVERY_S: Final = 30.0
REJOIN_ALONE_EVERY_S: Final = 2.0
REJOIN_FIRST_S: Final = 0.25  # doubled while alone: processes that start together wait for the seed, not for a timer
LEAVE_TOLD_S: Final = 5.0
LEAVE_PROPAGATE_S: Final = 1.0
CLOCKS_EVERY_S: Final = 1.0
REFUSAL_LINE_EVERY_S: Final = 10.0
STREAMS_MAX: Final = 64
TICK_S_MAX: Final = 1.0
TICK_S_MIN: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One member of one pool.

    Args:
        pool: name for logs and metrics, "lan" or "wan".
        name: of the member, unique in its pool.
        listen: IP address and port; port 0 takes a free one.
        advertise: where others reach it; None: where it listens.
        mesh: see SerfSettings. label: of the pool, "" for none (`serf agent` 0.9.4 knows none).
        seeds: "host:port"; asked at start, and again while one of them is no living member.
        keyring_file: keys as `serf agent` keeps them; None: plain text.
        snapshot: what is remembered over a restart; None: nothing.
    """

    pool: str
    name: str
    listen: Address
    tags: Mapping[str, str]
    advertise: Address | None = None
    timing: Timing = LAN
    mesh: str = ""
    label: str = ""
    seeds: Sequence[str] = ()
    keyring_file: Path | None = None
    snapshot: Path | None = None
    leave_propagate_s: float = LEAVE_PROPAGATE_S
    rejoin_every_s: float = REJOIN_EVERY_S


class Agent:
    """One running member. Every method is called in its loop."""

    def __init__(
        self, settings: AgentSettings, *, listeners: Listeners | None = None, rng: random.Random | None = None
    ) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.listeners = listeners or Listeners()
        self.address: Address = settings.listen
        self._rng = rng or random.Random()
        self._keys = KeyringFile(settings.keyring_file)
        self._snapshot = SnapshotFile(None)
        self._remembered: Mapping[str, Mapping[str, str]] = {}
        self._queries: dict[int, OpenQuery] = {}
        self._waiting: dict[Address, list[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refusals: dict[str, float] = {}
        self._stopping = False
        self._running = False
        self.serf: Serf
        self._udp: DatagramSocket
        self._server: ExchangeServer
        self._gate: PacketGate

    @property
    def own_name(self) -> str:
        """Return the name of this member."""
        return self.settings.name

    @property
    def keyring(self) -> Keyring | None:
        """Return the keys of the pool, None for plain text."""
        return self._keys.keyring

    # --- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and look for the others.

        Raises:
            OSError: the address is taken. ConfigError: the keyring file.
        """
        settings = self.settings
        self._stopping = False
        udp, tcp = bind_pair(*settings.listen)
        port = tcp.getsockname()[1]
        self.address = settings.advertise or (settings.listen[0], port)
        if self.address[1] == 0:
            self.address = (self.address[0], port)
        self._snapshot = SnapshotFile(settings.snapshot)
        self._remembered = self._snapshot.remembered.tags()
        remembered = self._snapshot.remembered
        now = time.monotonic()
        self._gate = PacketGate(now)
        self.serf = Serf(
            SerfSettings(
                name=settings.name,
                address=self.address,
                tags=settings.tags,
                timing=settings.timing,
                mesh=settings.mesh,
                messages_bytes_max=UDP_BUDGET_BYTES - packet_overhead_bytes(keyring=self.keyring, label=settings.label),
            ),
            rng=self._rng,
            incarnation=max(remembered.incarnation + 1, int(time.time())),
            match=matches,
            keyring=self.keyring,
            clocks=remembered.clocks,
        )
        self._udp = DatagramSocket(udp, on_packet=self._packet, counts=self.counts)
        self._server = ExchangeServer(
            tcp,
            answer=self._answer,
            refused=lambda fault, source: self._refused(_reason(fault), fault, source),
            keyring=self.keyring,
            label=settings.label,
            timeout_s=settings.timing.stream_timeout_s,
            counts=self.counts,
        )
        known = [address for name, address in remembered.alive.items() if name != settings.name]
        self.serf.start(now)
        self._running = True
        self._udp.start()
        await self._server.start()
        self._after()
        self._spawn(self._rejoin_forever(known), "gossip-rejoin")
        self._spawn(self._remember_forever(), "gossip-clocks")
        log.info(
            "gossip.started",
            pool=settings.pool,
            name=settings.name,
            address=f"{self.address[0]}:{self.address[1]}",
            encrypted=self.keyring is not None,
            remembered=len(known),
        )

    async def stop(self, *, leave: bool = True) -> None:
        """End; `leave`: say so first, which takes about 1.5 s while others stay, less when all end together."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        if leave:
            await self._leave()
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        self._udp.close()
        self._snapshot.clocks(self.serf.clocks, self.serf.memberlist.incarnation)
        self._snapshot.close()
        for query in list(self._queries.values()):
            query.close()
        self._queries.clear()
        for address in list(self._waiting):
            self._settle(address, ExchangeFailed("this member has ended"))
        log.info("gossip.stopped", pool=self.settings.pool, name=self.settings.name)

    async def _leave(self) -> None:
        self.serf.begin_leave(time.monotonic())
        self._after()
        await self._wait(lambda: self.serf.leave_is_told)
        self.serf.leave(time.monotonic())
        self._after()
        await self._wait(lambda: self.serf.own_news_sent)
        self._snapshot.left()
        await self._wait(lambda: not self._others_stay, at_most_s=self.settings.leave_propagate_s)

    @property
    def _others_stay(self) -> bool:
        """Return whether there is anybody to whom the news of our leave could travel on."""
        own = self.settings.name
        return any(view.name != own and view.status is MemberStatus.ALIVE for view in self.serf.members())

    async def _wait(self, done: Callable[[], bool], *, at_most_s: float = LEAVE_TOLD_S) -> None:
        deadline = time.monotonic() + at_most_s
        while not done() and time.monotonic() < deadline:  # noqa: ASYNC110 - the core has no events, it is looked at
            await asyncio.sleep(0.02)

    def remembered(self) -> Mapping[str, Mapping[str, str]]:
        """Return name -> tags of everybody that was heard of before this start and not reaped."""
        return self._remembered

    # --- what is asked of it -----------------------------------------------------------------------------

    def members(self) -> list[MemberView]:
        """Return every member, by name."""
        return self.serf.members()

    async def join(self, seeds: Sequence[str]) -> int:
        """Exchange states with every address of the seeds; returns with how many that worked.

        Raises:
            JoinFailed: with none; the text has the cause of each.
        """
        addresses = [address for address in await resolve(seeds) if address != self.address]
        results = await asyncio.gather(*(self.join_address(address) for address in addresses), return_exceptions=True)
        faults = [str(result) for result in results if isinstance(result, Exception)]
        if addresses and len(faults) == len(addresses):
            raise JoinFailed("; ".join(faults))
        if not addresses:
            raise JoinFailed(f"no address for {', '.join(seeds) or 'no seeds'}")
        return len(addresses) - len(faults)

    async def join_address(self, address: Address) -> None:
        """Exchange states with the member at one address (ExchangeFailed, GossipFault)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, []).append(future)
        self.serf.join(address, time.monotonic())
        self._after()
        await future

    async def change_tags(self, tags: Mapping[str, str]) -> None:
        """Change the own tags (TagsTooLong)."""
        if dict(tags) != dict(self.serf.tags):
            self.serf.set_tags(tags, time.monotonic())
            self._after()

    def stalled(self, seconds: float) -> None:
        """Note that this process did not run for so long."""
        self.serf.stalled(seconds, time.monotonic())
        self._after()

    async def tell(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        """Tell every member (TooLong)."""
        self.serf.user_event(name, payload, time.monotonic(), coalesce=coalesce)
        self._after()

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
        """Ask members and return what came until the deadline (TooLong)."""
        query_id = self.serf.query(
            name,
            payload,
            time.monotonic(),
            filters=filters,
            ack=ack,
            relay_factor=relay_factor,
            timeout_s=timeout_s,
        )
        opened = self._queries[query_id] = OpenQuery(asyncio.get_running_loop().create_future())
        self._after()
        return await opened.over

    async def keys(self, action: str, key: bytes = b"", *, timeout_s: float = 0.0) -> KeyReport:
        """Ask every member to do something with its keyring; `action` is one of KEY_QUERIES."""
        payload = b"" if action == LIST_KEYS else KeyRequest(key=key).encode()
        report = await self.query(action, payload, timeout_s=timeout_s)
        alive = sum(member.status is MemberStatus.ALIVE for member in self.members())
        return KeyReport.of(report, members=alive)

    async def make_leave(self, name: str, *, prune: bool = False) -> None:
        """Say for a member that failed that it has left."""
        self.serf.force_leave(name, time.monotonic(), prune=prune)
        self._after()

    async def rtt(self, first: str, second: str) -> float | None:
        """Return the estimated round trip of two members, seconds; None where one was never pinged."""
        return self.serf.rtt_s(first, second)

    def all_counts(self) -> Mapping[str, int]:
        """Return what happened in every layer, by fixed names."""
        return Counter(self.counts) + self.serf.counts + self.serf.memberlist.counts

    def health(self) -> MemberHealth:
        """Return what metrics show."""
        return MemberHealth(
            awareness=self.serf.memberlist.awareness,
            encrypted=self.keyring is not None,
            queued=self.serf.queued(),
            bytes_in=self._udp.bytes_in,
            bytes_out=self._udp.bytes_out,
        )

    # --- packets and timers --------------------------------------------------------------------------------

    def _packet(self, raw: bytes, source: Address, now: float) -> None:
        if not self._gate.admits(source[0], now):
            self.counts["packets_over_limit"] += 1
            return
        try:
            messages = open_packet(raw, keyring=self.keyring, label=self.settings.label)
        except PacketError as fault:
            self._refused(fault.reason, fault, source)
            return
        self.serf.packet_received(messages, source, now)
        self._after()

    def _refused(self, reason: str, fault: GossipFault, source: Address) -> None:
        """Count what was refused, and tell it now and then: one line says what is wrong."""
        self.counts[f"refused_{reason}"] += 1
        now = time.monotonic()
        if now - self._refusals.get(reason, -REFUSAL_LINE_EVERY_S) >= REFUSAL_LINE_EVERY_S:
            self._refusals[reason] = now
            log.warning(
                "gossip_packet.refused",
                pool=self.settings.pool,
                source=f"{source[0]}:{source[1]}",
                reason=reason,
                detail=str(fault),
                times=self.counts[f"refused_{reason}"],
            )

    def _answer(self, blob: bytes, source: Address) -> bytes | None:
        answer = self.serf.stream_received(blob, time.monotonic())
        self._after()
        return answer

    def _tick(self) -> None:
        self._timer = None
        self._udp.read_waiting()
        self.serf.tick(time.monotonic())
        self._after()

    def _after(self) -> None:
        """Do what the core wants done, then wait for its next due time."""
        for effect in self.serf.take():
            self._do(effect)
        if not self._running:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_s = min(TICK_S_MAX, max(TICK_S_MIN, self.serf.next_due() - time.monotonic()))
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _do(self, effect: object) -> None:
        match effect:
            case SendPacket(address=address, messages=messages, with_crc=with_crc):
                raw = seal_packet(messages, keyring=self.keyring, label=self.settings.label, with_crc=with_crc)
                self._udp.send(raw, address)
            case PushPull(address=address, join=join):
                self._stream(self._push_pull(address, join=join), address)
            case StreamPing():
                self._stream(self._stream_ping(effect), effect.address)
            case MemberChanged(change=change, member=member):
                self._member_changed(change, member)
            case EventHeard(name=name, payload=payload):
                self.listeners.on_event(name, payload)
            case QueryHeard(query=query):
                self._query_heard(query)
            case QueryAnswered(query_id=query_id):
                if query_id in self._queries:
                    self._queries[query_id].take(effect)
            case QueryOver(query_id=query_id):
                if query_id in self._queries:
                    self._queries.pop(query_id).close()
            case KeysChanged():
                self._keys.write()
            case NameLost(address=address):
                log.error("gossip.name_lost", name=self.settings.name, to=f"{address[0]}:{address[1]}")
                self.listeners.on_name_lost(address)

    def _member_changed(self, change: MemberChange, member: MemberView) -> None:
        if member.name != self.settings.name:
            if change in (MemberChange.JOINED, MemberChange.UPDATED):
                self._snapshot.member_alive(member.name, member.address, member.tags)
            elif change is MemberChange.REAPED:
                self._snapshot.member_reaped(member.name)
            elif not self._stopping:
                self._snapshot.member_gone(member.name)
            if change is not MemberChange.UPDATED:
                log.info(f"gossip_member.{change.value}", pool=self.settings.pool, name=member.name)
        for told in self.listeners.on_member:
            told(change, member)

    def _query_heard(self, query: Query) -> None:
        answer = self.listeners.on_query(query.name, query.payload)
        if answer is not None:
            self.serf.respond(query, answer, time.monotonic())
            for effect in self.serf.take():
                self._do(effect)

    # --- streams -------------------------------------------------------------------------------------------

    def _stream(self, work: Coroutine[Any, Any, None], address: Address) -> None:
        if self._streams >= STREAMS_MAX:
            self.counts["streams_dropped"] += 1
            work.close()
            self._settle(address, ExchangeFailed(f"{STREAMS_MAX} exchanges are under way"))
            return
        self._streams += 1
        self._spawn(work, "gossip-stream").add_done_callback(self._stream_done)

    def _stream_done(self, _: asyncio.Task[None]) -> None:
        self._streams -= 1

    async def _push_pull(self, address: Address, *, join: bool) -> None:
        try:
            answer = await exchange(
                address,
                self.serf.stream_state(join=join),
                keyring=self.keyring,
                label=self.settings.label,
                timeout_s=self.settings.timing.stream_timeout_s,
            )
            self.serf.merge_stream_state(answer, time.monotonic())
        except (ExchangeFailed, GossipFault) as error:
            self.counts["exchanges_failed"] += 1
            if isinstance(error, MergeRefused):
                self._refused("mesh", error, address)
            self._settle(address, error)
        else:
            self.counts["exchanges"] += 1
            self._settle(address, None)
        finally:  # whatever else it was: nobody waits for it any more
            self._settle(address, ExchangeFailed(f"the exchange with {address[0]}:{address[1]} broke off"))
        self._after()

    def _settle(self, address: Address, error: Exception | None) -> None:
        for future in self._waiting.pop(address, ()):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    async def _stream_ping(self, ping: StreamPing) -> None:
        left_s = max(0.01, ping.deadline - time.monotonic())
        try:
            reply = await exchange(
                ping.address, ping.blob, keyring=self.keyring, label=self.settings.label, timeout_s=left_s
            )
        except ExchangeFailed:
            self.counts["stream_pings_failed"] += 1
            return
        self.serf.stream_ping_answered(ping.seq_no, reply, time.monotonic())
        self._after()

    # --- duties ----------------------------------------------------------------------------------------------

    async def _rejoin_forever(self, remembered: Sequence[Address]) -> None:
        """Look for the pool: at once, quickly while alone, and slowly while a seed is no living member."""
        first = True
        alone_s = REJOIN_FIRST_S
        while True:
            alive = {member.address for member in self.members() if member.status is MemberStatus.ALIVE}
            wanted = [*await resolve(self.settings.seeds), *(remembered if len(alive) <= 1 else ())]
            missing = [a for a in dict.fromkeys(wanted) if a not in alive and a != self.address]
            results = await asyncio.gather(*(self.join_address(a) for a in missing), return_exceptions=True)
            faults = [str(result) for result in results if isinstance(result, Exception)]
            if faults and first:
                log.warning("gossip_seed.not_joined", pool=self.settings.pool, reason="; ".join(faults)[:400])
            first = False
            alone = len(self.members()) <= 1 or not any(
                member.status is MemberStatus.ALIVE and member.name != self.settings.name for member in self.members()
            )
            period_s = min(alone_s, self.settings.rejoin_every_s) if alone else self.settings.rejoin_every_s
            alone_s = min(2 * alone_s, REJOIN_ALONE_EVERY_S)
            await asyncio.sleep(period_s * (0.75 + 0.5 * self._rng.random()))

    async def _remember_forever(self) -> None:
        while True:
            self._snapshot.clocks(self.serf.clocks, self.serf.memberlist.incarnation)
            await asyncio.sleep(pause_s(CLOCKS_EVERY_S))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("gossip.task_failed", pool=self.settings.pool, exc_info=task.exception())


def _reason(fault: GossipFault) -> str:
    if isinstance(fault, PacketError):
        return fault.reason
    return "mesh" if isinstance(fault, MergeRefused) else "codec"
