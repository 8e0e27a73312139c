"""Transactions between the parts of this region: markers to the leaders of partitions, questions to coordinators.

Rule 1: a marker goes to the broker that leads the partition, once per try; the coordinator tries again what fails.
Rule 2: a partition's leader asks the coordinator of the transactional id before it stores the first batch of a
        transaction; what the coordinator says is a number (region.topics.transaction_lanes).
Rule 3: transactions are of one region: a partition whose home is another one is refused before anything is stored.
        When a home moves while a transaction is open, its marker goes to the new home: who decided it did not move.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from georelay.errors import BadRequest, NotLeader, PolicyViolation, Unavailable, UnknownTopic
from georelay.fields import FieldError, Fields
from georelay.ids import PRODUCER_COUNTER_BITS, BrokerId, RegionNumber, StreamKey
from region.controller.catalog import TopicCatalog
from region.controller.topic import TopicView
from region.coordination.coordinators import INTERNAL_TOPIC, Coordinators
from region.coordination.part import Part
from region.topics.hosted_stream import HostedStream
from region.transactions.book_core import key_of
from region.transactions.transaction_core import NUMBER_LAST, TransactionEnd

MARKER_METHOD: Final = "txn.marker"
MARKER_TIMEOUT_S: Final = 5.0
VERIFY_TIMEOUT_S: Final = 5.0
_INT63_MAX: Final = 2**63 - 1
_EPOCH_MAX: Final = 32_767


class AskBroker(Protocol):
    """Carries a request to another broker of this region; raises what the other end raised."""

    def __call__(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Awaitable[dict[str, Any]]:
        """Return the answer."""


class AskRegion(Protocol):
    """Carries a request to a broker of another region; raises what the other end raised."""

    def __call__(
        self, *, region: RegionNumber, broker: BrokerId | None, method: str, body: Mapping[str, Any]
    ) -> Awaitable[dict[str, Any]]:
        """Return the answer; without `broker` that of the first one that leads."""


class TransactionPort:
    """Implements region.transactions.participants.Participants and region.topics.transaction_lanes.TransactionVerifier.

    Args:
        hosted: the stream when a replica of it is on this broker.
        leader_of: the leader of a stream in this region, -1 while unknown.
        barrier: returns once this broker knows all topics that were defined or deleted before the call.
        allocate: a new producer id.
        ask_region: how other regions are reached; None: homes never move.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        region: RegionNumber,
        catalog: TopicCatalog,
        coordinators: Coordinators,
        hosted: Callable[[StreamKey], HostedStream | None],
        leader_of: Callable[[StreamKey], int],
        barrier: Callable[[], Awaitable[object]],
        allocate: Callable[[], Awaitable[int]],
        ask: AskBroker,
        ask_region: AskRegion | None = None,
    ) -> None:
        self.me = me
        self._region = region
        self._catalog = catalog
        self._coordinators = coordinators
        self._hosted = hosted
        self._leader_of = leader_of
        self._barrier = barrier
        self._allocate = allocate
        self._ask = ask
        self._ask_region = ask_region

    # --- for the coordinator ----------------------------------------------------------------------

    def resolve(self, topic: str, partition: int) -> StreamKey:
        """Return the stream that a producer writes to; see Participants."""
        view: TopicView | None = self._catalog.topic(topic)
        key = self._catalog.stream_key(topic, partition)
        if view is None or key is None:
            raise UnknownTopic(f"topic '{topic}' has no partition {partition} here")
        if view.is_mirror_name or view.internal:
            raise PolicyViolation(f"'{topic}' is written by its home only; use the plain name")
        home = self._catalog.home_of(key)
        if home != self._region:
            raise PolicyViolation(
                f"the home of partition {partition} of '{topic}' is region {home}: "
                "a transaction holds partitions of one region, use a producer there"
            )
        return key

    def name_of(self, key: StreamKey) -> str | None:
        """Return the local name of a stream's topic, None for one that was deleted."""
        topic = self._catalog.topic_by_id(key.topic_id)
        return None if topic is None else topic.name

    async def is_gone(self, key: StreamKey) -> bool:
        """Return whether the topic was deleted; this broker first learns all that the controller knows."""
        if self._catalog.home_of(key) is not None:
            return False
        await self._barrier()
        return self._catalog.home_of(key) is None

    async def end_partition(self, key: StreamKey, end: TransactionEnd) -> None:
        """Return once the marker is committed at the partition's leader."""
        home = self._catalog.home_of(key)
        is_here = home is None or home == self._region or self._ask_region is None
        leader = self._leader_of(key)
        if is_here and leader == self.me:
            await self._write(key, end)
            return
        if is_here and leader <= 0:
            raise NotLeader(f"{key} has no leader yet", leader=-1)
        body = {
            "topic_id": key.topic_id.hex(),
            "origin": key.origin,
            "partition": key.partition,
            "producer_id": end.producer_id,
            "producer_epoch": end.producer_epoch,
            "is_commit": end.is_commit,
            "number": end.number,
        }
        if is_here or home is None or self._ask_region is None:
            await self._ask(BrokerId(leader), MARKER_METHOD, body, timeout_s=MARKER_TIMEOUT_S)
        else:
            await self._ask_region(region=home, broker=None, method=MARKER_METHOD, body=body)

    async def _write(self, key: StreamKey, end: TransactionEnd) -> None:
        stream = self._hosted(key)
        if stream is None:
            raise NotLeader(f"{key} has no replica on this broker", leader=self._leader_of(key))
        await stream.write_marker(
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            is_commit=end.is_commit,
            number=end.number,
        )

    def check_sender(self, body: Mapping[str, Any], region: RegionNumber) -> None:
        """Refuse a marker of another region, unless it keeps the transactions of the one that gave the producer id out.

        Raises:
            PolicyViolation: transactions are ended by coordinators of the region that began them.
        """
        producer_id = body.get("producer_id")
        began_in = RegionNumber(producer_id >> PRODUCER_COUNTER_BITS) if isinstance(producer_id, int) else None
        if region != self._region and (began_in is None or not self._keeps_for(region, began_in)):
            raise PolicyViolation("transactions are ended by coordinators of the region that began them")

    def _keeps_for(self, region: RegionNumber, origin: RegionNumber) -> bool:
        """Return whether `region` is home of coordinators that `origin` began; without a move only `origin` is.

        One that has lost them all may not know it yet, and still have transactions in its log that nobody else has.
        """
        view = self._catalog.topic(INTERNAL_TOPIC)
        if view is None:
            return region == origin
        keys = (StreamKey(view.topic_id, origin, partition) for partition in range(view.partitions))
        return any(self._catalog.home_of(key) == region for key in keys)

    async def serve_marker(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the marker that a coordinator sends to this broker.

        Raises:
            BadRequest: a body that is no request. As Stream.write_marker.
        """
        try:
            fields = Fields(dict(body), MARKER_METHOD)
            key = key_of(fields.value("topic_id"), fields.value("origin"), fields.value("partition"))
            end = TransactionEnd(
                producer_id=fields.integer("producer_id", low=0, high=_INT63_MAX),
                producer_epoch=fields.integer("producer_epoch", low=0, high=_EPOCH_MAX),
                is_commit=fields.flag("is_commit"),
                number=fields.integer("number", low=1, high=NUMBER_LAST),
            )
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        await self._write(key, end)
        return {}

    async def end_group(self, group_id: str, end: TransactionEnd) -> None:
        """Return once the group's coordinator has committed or dropped the offsets of the transaction."""
        body = {
            "group": group_id,
            "producer_id": end.producer_id,
            "producer_epoch": end.producer_epoch,
            "is_commit": end.is_commit,
            "number": end.number,
        }
        answer = await self._coordinators.call(Part.GROUPS, group_id, "txn_end", body)
        if answer.get("error_code", 0):
            raise Unavailable(f"group '{group_id}' answered {answer.get('error')} to the end of a transaction")

    async def allocate_producer_id(self) -> int:
        """Return a producer id that is unique in the mesh."""
        return await self._allocate()

    # --- for partitions ---------------------------------------------------------------------------

    async def __call__(self, key: StreamKey, *, transactional_id: str, producer_id: int, producer_epoch: int) -> int:
        """Return the number of the open transaction that has this partition; see TransactionVerifier."""
        body = {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "topic_id": key.topic_id.hex(),
            "origin": key.origin,
            "partition": key.partition,
        }
        answer = await self._coordinators.call(
            Part.TRANSACTIONS, transactional_id, "verify", body, timeout_s=VERIFY_TIMEOUT_S
        )
        number = answer.get("number")
        if not isinstance(number, int):
            raise Unavailable(f"the coordinator of '{transactional_id}' answered verify with something else")
        return number
