"""What operators and group leaders ask of the controller: brokers come and go, replicas move, memberships are reported.

Every wish may be sent to any broker; it is passed to the leader, committed, and answered when it is applied there. All
wishes are safe to repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from georelay.errors import BadRequest, Busy, PolicyViolation, UnknownTopic
from georelay.fields import INT64_MAX, Fields, JsonObject
from georelay.ids import BROKERS_PER_REGION_MAX, BrokerId, GroupId, region_of
from region.controller.assignment import Assignment, read_brokers
from region.controller.brokers import BrokerRecord, BrokerState
from region.controller.catalog import TopicCatalog
from region.controller.commands import (
    AddBroker,
    Command,
    DrainBroker,
    Reassign,
    RemoveBroker,
    ReplicaLost,
    ReplicasChanged,
)
from region.controller.effects import Done
from region.controller.registration import ADDRESS_CHARS_MAX
from region.controller.routing import Route
from region.controller.state_core import ControllerState
from region.controller.topology import BROKER_ID_MAX, Topology

ADD: Final = "controller.add_broker"
DRAIN: Final = "controller.drain_broker"
REMOVE: Final = "controller.remove_broker"
REASSIGN: Final = "controller.reassign"
REPORT: Final = "controller.report_replicas"
LOST: Final = "controller.replica_lost"
Serve = Callable[[JsonObject], Awaitable[JsonObject]]


class BrokerAdmin:
    """Both sides of these calls, and what status pages show."""

    def __init__(
        self,
        *,
        state: ControllerState,
        catalog: TopicCatalog,
        topology: Topology,
        route: Route,
        commit: Callable[[Command], Awaitable[Done]],
        is_alive: Callable[[BrokerId], bool],
    ) -> None:
        self._state = state
        self._catalog = catalog
        self._topology = topology
        self._route = route
        self._commit = commit
        self._is_alive = is_alive
        self.served: dict[str, Serve] = {
            ADD: self._serve_add,
            DRAIN: self._serve_drain,
            REMOVE: self._serve_remove,
            REASSIGN: self._serve_reassign,
            REPORT: self._serve_report,
            LOST: self._serve_lost,
        }

    async def add(self, broker: BrokerId, peers: str) -> None:
        """Let a broker take replicas; `peers` is "host:port" of its peer listener, "" for the one that is known."""
        self._require_own(broker)
        if len(peers) > ADDRESS_CHARS_MAX:
            raise BadRequest(f"the peer address has over {ADDRESS_CHARS_MAX} characters")
        await self._send(ADD, {"broker": broker, "peers": peers})

    async def drain(self, broker: BrokerId) -> None:
        """Have every replica moved away from a broker."""
        self._require_own(broker)
        await self._send(DRAIN, {"broker": broker})

    async def remove(self, broker: BrokerId) -> None:
        """Forget a broker that is drained or absent."""
        self._require_own(broker)
        await self._send(REMOVE, {"broker": broker})

    async def reassign(self, topic: str, partition: int, voters: Sequence[int]) -> None:
        """Move a partition to these brokers, the preferred leader first; an empty list lets the region place it."""
        for broker in voters:
            self._require_own(broker)
        assignment = self._catalog.assignment(topic, partition)
        if assignment is None:
            raise UnknownTopic(f"there is no partition {partition} of topic {topic[:60]!r}")
        await self._send(REASSIGN, {"group": assignment.group_id, "voters": list(voters)})

    async def report(
        self,
        group_id: GroupId,
        voters: Sequence[BrokerId],
        learners: Sequence[BrokerId],
        generation: int,
        index: int,
    ) -> None:
        """Report the committed membership of a group, as its confirmed leader. Tried once: the next look reports."""
        body: JsonObject = {
            "group": group_id,
            "voters": list(voters),
            "learners": list(learners),
            "generation": generation,
            "index": index,
        }
        await self._route.to_leader(REPORT, body, self._serve_report)

    async def replica_lost(self, group_id: GroupId, broker: BrokerId, generation: int) -> None:
        """Say that a broker cannot use its replica of a group. Tried once: who says so says it again."""
        body: JsonObject = {"group": group_id, "broker": broker, "generation": generation}
        await self._route.to_leader(LOST, body, self._serve_lost)

    # --- as leader ----------------------------------------------------------------------------------------------------

    async def _serve_add(self, body: JsonObject) -> JsonObject:
        fields = Fields(body, ADD)
        broker, peers = _read_broker(fields), fields.text("peers", chars_max=ADDRESS_CHARS_MAX)
        return await self._do(AddBroker(broker=broker, peers=peers))

    async def _serve_drain(self, body: JsonObject) -> JsonObject:
        return await self._do(DrainBroker(broker=_read_broker(Fields(body, DRAIN))))

    async def _serve_remove(self, body: JsonObject) -> JsonObject:
        broker = _read_broker(Fields(body, REMOVE))
        record = self._state.records.get(broker)
        if record is not None and record.state is BrokerState.ABSENT and self._is_alive(broker):
            raise PolicyViolation(f"broker {broker} is heard again; drain it first")
        return await self._do(RemoveBroker(broker=broker))

    async def _serve_reassign(self, body: JsonObject) -> JsonObject:
        fields = Fields(body, REASSIGN)
        group_id = GroupId(fields.integer("group", low=1, high=INT64_MAX))
        voters = read_brokers(fields, "voters")
        assignment = self._state.group(group_id)
        if assignment is None:
            raise UnknownTopic(f"there is no group {group_id}")
        return await self._do(
            Reassign(
                group_id=group_id,
                target=voters or assignment.target,
                generation=assignment.generation,
                pinned=len(voters),
            )
        )

    async def _serve_report(self, body: JsonObject) -> JsonObject:
        fields = Fields(body, REPORT)
        return await self._do(
            ReplicasChanged(
                group_id=GroupId(fields.integer("group", low=0, high=INT64_MAX)),
                voters=read_brokers(fields, "voters"),
                learners=read_brokers(fields, "learners"),
                generation=fields.integer("generation", low=0, high=INT64_MAX),
                index=fields.integer("index", low=0, high=INT64_MAX),
            )
        )

    async def _serve_lost(self, body: JsonObject) -> JsonObject:
        fields = Fields(body, LOST)
        group_id = GroupId(fields.integer("group", low=1, high=INT64_MAX))
        broker = _read_broker(fields)
        generation = fields.integer("generation", low=0, high=INT64_MAX)
        group = self._state.group(group_id)
        if group is not None and broker not in group.unsafe and group.can_do_without(broker):
            rest = [voter for voter in group.voters if voter not in group.unsafe | {broker} and self._is_alive(voter)]
            if 2 * len(rest) <= len(group.voters):  # its files may be the last ones that somebody can be helped with
                raise Busy(f"the other replicas of group {group_id} are not there at the moment; ask again")
        return await self._do(ReplicaLost(group_id=group_id, broker=broker, generation=generation))

    async def _do(self, command: Command) -> JsonObject:
        if not self._state.has_life_cycle:
            raise PolicyViolation("this region has brokers of the first version: upgrade them, then ask again")
        await self._commit(command)
        return {}

    async def _send(self, method: str, body: JsonObject) -> None:
        await self._route.retrying(lambda: self._route.to_leader(method, body, self.served[method]))

    def _require_own(self, broker: int) -> None:
        number = broker % 1000
        if region_of(BrokerId(broker)) != self._topology.region or not 1 <= number <= BROKERS_PER_REGION_MAX:
            low = self._topology.region * 1000
            raise BadRequest(
                f"broker {broker} is not one of this region: use {low + 1}..{low + BROKERS_PER_REGION_MAX}"
            )

    # --- status -------------------------------------------------------------------------------------------------------

    def brokers_status(self) -> list[dict[str, Any]]:
        """Return one row per broker that was ever known, ascending, ready for JSON."""
        return [self._row_of(record) for _, record in sorted(self._state.records.items())]

    def assignments_status(self, topic: str | None) -> list[dict[str, Any]]:
        """Return one row per group, ascending, ready for JSON; of one topic by its plain name, or of all.

        Raises:
            UnknownTopic: there is no such topic.
        """
        wanted = None
        if topic is not None:
            definition = self._state.topic_by_name(topic)
            if definition is None:
                raise UnknownTopic(f"there is no topic {topic[:60]!r}")
            wanted = definition.topic_id
        return [
            self._row_of_group(group)
            for group in self._state.assignments()
            if wanted is None or group.key.topic_id == wanted
        ]

    def _row_of(self, record: BrokerRecord) -> dict[str, Any]:
        registration = record.registration
        return {
            "id": record.broker,
            "state": str(record.state),
            "generation": record.generation,
            "disk": record.disk,
            "peers": record.peer_address,
            "kafka": "" if registration is None else f"{registration.kafka_host}:{registration.kafka_port}",
            "admin": "" if registration is None else registration.admin,
            "feature_level_max": 0 if registration is None else registration.feature_level_max,
            "alive": self._is_alive(record.broker),
            "replicas": self._state.load.held(record.broker),
            "leads": self._state.load.led(record.broker),
            "moving": sum(
                (record.broker in group.voters) != (record.broker in group.target)
                for group in self._state.assignments()
            ),
            "controller": self._controller_role(record.broker),
        }

    def _controller_role(self, broker: BrokerId) -> str:
        control = self._state.control
        if control is None:
            return ""
        return "voter" if broker in control.voters else "learner" if broker in control.learners else ""

    def _row_of_group(self, group: Assignment) -> dict[str, Any]:
        topic = self._state.topic_by_id(group.key.topic_id)
        return {
            "topic": "" if topic is None else topic.name,
            "partition": group.key.partition,
            "origin": group.key.origin,
            "group": group.group_id,
            "voters": list(group.voters),
            "learners": list(group.learners),
            "target": list(group.target),
            "unsafe": sorted(group.unsafe),
            "pinned": group.pinned > 0,
            "settled": group.is_settled,
        }


def _read_broker(fields: Fields) -> BrokerId:
    return BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))
