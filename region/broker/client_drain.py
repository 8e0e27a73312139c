"""Sends the Kafka clients of this broker to another region while operators drain this one for clients.

Rule 1: gateways of the region say to which region, in the tag DRAIN_TAG of its pool, for as long as the decision holds.
Rule 2: brokers there are asked every ASK_EVERY_S who leads what. KEPT_S after their last answer clients stay again.
Rule 3: clients stay while groups of this region are kept in it: a member elsewhere would begin its group anew.
Rule 4: a region that drains itself takes nobody.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from georelay.errors import BadRequest, GeorelayError, Unavailable
from georelay.fields import FieldError, Fields, JsonObject, integers
from georelay.ids import BROKERS_PER_REGION_MAX, BrokerId, RegionNumber, StreamKey, region_of
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.broker.local_cluster import LocalCluster
from region.controller.registration import ADDRESS_CHARS_MAX
from region.controller.routing import Request
from region.controller.topic import Homes, TopicView
from region.controller.topology import BROKER_ID_MAX, Topology
from region.coordination.coordinators import INTERNAL_TOPIC
from region.kafka.client_drain_core import ClientDrain
from region.kafka.ports import BrokerInfo

log = structlog.get_logger()

LEADERS_METHOD: Final = "clients.leaders"
ASK_EVERY_S: Final = 1.0
KEPT_S: Final = 10.0  # as long as links need to be sure that a region is gone
TOPICS_PER_QUESTION_MAX: Final = 500
PARTITIONS_PER_QUESTION: Final = 2_000  # a page is full with as many; the topic that fills it may have more
_TOPIC_ID_CHARS: Final = 32
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")
GROUPS_STAY: Final = "groups of this region are kept in it: `georelay home move --groups-of` moves them first"


class DrainAgent:
    """Args:
    topology: returns the mesh as it is known now. request: carries a question to a broker of another region.
    """

    def __init__(self, cluster: LocalCluster, *, topology: Callable[[], Topology], request: Request) -> None:
        self._cluster = cluster
        self._topology = topology
        self._request = request
        self._heard_s = 0.0
        self._stays_because = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def _drain(self) -> ClientDrain:
        return self._cluster.drain

    def head_for(self, name: str) -> None:
        """Send clients to the region of this name from now on; "", or a name that is none, lets them stay."""
        found = self._topology().by_name(name)
        is_other = found is not None and found.holds_topics and found.number != self._cluster.region_number
        region = found.number if found is not None and is_other else None
        if region == self._drain.heading:
            return
        log.info("clients.drain", to="" if region is None else name)
        self._drain.head_for(region)
        if self._task is not None:
            self._task.cancel()
        self._task = None
        if region is not None:
            self._task = asyncio.get_running_loop().create_task(self._ask_forever(region), name="client-drain")
            self._task.add_done_callback(_ended)

    async def close(self) -> None:
        """Send nobody away any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask_forever(self, region: RegionNumber) -> None:
        while True:
            await self.ask_once(region)
            await asyncio.sleep(pause_s(ASK_EVERY_S))

    async def ask_once(self, region: RegionNumber) -> None:
        """Learn who leads in a region, or find out that clients have to stay."""
        now_s = asyncio.get_running_loop().time()
        reason = GROUPS_STAY if self._keeps_groups() else ""
        if reason:
            self._drain.stay()
        else:
            try:
                await self._learn(region)
                self._heard_s = now_s
            except (GeorelayError, FieldError) as error:
                reason = str(error)
                if now_s - self._heard_s > KEPT_S:
                    self._drain.stay()
        if reason != self._stays_because and reason:
            log.warning("clients.not_sent", reason=reason)
        self._stays_because = reason

    def _keeps_groups(self) -> bool:
        view = self._cluster.topic(INTERNAL_TOPIC)
        if view is None:
            return False
        own = self._cluster.region_number
        return any(self._cluster.home_of(INTERNAL_TOPIC, number) == own for number in range(view.partitions))

    async def _learn(self, region: RegionNumber) -> None:
        brokers: Sequence[BrokerInfo] = ()
        leaders: dict[bytes, Sequence[int]] = {}
        for page in pages(self._cluster.topics()):
            body: JsonObject = {"topics": [{"id": view.topic_id.hex(), "partitions": view.partitions} for view in page]}
            answer = await self._request(region=region, broker=None, method=LEADERS_METHOD, body=body)
            brokers, rows = read_leaders(answer, region, [view.partitions for view in page])
            leaders.update(zip((view.topic_id for view in page), rows, strict=True))
        found = self._topology().by_number(region)
        self._drain.took("" if found is None else found.name, brokers, leaders)


def pages(topics: Iterable[TopicView]) -> Iterator[list[TopicView]]:
    """Return the topics that another region leads as well, as many at once as one question takes; one page at least."""
    page: list[TopicView] = []
    partitions = 0
    for view in topics:
        if view.homes is not Homes.ONE or view.internal:
            continue
        page.append(view)
        partitions += view.partitions
        if len(page) == TOPICS_PER_QUESTION_MAX or partitions >= PARTITIONS_PER_QUESTION:
            yield page
            page, partitions = [], 0
    yield page


def serve_leaders(cluster: LocalCluster, body: JsonObject) -> JsonObject:
    """Answer a broker of another region with the brokers of this one, and who leads what it asks for.

    Raises:
        BadRequest: no such question. Unavailable: this region is not ready, or drains itself.
    """
    if cluster.drain.heading is not None or not cluster.ready():
        raise Unavailable(f"region {cluster.region} takes no clients of another region now")
    try:
        fields = Fields(body, LEADERS_METHOD)
        asked = [_asked(item) for item in fields.items("topics", count_max=TOPICS_PER_QUESTION_MAX)]
        fields.done()
    except FieldError as error:
        raise BadRequest(f"{LEADERS_METHOD}: {error}") from error
    if sum(partitions for _, partitions in asked) > PARTITIONS_PER_QUESTION + PARTITIONS_PER_TOPIC_MAX:
        raise BadRequest(f"{LEADERS_METHOD}: ask for about {PARTITIONS_PER_QUESTION} partitions at once")
    brokers: list[dict[str, Any]] = [
        {"broker": row.id, "host": row.kafka_host, "port": row.kafka_port} for row in cluster.brokers() if row.alive
    ]
    leaders = [
        [int(cluster.leader_of_key(StreamKey(topic, RegionNumber(0), number))) for number in range(partitions)]
        for topic, partitions in asked
    ]
    return {"brokers": brokers, "leaders": leaders}


def _asked(item: object) -> tuple[bytes, int]:
    fields = Fields(item, "a topic")
    topic = fields.text("id", chars_max=_TOPIC_ID_CHARS, pattern=_TOPIC_ID)
    partitions = fields.integer("partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX)
    fields.done()
    return bytes.fromhex(topic), partitions


def read_leaders(
    answer: JsonObject, region: RegionNumber, partitions: Sequence[int]
) -> tuple[list[BrokerInfo], list[list[int]]]:
    """Read the answer of a broker of `region` about topics with so many partitions. Raises FieldError."""
    said = Fields(answer, LEADERS_METHOD)
    brokers = []
    for item in said.items("brokers", count_max=BROKERS_PER_REGION_MAX):
        fields = Fields(item, "broker")
        broker = BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))
        if region_of(broker) != region:
            raise FieldError(f"broker {broker} is not one of region {region}")
        host = fields.text("host", chars_min=1, chars_max=ADDRESS_CHARS_MAX)
        port = fields.integer("port", low=1, high=65_535)
        brokers.append(BrokerInfo(id=broker, kafka_host=host, kafka_port=port))
    listed = [row for row in said.items("leaders", count_max=len(partitions)) if isinstance(row, list)]
    if [len(row) for row in listed] != list(partitions):
        raise FieldError("the leaders are not those that were asked for")
    return brokers, [integers(row, "leaders", low=-1, high=BROKER_ID_MAX) for row in listed]


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("client_drain.failed", exc_info=task.exception())
