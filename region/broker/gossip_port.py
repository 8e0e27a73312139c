"""What the broker takes from gossip: where other brokers are, and where operators want its clients. And what it gives:
whether it is ready.

Rule 1: an address from gossip is a hint, like one of the configuration: it is dialled where what is dialled now does
        not answer. An open connection is never given up for a hint.
Rule 2: gossip decides nothing: not who leads, not who is home, not who may vote.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

import structlog

from georelay.cadence import pause_s
from georelay.ids import BrokerId, RegionNumber, region_of
from mesh.gossip.view import MemberChange, MemberStatus, MemberView, PoolView
from mesh.listening.addresses_core import Source
from mesh.replication.settings import BrokerAddress
from region.broker.gossip_regions_core import BrokerHint, hint_of, region_told

log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
STATUS_QUERY: Final = "mesh-status"


class LinksPort(Protocol):
    """What is asked of mesh.replication.mesh_links.MeshLinks."""

    def know_brokers(self, region: RegionNumber, brokers: Sequence[BrokerAddress], source: Source) -> None:
        """Learn where brokers of a region are reached."""


class GossipPort:
    """Args:
    pools: of this process. me, mesh, region: this broker, its mesh, and its region's name.
    learn_peers: told addresses of the peer listeners of own brokers.
    drain_clients: told every second the region that clients of this one are to go to, "": they stay.
    ready: whether this broker is. set_tags: changes own tags. note: told facts for who asks by query.
    """

    def __init__(
        self,
        *,
        pools: Iterable[PoolView],
        me: BrokerId,
        mesh: str,
        region: str,
        links: LinksPort,
        learn_peers: Callable[[Mapping[BrokerId, str]], None],
        drain_clients: Callable[[str], None],
        ready: Callable[[], bool],
        set_tags: Callable[..., Awaitable[None]],
        note: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._pools = list(pools)
        self._me = me
        self._mesh = mesh
        self._region = region
        self._links = links
        self._learn_peers = learn_peers
        self._drain_clients = drain_clients
        self._ready = ready
        self._set_tags = set_tags
        self._note = note
        self._told_ready: bool | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, remembered: Sequence[BrokerHint] = ()) -> None:
        """Follow the pools from now on. `remembered`: hints of the last run."""
        for hint in remembered:
            self._use(hint)
        for pool in self._pools:
            pool.subscribe(self._changed)
        self._task = asyncio.get_running_loop().create_task(self._look_forever(), name="gossip-port")
        self._task.add_done_callback(_ended)

    async def stop(self) -> None:
        """Follow them no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Use what the pools know of brokers."""
        for pool in self._pools:
            for member in pool.members():
                self._take(member)

    def _changed(self, change: MemberChange, member: MemberView) -> None:
        if change in (MemberChange.JOINED, MemberChange.UPDATED):
            self._take(member)

    def _take(self, member: MemberView) -> None:
        hint = hint_of(member.tags, mesh=self._mesh) if member.status is MemberStatus.ALIVE else None
        if hint is not None:
            self._use(hint)

    def _use(self, hint: BrokerHint) -> None:
        if hint.broker == self._me:
            return
        region = region_of(hint.broker)
        if hint.link:
            row = BrokerAddress(broker_id=hint.broker, address=hint.link)
            self._links.know_brokers(region, [row], Source.GOSSIP)
        if hint.peers and region == region_of(self._me):
            self._learn_peers({hint.broker: hint.peers})

    async def _look_forever(self) -> None:
        while True:
            self.look()
            members = chain.from_iterable(pool.members() for pool in self._pools)
            self._drain_clients(region_told(members, mesh=self._mesh, region=self._region))
            ready = self._ready()
            if ready is not self._told_ready:
                self._note(ready=ready)
                await self._set_tags(ready="1" if ready else "0")
                self._told_ready = ready
            await asyncio.sleep(pause_s(LOOK_EVERY_S))


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("gossip_port.failed", exc_info=task.exception())


class StatusAnswers:
    """Answers STATUS_QUERY in the gossip thread with what the main loop said last."""

    def __init__(self, *, broker: BrokerId, region: str) -> None:
        self._about: dict[str, object] = {"broker": int(broker), "region": region, "ready": False}

    def note(self, **facts: object) -> None:
        """Change some facts; called in the main loop."""
        self._about = {**self._about, **facts}

    def answer(self, _pool: str, name: str, _payload: bytes) -> bytes | None:
        """Return the answer to a query, None for one that is not ours."""
        return json.dumps(self._about).encode() if name == STATUS_QUERY else None
