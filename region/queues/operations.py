"""The operations of queues as JSON: what Coordinators.call(Part.QUEUES, queue, operation, body) brings and answers.

Every body names its queue ("queue"), because a part is not told the key that led to it; only `list` asks for all.
Whoever calls has checked what its client may do. Bytes are base64 text.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from georelay.errors import BadRequest, Busy, PolicyViolation, QueueExists, TopicExists, UnknownTopic
from georelay.fields import FieldError, Fields
from region.controller.topic import TopicSpec
from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.coordination.part import JsonObject
from region.coordination.shares_core import NOBODY, Room
from region.queues.commands_core import (
    Acknowledge,
    AlterQueue,
    Condemn,
    CreateQueue,
    DeleteQueue,
    Extend,
    GiveBack,
    QueueCommand,
)
from region.queues.contents import EARLIEST, end_of
from region.queues.definition import QueueDefinition, Start, altered, read_definition, read_name
from region.queues.epochs_core import newest_epoch
from region.queues.index_core import Phase
from region.queues.leases import Lease, lease_text, read_lease
from region.queues.limits import (
    CONSUMER_CHARS_MAX,
    DELAY_MS_MAX,
    LEASES_PER_REQUEST_MAX,
    QUEUES_PER_COORDINATOR_MAX,
    REASON_CHARS_MAX,
    RECEIVE_RECORDS_MAX,
    RECEIVE_WAIT_MS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
    VISIBILITY_TIMEOUT_MS_MAX,
    VISIBILITY_TIMEOUT_MS_MIN,
)
from region.queues.live_queue import SESSION_TIMEOUT_MS_DEFAULT, Delivered, LiveQueue
from region.queues.local_names import local_view
from region.queues.queue_core import FIRST_EPOCH, Claim, Passed

if TYPE_CHECKING:
    from region.queues.part import QueuesPart

OK: Final = "OK"
LEASE_EXPIRED: Final = "LEASE_EXPIRED"
MOVED: Final = "the lease is of before the queue's home moved: its record is, or will be, delivered again"
RECORD_LOST: Final = "the lease is of a record that was lost with the home of the topic: another one has its offset"
EARLIER_QUEUE: Final = "the lease is of an earlier queue of this name"
REQUEUE: Final = "requeue"
DEAD_LETTER: Final = "dead_letter"


class Operations:
    """Answers calls at the leader."""

    def __init__(self, part: QueuesPart) -> None:
        self._part = part
        self._table: Mapping[str, Callable[[str, Fields], Awaitable[JsonObject]]] = {
            "alter": self._alter,
            "delete": self._delete,
            "describe": self._describe,
            "receive": self._receive,
            "acknowledge": self._acknowledge,
            "reject": self._reject,
            "extend": self._extend,
            "release": self._release,
            "purge": self._purge,
        }

    async def answer(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        """Answer one operation (BadRequest: unknown, or a body that is not its)."""
        try:
            fields = Fields(body, operation[:32])
            if operation == "list":
                fields.done()
                return {"queues": [_listed(queue) for queue in self._part.queues()]}
            if operation == "create":
                return await self._create(read_name(fields), fields, principal)
            handle = self._table.get(operation)
            if handle is None:
                raise BadRequest(f"operation {operation[:32]!r} of queues is unknown")
            return await handle(read_name(fields), fields)
        except FieldError as error:
            raise BadRequest(str(error)) from error

    # --- definitions ------------------------------------------------------------------------------

    async def _create(self, name: str, fields: Fields, principal: str) -> JsonObject:
        wanted = read_definition(name, fields)
        fields.done()
        known = self._part.find(name)
        if known is not None:
            return _same(known.state.definition, wanted)
        owner = principal if self._part.log.is_understood(PRINCIPALS_LEVEL) else NOBODY
        self._check_room(name, owner)
        self._part.making.append(owner)
        try:
            return await self._make(name, wanted, owner)
        finally:
            self._part.making.remove(owner)

    def _check_room(self, name: str, principal: str) -> None:
        room = self._part.queue_shares().look(principal, 1)
        if room is Room.FREE:
            return
        self._part.counters.room_refusals += 1
        if room is Room.FULL:
            raise Busy(f"the coordinator of queue {name} keeps {QUEUES_PER_COORDINATOR_MAX} queues, its maximum")
        raise PolicyViolation(
            f"the share of {principal} of the coordinator of queue {name} is full: delete queues that nobody needs"
        )

    async def _make(self, name: str, wanted: QueueDefinition, principal: str) -> JsonObject:
        view = local_view(self._part.cluster, wanted.topic, origin=self._part.log.origin)
        if view is None:
            raise UnknownTopic(f"topic {wanted.topic!r} does not exist")
        if view.internal:
            raise PolicyViolation(f"topic {wanted.topic!r} is for brokers only")
        await self._make_letters_topic(wanted.dead_letter_topic)
        begins = [await self._begin(wanted.start, view.name, partition) for partition in range(view.partitions)]
        epochs = tuple(epoch for _, epoch in begins)
        command = CreateQueue(
            definition=replace(wanted, topic_id=view.topic_id),
            positions=tuple(position for position, _ in begins),
            epochs=epochs if max(epochs) > FIRST_EPOCH else (),
            principal=principal,
        )
        definition = command.definition
        applied = await self._part.propose(command)
        if not applied.result:  # somebody else made it in the meantime
            return _same(self._part.live(name).state.definition, wanted)
        return definition.to_json()

    async def _begin(self, start: Start, topic: str, partition: int) -> tuple[int, int]:
        """Return where a partition begins, and in which of its home epochs that was said."""
        if start is Start.LATEST:
            return await self._end(topic, partition)
        table = self._part.cluster.epoch_table(topic, partition)
        answer = await self._part.cluster.read_records(topic, partition, EARLIEST, 1, 0)
        return answer.log_start, newest_epoch(table)

    async def _end(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the end of a partition, and the home epoch that is meant."""
        table = self._part.cluster.epoch_table(topic, partition)
        return await end_of(self._part.cluster, topic, partition, table), newest_epoch(table)

    async def _make_letters_topic(self, name: str) -> None:
        """Make the dead-letter topic where it is unknown."""
        if not name:
            return
        view = self._part.cluster.topic(name)
        if view is None:
            try:
                view = await self._part.cluster.create_topic(TopicSpec(name=name))
            except TopicExists:
                return  # made in the meantime
        if view.is_mirror_name or view.internal:
            raise PolicyViolation(
                f"{name!r} cannot be a dead-letter topic: it is not written by clients of this region"
            )

    async def _alter(self, name: str, fields: Fields) -> JsonObject:
        settings = fields.child("settings")
        fields.done()
        queue = self._part.live(name)
        changed = altered(queue.state.definition, settings)
        if changed.dead_letter_topic != queue.state.definition.dead_letter_topic:
            await self._make_letters_topic(changed.dead_letter_topic)
        await self._part.propose(AlterQueue(definition=changed))
        return changed.to_json()

    async def _delete(self, name: str, fields: Fields) -> JsonObject:
        fields.done()
        self._part.live(name)
        await self._part.propose(DeleteQueue(queue=name), shrinks=True)
        return {}

    async def _describe(self, name: str, fields: Fields) -> JsonObject:
        fields.done()
        return described(self._part.live(name), self._part.log.now_us())

    async def _purge(self, name: str, fields: Fields) -> JsonObject:
        fields.done()
        queue = self._part.live(name)
        view = queue.view()
        purged = 0
        for partition in range(view.partitions):
            epoch = -1
            while epoch != queue.state.epoch(partition):  # another one that begins meanwhile is purged too
                begun = queue.begun(partition)
                if begun is not None:
                    await queue.begin_epoch(partition, *begun)
                end, epoch = await self._end(view.name, partition)
                cursor = queue.state.cursor(partition)
                if end > cursor:
                    purged += await queue.pass_over(partition, [(cursor, end)], Passed.PURGE, epoch=epoch)
        return {"purged": purged}

    # --- consuming --------------------------------------------------------------------------------

    async def _receive(self, name: str, fields: Fields) -> JsonObject:
        consumer = fields.text("consumer", chars_min=1, chars_max=CONSUMER_CHARS_MAX)
        count = _number(fields, "max", 1, low=1, high=RECEIVE_RECORDS_MAX)
        wait_ms = _number(fields, "wait_ms", 0, low=0, high=RECEIVE_WAIT_MS_MAX)
        session_ms = _number(
            fields,
            "session_timeout_ms",
            SESSION_TIMEOUT_MS_DEFAULT,
            low=SESSION_TIMEOUT_MS_MIN,
            high=SESSION_TIMEOUT_MS_MAX,
        )
        fields.done()
        queue = self._part.live(name)
        self._check_topic(queue.state.definition)
        if not self._part.texts.take(queue.state, consumer):
            self._part.counters.room_refusals += 1
            raise Busy(
                f"consumers with too many, or too long, names have records of the queues beside {name}: acknowledge or "
                "give back what they hold, and use names again"
            )
        rows = await queue.receive(consumer, count, wait_s=wait_ms / 1000, session_timeout_ms=session_ms)
        return {
            "records": [_record_json(queue, row) for row in rows],
            "visibility_timeout_ms": queue.state.definition.visibility_timeout_ms,
        }

    def _check_topic(self, definition: QueueDefinition) -> None:
        """Refuse to wait for records of a topic that is not there any more."""
        view = local_view(self._part.cluster, definition.topic, origin=self._part.log.origin)
        if view is None or view.topic_id != definition.topic_id:
            text = f"the topic {definition.topic!r} of queue {definition.name} was deleted"
            raise UnknownTopic(f"{text}: delete the queue, or create it again for the new topic")

    async def _acknowledge(self, name: str, fields: Fields) -> JsonObject:
        queue, leases = self._leases(name, fields)
        fields.done()
        answer = await self._settle(queue, leases, lambda claims: Acknowledge(queue=name, claims=claims))
        self._part.counters.acknowledged += sum(row["code"] == OK for row in answer["results"])
        return answer

    async def _reject(self, name: str, fields: Fields) -> JsonObject:
        queue, leases = self._leases(name, fields)
        then = fields.text("then", chars_max=20) if fields.has("then") else REQUEUE
        delay_ms = _number(fields, "delay_ms", 0, low=0, high=DELAY_MS_MAX)
        reason = fields.text("reason", chars_max=REASON_CHARS_MAX) if fields.has("reason") else ""
        fields.done()
        if then not in (REQUEUE, DEAD_LETTER):
            raise BadRequest(f"then {then!r} is neither {REQUEUE} nor {DEAD_LETTER}")
        if then == DEAD_LETTER and not queue.state.definition.dead_letter_topic:
            raise BadRequest(f"queue {name} has no dead_letter_topic")
        due_us = self._part.log.now_us() + delay_ms * 1000
        why = f"rejected: {reason}" if reason else "rejected"
        if then == DEAD_LETTER and not self._part.texts.take(queue.state, why):
            why = "rejected"  # there is no room for so many reasons

        def command(claims: tuple[Claim, ...]) -> QueueCommand:
            if then == REQUEUE:
                return GiveBack(queue=name, due_us=due_us, claims=claims)
            return Condemn(queue=name, reason=why, claims=claims)

        answer = await self._settle(queue, leases, command)
        self._part.counters.rejected += sum(row["code"] == OK for row in answer["results"])
        return answer

    async def _extend(self, name: str, fields: Fields) -> JsonObject:
        queue, leases = self._leases(name, fields)
        timeout_ms = _number(
            fields,
            "visibility_timeout_ms",
            queue.state.definition.visibility_timeout_ms,
            low=VISIBILITY_TIMEOUT_MS_MIN,
            high=VISIBILITY_TIMEOUT_MS_MAX,
        )
        fields.done()
        until_us = self._part.log.now_us() + timeout_ms * 1000
        answer = await self._settle(queue, leases, lambda claims: Extend(queue=name, until_us=until_us, claims=claims))
        return {**answer, "leased_until_ms": until_us // 1000}

    async def _release(self, name: str, fields: Fields) -> JsonObject:
        is_all = not fields.has("leases")
        consumer = fields.text("consumer", chars_max=CONSUMER_CHARS_MAX) if is_all else ""
        if is_all:
            fields.done()
            queue = self._part.live(name)
            held = queue.claims_of(consumer)
            queue.sessions.end(consumer)
            await queue.give_back(held, due_us=self._part.log.now_us())
            return {"released": len(held)}
        queue, leases = self._leases(name, fields)
        fields.done()
        due_us = self._part.log.now_us()
        return await self._settle(queue, leases, lambda claims: GiveBack(queue=name, due_us=due_us, claims=claims))

    def _leases(self, name: str, fields: Fields) -> tuple[LiveQueue, list[tuple[str, Lease]]]:
        """Take consumer and leases; the consumer was heard of."""
        queue = self._part.live(name)
        if fields.has("consumer"):
            consumer = fields.text("consumer", chars_max=CONSUMER_CHARS_MAX)
            queue.sessions.heard(consumer, self._part.log.monotonic_ns())
        leases = fields.items("leases", count_max=LEASES_PER_REQUEST_MAX)
        return queue, [(str(lease), read_lease(lease)) for lease in leases]

    async def _settle(
        self,
        queue: LiveQueue,
        leases: Sequence[tuple[str, Lease]],
        command: Callable[[tuple[Claim, ...]], QueueCommand],
    ) -> JsonObject:
        """Have leases changed; say of each whether it was still held. Leases of another generation change nothing."""
        refused = [self._fault(queue, lease) for _, lease in leases]
        claims = tuple(lease.claim for (_, lease), fault in zip(leases, refused, strict=True) if not fault)
        held: list[int] | list[bool] = []
        if claims:
            applied = await queue.propose(command(claims), shrinks=True)
            assert isinstance(applied.result, list)
            held = applied.result
        results = iter(held)
        rows: list[JsonObject] = []
        for (text, _), fault in zip(leases, refused, strict=True):
            code = OK if not fault and next(results) else LEASE_EXPIRED
            rows.append({"lease": text, "code": code, **({"reason": fault} if fault else {})})
        self._part.counters.leases_refused += sum(row["code"] == LEASE_EXPIRED for row in rows)
        return {"results": rows}

    def _fault(self, queue: LiveQueue, lease: Lease) -> str:
        """Return why a lease means nothing in this queue any more, "" for one that may be held."""
        if lease.made_us != queue.state.made_us:
            return EARLIER_QUEUE
        home_epoch, given_in = lease.generation
        if home_epoch != self._part.home_epoch:
            return MOVED
        return RECORD_LOST if queue.is_lost(lease.claim.place, given_in) else ""


def _number(fields: Fields, name: str, default: int, *, low: int, high: int) -> int:
    return fields.integer(name, low=low, high=high) if fields.has(name) else default


def _same(known: QueueDefinition, wanted: QueueDefinition) -> JsonObject:
    """Return the queue that is there if it is what was wanted: the answer to a wish that came twice."""
    if replace(known, topic_id=wanted.topic_id) != wanted:
        raise QueueExists(f"queue {known.name!r} exists already, with another definition")
    return known.to_json()


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _record_json(queue: LiveQueue, row: Delivered) -> JsonObject:
    return {
        "lease": lease_text(Lease(queue.state.made_us, row.claim, row.generation)),
        "partition": row.claim.partition,
        "offset": row.claim.offset,
        "timestamp_ms": row.record.timestamp_ms,
        "key": _base64(row.record.key),
        "value": _base64(row.record.value),
        "headers": [[name, _base64(value)] for name, value in row.record.headers],
        "deliveries": row.claim.deliveries,
        "leased_until_ms": row.until_us // 1000,
    }


def _listed(queue: LiveQueue) -> JsonObject:
    return {**queue.state.definition.to_json(), **gauges(queue)}


def gauges(queue: LiveQueue) -> dict[str, int]:
    """Return how many records are in which state; `ready` counts those that were not read yet too."""
    index = queue.index
    unread = sum(max(0, end - read) for read, end in queue.ends.values())
    return {
        "ready": index.count(Phase.READY) + index.count(Phase.BLOCKED) + unread,
        "delayed": index.count(Phase.DELAYED),
        "leased": index.lease_count,
        "dead_lettering": len(queue.state.letters),
    }


def oldest_age_ms(queue: LiveQueue, now_us: int) -> int:
    """Return the age of the oldest record that is not done, 0 when there is none."""
    oldest_us = queue.index.oldest_append_us()
    return 0 if oldest_us is None else max(0, now_us - oldest_us) // 1000


def described(queue: LiveQueue, now_us: int) -> dict[str, Any]:
    """Return what a description says."""
    counts = queue.state.counts
    partitions = sorted({*queue.ends, *queue.state.partitions})
    consumers = {consumer: session.waits for consumer, session in queue.sessions}
    return {
        **_listed(queue),
        "acknowledged": counts.acknowledged,
        "redelivered": counts.redelivered,
        "dead_lettered": counts.dead_lettered,
        "expired": counts.expired,
        "purged": counts.purged,
        "skipped": counts.skipped,
        "oldest_age_ms": oldest_age_ms(queue, now_us),
        "partitions": [
            {
                "partition": partition,
                "cursor": queue.state.cursor(partition),
                "read": queue.ends.get(partition, (queue.state.cursor(partition), 0))[0],
                "open": queue.index.open_in(partition),
            }
            for partition in partitions
        ],
        "consumers": [
            {"consumer": consumer, "leases": len(queue.index.held_by(consumer)), "waits": consumers.get(consumer, 0)}
            for consumer in sorted({*consumers, *queue.index.holders()})
        ],
    }
