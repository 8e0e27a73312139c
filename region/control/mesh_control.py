"""Mesh control as one broker sees it: its replica if it has one, and the way to the leader in any case.

Rule 1: a broker takes part when control says so, or when the definitions home's charter names it; never by itself.
Rule 2: what a frame or a question of another control says is never taken in: a lower generation is told that it is
        over, a higher one ends this broker's replica, and an equal one with another id is an alarm.
Rule 3: no publish and no read of records ever waits for anything here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.clock import Clock
from georelay.errors import BadRequest, GeorelayError, NotLeader, PolicyViolation, Unavailable
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import BrokerId, region_of
from mesh.listening.addresses_core import Source
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.mesh_links import MeshLinks
from region.control.calls import PREFIX, ControlCalls, read_where
from region.control.definitions_part import DefinitionsPart, command_to_json, outcome_from_json
from region.control.departure import AskRegion
from region.control.drain_heard import HEARD, answer_heard
from region.control.leader_duties import ControlDuties
from region.control.part import ControlPart
from region.control.pulling import ControlBooks
from region.control.raft_wire import NEWER, RaftFrame, RaftFrameError, decode, encode, newer_than
from region.control.recovering import Recovering
from region.control.region_duties import RegionDuties
from region.control.regions_part import RegionsPart
from region.control.replica import (
    ControlReplica,
    ReplicaName,
    ReplicaTools,
    find_replica,
    founder_name,
    remove_folder,
    retire_folder,
)
from region.control.state_core import BEGIN, ControlState, pieces_of
from region.controller.commands import Command
from region.controller.definition_orders import ALTER, CHANGE, CREATE, DELETE, DefinitionOrders, SecurityOrders
from region.controller.effects import Done
from region.controller.hints import BackgroundTasks
from region.controller.mesh_rows import REPLICAS_MAX, ControlRow, VoterRow, parse_seed
from region.controller.service import ControllerService
from region.log.errors import LogCorrupt, OpenNotDurable
from region.log.filesystem import FileSystem
from region.log.flusher import Flusher
from region.multiraft.transport import FrameKind

log = structlog.get_logger()

Method = Callable[[JsonObject, BrokerId], Awaitable[JsonObject]]
CALL_S: Final = 5.0
CONFLICT_LINE_EVERY: Final = 200  # frames of a rival control for one line in the log


class MeshControl:
    """Implements region.controller.definitions.ControlPort.

    Args:
        enabled: False: this broker neither founds control nor holds a replica; it still asks the one that is there.
        seeds: "4001@host:port" of brokers to ask when nothing is known: a region that joins.
        failed: told why the broker must end.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        disk: str,
        mesh_id: str,
        data: Path,
        controller: ControllerService,
        links: MeshLinks,
        clock: Clock,
        rng: random.Random,
        file_system: FileSystem,
        executor: Executor,
        make_flusher: Callable[..., Flusher],
        election_ms: int,
        enabled: bool,
        seeds: Sequence[str],
        failed: Callable[[str], None],
    ) -> None:
        self.mesh_id = mesh_id
        self.controller = controller
        self.regions = RegionsPart()
        self.definitions = DefinitionsPart(self.regions.topology)
        self.state = ControlState([self.definitions, self.regions])
        self.replica: ControlReplica | None = None
        self.alarms: dict[str, str] = {}  # what people have to look at: kind -> line
        self.me = me
        self.disk = disk
        self.enabled = enabled
        self._links = links
        self._clock = clock
        self._rng = rng
        self._seeds = [parse_seed(seed) for seed in seeds]
        self._learned: ControlRow | None = None
        self._tasks = BackgroundTasks()
        self._loops: list[asyncio.Task[None]] = []
        self._opening = asyncio.Lock()  # one replica is made or ended at a time
        self._rivals = 0
        self._stopping = False
        self._tools = ReplicaTools(
            mesh_id=mesh_id,
            data=data,
            clock=clock,
            rng=rng,
            file_system=file_system,
            executor=executor,
            make_flusher=make_flusher,
            election_ms=election_ms,
            post=links.post_raft,
            link_life=links.link_life,
            failed=failed,
        )
        self._calls = ControlCalls(
            me=me,
            row=self.row,
            founders=self._founders,
            leader=self._leader_broker,
            ask=self.ask,
            here=lambda method, body: self.handle(method, body, from_broker=me),
            link_is_open=links.link_is_open,
            newer=self.learn,
        )
        self._books = ControlBooks(self)
        self._recovering = Recovering(self, clock=clock, rng=rng)
        self._methods: dict[str, Method] = {}
        self._duties = ControlDuties(self)
        self._region_duties = RegionDuties(self, links=links, clock=clock, rng=rng)
        orders = DefinitionOrders(
            books=self.definitions,
            topology=self.regions.topology,
            commit=self._order,
            ordered=lambda _: None,
            older_regions=self.regions.older_regions,
            keeps_owners=self.regions.keep_owners,
            pace=self._duties.pace,
        )
        security = SecurityOrders(
            books=self.definitions,
            commit=self._order,
            ordered=lambda _: None,
            noted=lambda ordered: controller.security_ordered(ordered),
            older_regions=self.regions.older_regions,
        )
        for name, serve in ((CREATE, orders.create), (ALTER, orders.alter), (DELETE, orders.delete)):
            self._methods[name] = _without_asker(serve)
        self._methods[CHANGE] = security.change
        self._methods |= self._duties.methods
        self.regions.topic_names = lambda: [topic.name for topic in self.definitions.topics()]
        self.regions.homes_in = self._books.homes_in
        for broker, address in self._seeds:
            self._books.know(broker, address, links, Source.CONFIGURATION)
        links.on_raft = self._raft_received

    # --- what others use ----------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Return whether this broker leads mesh control, and everything committed is applied here."""
        return self.replica is not None and self.replica.is_leader and self.state.is_open

    @property
    def leader(self) -> BrokerId:
        """Return the broker that leads mesh control as known here, -1 when unknown."""
        return BrokerId(self._leader_broker())

    @property
    def has_voter(self) -> bool:
        """Return whether this broker holds a replica of control's log that votes."""
        return self.replica is not None and self.replica.name.replica in self.state.members.voters

    @property
    def is_open(self) -> bool:
        """Return whether mesh control orders definitions, as far as this broker knows."""
        mesh = self.controller.state.mesh
        return self.state.is_open or mesh.control is not None or (mesh.charter is not None and mesh.charter.opened)

    @property
    def has_rival(self) -> bool:
        """Return whether another control of the same generation was met, and no higher one since."""
        return "rival" in self.alarms

    @property
    def generation(self) -> int:
        """Return the generation of control, 0 before there is any."""
        row = self.row()
        return 0 if row is None else row.generation

    @property
    def control_id(self) -> str:
        """Return the id of control, "" before there is any."""
        row = self.row()
        return "" if row is None else row.control_id

    def index(self) -> int:
        """Return the mesh index of the newest command applied at this broker's replica, or known to its region."""
        return self.state.index if self.replica is not None else self.controller.state.next_definition_index - 1

    def voters(self) -> Sequence[VoterRow]:
        """Return the replicas that vote."""
        row = self.row()
        return () if row is None else [member for member in row.members if member.replica in row.voters]

    def row(self) -> ControlRow | None:
        """Return the newest that is known here of who control is."""
        rows = [self.state.row() if self.replica is not None else None, self.controller.state.mesh.control]
        best = self._learned
        for row in rows:
            if row is not None and (best is None or row.replaces(best) or row == best):
                best = row
        return best

    def register(self, part: ControlPart | None, methods: Mapping[str, Method]) -> None:
        """Add a concern, before `start`: its part of the state, and methods that the leader answers."""
        if part is not None:
            self.state.register(part)
        self._methods |= methods

    def ask_before_removal(self, ask: AskRegion) -> None:
        """Let control's leader ask regions what would be lost with one that leaves."""
        self._duties.departure = self._books.departure(ask)

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        """Commit a command of a part, as leader; return its outcome once it is applied here.

        Raises:
            NotLeader: with the broker that leads. Busy, Unavailable: nothing was stored.
            OutcomeUnknown: it may be applied later. Others: the part refused it.
        """
        return await self._here().propose(part, command)

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = CALL_S) -> JsonObject:
        """Ask control's leader, wherever it is. Raises ControlUnavailable, OutcomeUnknown, or what it answers."""
        if self.row() is None and not self._founders():
            raise Unavailable("this mesh has no mesh control yet, as far as this broker knows; ask again")
        return await self._calls.call(method, body, timeout_s=timeout_s)

    async def pull(self, question: JsonObject) -> JsonObject:
        """Ask any replica what is above the positions of this region; see region.controller.mesh_pull."""
        if self.row() is None:
            await self._find()
        return await self._calls.read("pull", question)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Go on with the replica that is on this disk, and begin the duties. Links are open."""
        name = find_replica(self._tools.file_system, self._tools.data)
        if name is not None and self.enabled:
            async with self._opening:
                await self._open_found(name)
            await self._end_half_recovery()
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(self._region_duties.run(), name="control-region"),
            loop.create_task(self._duties.run(), name="control-leader"),
        ]

    async def stop(self) -> None:
        """Take part no more."""
        self._stopping = True
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._tasks.close()
        async with self._opening:
            replica, self.replica = self.replica, None
            if replica is not None:
                await replica.stop()

    # --- replicas -----------------------------------------------------------------------------------------------------

    async def found(self, control_id: str, snapshot: Callable[[], bytes], *, disk: str) -> None:
        """Make the founder's replica unless it is there, and write the beginning into its log.

        Raises:
            GeorelayError: look again.
        """
        name = founder_name(control_id)
        async with self._opening:
            if self.replica is not None and self.replica.name != name:
                await self._end_replica(put_aside=True)
            if self.replica is None:
                row = VoterRow(replica=1, broker=self.me, disk=disk, address="")
                await self._open(name, [row])
        await self._begin(snapshot)

    async def _begin(self, snapshot: Callable[[], bytes]) -> None:
        await self._here().led_once.wait()  # alone in its group: it leads at once
        if not self.state.has_begun:
            for piece in pieces_of(snapshot()):
                await self._here().propose(BEGIN, piece)

    async def recover(self) -> JsonObject:
        """Begin a new generation from this region, on whichever of its brokers is best; see region.control.recovering.

        Raises:
            PolicyViolation: control has a leader, or nothing is known here to begin with.
        """
        return await self._recovering.recover()

    async def begin_anew(
        self, name: ReplicaName, own: VoterRow, snapshot: bytes, *, instead_of: ControlReplica | None
    ) -> None:
        """Make the first replica of a new generation, which begins with a snapshot."""
        async with self._opening:
            if instead_of is not None:
                self.replica = None
                await instead_of.stop()
            await self._open(name, [own])
        await self._begin(lambda: snapshot)
        if instead_of is not None:
            retire_folder(self._tools.file_system, self._tools.data, instead_of.name)
        log.warning("control.recovered", generation=name.generation, control_id=name.control_id, broker=self.me)
        self.learn(self.state.row())

    async def _end_half_recovery(self) -> None:
        """Go back to the replica that a recovery began with when a crash came before the new generation was whole.

        Nothing was ever answered from it. It is alone in its group, so it leads once all that it has is applied.
        """
        replica = self.replica
        if replica is None or not replica.name.founder or replica.name.generation == 1:
            return
        try:
            async with asyncio.timeout(CALL_S):
                await replica.led_once.wait()
        except TimeoutError:
            return  # it is not alone: others joined it, and that they did only when it was whole
        if self.state.has_begun:
            return
        log.warning("control.recovery_undone", generation=replica.name.generation, control_id=replica.name.control_id)
        async with self._opening:
            await self._end_replica(put_aside=False)
            remove_folder(self._tools.file_system, self._tools.data, replica.name)
            before = find_replica(self._tools.file_system, self._tools.data)
            if before is not None:
                await self._open_found(before)

    async def _open_found(self, name: ReplicaName) -> None:
        """Go on with a replica; one whose log is damaged is put aside, and control makes another one."""
        try:
            await self._open(name, [])
        except LogCorrupt as error:
            log.critical("control.log_damaged", replica=name.replica, reason=str(error))
            await self._end_replica(put_aside=True)
            self.alarms["replica"] = f"this broker's replica of mesh control was damaged and put aside: {error}"

    async def _open(self, name: ReplicaName, known: Sequence[VoterRow]) -> None:
        self.state.reset()
        self.alarms.pop("replica", None)
        self.alarms.pop("rival", None)  # who is still one is met again
        try:
            replica = ControlReplica(
                name,
                tools=self._tools,
                state=self.state,
                known=known,
                applied=self._applied,
                led=self._led,
                stopped=self._replica_stopped,
            )
        except OpenNotDurable as error:  # made once more it would seem to be there, and could be gone with the power
            self._tools.failed(f"mesh control: {error}")
            raise
        self.replica = replica
        for row in known:
            self._books.know(row.broker, row.address, self._links)
        await replica.start()

    async def _end_replica(self, *, put_aside: bool) -> None:
        replica, self.replica = self.replica, None
        if replica is None:
            return
        if replica.is_leader:
            self._led(False)
        await replica.stop()
        self.state.reset()
        if put_aside:
            retire_folder(self._tools.file_system, self._tools.data, replica.name)

    def _replica_stopped(self, reason: str) -> None:
        if self.replica is not None:
            self.replica.runs = False
        self.alarms["replica"] = f"this broker's replica of mesh control stopped: {reason}"

    async def _retire(self, than: int) -> None:
        async with self._opening:
            if self._stopping or self.replica is None or self.replica.name.generation >= than:
                return
            log.warning("control.generation_over", generation=self.replica.name.generation, newer=than)
            await self._end_replica(put_aside=True)

    def _applied(self) -> None:
        for member in self.state.members.rows():
            self._books.know(member.broker, member.address, self._links)
        self._duties.applied()

    def _led(self, leads: bool) -> None:
        log.info("control.leader_changed", leads=leads, broker=self.me)
        for part in self.state.parts.values():
            (part.elected if leads else part.deposed)()
        self._duties.led(leads)

    # --- what other brokers ask ---------------------------------------------------------------------------------------

    async def handle(self, method: str, body: JsonObject, *, from_broker: BrokerId) -> JsonObject:
        """Answer a question "control.<method>" in its envelope. Raises GeorelayError."""
        try:
            return await self._answer(method.removeprefix(PREFIX), body, from_broker)
        except FieldError as error:
            raise BadRequest(f"{method[:64]}: {error}") from error

    async def _answer(self, method: str, body: JsonObject, from_broker: BrokerId) -> JsonObject:
        fields = Fields(body, method)
        generation = fields.integer("generation", low=0, high=2**31)
        control_id = fields.text("control_id", chars_max=32)
        asked = fields.value("body")
        question = dict(asked) if isinstance(asked, dict) else {}
        own = self.row()
        if method == "where":
            told = question.get("row")
            self.learn(None if told is None else ControlRow.from_json(told))
            known = self.row()
            return {"ok": {"row": None if known is None else known.to_json()}}
        if method == "recover" and region_of(from_broker) == region_of(self.me):
            return {"ok": await self._recovering.recover_here()}
        if method == "join":
            return {"ok": await self._join(question)}
        if own is not None and generation < own.generation:
            return {"newer": own.to_json()}
        if own is not None and generation == own.generation and control_id != own.control_id:
            raise PolicyViolation(self._rival(generation, control_id, from_broker))
        if own is not None and generation > own.generation:
            raise Unavailable(f"this broker knows generation {own.generation} of mesh control only")
        if method == "pull":
            return {"ok": self._books.give(question)}
        if method == HEARD:
            return {"ok": answer_heard(self.controller.state.mesh.regions, question)}
        serve = self._methods.get(method)
        if serve is None:
            raise BadRequest(f"mesh control does not answer {method[:64]!r}")
        replica = self._here()
        if not replica.is_leader:
            raise replica.not_leader()
        if not self.state.is_open:  # a founder leads before its books are filled: what it lacks may well be there
            raise Unavailable("mesh control is being founded; ask again")
        return {"ok": await serve(question, from_broker)}

    async def _join(self, body: JsonObject) -> JsonObject:
        """Make a replica here because control's leader asked for it; the same again is answered the same."""
        fields = Fields(body, "join")
        name = ReplicaName.parse(fields.text("name", chars_max=200))
        known = [VoterRow.from_json(item) for item in fields.items("members", count_max=REPLICAS_MAX)]
        if name is None or name.founder or not self.enabled:
            raise PolicyViolation('this broker takes no replica of mesh control (control = "off")')
        async with self._opening:
            current = None if self.replica is None else self.replica.name
            if current is not None and current.generation > name.generation:
                raise PolicyViolation(f"generation {name.generation} of mesh control is over")
            if current is not None and current.generation == name.generation and current.control_id != name.control_id:
                raise PolicyViolation(self._rival(name.generation, name.control_id, self.me))
            if current is not None and current.generation == name.generation and current.replica > name.replica:
                raise PolicyViolation(f"replica {name.replica} of this broker was replaced by {current.replica}")
            if current != name:
                await self._end_replica(put_aside=True)
                await self._open(name, known)
        return {"disk": self.disk, "address": self._books.own_address()}

    # --- frames -------------------------------------------------------------------------------------------------------

    def _raft_received(self, peer: BrokerId, body: bytes) -> None:
        try:
            frame = decode(body)
            self._frame_received(peer, frame)
        except RaftFrameError as error:
            raise PeerProtocolError(str(error)) from error
        except ValueError as error:  # garbage inside a frame, as the host judges it
            raise PeerProtocolError(f"mesh control: {error}") from error

    def _frame_received(self, peer: BrokerId, frame: RaftFrame) -> None:
        replica, row = self.replica, self.row()
        own = max(0 if replica is None else replica.name.generation, 0 if row is None else row.generation)
        if frame.generation < own:
            self._say_newer(peer, frame)
        elif replica is None:
            return
        elif frame.generation > replica.name.generation:
            self._tasks.start(self._retire(frame.generation))
        elif frame.control_id != replica.name.control_id:
            self._rival(frame.generation, frame.control_id, peer)
        elif frame.kind != NEWER and frame.to_replica == replica.name.replica and replica.links.is_from(frame, peer):
            if frame.kind == FrameKind.HELLO:
                replica.meet(frame.from_replica, peer)
            replica.links.frame_received(frame)

    def _say_newer(self, peer: BrokerId, frame: RaftFrame) -> None:
        row = self.row()
        if row is None or frame.kind == NEWER:
            return
        self._links.post_raft(peer, encode(newer_than(frame, row.generation, row.control_id)))

    def _rival(self, generation: int, control_id: str, broker: BrokerId) -> str:
        text = (
            f"broker {broker} follows another mesh control of generation {generation}: {control_id}, not "
            f"{self.control_id}; recover once more at one of them, the higher generation wins"
        )
        self.alarms["rival"] = text
        if self._rivals % CONFLICT_LINE_EVERY == 0:
            log.critical("control.rival_found", generation=generation, control_id=control_id, broker=broker)
        self._rivals += 1
        return text

    # --- parts --------------------------------------------------------------------------------------------------------

    def _here(self) -> ControlReplica:
        replica = self.replica
        if replica is None:
            raise NotLeader("this broker holds no replica of mesh control", leader=self._leader_broker())
        return replica

    def learn(self, row: ControlRow | None) -> None:
        """Take in who control is, as another broker knows it."""
        known = self.row()
        if row is None or (known is not None and not row.replaces(known)):
            if row is not None and known is not None and row.contradicts(known):
                self._rival(row.generation, row.control_id, row.members[0].broker if row.members else self.me)
            return
        if known is not None and row.generation > known.generation:
            self.alarms.pop("rival", None)
        self._learned = row
        for member in row.members:
            self._books.know(member.broker, member.address, self._links)
        if self.replica is not None and self.replica.name.generation < row.generation:
            self._tasks.start(self._retire(row.generation))

    async def _find(self) -> None:
        """Ask who is known where control is."""
        for broker in self._founders():
            try:
                envelope: JsonObject = {"generation": 0, "control_id": "", "body": {}}
                name = f"{PREFIX}where"
                answer = (
                    await self.handle(name, envelope, from_broker=self.me)
                    if broker == self.me
                    else await self.ask(broker, name, envelope, timeout_s=CALL_S)
                )
                self.learn(read_where(answer))
            except (GeorelayError, FieldError) as error:
                log.debug("control.not_found", broker=broker, reason=str(error))
        if self.row() is None:
            raise Unavailable("mesh control is being founded, or none of those who know it answers")

    def _founders(self) -> list[BrokerId]:
        charter = self.controller.state.mesh.charter
        return ([] if charter is None else [charter.founder]) + [broker for broker, _ in self._seeds]

    def _leader_broker(self) -> int:
        if self.replica is None:
            return -1
        if self.replica.is_leader:
            return self.me
        leader = self.replica.leader
        return -1 if leader is None or leader.replica == self.replica.name.replica else leader.broker

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        """Carry a question to one broker of the mesh; see calls.AskBroker."""
        answer = await self._links.request(region_of(broker), method, dict(body), timeout_s=timeout_s, broker=broker)
        return dict(answer.body)

    async def _order(self, command: Command) -> Done:
        return outcome_from_json(await self.propose("definitions", command_to_json(command)))

    def link_is_open(self, broker: BrokerId) -> bool:
        """Return whether a broker is reached without dialling."""
        return self._links.link_is_open(broker)

    def status(self) -> JsonObject:
        """Return what this broker knows of mesh control, ready for JSON."""
        return self._books.status()


def _without_asker(serve: Callable[[JsonObject], Awaitable[JsonObject]]) -> Method:
    async def method(body: JsonObject, _: BrokerId) -> JsonObject:
        return await serve(body)

    return method
