"""One replica of control's log on this broker: its folder, its Raft host, its state.

    <data>/control/<generation>-<control id>-<replica>[-founder]/     a data directory of its own (region.log)
    <data>/control/retired/<name>/                                    the one before, kept for people

Rule 1: the folder's name and its FORMAT say which replica of which control it is. A replica without its folder is gone:
        control gives the broker another number, so an empty disk never votes for the one that was lost.
Rule 2: control's group has a host of its own, with a slower clock (elections suit the WAN) and a flusher of its own:
        nothing that a stream waits for waits for it, and the reverse.
Rule 3: its log is never cut by time or size; a manifest stands for what lies below it.
Rule 4: whom to speak with is what the newest word on the members says: the state's, or another's while the state is
        older. A state that begins at a manifest knows nothing of replicas that were made after it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.errors import DataDirectoryError, GeorelayError, NotLeader, OutcomeUnknown, StorageFailed, Unavailable
from georelay.fields import JsonObject
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RaftIndex
from georelay.wire.batch import iterate_records
from mesh.replication.stream_header import EntryType
from region.broker.controller_machine import ControllerMachine
from region.control.known_replicas import read_known, write_known
from region.control.raft_links import RaftLinks
from region.control.state_core import ControlState, encode
from region.controller.mesh_rows import CONTROL_ID, GENERATION_MAX, REPLICA_NUMBER_MAX, REPLICAS_MAX, VoterRow
from region.log.data_directory import DataDirectory, lost_writes
from region.log.filesystem import FileSystem, remove_tree
from region.log.flusher import Flusher
from region.multiraft.group import Group
from region.multiraft.host import Host
from region.multiraft.replica_keeper_core import ReplicaTarget
from region.multiraft.replicas import ReplicaKeeper
from region.raft.core import PENDING

log = structlog.get_logger()

FOLDER: Final = "control"
RETIRED: Final = "retired"
BULK_BEHIND_BYTES: Final = 1 << 40  # never: a manifest and the entries after it are small
ELECTION_TICKS: Final = 10  # as region.multiraft.group has it
SETTLED_LOOK_TICKS: Final = 2  # between two looks at links while all are there


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaName:
    """Which replica of which control; `founder`: its log begins with it as the only voter."""

    generation: int
    control_id: str
    replica: int
    founder: bool

    def __str__(self) -> str:
        return f"{self.generation}-{self.control_id}-{self.replica}{'-founder' if self.founder else ''}"

    @classmethod
    def parse(cls, name: str) -> ReplicaName | None:
        """Return the name in a folder's, None for any other folder."""
        words = name.split("-")
        founder = len(words) == 4 and words[3] == "founder"
        if len(words) != 3 + founder or not (words[0].isdigit() and words[2].isdigit()):
            return None
        generation, replica = int(words[0]), int(words[2])
        if not (1 <= generation <= GENERATION_MAX and 1 <= replica <= REPLICA_NUMBER_MAX):
            return None
        if CONTROL_ID.fullmatch(words[1]) is None:
            return None
        return cls(generation=generation, control_id=words[1], replica=replica, founder=founder)


def founder_name(control_id: str) -> ReplicaName:
    """Return the first replica of the first generation."""
    return ReplicaName(generation=1, control_id=control_id, replica=1, founder=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTools:
    """What a replica is made of, the same for all of one broker.

    Args:
        election_ms: an election begins after this long without a leader, at the latest after twice that.
        post, link_life: see RaftLinks. failed: told why this broker must end.
    """

    mesh_id: str
    data: Path
    clock: Clock
    rng: random.Random
    file_system: FileSystem
    executor: Executor
    make_flusher: Callable[..., Flusher]
    election_ms: int
    post: Callable[[BrokerId, bytes], bool]
    link_life: Callable[[BrokerId], int]
    failed: Callable[[str], None]


class ControlReplica:
    """A running replica.

    Args:
        state: follows the log; begun anew by the owner.
        known: replicas that somebody told this one about, before its own state does.
        applied: called after each batch of commands. led: called with whether this replica leads.
    """

    def __init__(
        self,
        name: ReplicaName,
        *,
        tools: ReplicaTools,
        state: ControlState,
        known: Sequence[VoterRow],
        applied: Callable[[], None],
        led: Callable[[bool], None],
        stopped: Callable[[str], None],
    ) -> None:
        self.name = name
        self.state = state
        self._tools = tools
        self._known = {row.replica: row for row in known}
        self._known_index = 0  # of the members that `_known` is
        self._writing = asyncio.Lock()
        self._written = -1  # index of the members that are written beside the log
        self._applied = applied
        self._led = led
        self._stopped = stopped
        self._group: Group | None = None
        self._target: tuple[int, dict[GroupId, ReplicaTarget]] = (-1, {})
        self._was_leader = False
        self.runs = True  # until its group stops on damage or a broken invariant
        self.led_once = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._directory = _opened(tools, name)
        self._journal = self._directory.open_hard_states()
        loop = asyncio.get_running_loop()
        self._flusher = tools.make_flusher(
            self._journal,
            post=lambda tokens: self._post(loop, lambda: self.host.durable(tokens)),
            on_failure=lambda error: self._post(loop, lambda: self._storage_failed(error)),
            marks=self._directory.marks,
            sync_all=self._directory.sync_all,
            on_log_damaged=lambda _, error: self._post(loop, lambda: self._group_stopped(CONTROLLER_GROUP, str(error))),
        )
        self.host = Host(
            me=BrokerId(name.replica),
            directory=self._directory,
            flusher=self._flusher,
            hard_states=self._journal.load(),
            clock=tools.clock,
            rng=tools.rng,
            tick_ms=tools.election_ms // ELECTION_TICKS,
            executor=tools.executor,
            on_group_stopped=self._group_stopped,
            bulk_behind_bytes=BULK_BEHIND_BYTES,
            watch_ms=0,
        )
        self.links = RaftLinks(
            me=name.replica,
            control_id=name.control_id,
            generation=name.generation,
            receiver=self.host,
            post=tools.post,
            link_life=tools.link_life,
            rng=tools.rng,
            now_s=loop.time,
        )
        self.machine = ControllerMachine(
            clock=tools.clock,
            apply=lambda command, index: self.state.apply(bytes(command), index),
            applied_batch=self._commands_applied,
            led=self._leader_changed,
            snapshot=self.state.to_snapshot,
            restore=self.state.restore,
        )
        self.keeper = ReplicaKeeper(
            self.host, targets=self._targets, barrier=self.read_index, report=self._report_members
        )

    def know(self, rows: Sequence[VoterRow], *, index: int) -> None:
        """Learn of replicas from others, as of `index` of the members; counts while the own state is older."""
        if index > self._known_index:
            self._known, self._known_index = {row.replica: row for row in rows}, index
            self._know()

    def meet(self, replica: int, broker: BrokerId) -> None:
        """Take a replica at its word whose number is beyond those that the state knows: it is newer than the state.

        Nobody else may be left who could say so: all replicas known here may have been replaced meanwhile.
        """
        if replica < self.state.members.next_replica or replica in self._known or len(self._known) >= REPLICAS_MAX:
            return
        self._known[replica] = VoterRow(replica=replica, broker=broker, disk="", address="")
        self._know()

    async def start(self) -> None:
        """Recover the log and take part.

        Raises:
            GeorelayError: the log cannot be used.
        """
        self._flusher.start()
        self._written, rows = read_known(self._tools.file_system, self._directory.path)
        self._known = {row.replica: row for row in rows} | self._known
        self._known_index = self._written
        self._know()
        await self.host.start(self.links)
        founders = (BrokerId(self.name.replica),) if self.name.founder else ()
        self._group = await self.host.open_group_async(CONTROLLER_GROUP, founders, self.machine)
        self.machine.proposer = self._group
        self.keeper.start()
        self._look_at_links()
        log.info("control.replica_started", replica=self.name.replica, generation=self.name.generation)

    async def stop(self) -> None:
        """Take part no more; files are closed."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self.keeper.stop()
        await self.host.stop()
        await asyncio.to_thread(self._flusher.stop)
        for group in self.host.groups.values():
            group.disk.close()
        self._journal.close()
        self._directory.close()

    @property
    def is_leader(self) -> bool:
        """Return whether this replica leads and has committed an entry of its term."""
        return self.machine.is_leader

    @property
    def leader(self) -> VoterRow | None:
        """Return the replica that leads, None while unknown."""
        number = self.host.leaders.leader(CONTROLLER_GROUP)
        if number == self.name.replica and (self._group is None or not self._group.node.is_leader):
            return None  # what it told itself while it led: hints of silent peers are hidden, its own is not
        return next((row for row in self._rows() if row.replica == number), None)

    @property
    def hears_leader(self) -> bool:
        """Return whether this replica is a voter that leads, or heard its leader within an election timeout.

        One whose group stopped hears nobody: no time passes in it, so what it heard last would stay new for ever.
        """
        return self._group is not None and not self._group.stopped and self._group.node.hears_leader

    def is_alive(self, replica: int) -> bool:
        """Return whether a replica was heard lately."""
        return self.host.is_alive(BrokerId(replica))

    async def read_index(self) -> RaftIndex:
        """Return once everything committed is applied here. Raises NotLeader, Unavailable, Busy."""
        if self._group is None:
            raise Unavailable("this replica of mesh control is being opened")
        return await self._group.read_index()

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        """Commit a command; return its outcome.

        Raises:
            NotLeader: with the broker that leads. Busy: nothing was stored. OutcomeUnknown: look again.
            GeorelayError: it was refused.
        """
        raw = encode(part, command, at_us=self._tools.clock.wall_ns() // 1000)
        try:
            index = await self.machine.propose(raw)
        except NotLeader as error:
            raise self.not_leader() from error
        outcome = self.state.outcome(index)
        if outcome is None:
            raise OutcomeUnknown(f"command {index} of mesh control was applied too long ago")
        if isinstance(outcome, GeorelayError):
            raise outcome
        return outcome

    def not_leader(self) -> NotLeader:
        """Return the error that names the broker of the leader, when it is known."""
        leader = self.leader
        broker = -1 if leader is None or leader.replica == self.name.replica else int(leader.broker)
        return NotLeader("this broker does not lead mesh control", leader=broker)

    def give_up_log(self) -> None:
        """Stop the group and apply what its log holds beyond the commit: the most that this survivor can know."""
        group = self._group
        if group is None:
            return
        core, applied = group.node.log, self.machine.applied_index
        last = group.node.last_index
        found = core.entries(applied + 1, last + 1, 1 << 62) if last > applied else []
        entries = [] if found is PENDING else found  # never: what is not applied is in memory
        group.stop()
        for entry in entries:
            if entry.type is EntryType.DATA:
                for record in iterate_records(entry.payload, validated=True):
                    self.state.apply(record.value or b"", entry.index)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _rows(self) -> Sequence[VoterRow]:
        members = self.state.members
        said = {row.replica: row for row in members.rows()}
        is_older = self._known_index > members.index or self.name.replica not in said
        newer = {n: row for n, row in self._known.items() if is_older or n >= members.next_replica}
        return list((said | newer).values())

    def _know(self) -> None:
        self.links.know({row.replica: row.broker for row in self._rows()})

    def _look_at_links(self) -> None:
        ticks = SETTLED_LOOK_TICKS if self.links.look() else 1
        self._ticker = asyncio.get_running_loop().call_later(
            pause_s(ticks * self.host.tick_ms / 1000), self._look_at_links
        )

    def _commands_applied(self) -> None:
        members = self.state.members
        self._know()
        if members.index > self._written and self.state.has_begun:
            self._written = members.index
            self.host.spawn(self._write_known())
        self._applied()

    async def _write_known(self) -> None:
        tools, loop = self._tools, asyncio.get_running_loop()
        async with self._writing:
            index, rows = self.state.members.index, self.state.members.rows()
            try:
                await loop.run_in_executor(
                    tools.executor, write_known, tools.file_system, self._directory.path, index, rows
                )
            except OSError as error:
                log.warning("control.replicas_not_written", reason=str(error))

    def _leader_changed(self) -> None:
        if self.machine.is_leader != self._was_leader:
            self._was_leader = self.machine.is_leader
            if self._was_leader:
                self.led_once.set()
            self._led(self._was_leader)

    def _targets(self) -> dict[GroupId, ReplicaTarget]:
        members = self.state.members
        if not self.state.has_begun:
            return {}
        if self._target[0] != members.index:
            voters, learners = members.targets()
            recorded = (_ids(members.voters), _ids(members.learners))
            target = ReplicaTarget(voters=_ids(voters), learners=_ids(learners), recorded=recorded)
            self._target = (members.index, {CONTROLLER_GROUP: target})
        return self._target[1]  # the same object while nothing has changed: then a look costs nothing

    async def _report_members(
        self, _: GroupId, voters: tuple[BrokerId, ...], learners: tuple[BrokerId, ...], generation: int, index: int
    ) -> None:
        del generation, index
        await self.propose("members", {"do": "reached", "voters": list(voters), "learners": list(learners)})

    def _post(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    def _storage_failed(self, error: StorageFailed) -> None:
        self.host.halt()
        self.machine.led(leader=-1, is_leader=False)
        self._tools.failed(f"mesh control: {error}")

    def _group_stopped(self, _: GroupId, reason: str) -> None:
        self.machine.led(leader=-1, is_leader=False)
        self._stopped(reason)


def _opened(tools: ReplicaTools, name: ReplicaName) -> DataDirectory:
    """Open the data directory of a replica, made when it is missing. Raises OpenNotDurable, DataDirectoryError."""
    file_system, folder = tools.file_system, tools.data / FOLDER
    with lost_writes(folder):
        file_system.make_directory(folder)
        file_system.fsync_directory(tools.data)  # or a power cut takes the folder, and the vote with it
        path, broker = folder / str(name), BrokerId(name.replica)
        directory = DataDirectory.open(path, mesh_id=tools.mesh_id, broker_id=broker, fs=file_system)
        file_system.fsync_directory(folder)
    return directory


def _ids(replicas: Sequence[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(replica) for replica in replicas)


def find_replica(file_system: FileSystem, data: Path) -> ReplicaName | None:
    """Return the replica of the highest generation whose folder is whole, None without one."""
    folder = data / FOLDER
    if not file_system.exists(folder):
        return None
    names = [ReplicaName.parse(name) for name in file_system.list_directory(folder)]
    whole = [name for name in names if name is not None and file_system.exists(folder / str(name) / "FORMAT")]
    return max(whole, key=lambda name: (name.generation, name.replica), default=None)


def retire_folder(file_system: FileSystem, data: Path, name: ReplicaName) -> None:
    """Put a replica's folder aside for people, in place of the one before: it never takes part again.

    Raises:
        DataDirectoryError: the operating system refused.
    """
    folder, aside = data / FOLDER / str(name), data / FOLDER / RETIRED
    try:
        if not file_system.exists(folder):
            return
        if file_system.exists(aside):
            remove_tree(file_system, aside)
        file_system.make_directory(aside)
        file_system.rename(folder, aside / str(name))
        file_system.fsync_directory(data / FOLDER)
    except OSError as error:
        raise DataDirectoryError(f"{folder} cannot be put aside: {error}") from error


def remove_folder(file_system: FileSystem, data: Path, name: ReplicaName) -> None:
    """Remove the folder of a replica that never was whole.

    Raises:
        DataDirectoryError: the operating system refused.
    """
    folder = data / FOLDER / str(name)
    try:
        remove_tree(file_system, folder)
        file_system.fsync_directory(data / FOLDER)
    except OSError as error:
        raise DataDirectoryError(f"{folder} cannot be removed: {error}") from error
