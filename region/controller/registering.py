"""Registration: what a broker tells its region about itself, and what the leader makes of it.

Rule 1: at feature level 1 only what the first version reads is committed; address of the peer listener and highest
feature level travel beside it, so the leader learns who can do more before the log says so.
Rule 2: a broker that is not in the region yet asks any broker of it; the answer says where the others listen.
Rule 3: another disk is taken for a new life of a broker only while the one with the old disk is not heard, and only
from feature level 2 on: who comes with one before that is not let in yet, and asks again and again.
Rule 4: what would be refused is not committed: who is not let in asks again and again.
Rule 5: a broker that is not known is let in by hand, by the configuration of the leader, or by `auto_join`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import structlog

from georelay.errors import DataDirectoryError, HomeUnreachable, PolicyViolation, Unavailable
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import BrokerId, region_of
from region.controller.commands import AddBroker, Command, RegisterBroker, ReplaceDisk
from region.controller.effects import Done
from region.controller.registration import ADDRESS_CHARS_MAX, FEATURE_LEVEL_MAX, BrokerRegistration
from region.controller.routing import Route
from region.controller.state_core import ControllerState
from region.controller.topology import Topology

log = structlog.get_logger()

REGISTER: Final = "controller.register_broker"


class Registrar:
    """One broker's registration and, while it leads, everybody's.

    Attributes:
        levels: highest feature level by broker, as told to this leader; forgotten when it does not lead.
        learned_peers: addresses of peer listeners as the region last told this broker.
    """

    def __init__(
        self,
        *,
        state: ControllerState,
        topology: Topology,
        own: BrokerRegistration,
        route: Route,
        commit: Callable[[Command], Awaitable[Done]],
        is_alive: Callable[[BrokerId], bool],
        auto_join: bool,
        peers_learned: Callable[[dict[BrokerId, str]], None],
        level_learned: Callable[[], None],
    ) -> None:
        self._state = state
        self._topology = topology
        self._own = own
        self._route = route
        self._commit = commit
        self._is_alive = is_alive
        self._auto_join = auto_join
        self._peers_learned = peers_learned
        self._level_learned = level_learned
        self.levels: dict[BrokerId, int] = {}
        self.learned_peers: dict[BrokerId, str] = {}
        self._asked = 0

    @property
    def is_registered(self) -> bool:
        """Return whether the region knows this broker as it is."""
        state = self._state
        return state.brokers.get(self._own.broker) == self._own.at_level(state.feature_level)

    @property
    def must_announce(self) -> bool:
        """Return whether the leader has to hear from this broker: it is not recorded, or can do more than is used."""
        return not self.is_registered or self._state.feature_level < self._own.feature_level_max

    async def announce(self) -> None:
        """Tell the leader, through any broker of the region while none is known here.

        Raises:
            DataDirectoryError: the region knows this broker with another disk that is alive.
            PolicyViolation: it is not let in. Unavailable, NotLeader, OutcomeUnknown: ask again.
        """
        body: JsonObject = {
            "registration": self._own.at_level(1).to_json(),
            "peers": self._own.peers,
            "feature_level_max": self._own.feature_level_max,
        }
        self._learn(await self._ask(body))

    async def _ask(self, body: JsonObject) -> JsonObject:
        if self._route.knows_leader():
            try:
                return await self._route.to_leader(REGISTER, body, self.serve)
            except (HomeUnreachable, Unavailable):
                if self._route.is_leader() or self.is_registered:
                    raise
        # Not in the region yet: whoever is there passes it on. Each time another one, since some may know no leader.
        others = [broker for broker in self._topology.own.brokers if broker != self._own.broker]
        if not others:
            raise Unavailable(f"region {self._topology.own.name} has no controller leader at the moment")
        self._asked += 1
        return await self._route.to_region(
            self._topology.region, REGISTER, body, broker=others[self._asked % len(others)]
        )

    def _learn(self, answer: JsonObject) -> None:
        if "peers" not in answer:
            return  # a broker of the first version
        try:
            rows = (
                Fields(answer, "answer")
                .child("peers")
                .texts(count_max=1_000, name_chars_max=8, chars_max=ADDRESS_CHARS_MAX)
            )
            learned = {BrokerId(int(name)): address for name, address in rows if name.isdigit()}
        except FieldError as error:
            raise Unavailable(f"the controller's answer is not readable: {error}") from error
        if learned != self.learned_peers:
            self.learned_peers = learned
            self._peers_learned(learned)

    async def serve(self, body: JsonObject) -> JsonObject:
        """Record a broker's registration, as leader."""
        fields = Fields(body, REGISTER)
        told = BrokerRegistration.from_json(fields.value("registration"))
        if fields.has("peers"):
            told = replace(told, peers=fields.text("peers", chars_max=ADDRESS_CHARS_MAX))
        if fields.has("feature_level_max"):
            level = fields.integer("feature_level_max", low=1, high=FEATURE_LEVEL_MAX)
            told = replace(told, feature_level_max=level)
        await self._record(told)
        self._note_level(told)
        peers: JsonObject = {str(broker): address for broker, address in self._state.peer_addresses().items()}
        return {"peers": peers}

    def _note_level(self, told: BrokerRegistration) -> None:
        if self.levels.get(told.broker) != told.feature_level_max:
            self.levels[told.broker] = told.feature_level_max
            self._level_learned()

    async def _record(self, told: BrokerRegistration) -> None:
        state = self._state
        wanted = told.at_level(state.feature_level)
        if state.brokers.get(told.broker) == wanted:
            return
        known = state.disk_of(told.broker)
        if known is None and state.has_life_cycle and self._may_join(told.broker):
            await self._commit(AddBroker(broker=told.broker, peers=told.peers))
            log.info("broker.joined", broker=told.broker, disk=told.disk_uuid)
        if known and known != told.disk_uuid:
            self._require_silence(told, known)
            if state.has_life_cycle:
                await self._commit(ReplaceDisk(registration=wanted, replaces=known))
                log.warning("broker.disk_replaced", broker=told.broker, disk=told.disk_uuid, replaced=known)
                return
            # Its new life has to wait for level 2, and level 2 for its word.
            self._note_level(told)
            raise PolicyViolation(
                f"broker {told.broker} is known with disk {known}, not {told.disk_uuid}: a lost disk is replaced at "
                "feature level 2, when every broker of this region was upgraded"
            )
        refused = state.refusal_of(wanted)
        if refused is not None:
            raise refused.error(refused.text)
        await self._commit(RegisterBroker(registration=wanted))

    def _may_join(self, broker: BrokerId) -> bool:
        return self._auto_join and broker not in self._state.records and region_of(broker) == self._topology.region

    def _require_silence(self, told: BrokerRegistration, known: str) -> None:
        if told.broker == self._own.broker or self._is_alive(told.broker):
            raise DataDirectoryError(
                f"broker {told.broker} is alive with disk {known}, not {told.disk_uuid}: "
                "start it on its own data directory"
            )
