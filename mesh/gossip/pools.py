"""The pools of one process as its main loop sees them: LAN and WAN, each with one member, in one thread of their own.

Rule 1: what the main loop reads (`members`) is a finished tuple; it never waits for the gossip thread.
Rule 2: changes are handed to the main loop one after the other; a main loop that does not turn gets them later.
Rule 3: who is in one pool and lists an address of the other is brought into that (flood_join_core): one seed in any
        pool is enough.
Rule 4: the main loop says that it turns, and the watchdog announces when it does not (watchdog_core).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog

from georelay.cadence import pause_s
from georelay.errors import ConfigError
from mesh.gossip.agent_answers import KeyReport, QueryReport
from mesh.gossip.flood_join_core import LAN_TAG, WAN_TAG, missing_in
from mesh.gossip.gossip_thread import GossipThread
from mesh.gossip.member import Address
from mesh.gossip.pool_member import MemberHealth, PoolMember
from mesh.gossip.tags import TagsTooLong
from mesh.gossip.view import MemberChange, MemberView, OnMember
from mesh.gossip.watchdog_core import TURN_EVERY_S, Watchdog

log = structlog.get_logger()

T = TypeVar("T")

LAN: Final = "lan"
WAN: Final = "wan"
STALLED_TAG: Final = "stalled"
FLOOD_EVERY_S: Final = 30.0
FLOOD_SOON_S: Final = 0.3
PUBLISH_EVERY_S: Final = 2.0
NAME_LOST_PAUSE_S: Final = 60.0


class Pool:
    """One pool, for the main loop. A PoolView, and what an operator may ask of it."""

    def __init__(self, name: str, member: PoolMember, *, thread: GossipThread) -> None:
        self.name = name
        self._member = member
        self._thread = thread
        self._members: Sequence[MemberView] = ()
        self._subscribers: list[OnMember] = []

    @property
    def own_name(self) -> str:
        """Return the name of this process's member; of an external agent after start."""
        return self._member.own_name

    @property
    def address(self) -> Address:
        """Return where others reach this member; after start."""
        return self._member.address

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what happened so far, by fixed names."""
        return self._member.all_counts()

    def members(self) -> Sequence[MemberView]:
        """Return every member, by name; at most PUBLISH_EVERY_S old."""
        return self._members

    def subscribe(self, on_member: OnMember) -> None:
        """Call `on_member` in the main loop for every change from now on."""
        self._subscribers.append(on_member)

    def health(self) -> MemberHealth:
        """Return what metrics show."""
        return self._member.health()

    async def join(self, address: Address) -> None:
        """Exchange states with the member at an address (ExchangeFailed, GossipFault)."""
        await self._thread.run(lambda: self._member.join_address(address))

    async def tell(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        """Send a user event (TooLong)."""
        await self._thread.run(lambda: self._member.tell(name, payload, coalesce=coalesce))

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
        """Ask members, and wait for the deadline (TooLong)."""
        return await self._thread.run(
            lambda: self._member.query(
                name, payload, filters=filters, ack=ack, relay_factor=relay_factor, timeout_s=timeout_s
            )
        )

    async def keys(self, action: str, key: bytes = b"", *, timeout_s: float = 0.0) -> KeyReport:
        """Ask every member to do something with its keyring; `action` is one of KEY_QUERIES."""
        return await self._thread.run(lambda: self._member.keys(action, key, timeout_s=timeout_s))

    async def make_leave(self, name: str, *, prune: bool = False) -> None:
        """Say for a member that failed that it has left."""
        await self._thread.run(lambda: self._member.make_leave(name, prune=prune))

    async def rtt(self, first: str, second: str) -> float | None:
        """Return the estimated round trip of two members, seconds; None while unknown."""
        return await self._thread.run(lambda: self._member.rtt(first, second))

    # --- from the gossip thread ----------------------------------------------------------------------------

    def publish(self) -> None:
        """Let the main loop see the members as they are now."""
        self._members = tuple(self._member.members())

    def tell_subscribers(self, change: MemberChange, member: MemberView) -> None:
        """Run in the main loop."""
        for told in self._subscribers:
            told(change, member)


class GossipPools:
    """Args:
    members: pool name -> its member, not started. region: tag `rg` of those who belong into the LAN pool.
    on_event, on_query: of every pool, in the gossip thread: (pool, name, payload). on_name_lost: in the main loop.
    note: told facts (by name) that `on_query` answers with.
    """

    def __init__(
        self,
        members: Mapping[str, PoolMember],
        *,
        region: str = "",
        on_event: Callable[[str, str, bytes], None] = lambda _pool, _name, _payload: None,
        on_query: Callable[[str, str, bytes], bytes | None] = lambda _pool, _name, _payload: None,
        on_name_lost: Callable[[str], None] = lambda _: None,
        note: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._thread = GossipThread()
        self._members = dict(members)
        self.pools: Mapping[str, Pool] = {
            name: Pool(name, member, thread=self._thread) for name, member in members.items()
        }
        self._region = region
        self._on_event = on_event
        self._on_query = on_query
        self._on_name_lost = on_name_lost
        self.note = note
        self._answers: dict[str, Callable[[bytes], bytes | None]] = {}
        self._main: asyncio.AbstractEventLoop | None = None
        self._tags: dict[str, str] = {}
        self._own_tags: dict[str, Mapping[str, str]] = {}
        self._flood_soon = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._turning: asyncio.Task[None] | None = None
        self.watchdog = Watchdog(time.monotonic())
        self.gossip_lag_s = 0.0

    # --- from the main loop ---------------------------------------------------------------------------------

    async def start(self, tags: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Start the thread and every member. `tags`: pool -> tags that stay, for `set_tags` to add to.

        Raises:
            OSError: an address is taken. ConfigError: a keyring.
        """
        self._main = asyncio.get_running_loop()
        self._own_tags = dict(tags or {})
        self._turning = asyncio.create_task(self._turn_forever(), name="gossip-watchdog")
        self._thread.start()
        try:
            await self._thread.run(self._start_members)
        except BaseException:
            await self._turn_no_more()
            await self._thread.run(self._abandon_members)
            await self._thread.stop()
            raise

    async def stop(self) -> None:
        """Leave every pool, then end the thread."""
        await self._turn_no_more()
        await self._thread.run(self._stop_members)
        await self._thread.stop()

    def remembered(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        """Return pool -> name -> tags of everybody that earlier runs have heard of."""
        return {name: member.remembered() for name, member in self._members.items()}

    def answer_query(self, query: str, answer: Callable[[bytes], bytes | None]) -> None:
        """Answer queries of this name in the LAN pool from now on; `answer` is called in the gossip thread."""
        self._answers[query] = answer

    async def set_tags(self, **tags: str) -> None:
        """Change some tags in every pool; "" takes a tag away. A set that is too long changes nothing and is told."""
        await self._thread.run(lambda: self._change_tags(tags))

    async def _turn_forever(self) -> None:
        while True:
            self.watchdog.turned(time.monotonic())
            await asyncio.sleep(pause_s(TURN_EVERY_S))

    async def _turn_no_more(self) -> None:
        if self._turning is not None:
            self._turning.cancel()
            await asyncio.gather(self._turning, return_exceptions=True)

    # --- in the gossip thread -----------------------------------------------------------------------------------

    async def _start_members(self) -> None:
        for name, member in self._members.items():
            self._listen_to(name, member)
            await member.start()
            self.pools[name].publish()
        for work in (self._watch_forever(), self._flood_forever(), self._publish_forever()):
            self._spawn(work)

    async def _abandon_members(self) -> None:
        """End those that were started before one could not be."""
        await asyncio.gather(*(member.stop(leave=False) for member in self._members.values()))

    async def _stop_members(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.stop() for member in self._members.values()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _listen_to(self, name: str, member: PoolMember) -> None:
        pool = self.pools[name]

        def changed(change: MemberChange, view: MemberView) -> None:
            pool.publish()
            self._flood_soon.set()
            self._post(pool.tell_subscribers, change, view)

        member.listeners.on_member.append(changed)
        member.listeners.on_event = lambda event, payload: self._on_event(name, event, payload)
        member.listeners.on_query = lambda query, payload: self._answer(name, query, payload)
        member.listeners.on_name_lost = lambda _: self._name_lost(name)

    def _answer(self, pool: str, query: str, payload: bytes) -> bytes | None:
        answer = self._answers.get(query) if pool == LAN else None
        return self._on_query(pool, query, payload) if answer is None else answer(payload)

    def _name_lost(self, name: str) -> None:
        """End the member whose name another one has by the word of most: two of one name confuse everybody.

        It tries again after NAME_LOST_PAUSE_S: most often the other one is itself, before a restart at a new address.
        """
        self._spawn(self._begin_again(name))
        self._post(self._on_name_lost, name)

    async def _begin_again(self, name: str) -> None:
        member = self._members[name]
        await member.stop(leave=False)
        while True:
            await asyncio.sleep(NAME_LOST_PAUSE_S)
            try:
                await member.start()
            except (OSError, ConfigError) as error:
                log.warning("gossip.not_started_again", pool=name, reason=str(error))
            else:
                await self._change_tags({})
                self.pools[name].publish()
                return

    def _post(self, work: Callable[..., object], *arguments: object) -> None:
        """Run in the main loop; one that is closed hears nothing more."""
        assert self._main is not None
        with contextlib.suppress(RuntimeError):
            self._main.call_soon_threadsafe(work, *arguments)

    async def _change_tags(self, tags: Mapping[str, str]) -> None:
        self._tags = {name: text for name, text in {**self._tags, **tags}.items() if text}
        for name, member in self._members.items():
            try:
                await member.change_tags({**self._own_tags.get(name, {}), **self._tags})
            except TagsTooLong as error:
                log.error("gossip.tags_refused", pool=name, reason=str(error))  # noqa: TRY400

    async def _publish_forever(self) -> None:
        while True:
            await asyncio.sleep(pause_s(PUBLISH_EVERY_S))
            for pool in self.pools.values():
                pool.publish()

    async def _watch_forever(self) -> None:
        while True:
            before, wait_s = time.monotonic(), pause_s(TURN_EVERY_S)
            await asyncio.sleep(wait_s)
            now = time.monotonic()
            self.gossip_lag_s = max(0.0, now - before - wait_s)
            look = self.watchdog.look(now)
            if look.changed:
                log.warning("main_loop.pulse_changed", pulse=look.pulse.value or "steady", lag_s=round(look.lag_s, 1))
                await self._change_tags({STALLED_TAG: look.pulse.value})
            if look.suspect_s:
                for member in self._members.values():
                    member.stalled(look.suspect_s)

    async def _flood_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLOOD_EVERY_S):
                    await self._flood_soon.wait()
            await asyncio.sleep(FLOOD_SOON_S)  # members come in swarms
            self._flood_soon.clear()
            if LAN in self._members and WAN in self._members:
                lan, wan = self._members[LAN].members(), self._members[WAN].members()
                await self._flood(self._members[WAN], missing_in(wan, lan, tag=WAN_TAG))
                await self._flood(self._members[LAN], missing_in(lan, wan, tag=LAN_TAG, region=self._region))

    async def _flood(self, member: PoolMember, addresses: Sequence[Address]) -> None:
        others = [address for address in addresses if address != member.address]
        results = await asyncio.gather(*(member.join_address(address) for address in others), return_exceptions=True)
        for address, result in zip(others, results, strict=True):
            if isinstance(result, Exception):
                log.debug("gossip_flood.not_joined", address=f"{address[0]}:{address[1]}", reason=str(result))
