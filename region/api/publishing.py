"""Publishing single records, as gRPC and REST callers do: topic, partition, coalescer, answer.

Rule 1: an unknown topic is created with defaults when the mesh allows it.
Rule 2: the answer has one place per record, in the order of the request.
Rule 3: "not stored" is only said when none of the records of a request is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from georelay.errors import GeorelayError, Outcome, OutcomeUnknown, PolicyViolation, UnknownTopic
from georelay.ids import RegionNumber
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.api.coalescer import Coalescer, NewRecord
from region.api.partitioning import Partitioner
from region.kafka.client_batch import check_client_batch
from region.kafka.ports import Cluster, Publish, Published, TopicView
from region.kafka.refused_publishes import RefusedPublishes
from region.security.access import ANONYMOUS, Access, Principal


class RecordPlace(NamedTuple):
    """Where one record is stored."""

    partition: int
    offset: int
    epoch: int
    append_us: int = 0  # append time at the home
    level: int = 1  # regions that have it, as far as that is known
    is_pending: bool = False  # fewer than were asked for when the deadline passed
    regions: tuple[RegionNumber, ...] = ()  # those known to have it, the home first
    is_isolated: bool = False  # this region, its home, was cut off from the majority of mesh control


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who publishes or reads, for the audit log: it names them where a topic is made on the way."""

    access: Access
    principal: Principal


NOBODY: Final = Asker(access=Access.open(), principal=ANONYMOUS)


async def require_topic(cluster: Cluster, name: str, asker: Asker) -> TopicView:
    """Return the topic, created with defaults if it is unknown and the mesh allows that.

    Raises:
        UnknownTopic: unknown, and automatic creation is off. InvalidTopic and others: it cannot be created.
    """
    topic = cluster.topic(name)
    if topic is not None:
        return topic
    if not cluster.auto_create_topics:
        raise UnknownTopic(f"topic {name!r} does not exist; create it with `georelay topics create {name}`")
    with asker.access.noted(asker.principal, "topic.created", topic=name, how="automatic"):
        return await cluster.ensure_topic(name, by=asker.access.share_of(asker.principal))


def check_place(topic: TopicView, name: str, partition: int | None = None) -> None:
    """Pass where clients may publish to a topic, and it has the partition (PolicyViolation, UnknownTopic)."""
    if topic.is_mirror_name or topic.internal:
        raise PolicyViolation(f"{name!r} is written by its home region only; publish to the plain name")
    if partition is not None and not 0 <= partition < topic.partitions:
        raise UnknownTopic(f"topic {topic.name!r} has partitions 0..{topic.partitions - 1}, not {partition}")


class BatchPublisher:
    """Publishes whole record batches of clients as they are."""

    def __init__(self, cluster: Cluster, refused: RefusedPublishes, *, wall_ns: Callable[[], int]) -> None:
        self._cluster = cluster
        self._refused = refused
        self._wall_ns = wall_ns

    def begin(
        self, topic: TopicView, name: str, partition: int, raw: bytes, level: AskedLevel, *, lane: Hashable
    ) -> Coroutine[Any, Any, list[RecordPlace]]:
        """Hand a batch on before this returns, so that those of one `lane` keep their order; await it for the place.

        Raises:
            CorruptRecordBatch, TooLarge, PolicyViolation, UnknownTopic, and what Cluster.publish raises.
        """
        check_place(topic, name, partition)
        topic.check_batch(len(raw))
        header = check_client_batch(raw, is_transactional=False)
        place = (name, partition, header.record_count)
        try:
            publish = Publish(header, raw, self._wall_ns(), self._cluster.region_number, lane, level)
            future = self._cluster.publish(name, partition, publish)
        except GeorelayError as error:
            self._refused.note(*place, error)
            raise
        future.add_done_callback(partial(self._refused.note_end, *place))
        return _gather(header.record_count, [(partition, range(header.record_count), future)], [])


class RecordPublisher:
    """Publishes records for one broker's gRPC and HTTP listeners."""

    def __init__(
        self, cluster: Cluster, coalescer: Coalescer, *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._cluster = cluster
        self._coalescer = coalescer
        self._partitioner = Partitioner(monotonic_ns)

    async def publish(
        self,
        name: str,
        records: Sequence[tuple[NewRecord, int | None]],
        level: AskedLevel = REGION_LEVEL,
        *,
        asker: Asker = NOBODY,
    ) -> list[RecordPlace]:
        """Publish (record, wanted partition or None) pairs and wait until all have reached their level, or pend.

        Raises:
            UnknownTopic, InvalidTopic, PolicyViolation, TooLarge, Busy, Unavailable: nothing is stored.
            OutcomeUnknown: some may be.
        """
        return await self.begin(await require_topic(self._cluster, name, asker), name, records, level)

    def begin(
        self,
        topic: TopicView,
        name: str,
        records: Sequence[tuple[NewRecord, int | None]],
        level: AskedLevel = REGION_LEVEL,
    ) -> Coroutine[Any, Any, list[RecordPlace]]:
        """Hand the records on before this returns, so that calls keep their order; await the result for the places.

        Raises as `publish`, here or from the result.
        """
        check_place(topic, name)
        positions = self._by_partition(topic, records)
        waits: list[tuple[int, Sequence[int], asyncio.Future[Published]]] = []
        refused: list[GeorelayError] = []
        places = iter(positions.items())
        batch_bytes_max = topic.definition.max_message_bytes
        for partition, indexes in places:
            chosen = [records[index][0] for index in indexes]
            try:
                futures = self._coalescer.publish(name, partition, chosen, level, batch_bytes_max=batch_bytes_max)
            except GeorelayError as error:
                for other, untried in places:  # not tried: refused with it, and counted like it
                    self._coalescer.note_refused(name, other, len(untried), error)
                if not waits:  # nothing is on its way: simply refused
                    raise
                refused.append(error)
                break
            start = 0
            parts = [chosen] if len(futures) == 1 else self._coalescer.split(chosen, batch_bytes_max)
            for future, part in zip(futures, parts, strict=True):
                waits.append((partition, indexes[start : start + len(part)], future))
                start += len(part)
        return _gather(len(records), waits, refused)

    def _by_partition(self, topic: TopicView, records: Sequence[tuple[NewRecord, int | None]]) -> dict[int, list[int]]:
        positions: dict[int, list[int]] = {}
        for index, (record, wanted) in enumerate(records):
            if wanted is not None and wanted >= topic.partitions:
                raise UnknownTopic(
                    f"records[{index}].partition: {topic.name!r} has partitions 0..{topic.partitions - 1}"
                )
            partition = wanted
            if partition is None:
                partition = self._partitioner.choose(topic.name, record.key, topic.partitions, record.size_bytes)
            positions.setdefault(partition, []).append(index)
        return positions


async def _ended(future: asyncio.Future[Published]) -> None:
    """Wait for the end of what goes on without us, whatever it is. For one future asyncio.wait costs thrice."""
    if future.done():
        return
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not end.done():
            end.set_result(None)

    future.add_done_callback(wake)
    await end


async def _gather(
    count: int,
    waits: Sequence[tuple[int, Sequence[int], asyncio.Future[Published]]],
    refused: list[GeorelayError],
) -> list[RecordPlace]:
    """Wait for every chunk; cancellation of the caller does not cancel what is on its way."""
    places: list[RecordPlace | None] = [None] * count
    stored = 0
    for _, _, future in waits:
        await _ended(future)
    for partition, indexes, future in waits:
        error = future.exception()
        if isinstance(error, GeorelayError):
            refused.append(error)
        elif error is not None:
            raise error
        else:
            published = future.result()
            stored += len(indexes)
            for step, index in enumerate(indexes):
                places[index] = RecordPlace(
                    partition,
                    published.base_offset + step,
                    published.epoch,
                    published.append_us,
                    published.level,
                    published.is_pending,
                    published.regions,
                    published.is_isolated,
                )
    if not refused:
        return [place for place in places if place is not None]
    if stored:
        raise OutcomeUnknown(f"{stored} of {count} records are stored, the others failed: {refused[0]}")
    raise next((error for error in refused if error.outcome is Outcome.UNKNOWN), refused[0])
