"""The controller of a region of hosts, for replicas that cannot be used: it has them made anew, as the product does.

The world's hosts have no group for a controller. Here its state is one value that every broker sees at once. All that
is decided and done is the shipping code: commands and their rules (ControllerState, BrokerAdmin), what is wanted
(plan_moves), what a broker does with its replicas (HostedGroups) and what a leader does with its members
(ReplicaKeeper). So a replica goes only where the others are a majority that is there, and it gets no vote before it
was let go and taken in again.

It begins with the heal, in worlds in which one broker's sealed segments were damaged: nothing else may have to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from georelay.ids import BrokerId, GroupId, RaftIndex
from region.broker.hosted_groups import OPEN_AGAIN_S, OPEN_TRIES_MAX
from region.controller.broker_admin import BrokerAdmin
from region.controller.commands import Command, DefineTopic, FormRegion, Reassign, RegisterBroker
from region.controller.effects import Done, Effect, Refused, ReplicasWanted
from region.controller.planning_core import plan_moves
from region.controller.registration import BrokerRegistration
from region.controller.routing import ControllerSettings, Route
from region.controller.state_core import Assignment, ControllerState
from region.controller.topic import Homes, TopicDefinition
from region.controller.topology import RegionInfo, Topology
from region.multiraft.replica_keeper_core import ReplicaTarget
from region.multiraft.replicas import Report
from tests.sim.clockwork import NS_PER_MS, NS_PER_S
from tests.sim.sim_broker import FEATURE_LEVEL, REGION

if TYPE_CHECKING:
    from tests.sim.region_world import RegionWorld
    from tests.sim.sim_broker import Life

LOOK_NS: Final = 200 * NS_PER_MS
MOVES_MAX: Final = 8
# A log that the disk does not give back is opened again so often before its replica is given up.
PATIENCE_NS: Final = int(OPEN_AGAIN_S * (2 ** (OPEN_TRIES_MAX - 1) - 1) * NS_PER_S) + 10_000 * NS_PER_MS


class RegionController:
    """Knows every group of the world from the start, and acts on none before `begin`.

    Args:
        lost: called with (group, broker) when a replica was given up: what it holds counts no more.

    Attributes:
        needed: whether some replica could not be used, so that the world takes longer until it is whole.
    """

    def __init__(self, world: RegionWorld, *, lost: Callable[[GroupId, BrokerId], None]) -> None:
        self.state = ControllerState()
        self.needed = False
        self._world = world
        self._lost = lost
        self._targets: dict[GroupId, tuple[Assignment, ReplicaTarget]] = {}
        self._region = RegionInfo(number=REGION, name="r1", brokers=world.founders)
        self._admin = BrokerAdmin(
            state=self.state,
            catalog=cast("Any", None),  # asked for topics by name only
            topology=self._topology(),
            route=Route(
                topology=self._topology(),
                request=cast("Any", None),  # whoever asks is answered here
                is_leader=lambda: True,
                leader_id=lambda: -1,
                settings=ControllerSettings(),
            ),
            commit=self._commit,
            is_alive=self._is_alive,
        )
        self._found()

    def _topology(self) -> Topology:
        return Topology(mesh_id="sim", region=REGION, definitions_home=REGION, regions=(self._region,))

    def _found(self) -> None:
        self._apply(FormRegion(topology=self._topology(), feature_level=FEATURE_LEVEL))
        for broker in self._world.founders:
            said = BrokerRegistration(
                broker=broker,
                disk_uuid=str(broker),
                kafka_host="h",
                kafka_port=1,
                grpc="h:2",
                link="h:3",
                admin="h:4",
                feature_level_max=FEATURE_LEVEL,
            )
            self._apply(RegisterBroker(registration=said))
        for group_id, key in self._world.groups.items():
            topic = TopicDefinition(
                name=f"topic-{group_id}",
                topic_id=key.topic_id,
                partitions=1,
                replication_factor=len(self._world.founders),
                homes=Homes.ONE,
                home=REGION,
                retention_ms=-1,
                retention_bytes=-1,
                config=(),
                index=0,
            )
            self._apply(DefineTopic(definition=topic))
            group = self.state.group(group_id)
            assert group is not None and group.key == key and set(group.founders) == set(self._world.founders)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _apply(self, command: Command) -> list[Effect]:
        index = RaftIndex(self.state.applied_index + 1)
        effects = self.state.apply(command, index)
        outcome = self.state.outcome(index)
        assert outcome is not None
        if isinstance(outcome, Refused):
            raise outcome.error(outcome.text)
        return effects

    async def _commit(self, command: Command) -> Done:
        unsafe = self._unsafe()
        effects = self._apply(command)
        for group_id, broker in self._unsafe() - unsafe:
            self._world.note("replica given up", broker, group_id)
            self._world.mark("replica.given_up_by_region")
            self._lost(group_id, broker)
        self._tell(effects)
        return Done()

    def _unsafe(self) -> set[tuple[GroupId, BrokerId]]:
        return {(group.group_id, broker) for group in self.state.assignments() for broker in group.unsafe}

    def _is_alive(self, broker: BrokerId) -> bool:
        """Return whether a broker and those that hear it are a majority: one of them would lead the controller."""
        hosts = [life.host for life in self._world.lives.values() if life.me != broker and life.serving]
        hearing = [host for host in hosts if host is not None and host.is_alive(broker)]
        return 2 * (1 + len(hearing)) > len(self._world.founders)

    async def replica_lost(self, broker: BrokerId, group_id: GroupId, generation: int) -> None:
        """Hear that a broker cannot use its replica. Raises GeorelayError."""
        await self._admin.replica_lost(group_id, broker, generation)

    # --- what brokers read --------------------------------------------------------------------------------------------

    def placement(self, group_id: GroupId) -> tuple[Assignment, TopicDefinition] | None:
        """Return where a group is and of which topic; see HostedGroups."""
        group = self.state.group(group_id)
        topic = None if group is None else self.state.topic_by_id(group.key.topic_id)
        return None if group is None or topic is None else (group, topic)

    def opens(self, group_id: GroupId, broker: BrokerId) -> bool:
        """Return whether a broker opens its replica by itself: it never had to be made anew."""
        group = self.state.group(group_id)
        assert group is not None
        return broker not in group.founders or broker in group.seed

    def targets(self) -> dict[GroupId, ReplicaTarget]:
        """Return what is wanted; see ReplicaKeeper."""
        for group in self.state.assignments():
            known = self._targets.get(group.group_id)
            if known is None or known[0] is not group:
                target = ReplicaTarget(
                    voters=group.target,
                    learners=group.target_learners,
                    unsafe=group.unsafe,
                    generation=group.generation,
                    recorded=group.recorded,
                )
                self._targets[group.group_id] = (group, target)
        return {group_id: target for group_id, (_, target) in self._targets.items()}

    @property
    def report(self) -> Report:
        """Return where the leader of a group reports its members; see ReplicaKeeper."""
        return self._admin.report

    # --- time ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Act from now on."""
        self._look()

    def unsettled(self) -> Iterator[str]:
        """Yield which replicas are still made anew."""
        for group in self.state.assignments():
            if not group.is_settled or len(group.target) < len(group.founders):
                yield f"group {group.group_id} of {group.founders} is on its way from {group.voters} to {group.target}"

    def _look(self) -> None:
        for move in plan_moves(self.state, MOVES_MAX, is_alive=self._is_alive):
            group = self.state.group(move.group_id)
            if group is not None and set(group.target) != set(move.target):  # replicas are missing
                wish = Reassign(group_id=move.group_id, target=move.target, generation=move.generation, pinned=0)
                self._tell(self._apply(wish))
        busy = next(self.unsettled(), None) is not None
        for life in list(self._world.lives.values()):
            if life.serving:
                self._turn(life, self._follow, life, busy)
        self._world.clockwork.after(LOOK_NS, self._look)

    def _follow(self, life: Life, busy: bool) -> None:
        assert life.host is not None
        for group_id, group in life.host.groups.items():
            assignment = self.state.group(group_id)
            if assignment is not None:
                group.distrust(assignment.unsafe)
        if busy:
            life.keep_replicas(self)
        if life.me == self._world.victim and life.follow_controller(self):
            self.needed = True

    def _tell(self, effects: list[Effect]) -> None:
        wanted = [effect for effect in effects if isinstance(effect, ReplicasWanted)]
        for life in self._world.lives.values():
            if wanted and life.serving:
                self._turn(life, partial(life.hear, wanted))

    def _turn(self, life: Life, action: Callable[..., None], *arguments: object) -> None:
        """Do something in a turn of a broker's own: this may be called in another broker's."""
        self._world.clockwork.at(self._world.clockwork.now_ns, life.loop, life.loop.run_now, action, *arguments)
