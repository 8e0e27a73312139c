"""What control's leader does by itself: bring a replica into each region, replace those that are gone, tell regions.

Rule 1: a replica is replaced when the controller of its region says that its broker or its disk is gone for good, or
        when its region left. Silence alone replaces nobody: a region that is cut off is not gone.
Rule 2: what is remembered here between two looks is only what regions said lately; a new leader hears it again.
Rule 3: regions are told that there is something new, once and without waiting; a hint that is lost costs one pull
        interval.
Rule 4: every broker is told again and again which control this is. Another one, of a generation that is over or of the
        same one, may have members of its own who would never speak with this one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from georelay.errors import GeorelayError, PolicyViolation
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import REGION_NUMBER_MAX, BrokerId, RegionNumber, region_of
from region.control.calls import PREFIX, read_where
from region.control.definitions_part import DefinitionsPart, command_to_json
from region.control.departure import Departure
from region.control.forgetting_core import APPLIED, ForgettingDeletions
from region.control.pace_core import CreationPace
from region.control.regions_part import NAMED_MAX, RegionsPart, named
from region.control.replica import ControlReplica, ReplicaName
from region.control.state_core import MEMBERS, ControlState
from region.controller.definitions import HINT
from region.controller.hints import BackgroundTasks
from region.controller.mesh_rows import (
    LEVEL_MAX,
    REPLICA_NUMBER_MAX,
    REPLICAS_MAX,
    ControlRow,
    RegionRow,
    RegionState,
    VoterRow,
    level_of,
)
from region.controller.registration import ADDRESS_CHARS_MAX
from region.controller.service import ControllerService
from region.controller.topology import BROKER_ID_MAX

log = structlog.get_logger()

LOOK_S: Final = 1.0
JOIN_S: Final = 3.0
HINT_S: Final = 2.0
HINTS_MAX: Final = 128
ANNOUNCE_S: Final = 5.0
LOST_LINES_MAX: Final = 10_000  # of one answer
Method = Callable[[JsonObject, BrokerId], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a region's controller said about control's replica there."""

    broker: BrokerId  # who could hold one
    address: str
    gone: tuple[int, ...]  # replicas that are gone for good


class LedControl(Protocol):
    """What the duties need of MeshControl."""

    me: BrokerId
    state: ControlState
    regions: RegionsPart
    definitions: DefinitionsPart
    controller: ControllerService
    replica: ControlReplica | None

    @property
    def is_leader(self) -> bool:
        """Return whether this broker leads control."""

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        """Commit a command."""

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        """Ask one broker."""

    def link_is_open(self, broker: BrokerId) -> bool:
        """Return whether a broker is reached without dialling."""

    def row(self) -> ControlRow | None:
        """Return who control is."""

    def learn(self, row: ControlRow | None) -> None:
        """Take in who control is, as another broker knows it."""

    def status(self) -> JsonObject:
        """Return what is known here."""


class ControlDuties:
    """Runs on every broker, and does something where control is led."""

    def __init__(self, control: LedControl) -> None:
        self._control = control
        self._candidates: dict[RegionNumber, Candidate] = {}
        self._forgetting = ForgettingDeletions()
        self._pace = CreationPace()
        self._wakeup = asyncio.Event()
        self._tasks = BackgroundTasks()
        self._told = 0
        self._announce_at_s = 0.0
        self._changing_regions = asyncio.Lock()  # what was asked before a removal holds until it is committed
        self.departure: Departure | None = None  # None: nobody here can ask what a region still holds
        self.methods: dict[str, Method] = {
            "status": self._status,
            "region.report": self._report,
            "region.list": self._list,
            "replica.lost": self._lost,
            "region.remove": self._remove,
            **{f"region.{verb}": self._changing(verb) for verb in ("add", "drain", "keep")},
        }

    def led(self, leads: bool) -> None:
        """Follow whether this broker leads control."""
        self._candidates.clear()
        self._forgetting.clear()
        self._pace.clear()
        if leads:
            self._wakeup.set()

    def pace(self, principal: str, partitions: int) -> None:
        """Count a topic that a principal is about to create. Raises Throttled."""
        self._pace.take(principal, partitions, asyncio.get_running_loop().time())

    def applied(self) -> None:
        """Look again, and tell the regions: something was applied."""
        self._wakeup.set()
        if self._control.is_leader and self._control.state.index > self._told:
            self._told = self._control.state.index
            for row in self._control.regions.rows():
                if row.state is not RegionState.REMOVED and len(self._tasks) < HINTS_MAX:
                    self._tasks.start(self._hint(row.number, row.brokers, self._told))

    async def run(self) -> None:
        """Do what is due, for ever."""
        try:
            while True:
                self._wakeup.clear()
                if self._control.is_leader:
                    self._announce_if_due()
                    await self._look()
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._wakeup.wait()
                except TimeoutError:
                    continue
        finally:
            await self._tasks.close()

    async def _look(self) -> None:
        try:
            for row in self._control.state.members.rows():
                await self._keep(row)
            for number in self._lacking():
                await self._propose({"do": "add", **self._place(number)})
            await self.forget_deleted()
        except GeorelayError as error:
            log.info("control.step_refused", reason=str(error))

    async def forget_deleted(self) -> None:
        """Let all forget the deletions that every region has followed, when that is due."""
        control, definitions = self._control, self._control.definitions
        now_s = asyncio.get_running_loop().time()
        due = self._forgetting.due(now_s, control.regions.rows(), definitions.deleted, definitions.forgotten_to)
        if due is not None:
            await control.propose(DefinitionsPart.name, command_to_json(due))
            log.info("control.deletions_forgotten", topics_to=due.topics_to, security_to=due.security_to)

    async def _keep(self, row: VoterRow) -> None:
        if row.retired:
            return
        said = self._candidates.get(row.region)
        region = self._control.regions.row(row.region)
        left = region is None or region.state is RegionState.REMOVED
        if left or (said is not None and row.replica in said.gone):
            await self._propose({"do": "retire", "replica": row.replica})
            log.warning("control.replica_retired", replica=row.replica, broker=row.broker, region=row.region)
        elif not row.disk:
            await self._make(row)
        elif said is not None and said.broker == row.broker and said.address not in ("", row.address):
            moved = {"do": "made", "replica": row.replica, "disk": row.disk, "address": said.address}
            await self._propose(moved)
            log.info("control.replica_moved", replica=row.replica, broker=row.broker, address=said.address)

    async def _make(self, row: VoterRow) -> None:
        """Have a replica made by its broker, and note on which disk."""
        state = self._control.state
        name = ReplicaName(generation=state.generation, control_id=state.control_id, replica=row.replica, founder=False)
        envelope: JsonObject = {
            "generation": state.generation,
            "control_id": state.control_id,
            "body": {"name": str(name), "members": [member.to_json() for member in state.members.rows()]},
        }
        try:
            answer = await self._control.ask(row.broker, f"{PREFIX}join", envelope, timeout_s=JOIN_S)
            made = Fields(Fields(answer, "answer").value("ok"), "join")
            disk, address = made.text("disk", chars_max=64), made.text("address", chars_max=ADDRESS_CHARS_MAX)
        except (GeorelayError, FieldError) as error:
            log.info("control.replica_not_made", replica=row.replica, broker=row.broker, reason=str(error))
            return
        await self._propose({"do": "made", "replica": row.replica, "disk": disk, "address": address})
        log.info("control.replica_made", replica=row.replica, broker=row.broker)

    def _lacking(self) -> list[RegionNumber]:
        members = self._control.state.members
        return [
            row.number
            for row in self._control.regions.rows()
            if row.state is not RegionState.REMOVED
            and row.number in self._candidates
            and members.of_region(row.number) is None
        ]

    def _place(self, number: RegionNumber) -> JsonObject:
        said = self._candidates[number]
        return {"broker": said.broker, "address": said.address}

    async def _propose(self, command: JsonObject) -> None:
        await self._control.propose(MEMBERS, command)

    def _announce_if_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._announce_at_s:
            return
        self._announce_at_s = now_s + ANNOUNCE_S
        for row in self._control.regions.rows():
            if row.state is not RegionState.REMOVED and len(self._tasks) < HINTS_MAX:
                self._tasks.start(self._announce(row.brokers))

    async def _announce(self, brokers: tuple[BrokerId, ...]) -> None:
        """Tell brokers who control is, and hear whom they follow."""
        for broker in brokers:
            own = self._control.row()
            if broker == self._control.me or own is None:
                continue
            envelope: JsonObject = {
                "generation": own.generation,
                "control_id": own.control_id,
                "body": {"row": own.to_json()},
            }
            try:
                answer = await self._control.ask(broker, f"{PREFIX}where", envelope, timeout_s=HINT_S)
                self._control.learn(read_where(answer))
            except (GeorelayError, FieldError) as error:
                log.debug("control.not_announced", broker=broker, reason=str(error))

    async def _hint(self, region: RegionNumber, brokers: tuple[BrokerId, ...], index: int) -> None:
        own = region_of(self._control.me)
        try:
            if region == own:
                await self._control.controller.handle(HINT, {"hops": 0, "index": index})
                return
            for broker in sorted(brokers, key=lambda broker: not self._control.link_is_open(broker)):
                try:
                    await self._control.ask(broker, HINT, {"hops": 0, "index": index}, timeout_s=HINT_S)
                    return
                except GeorelayError as error:
                    log.debug("control.hint_not_taken", broker=broker, reason=str(error))
        except GeorelayError as error:
            log.debug("control.hint_lost", region=region, reason=str(error))

    # --- methods of the leader ----------------------------------------------------------------------------------------

    async def _status(self, _: JsonObject, __: BrokerId) -> JsonObject:
        definitions = self._control.definitions
        topics, security = definitions.deleted
        newest = (definitions.index, definitions.security.index)
        remembered: JsonObject = {
            "topics": topics,
            "security": security,
            "held_back_by": self._forgetting.held_back_by(self._control.regions.rows(), newest),
        }
        return {**self._control.status(), "deletions": remembered}

    async def _list(self, _: JsonObject, __: BrokerId) -> JsonObject:
        return {"regions": [row.to_json() for row in self._control.regions.rows()]}

    async def _lost(self, body: JsonObject, asker: BrokerId) -> JsonObject:
        """Retire a replica whose broker says that it cannot use it any more; another one is made then."""
        replica = Fields(body, "replica.lost").integer("replica", low=1, high=REPLICA_NUMBER_MAX)
        row = self._control.state.members.row(replica)
        if row is None or row.broker != asker:
            raise FieldError(f"replica {replica} is not one of broker {asker}")
        await self._propose({"do": "retire", "replica": replica})
        log.warning("control.replica_lost", replica=replica, broker=asker)
        return {}

    def _changing(self, verb: str) -> Method:
        async def change(body: JsonObject, _: BrokerId) -> JsonObject:
            async with self._changing_regions:
                return await self._control.propose(RegionsPart.name, {"do": verb, **body})

        return change

    async def _remove(self, body: JsonObject, _: BrokerId) -> JsonObject:
        """Let a region leave, unless it would take records along that nobody else has; "force": all the same."""
        fields = Fields(body, "region.remove")
        number = RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX))
        force = fields.flag("force") if fields.has("force") else False
        async with self._changing_regions:
            return await self._removed(number, force=force)

    async def _removed(self, number: RegionNumber, *, force: bool) -> JsonObject:
        row = self._control.regions.row(number)
        lacking: list[str] = []
        if self.departure is not None and row is not None and row.state is RegionState.DRAINING:
            lacking = await self.departure.lacking(number)
        if lacking and not force:
            assert row is not None
            raise PolicyViolation(
                f"region {row.name} may hold records that no other region has: publish there no more and ask again, or "
                f"lose them with --force: {named(lacking)}"
            )
        asked_about = {} if row is None else {"row_index": row.index}
        answer = await self._control.propose(RegionsPart.name, {"do": "remove", "number": number, **asked_about})
        if lacking:
            log.warning("control.region_removed_by_force", region=number, lost=lacking[:NAMED_MAX], lines=len(lacking))
        return {**answer, "lost": list(lacking[:LOST_LINES_MAX])}

    async def _report(self, body: JsonObject, asker: BrokerId) -> JsonObject:
        """Take what a region's controller says about its region."""
        fields = Fields(body, "region.report")
        number = RegionNumber(fields.integer("number", low=1, high=REGION_NUMBER_MAX))
        if region_of(asker) != number:
            raise FieldError(f"broker {asker} does not speak for region {number}")
        candidate = fields.child("candidate")
        broker = BrokerId(candidate.integer("broker", low=0, high=BROKER_ID_MAX))
        said = Candidate(
            broker=broker,
            address=candidate.text("address", chars_max=ADDRESS_CHARS_MAX),
            gone=tuple(candidate.integers("gone", count_max=REPLICAS_MAX, low=1, high=REPLICA_NUMBER_MAX)),
        )
        row = self._control.regions.row(number)
        self._require_level(row, fields.integer("level", low=0, high=LEVEL_MAX))
        if fields.has(APPLIED):  # an older broker does not say it, and holds back what is to be forgotten
            applied = fields.child(APPLIED)
            topics, security = (applied.integer(name, low=0, high=INT64_MAX) for name in ("topics", "security"))
            self._forgetting.heard(number, (topics, security))
        told: JsonObject = {name: body.get(name) for name in ("number", "brokers", "level", "seeds")}
        if row is None or any(row.to_json()[name] != told[name] for name in ("brokers", "level", "seeds")):
            await self._control.propose(RegionsPart.name, {"do": "report", **told})
        if broker:
            self._candidates[number] = said
            self._wakeup.set()
        return {}

    def _require_level(self, row: RegionRow | None, level: int) -> None:
        """Let a region begin at the level of all others only: it would not read what they write (PolicyViolation)."""
        needed = level_of(self._control.regions.rows())
        if row is not None and not row.has_begun and level < needed:
            text = f"region {row.name} is at feature level {level} and all others at {needed}: upgrade all its brokers"
            raise PolicyViolation(f"{text}; then it takes part")
