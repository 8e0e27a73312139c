"""What the leader of mesh control does about homes: moves that are asked for, leases, and failover without an operator.

Methods that any broker may call: home.move, home.failover, home.progress, home.lease, home.hear.

Rule 1: a lease is granted after a majority confirmed this leader, and to no region whose homes are being taken away.
Rule 2: every region that holds topics is asked for a sign of life, from the election on.
Rule 3: homes of a lost region move without an operator only where the topic says so and nothing protected is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import BadRequest, Fenced, GeorelayError, NotLeader
from georelay.fields import FieldError, Fields, JsonObject, integers
from georelay.ids import REGION_NUMBER_MAX, BrokerId, RegionNumber, StreamKey, region_of
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPICS_MAX
from mesh.home.failover_core import HEAR_EVERY_MS, Silence
from mesh.home.home_row import MOVE_ID_CHARS_MAX, NOT_CHOSEN, ONE_HOME, TOPIC_ID_BYTES, MoveKind, read_origin
from mesh.home.lease_core import LeaseBook
from region.controller.state_snapshot import position_json
from region.homes.driver import MoveDriver
from region.homes.home_requests import PING_METHOD
from region.homes.levels import may_fail_over
from region.homes.move_desk import MoveAsked, MoveDesk, distinct
from region.homes.part import HomesPart, MeshTopics, leased_command
from region.homes.ports import AskRegion, ConfirmLeader, Control
from region.homes.tasks import OwnedTasks

log = structlog.get_logger()

PING_TIMEOUT_S: Final = 1.0
WATCH_S: Final = 0.1
STREAMS_PER_MOVE_MAX: Final = TOPICS_MAX
_MS_PER_S: Final = 1_000
Method = Callable[[JsonObject, BrokerId], Awaitable[JsonObject]]


class HomeLeader:
    """Duties of the control leader; idle on every other broker.

    Args:
        confirm: see ConfirmLeader.
        ask: asks any broker of a region; `own_region` is always heard.
        regions: the regions that hold topics. voters: how many control has.
        rng: for ids of moves.
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
    ) -> None:
        self._part = part
        self._topics = topics
        self._control = control
        self._confirm = confirm
        self._ask = ask
        self._own_region = own_region
        self._regions = regions
        self._voters = voters
        self._clock = clock
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
            is_heard=lambda region: region == own_region or self.silence.is_heard(region, clock.monotonic_ns()),
            leases_over=lambda region: self.leases.is_free(region, clock.monotonic_ns()),
            over=lambda _key: self.desk.look(),
        )
        self.desk = MoveDesk(
            part=part, topics=topics, control=control, ask=ask, driver=self._driver, clock=clock, rng=rng
        )
        part.duties = self

    # --- life -------------------------------------------------------------------------------------

    def elected(self) -> None:
        """Begin: everything that earlier leaders committed is applied."""
        if self._leads:
            return
        now_ns = self._clock.monotonic_ns()
        self._leads = True
        self.leases.elected(now_ns)
        self.silence.elected(now_ns)
        self._driver.start()
        self._tasks.spawn(self._watch(), "home-failover")
        self._tasks.spawn(self._listen(), "home-listen")

    def deposed(self) -> None:
        """End at once."""
        self._leads = False
        self.leases.deposed()
        self.silence.deposed()
        self.desk.stop()
        self._driver.stop()
        self._tasks.cancel()

    # --- what brokers ask -------------------------------------------------------------------------

    def methods(self) -> dict[str, Method]:
        """Return what control's leader answers about homes."""
        return {
            "home.move": self._move,
            "home.failover": self._failover,
            "home.progress": self._progress,
            "home.lease": self._lease,
            "home.hear": self._heard,
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

    async def _lease(self, _body: JsonObject, from_broker: BrokerId) -> JsonObject:
        """Grant a lease to the broker that asks, and say what it has to know; see mesh.home.lease_core."""
        region = region_of(from_broker)
        self.silence.heard(region, self._clock.monotonic_ns())
        await self._confirm()
        if region not in self._part.leased:
            await self._control.propose(self._part.name, leased_command(region))
        if not self._leads:
            raise NotLeader("this broker leads mesh control no more")
        if self._is_taken_from(region):
            raise Fenced(f"homes of region {region} are being taken over: it gets no lease until that is done")
        self.leases.granted(from_broker, now_ns=self._clock.monotonic_ns())
        newest = self._part.book.position
        return {} if newest is None else {"known": position_json(newest)}

    async def _heard(self, _body: JsonObject, from_broker: BrokerId) -> JsonObject:
        """Tell a broker that it is not cut off; it is a sign of life, too."""
        self.silence.heard(region_of(from_broker), self._clock.monotonic_ns())
        return {}

    def _is_taken_from(self, region: RegionNumber) -> bool:
        attempts = self._part.book.attempts()
        return any(
            row.home == region and row.moving is not None and row.moving.kind is MoveKind.FORCED for row in attempts
        )

    # --- failover without an operator -------------------------------------------------------------

    async def _listen(self) -> None:
        """Ask every other region for a sign of life, again and again, each for itself."""
        asking: set[RegionNumber] = set()
        while True:
            for region in self._regions():
                if region != self._own_region and region not in asking:
                    asking.add(region)
                    self._tasks.spawn(self._hear(region, asking), f"home-ping-{region}")
            await asyncio.sleep(HEAR_EVERY_MS / _MS_PER_S)

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
            await asyncio.sleep(WATCH_S)
            lost = self.silence.newly_lost(
                (region for region in self._regions() if region != self._own_region),
                leased=self._part.leased,
                voters=self._voters(),
                now_ns=self._clock.monotonic_ns(),
            )
            for region in lost:
                self._take_over(region)

    def _take_over(self, region: RegionNumber) -> None:
        held = self._part.streams_of(region)
        keys = [key for key in held if self._fails_over(key)]
        if keys:  # groups go where their topics go
            keys += [key for key in held if key.origin and self._is_free(key)]
        log.warning("home.region_lost", region=region, streams=len(keys))
        if not keys:
            return
        try:
            self.desk.begin(MoveAsked(keys=tuple(keys), kind=MoveKind.FORCED, target=NOT_CHOSEN))
        except GeorelayError as error:
            log.warning("home.failover_refused", region=region, reason=str(error))
            self.silence.take_again(region)

    def _fails_over(self, key: StreamKey) -> bool:
        topic = self._topics.find(key.topic_id)
        return self._is_free(key) and topic is not None and may_fail_over(topic)

    def _is_free(self, key: StreamKey) -> bool:
        row = self._part.row(key)
        return row is not None and (row.moving is None or row.moving.kind is not MoveKind.FORCED)


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
