"""Commands that are answered once: CRTP, PUBS, CONS, RESOLVE.

Rule 1: access is checked before anything is looked up, so that a refusal does not tell what exists.
Rule 2: who asks for a level is told the outcome by name: STORED, PENDING (stored, in fewer regions so far), NOT_STORED
        or UNKNOWN. Only STORED is an OK: who looks at nothing else must not take less for the level that was asked for.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.durability import Durability
from georelay.errors import (
    BadRequest,
    CorruptRecordBatch,
    DurabilityPending,
    GeorelayError,
    OffsetOutOfRange,
    OutcomeUnknown,
    UnknownTopic,
)
from georelay.wire.batch import RecordDraft
from mesh.listening.line_session_core import Say, ok, refusal
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.api.coalescer import NewRecord
from region.api.publishing import Asker, RecordPlace
from region.api.unfolding import Unreadable, readable_chunks
from region.controller.topic import TopicSpec, TopicView
from region.kafka.patience import within
from region.kafka.ports import EntryLike
from region.kafka.services import plain_name
from region.security.access import Access, Operation, Principal, Resource
from region.text.commands_core import CreateTopic, Publish, Read, Resolve
from region.text.record_core import body_text, parse_body
from region.text.services import TextServices

DECIDE_MS_MAX: Final = 30_000  # for a definition, or a commit at the home


class Answers:
    """Answers commands of any connection with what follows the OK."""

    def __init__(self, services: TextServices) -> None:
        self._services = services

    async def create(self, principal: Principal, command: CreateTopic) -> str:
        """Create a topic; "topic partitions", and the replication factor where one was asked for."""
        _check_create(self._services.access, principal, command.topic)
        spec = TopicSpec(name=command.topic, partitions=command.partitions, replication_factor=command.replication)
        with self._services.access.noted(principal, "topic.created", topic=command.topic):
            by = self._services.access.share_of(principal)
            view = await within(DECIDE_MS_MAX, self._services.cluster.create_topic(spec, by=by))
        return f"{view.name} {view.partitions}" + (f" {view.replication_factor}" if command.replication > 0 else "")

    async def read(self, principal: Principal, command: Read) -> tuple[list[str], str]:
        """Return the record at an offset as a REC line, and "partition next"; a batch is unfolded for it.

        Raises:
            OffsetOutOfRange: readers see no record there, or none yet. BadRequest: which partition? Others as reading.
        """
        services = self._services
        services.access.check(principal, Operation.READ, Resource.TOPIC, command.topic)
        view = self._known(command.topic)
        partition = command.partition
        if partition < 0:
            if view.partitions != 1:
                raise BadRequest(
                    f"topic {view.name!r} has {view.partitions} partitions: CONS {view.name} 0 {command.offset}"
                )
            partition = 0
        answer = await services.reader.read(view.name, partition, command.offset, max_bytes=1, wait_ms=0)
        if command.offset < answer.log_start:
            raise OffsetOutOfRange(f"offset {command.offset} is below the log start {answer.log_start}")
        for entry in answer.entries:
            async for chunk in readable_chunks(entry, f"{view.name}/{partition}"):
                if isinstance(chunk, Unreadable):
                    if chunk.first <= command.offset < chunk.following:
                        text = f"offset {command.offset} cannot be read ({chunk.why})"
                        raise CorruptRecordBatch(f"{text}: ask for {chunk.following}")
                    continue
                for record in chunk:
                    if record.offset == command.offset:
                        line = f"REC {view.name} {partition} {record.offset} {body_text(record)}"
                        self._note_read(view, partition, entry, record.offset)
                        await pause(services.quotas.fetch(principal, len(line)))
                        return [line], f"{partition} {record.offset + 1}"
        if command.offset >= answer.end:
            raise OffsetOutOfRange(f"there is no record at {command.offset} yet: the next one will be {answer.end}")
        raise OffsetOutOfRange(f"no record is shown at offset {command.offset}: ask for {command.offset + 1}")

    def _note_read(self, view: TopicView, partition: int, entry: EntryLike, offset: int) -> None:
        """Count the delivery of one record."""
        header = entry.header()
        session = self._services.recorder.open_session(
            topic=plain_name(view), origin=view.origin, partition=partition, offset=offset
        )
        session.delivered(
            epoch=header.epoch,
            base_offset=offset,
            record_count=1,
            entry_region=header.entry_region,
            received_ns=header.received_ns,
            delivered_ns=self._services.wall_ns(),
            size_bytes=len(entry.payload),
        )

    async def publish(self, principal: Principal, command: Publish) -> Say:
        """Publish one record; the whole answer, once it is committed at its home, is at its level, or its time is over.

        "partition offset", and where a level was asked for the outcome, the level reached, the regions that have it and
        the epoch.
        """
        level = command.level
        try:
            place = await self._publish(principal, command, REGION_LEVEL if level is None else level)
            if level is not None and place.is_pending:
                raise DurabilityPending(
                    f"{self._reached(place)}: {level.durability} was not reached within {level.deadline_ms} ms; "
                    "do not send it again"
                )
        except GeorelayError as error:
            return refusal(error, names_outcome=level is not None)
        if level is not None:
            return ok(self._reached(place, "STORED"))
        return ok(f"{place.partition} {place.offset}{_warning(place)}")

    def _reached(self, place: RecordPlace, *outcome: str) -> str:
        regions = ",".join(self._services.region_name(region) for region in place.regions)
        words = (place.partition, place.offset, *outcome, Durability(place.level), *([regions] if regions else ()))
        return f"{' '.join(map(str, words))} epoch {place.epoch}{_warning(place)}"

    async def _publish(self, principal: Principal, command: Publish, level: AskedLevel) -> RecordPlace:
        services = self._services
        services.access.check(principal, Operation.WRITE, Resource.TOPIC, command.topic)
        await pause(services.quotas.produce(principal, len(command.body)))
        if services.cluster.topic(command.topic) is None:
            _check_create(services.access, principal, command.topic)
        draft: RecordDraft = parse_body(command.body)
        record = NewRecord(value=draft.value, key=draft.key, headers=tuple(draft.headers))
        published = services.publisher.publish(
            command.topic, [(record, None)], level, asker=Asker(access=services.access, principal=principal)
        )
        wait_ms = DECIDE_MS_MAX + (level.deadline_ms if level.may_wait else 0)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                (place,) = await published
        except TimeoutError:
            raise OutcomeUnknown(f"no answer in {wait_ms // 1000} s: it may be stored, or be stored later") from None
        return place

    def resolve(self, principal: Principal, command: Resolve) -> tuple[list[str], str]:
        """Show the brokers of the region, or the leaders of one topic."""
        if not command.topic:
            return self._brokers()
        self._services.access.check(principal, Operation.DESCRIBE, Resource.TOPIC, command.topic)
        return self._leaders(self._known(command.topic))

    def _known(self, name: str) -> TopicView:
        view = self._services.cluster.topic(name)
        if view is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return view

    def _brokers(self) -> tuple[list[str], str]:
        cluster = self._services.cluster
        rows = [
            f"* broker {row.id} {'up' if row.alive else 'down'} kafka {row.kafka_host}:{row.kafka_port}"
            + (f" grpc {row.grpc}" if row.grpc else "")
            + (f" http {row.admin}" if row.admin else "")
            for row in cluster.brokers()
        ]
        return rows, f"region {cluster.region} brokers {len(rows)}"

    def _leaders(self, view: TopicView) -> tuple[list[str], str]:
        cluster = self._services.cluster
        rows = [
            f"* partition {number} leader {cluster.leader_of(view.name, number)} "
            f"replicas {','.join(map(str, cluster.replicas_of(view.name, number)))} "
            f"home {self._services.region_name(cluster.home_of(view.name, number))}"
            for number in range(view.partitions)
        ]
        homes = sorted({cluster.home_of(view.name, number) for number in range(view.partitions)})
        return (
            rows,
            f"topic {view.name} partitions {view.partitions} home {','.join(map(self._services.region_name, homes))}",
        )


def _warning(place: RecordPlace) -> str:
    """Return a word where a forced move of the home may leave the record in an orphan branch."""
    return " isolated" if place.is_isolated else ""


async def pause(throttle_ms: int) -> None:
    """Let a principal wait that is over its quota."""
    if throttle_ms > 0:
        await asyncio.sleep(throttle_ms / 1000)


def _check_create(access: Access, principal: Principal, topic: str) -> None:
    """As Apache Kafka: who may create on the cluster may create every topic."""
    if not access.allows(principal, Operation.CREATE, Resource.CLUSTER):
        access.check(principal, Operation.CREATE, Resource.TOPIC, topic)
