"""What the leader of mesh control does about homes: moves that are asked for, leases, and failover without an operator.

Methods that any broker may call: home.move, home.failover, home.progress, home.waiting, home.lease, home.hear,
home.policies.

Rule 1: a lease is granted after a majority confirmed this leader, and to no region while homes are being taken from it
        that acknowledge under a lease. Others may wait for a promise for long, and nobody waits for their leases.
Rule 2: every region that holds topics is asked for a sign of life, from the election on. Our own gives one while we
        know a leader of it: control's leader may be what is left of a region that lost its majority.
Rule 3: leases are counted with the time that this host was suspended, as brokers count them. Silence is not: a leader
        that slept has not listened.
Rule 4: homes of a lost region move without an operator only where the topic says so and nothing protected is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock, elapsed_of
from georelay.errors import BadRequest, Fenced, GeorelayError, NotLeader
from georelay.fields import FieldError, Fields, JsonObject, integers
from georelay.ids import REGION_NUMBER_MAX, BrokerId, RegionNumber, StreamKey, region_of
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPICS_MAX
from mesh.home.failover_core import HEAR_EVERY_MS, Silence
from mesh.home.home_row import (
    MOVE_ID_CHARS_MAX,
    NOT_CHOSEN,
    ONE_HOME,
    TOPIC_ID_BYTES,
    HomeRow,
    MoveKind,
    key_json,
    read_origin,
)
from mesh.home.lease_core import LeaseBook
from region.controller.state_snapshot import position_json
from region.controller.topic import TopicDefinition
from region.homes.driver import MoveDriver
from region.homes.home_requests import PING_METHOD
from region.homes.levels import needs_lease
from region.homes.move_desk import MoveAsked, MoveDesk, distinct
from region.homes.part import HomesPart, MeshTopics, leased_command, obeyed_command
from region.homes.policies import DIGEST_CHARS, Obedience, Policies
from region.homes.ports import AskRegion, ConfirmLeader, Control
from region.homes.takeover import Takeovers
from region.homes.tasks import OwnedTasks

log = structlog.get_logger()

PING_TIMEOUT_S: Final = 1.0
WATCH_S: Final = 0.1
WATCH_S_MAX: Final = 1.0
WAITING_SHOWN_MAX: Final = 1_000
WAITING_CHARS_MAX: Final = 400
STREAMS_PER_MOVE_MAX: Final = TOPICS_MAX
_MS_PER_S: Final = 1_000
Method = Callable[[JsonObject, BrokerId], Awaitable[JsonObject]]


class HomeLeader:
    """Duties of the control leader; idle on every other broker.

    Args:
        confirm: see ConfirmLeader.
        ask: asks any broker of a region; `own_region` is heard while it `is_led`.
        regions: the regions that hold topics. voters: how many control has.
        rng: for ids of moves.
        policies: which topics fail over by themselves, since when; None: all of them at once (region.homes.policies).
    """

    def __init__(
        self,
        *,
        part: HomesPart,
        topics: MeshTopics,
        control: Control,
        confirm: ConfirmLeader,
        ask: AskRegion,
        own_region: RegionNumber,
        regions: Callable[[], Sequence[RegionNumber]],
        voters: Callable[[], int],
        clock: Clock,
        rng: random.Random,
        is_led: Callable[[], bool] = lambda: True,
        policies: Policies | None = None,
    ) -> None:
        self._obedience = Obedience(policies)
        self._part = part
        self._topics = topics
        self._control = control
        self._confirm = confirm
        self._ask = ask
        self._own_region = own_region
        self._is_led = is_led
        self._regions = regions
        self._voters = voters
        self._clock = clock
        self._elapsed_ns = elapsed_of(clock)
        self.leases = LeaseBook()
        self.silence = Silence()
        self._leads = False
        self._tasks = OwnedTasks()
        self._driver = MoveDriver(
            part=part,
            topics=topics,
            control=control,
            ask=ask,
            clock=clock,
            is_heard=lambda region: self.silence.is_heard(region, clock.monotonic_ns()),
            leases_over=self.lease_is_over,
            over=lambda _key: self.desk.look(),
        )
        self.desk = MoveDesk(
            part=part, topics=topics, control=control, ask=ask, driver=self._driver, clock=clock, rng=rng
        )
        self._takeovers = Takeovers(part=part, topics=topics, desk=self.desk, clock=clock, in_force=self._is_in_force)
        part.duties = self

    # --- life -------------------------------------------------------------------------------------

    def elected(self) -> None:
        """Begin: everything that earlier leaders committed is applied."""
        if self._leads:
            return
        now_ns = self._clock.monotonic_ns()
        self._leads = True
        self._obedience.clear()
        self.leases.elected(self._elapsed_ns())
        self.silence.elected(now_ns)
        self._driver.start()
        self._tasks.spawn(self._watch(), "home-failover")
        self._tasks.spawn(self._listen(), "home-listen")

    def deposed(self) -> None:
        """End at once."""
        self._leads = False
        self.leases.deposed()
        self.silence.deposed()
        self._takeovers.clear()
        self.desk.stop()
        self._driver.stop()
        self._tasks.cancel()

    def lease_is_over(self, region: RegionNumber) -> bool:
        """Return whether no broker of a region can hold a lease any more."""
        return self.leases.is_free(region, self._elapsed_ns())

    # --- what brokers ask -------------------------------------------------------------------------

    def methods(self) -> dict[str, Method]:
        """Return what control's leader answers about homes."""
        return {
            "home.move": self._move,
            "home.failover": self._failover,
            "home.progress": self._progress,
            "home.waiting": self._waiting,
            "home.lease": self._lease,
            "home.hear": self._heard,
            "home.policies": self._policies,
        }

    async def _move(self, body: JsonObject, _from_broker: BrokerId) -> JsonObject:
        try:
            fields = Fields(body, "home.move")
            keys = _read_streams(fields)
            target = RegionNumber(fields.integer("target", low=1, high=REGION_NUMBER_MAX))
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        if not self._topics.may_be_home(target):
            raise BadRequest(f"region {target} takes no homes: it is unknown, a witness, leaving or too old")
        report = self.desk.begin(MoveAsked(keys=keys, kind=MoveKind.PLANNED, target=target))
        return {"move_id": report.move_id, "streams": len(keys)}

    async def _failover(self, body: JsonObject, _from_broker: BrokerId) -> JsonObject:
        try:
            fields = Fields(body, "home.failover")
            lost = RegionNumber(fields.integer("region", low=0, high=REGION_NUMBER_MAX))
            keys = _read_streams(fields)
            accept_loss = fields.flag("accept_loss")
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        if lost:
            keys = distinct((*keys, *self._part.streams_of(lost)))
        asked = MoveAsked(keys=keys, kind=MoveKind.FORCED, target=NOT_CHOSEN, accept_loss=accept_loss)
        await self.desk.check_answers(asked)
        report = self.desk.begin(asked)
        return {"move_id": report.move_id, "streams": len(keys)}

    async def _progress(self, body: JsonObject, _from_broker: BrokerId) -> JsonObject:
        try:
            fields = Fields(body, "home.progress")
            move_id = fields.text("move_id", chars_min=1, chars_max=MOVE_ID_CHARS_MAX)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        return self.desk.progress(move_id).to_json()

    async def _waiting(self, _body: JsonObject, _from_broker: BrokerId) -> JsonObject:
        """Say what the attempts under way wait for."""
        attempts = islice(self._part.book.attempts(), WAITING_SHOWN_MAX)
        return {"rows": [self._waiting_json(row) for row in attempts]}

    def _waiting_json(self, row: HomeRow) -> JsonObject:
        move = self._driver.carried(row.key)
        if move is None:
            return key_json(row.key) | {"stage": "begun", "regions": [], "promised": [], "needed": 0, "fault": ""}
        waiting = move.waiting
        return key_json(row.key) | {
            "stage": waiting.stage.value,
            "regions": list(waiting.regions),
            "promised": list(waiting.promised),
            "needed": waiting.needed,
            "fault": waiting.fault[:WAITING_CHARS_MAX],
        }

    async def _lease(self, body: JsonObject, from_broker: BrokerId) -> JsonObject:
        """Grant a lease to the broker that asks, and say what it has to know; see mesh.home.lease_core."""
        region = region_of(from_broker)
        self._note_heard(body, from_broker)
        await self._confirm()
        if region not in self._part.leased:
            await self._control.propose(self._part.name, leased_command(region))
        await self._note_obeyed(region)
        if not self._leads:
            raise NotLeader("this broker leads mesh control no more")
        if self._is_taken_from(region):
            raise Fenced(f"homes of region {region} are being taken over: it gets no lease until that is done")
        self.leases.granted(from_broker, now_ns=self._elapsed_ns())
        newest = self._part.book.position
        return {} if newest is None else {"known": position_json(newest)}

    async def _heard(self, body: JsonObject, from_broker: BrokerId) -> JsonObject:
        """Tell a broker that it is not cut off; it is a sign of life, too."""
        self._note_heard(body, from_broker)
        return {}

    def _note_heard(self, body: JsonObject, broker: BrokerId) -> None:
        """Take a question for a sign of life, unless it says that its region has no leader ("led": false)."""
        try:
            fields = Fields(body, "sign of life")
            is_led = fields.flag("led") if fields.has("led") else True
            policies = fields.text("policies", chars_max=DIGEST_CHARS) if fields.has("policies") else ""
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        self._obedience.told(broker, policies)
        if is_led:
            self.silence.heard(region_of(broker), self._clock.monotonic_ns())

    async def _note_obeyed(self, region: RegionNumber) -> None:
        """Commit that a region's brokers follow the failover policies of now, when all of them have said so."""
        up_to = self._obedience.newly_obeyed(region, so_far=self._part.obeyed.get(region, 0))
        if up_to is not None:
            await self._control.propose(self._part.name, obeyed_command(region, index=up_to))
            log.info("home.policies_obeyed", region=region, index=up_to)

    async def _policies(self, _body: JsonObject, _from_broker: BrokerId) -> JsonObject:
        """Say which topics with failover=auto are not failed over from which homes yet."""
        waiting = {
            (row.topic_id.hex(), int(row.home))
            for row in self._part.rows()
            if (topic := self._topics.find(row.topic_id)) is not None
            and needs_lease(topic)
            and not self._is_in_force(topic, row.home)
        }
        return {"waiting": [{"topic_id": topic_id, "home": home} for topic_id, home in sorted(waiting)]}

    def _is_in_force(self, topic: TopicDefinition, home: RegionNumber) -> bool:
        return self._obedience.is_in_force(topic, obeyed=self._part.obeyed.get(home, 0))

    def _is_taken_from(self, region: RegionNumber) -> bool:
        forced = (row for row in self._part.book.attempts() if row.moving and row.moving.kind is MoveKind.FORCED)
        return any(row.home == region and self._driver.needs_lease(row) for row in forced)

    # --- failover without an operator -------------------------------------------------------------

    async def _listen(self) -> None:
        """Ask every other region for a sign of life, again and again, each for itself."""
        asking: set[RegionNumber] = set()
        while True:
            if self._is_led():
                self.silence.heard(self._own_region, self._clock.monotonic_ns())
            for region in self._regions():
                if region != self._own_region and region not in asking:
                    asking.add(region)
                    self._tasks.spawn(self._hear(region, asking), f"home-ping-{region}")
            await asyncio.sleep(pause_s(HEAR_EVERY_MS / _MS_PER_S))

    async def _hear(self, region: RegionNumber, asking: set[RegionNumber]) -> None:
        try:
            await self._ask(region, PING_METHOD, {}, timeout_s=PING_TIMEOUT_S)
            self.silence.heard(region, self._clock.monotonic_ns())
        except GeorelayError as error:
            log.debug("home.region_silent", region=region, reason=str(error))
        finally:
            asking.discard(region)

    async def _watch(self) -> None:
        while True:
            regions, now_ns = self._regions(), self._clock.monotonic_ns()
            left_s = self.silence.left_ms(regions, now_ns) / _MS_PER_S
            await asyncio.sleep(min(max(left_s, WATCH_S), WATCH_S_MAX))
            lost = self.silence.lost(
                self._regions(),
                leased=self._part.leased,
                voters=self._voters(),
                now_ns=self._clock.monotonic_ns(),
            )
            self._takeovers.look(lost)


def _read_streams(fields: Fields) -> tuple[StreamKey, ...]:
    """Read "streams": [[topic id, [partition, ...]], ...], with the origin as a third for coordinators."""
    keys: list[StreamKey] = []
    for item in fields.items("streams", count_max=STREAMS_PER_MOVE_MAX):
        if not isinstance(item, list) or not 2 <= len(item) <= 3 or not isinstance(item[1], list):
            raise FieldError("streams are [topic id, [partition, ...]] or [topic id, [partition, ...], origin]")
        origin = read_origin(Fields({"origin": item[2]}, "streams")) if len(item) == 3 else ONE_HOME
        topic_id = Fields({"topic_id": item[0]}, "streams").blob("topic_id", size_bytes=TOPIC_ID_BYTES)
        partitions = integers(item[1][: PARTITIONS_PER_TOPIC_MAX + 1], "partitions", low=0, high=2**31 - 1)
        keys += [StreamKey(topic_id, origin, partition) for partition in partitions]
    return distinct(keys)
