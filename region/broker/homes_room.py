"""Joins homes that move to the rest of a broker: mesh control, links, streams and their leases."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from georelay.clock import Clock
from georelay.errors import NotLeader
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey, region_of
from mesh.replication.mesh_links import MeshLinks
from region.api.homes_http import HomesHttp
from region.broker.hosted_groups import HostedGroups
from region.control.mesh_control import MeshControl
from region.controller.mesh_rows import RegionState
from region.controller.service import ControllerService
from region.homes.agent import HomeAgent
from region.homes.leader import HomeLeader
from region.homes.lease_keeper import LeaseKeeper
from region.homes.levels import needs_lease
from region.homes.mesh_topics import ControlTopics
from region.homes.part import HomesPart
from region.homes.policies import ControlPolicies, policies_digest
from region.security.access import Access
from region.topics.hosted_stream import HostedStream


class HomesRoom:
    """One broker's part in homes that move.

    Args:
        hosted: the stream when a replica of it is on this broker.
        leader_of: the broker of this region that leads a stream, -1 while unknown.
        is_led: whether this broker knows a leader of its region.
        groups: told what acknowledgements may depend on.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        control: MeshControl,
        controller: ControllerService,
        links: MeshLinks,
        groups: HostedGroups,
        hosted: Callable[[StreamKey], HostedStream | None],
        leader_of: Callable[[StreamKey], int],
        clock: Clock,
        rng: random.Random,
        is_led: Callable[[], bool] = lambda: True,
    ) -> None:
        self._me = me
        self._control = control
        self._controller = controller
        self._links = links
        self._task: asyncio.Task[None] | None = None
        self._needed_at = -1  # the metadata epoch in which all topics were looked at
        self._needed = False
        self._policies_at = -1
        self._policies = ""
        topics = ControlTopics(control.definitions, control.regions)
        self.part = HomesPart(topics)
        self.agent = HomeAgent(me=me, hosted=hosted, leader_of=leader_of, ask=self._ask_broker, is_led=is_led)
        self.leader = HomeLeader(
            part=self.part,
            topics=topics,
            control=control,
            confirm=self._confirm,
            ask=self._ask_region,
            own_region=region_of(me),
            regions=topics.data_regions,
            voters=lambda: len(control.voters()),
            clock=clock,
            rng=rng,
            is_led=is_led,
            policies=ControlPolicies(control.definitions, control.regions),
        )
        control.register(self.part, self.leader.methods())
        control.ask_before_removal(self._ask_region)
        self.keeper = LeaseKeeper(
            control=control,
            clock=clock,
            is_needed=self._needs_lease,
            is_there=self._has_control,
            known=lambda: controller.state.homes.position,
            is_led=is_led,
            policies=self._followed_policies,
        )
        groups.lease = lambda: not self._has_control() or self.keeper.holds()
        groups.isolated = self.keeper.is_isolated
        groups.leaving = self._is_leaving
        groups.coordinators_need_lease = self._needs_lease

    def http(self, access: Access) -> HomesHttp:
        """Return what the admin listener serves of homes."""
        return HomesHttp(
            known=self._controller.state, call=self._control.call, region_names=self._region_names, access=access
        )

    def _region_names(self) -> Mapping[RegionNumber, str]:
        topology = self._controller.state.topology
        return {} if topology is None else {region.number: region.name for region in topology.regions}

    def start(self) -> None:
        """Begin to renew this broker's lease."""
        self._task = asyncio.get_running_loop().create_task(self.keeper.run(), name="home-lease")

    async def stop(self) -> None:
        """Renew it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.leader.deposed()

    def _is_leaving(self) -> bool:
        row = self._controller.state.mesh.regions.get(region_of(self._me))
        return row is not None and row.state is not RegionState.ACTIVE

    def _has_control(self) -> bool:
        return self._controller.state.mesh.control is not None

    def _needs_lease(self) -> bool:
        """Return whether a topic fails over by itself; all are looked at when one of them has changed."""
        state = self._controller.state
        if self._needed_at != state.metadata_epoch:
            self._needed_at = state.metadata_epoch
            self._needed = any(needs_lease(topic) for topic in state.topics())
        return self._needed and self._has_control()

    def _followed_policies(self) -> str:
        """Return which failover policies the streams here follow: those of every definition that is applied here."""
        state = self._controller.state
        if self._policies_at != state.metadata_epoch:
            self._policies_at, self._policies = state.metadata_epoch, policies_digest(state.topics())
        return self._policies

    async def _confirm(self) -> None:
        """Return once a majority confirmed that this broker leads control (ReadIndex of its Raft group)."""
        replica = self._control.replica
        if replica is None:
            raise NotLeader("this broker holds no replica of mesh control")
        await replica.read_index()

    async def _ask_broker(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[str, Any]:
        answer = await self._links.request(region_of(self._me), method, dict(body), timeout_s=timeout_s, broker=broker)
        return answer.body

    async def _ask_region(
        self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float
    ) -> Mapping[str, Any]:
        if region == region_of(self._me):
            return await self.agent.handle(method, body, from_broker=self._me)
        answer = await self._links.request(region, method, body, timeout_s=timeout_s)
        return answer.body
