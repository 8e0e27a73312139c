"""The replicated state of all queues of one coordinator. Pure.

Rule 1: it is a function of the commands: replicas that applied the same ones have equal snapshots, byte for byte.
Rule 2: a home epoch of the coordinator's stream is followed on every replica at its EPOCH entry, without a command.
Rule 3: a command that names the home epoch of a partition says nothing about records of another one: it was on its way
        when that began, and the records that it means may have lost their offsets to others.
Rule 4: a command for a queue that is not there has no effect: it was deleted while the command was on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Final, TypeAlias

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from mesh.home.home_row import EPOCH_MAX
from region.coordination.shares_core import NOBODY, Shares
from region.queues.commands_core import (
    ANY_EPOCH,
    Acknowledge,
    AlterQueue,
    BeginEpoch,
    Bury,
    Condemn,
    CreateQueue,
    DeleteQueue,
    Deliver,
    Drop,
    Extend,
    GiveBack,
    NameProducer,
    PassOver,
    QueueCommand,
    read_principal,
)
from region.queues.definition import QueueDefinition
from region.queues.limits import (
    CONSUMER_CHARS_MAX,
    QUEUES_PER_COORDINATOR_MAX,
    REASON_CHARS_MAX,
    ROWS_PER_COORDINATOR_MAX,
)
from region.queues.offset_ranges_core import OffsetRanges
from region.queues.queue_core import FIRST_EPOCH, Claim, Counts, Place, Progress, QueueState, RecordState, Row
from region.routing.copies_core import ROWS_MAX, CopyBook

VERSION: Final = 1
SNAPSHOT_BYTES_MAX: Final = 64 * 1024 * 1024
_ROW_WIDTH: Final = 7
_KEPT: Final = frozenset({RecordState.WAITING, RecordState.LEASED, RecordState.CONDEMNED})

Result: TypeAlias = list[int] | list[bool] | int | bool
ClaimsChange: TypeAlias = Acknowledge | GiveBack | Extend | Condemn | Drop
QueueChange: TypeAlias = AlterQueue | DeleteQueue | Deliver | Bury | ClaimsChange | PassOver | BeginEpoch | NameProducer
Generation: TypeAlias = tuple[int, int]  # home epoch of the coordinator, and that of the partition that was followed


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a command did.

    Args:
        result: of each row in the order of the command, or a number; see QueueState.
        places: records that may have changed. passed: the partition that may have changed as a whole, -1: none did.
        generations: of each row that was leased.
    """

    queue: str
    result: Result
    places: tuple[Place, ...] = ()
    passed: int = -1
    generations: tuple[Generation, ...] = ()


class QueuesState:
    """Queues by name."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueState] = {}
        self.epoch = FIRST_EPOCH  # home epoch of the coordinator's stream
        self.copies = CopyBook()  # of bindings whose names hash to this coordinator

    def __iter__(self) -> Iterator[QueueState]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def queue_shares(self) -> Shares:
        """Return whose are how many queues."""
        shares = Shares(QUEUES_PER_COORDINATOR_MAX)
        for queue in self._queues.values():
            shares.add(queue.principal, 1)
        return shares

    def row_shares(self) -> Shares:
        """Return whose queues have how many rows."""
        shares = Shares(ROWS_PER_COORDINATOR_MAX)
        for queue in self._queues.values():
            shares.add(queue.principal, queue.row_count)
        return shares

    def find(self, name: str) -> QueueState | None:
        """Return a queue."""
        return self._queues.get(name)

    def apply(self, command: QueueCommand, *, append_us: int) -> Applied:
        """Follow one committed command."""
        name = command.queue
        queue = self._queues.get(name)
        if isinstance(command, CreateQueue):
            if queue is None:
                self._queues[name] = QueueState(
                    command.definition,
                    made_us=append_us,
                    positions=command.positions,
                    epochs=command.epochs,
                    principal=command.principal,
                )
            return Applied(queue=name, result=queue is None)
        if queue is None:
            return Applied(queue=name, result=_nothing(command))
        return _change(self, queue, command)

    def fence(self, epoch: int) -> None:
        """Begin a home epoch of the coordinator: leases of earlier ones are over."""
        self.epoch = epoch
        for queue in self._queues.values():
            queue.fence()

    def generation(self, queue: QueueState, partition: int) -> Generation:
        """Return what leases of a partition are given in now."""
        return self.epoch, queue.epoch(partition)

    def remove(self, name: str) -> None:
        """Forget a queue."""
        del self._queues[name]

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the state."""
        queues = [_queue_json(self._queues[name]) for name in sorted(self._queues)]
        copies: JsonObject = {"copies": self.copies.to_json()} if len(self.copies) else {}
        epoch: JsonObject = {"epoch": self.epoch} if self.epoch > FIRST_EPOCH else {}
        return dump_object({"version": VERSION, "queues": list[object](queues), **copies, **epoch})

    def restore(self, raw: bytes) -> None:
        """Replace the state by what `snapshot` returned; b"" is empty. Raises ValueError."""
        queues, copies, self.epoch = ([], [], FIRST_EPOCH) if not raw else _read_queues(raw)
        self.copies.restore(copies)
        self._queues = {queue.definition.name: queue for queue in queues}


def _nothing(command: QueueChange) -> Result:
    match command:
        case Deliver():
            return [0] * len(command.places)
        case Bury():
            return [False] * len(command.places)
        case Acknowledge() | GiveBack() | Extend() | Condemn() | Drop():
            return [False] * len(command.claims)
        case _:
            return 0


def _change(state: QueuesState, queue: QueueState, command: QueueChange) -> Applied:
    name = command.queue
    match command:
        case AlterQueue():
            queue.definition = command.definition
            return Applied(queue=name, result=True)
        case DeleteQueue():
            state.remove(name)
            return Applied(queue=name, result=True)
        case Deliver():
            counts = queue.deliver(command.consumer, command.until_us, command.places)
            generations = tuple(state.generation(queue, place.partition) for place in command.places)
            return Applied(queue=name, result=counts, places=command.places, generations=generations)
        case Bury():
            return Applied(queue=name, result=queue.bury(command.places), places=command.places)
        case Acknowledge() | GiveBack() | Extend() | Condemn() | Drop():
            places = tuple(claim.place for claim in command.claims)
            return Applied(queue=name, result=_change_claims(queue, command), places=places)
        case PassOver():
            is_of_now = command.epoch in (ANY_EPOCH, queue.epoch(command.partition))
            passed = queue.pass_over(command.partition, command.ranges, command.why) if is_of_now else 0
            return Applied(queue=name, result=passed, passed=command.partition)
        case BeginEpoch():
            forgotten = queue.begin_epoch(command.partition, command.epoch, command.start)
            return Applied(queue=name, result=forgotten, passed=command.partition)
        case NameProducer():
            queue.name_producer(command.producer_id)
            return Applied(queue=name, result=True)


def _change_claims(queue: QueueState, command: ClaimsChange) -> list[bool]:
    match command:
        case Acknowledge():
            return queue.acknowledge(command.claims)
        case GiveBack():
            return queue.give_back(command.due_us, command.claims)
        case Extend():
            return queue.extend(command.until_us, command.claims)
        case Condemn():
            return _of_now(queue, command, partial(queue.condemn, command.reason))
        case Drop():
            return _of_now(queue, command, queue.drop)


def _of_now(queue: QueueState, command: Condemn | Drop, change: Callable[[Iterable[Claim]], list[bool]]) -> list[bool]:
    """Change what is meant; return of each claim whether it was."""
    is_meant = [command.epoch in (ANY_EPOCH, queue.epoch(claim.partition)) for claim in command.claims]
    done = iter(change([claim for claim, is_one in zip(command.claims, is_meant, strict=True) if is_one]))
    return [is_one and next(done) for is_one in is_meant]


def _queue_json(queue: QueueState) -> JsonObject:
    consumers = sorted({row.consumer for _, row in queue.rows()})
    reasons = sorted({row.reason for _, row in queue.rows()})
    consumer_at = {consumer: at for at, consumer in enumerate(consumers)}
    reason_at = {reason: at for at, reason in enumerate(reasons)}
    partitions: list[object] = []
    for partition in sorted(queue.partitions):
        progress = queue.partitions[partition]
        rows = [
            number
            for offset, row in sorted(progress.rows.items())
            for number in (
                offset,
                int(row.state),
                row.deliveries,
                row.due_us,
                consumer_at[row.consumer],
                row.number + 1,
                reason_at[row.reason],
            )
        ]
        done = [number for pair in progress.done for number in pair]
        epochs = {"epoch": progress.epoch, "cut": progress.cut}
        begun = {name: epoch for name, epoch in epochs.items() if epoch > FIRST_EPOCH}
        partitions.append({"partition": partition, "cursor": progress.cursor, "done": done, "rows": rows, **begun})
    return {
        "definition": queue.definition.stored(),
        "made_us": queue.made_us,
        "counts": {field.name: getattr(queue.counts, field.name) for field in fields(Counts)},
        "next_letter": queue.next_letter,
        "producer_id": queue.producer_id,
        "consumers": list[object](consumers),
        "reasons": list[object](reasons),
        "partitions": partitions,
        **({} if queue.principal == NOBODY else {"principal": queue.principal}),
    }


def _read_queues(raw: bytes) -> tuple[list[QueueState], list[object], int]:
    fields_ = Fields(parse_object(raw, bytes_max=SNAPSHOT_BYTES_MAX), "snapshot")
    fields_.integer("version", low=VERSION, high=VERSION)
    queues = [_read_queue(item) for item in fields_.items("queues", count_max=QUEUES_PER_COORDINATOR_MAX)]
    copies = fields_.items("copies", count_max=2 * ROWS_MAX) if fields_.has("copies") else []
    epoch = _epoch(fields_, "epoch")
    fields_.done()
    if len({queue.definition.name for queue in queues}) != len(queues):
        raise FieldError("a queue stands there twice")
    return queues, copies, epoch


def _epoch(fields_: Fields, name: str) -> int:
    return fields_.integer(name, low=FIRST_EPOCH + 1, high=EPOCH_MAX) if fields_.has(name) else FIRST_EPOCH


def _read_queue(item: object) -> QueueState:
    read = Fields(item, "queue")
    definition = QueueDefinition.from_stored(read.value("definition"))
    made_us, principal = read.integer("made_us", low=0, high=INT64_MAX), read_principal(read)
    queue = QueueState(definition, made_us=made_us, principal=principal)
    counts = read.child("counts")
    queue.counts = Counts(**{field.name: counts.integer(field.name, low=0, high=INT64_MAX) for field in fields(Counts)})
    counts.done()
    queue.next_letter = read.integer("next_letter", low=0, high=INT64_MAX)
    queue.producer_id = read.integer("producer_id", low=-1, high=INT64_MAX)
    consumers = _texts(read.items("consumers", count_max=INT64_MAX), CONSUMER_CHARS_MAX)
    reasons = _texts(read.items("reasons", count_max=INT64_MAX), REASON_CHARS_MAX + 20)
    letters: list[tuple[int, Place]] = []
    for value in read.items("partitions", count_max=PARTITIONS_PER_TOPIC_MAX):
        partition, progress = _read_progress(value, consumers, reasons)
        queue.partitions[partition] = progress
        queue.row_count += len(progress.rows)
        letters += [(row.number, Place(partition, at)) for at, row in progress.rows.items() if row.number >= 0]
    read.done()
    queue.letters = dict(sorted(letters))
    return queue


def _texts(items: Iterable[object], chars_max: int) -> list[str]:
    found = list(items)
    texts = [item for item in found if isinstance(item, str) and len(item) <= chars_max]
    if len(texts) != len(found):
        raise FieldError("a list of texts holds something else")
    return texts


def _read_progress(value: object, consumers: list[str], reasons: list[str]) -> tuple[int, Progress]:
    read = Fields(value, "partition")
    partition = read.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1)
    cursor = read.integer("cursor", low=0, high=INT64_MAX)
    done = read.integers("done", count_max=INT64_MAX, low=0, high=INT64_MAX)
    numbers = read.integers("rows", count_max=INT64_MAX, low=0, high=INT64_MAX)
    epoch, cut = _epoch(read, "epoch"), _epoch(read, "cut")
    read.done()
    if len(done) % 2 or len(numbers) % _ROW_WIDTH:
        raise FieldError("rows or ranges are cut off")
    rows = {}
    for at in range(0, len(numbers), _ROW_WIDTH):
        offset, state, deliveries, due_us, consumer, number, reason = numbers[at : at + _ROW_WIDTH]
        if state not in _KEPT or consumer >= len(consumers) or reason >= len(reasons) or offset < cursor:
            raise FieldError(f"row of offset {offset} cannot be")
        rows[offset] = Row(RecordState(state), deliveries, due_us, consumers[consumer], number - 1, reasons[reason])
    ranges = OffsetRanges(zip(done[::2], done[1::2], strict=True))
    return partition, Progress(cursor=cursor, epoch=epoch, cut=cut, done=ranges, rows=rows)
