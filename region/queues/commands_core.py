"""The commands of queues as they stand in a coordinator's log: compact JSON objects. Pure.

Rule 1: a command says what the leader decided, times included; applying it reads no clock.
Rule 2: the bytes never change their meaning: a new kind of command gets a new word.
Rule 3: what came with a feature level is proposed only once the region is at it (`needed_level`).
"n" numbers the proposals of one leader, which finds its own again by it; it is no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from mesh.home.home_row import EPOCH_MAX
from region.coordination.coordinators import COORDINATION_LEVEL, MOVES_LEVEL, PRINCIPALS_LEVEL
from region.coordination.limits import COMMAND_BYTES_MAX
from region.coordination.part import CommandError
from region.coordination.shares_core import NOBODY, PRINCIPAL_CHARS_MAX
from region.queues.definition import QueueDefinition, read_name
from region.queues.limits import CONSUMER_CHARS_MAX, REASON_CHARS_MAX, ROWS_PER_COMMAND_MAX
from region.queues.queue_core import Claim, Passed, Place

ANY_EPOCH: Final = 0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateQueue:
    """`positions`: where each partition begins. `epochs`: the home epoch of each then; () for the first of all.

    `principal`: who makes it, NOBODY where a region is below PRINCIPALS_LEVEL.
    """

    definition: QueueDefinition
    positions: tuple[int, ...]
    epochs: tuple[int, ...] = ()
    principal: str = NOBODY

    @property
    def queue(self) -> str:
        """Return the name."""
        return self.definition.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQueue:
    """Replaces the definition of a queue."""

    definition: QueueDefinition

    @property
    def queue(self) -> str:
        """Return the name."""
        return self.definition.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteQueue:
    """Forgets a queue; its topic stays."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Leases records to a consumer."""

    queue: str
    consumer: str
    until_us: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Is done with leased records."""

    queue: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Ends leases; the records may be delivered again from `due_us` on."""

    queue: str
    due_us: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Lets leases last until another time."""

    queue: str
    until_us: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemn:
    """Sends records to the dead-letter topic; of partitions that are not in home epoch `epoch` any more, none."""

    queue: str
    reason: str
    claims: tuple[Claim, ...]
    epoch: int = ANY_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Is done with expired records that nobody wants; of partitions that are not in `epoch` any more, with none."""

    queue: str
    claims: tuple[Claim, ...]
    epoch: int = ANY_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Bury:
    """Is done with records that are in the dead-letter topic."""

    queue: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOver:
    """Is done with whatever is in ranges (first, following) of one partition's offsets, while it is in `epoch`."""

    queue: str
    partition: int
    ranges: tuple[tuple[int, int], ...]
    why: Passed
    epoch: int = ANY_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class NameProducer:
    """Gives a queue's dead letters a producer id."""

    queue: str
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpoch:
    """Forgets what is known of one partition's offsets from `start` on: in this home epoch they are other records."""

    queue: str
    partition: int
    epoch: int
    start: int


QueueCommand: TypeAlias = (
    CreateQueue
    | AlterQueue
    | DeleteQueue
    | Deliver
    | Acknowledge
    | GiveBack
    | Extend
    | Condemn
    | Drop
    | Bury
    | PassOver
    | NameProducer
    | BeginEpoch
)


def in_chunks(rows: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """Return rows in parts that one command each can hold."""
    rest = iter(rows)
    while chunk := tuple(islice(rest, ROWS_PER_COMMAND_MAX)):
        yield chunk


def needed_level(command: QueueCommand) -> int:
    """Return the feature level from which every broker of a region understands a command."""
    match command:
        case BeginEpoch():
            return MOVES_LEVEL
        case CreateQueue() if command.principal != NOBODY:
            return PRINCIPALS_LEVEL
        case CreateQueue() if command.epochs:
            return MOVES_LEVEL
        case PassOver() | Drop() | Condemn() if command.epoch != ANY_EPOCH:
            return MOVES_LEVEL
    return COORDINATION_LEVEL


def encode_command(command: QueueCommand, number: int) -> bytes:
    """Return the bytes of a command."""
    return dump_object({"n": number, **_to_json(command)})


def _to_json(command: QueueCommand) -> JsonObject:
    match command:
        case CreateQueue():
            epochs: JsonObject = {"epochs": list(command.epochs)} if command.epochs else {}
            positions = list[object](command.positions)
            principal: JsonObject = {"principal": command.principal} if command.principal != NOBODY else {}
            made: JsonObject = {"queue": command.definition.stored(), "positions": positions}
            return {"op": "create", **made, **epochs, **principal}
        case AlterQueue():
            return {"op": "alter", "queue": command.definition.stored()}
        case DeleteQueue():
            return {"op": "delete", "queue": command.queue}
        case Deliver():
            return {
                "op": "deliver",
                "queue": command.queue,
                "consumer": command.consumer,
                "us": command.until_us,
                "rows": _flat(command.places),
            }
        case Acknowledge():
            return {"op": "acknowledge", "queue": command.queue, "rows": _flat(command.claims)}
        case GiveBack():
            return {"op": "give_back", "queue": command.queue, "us": command.due_us, "rows": _flat(command.claims)}
        case Extend():
            return {"op": "extend", "queue": command.queue, "us": command.until_us, "rows": _flat(command.claims)}
        case Condemn():
            condemned: JsonObject = {"reason": command.reason, "rows": _flat(command.claims)}
            return {"op": "condemn", "queue": command.queue, **condemned, **_in_epoch(command.epoch)}
        case Drop():
            return {"op": "drop", "queue": command.queue, "rows": _flat(command.claims), **_in_epoch(command.epoch)}
        case Bury():
            return {"op": "bury", "queue": command.queue, "rows": _flat(command.places)}
        case PassOver():
            return {
                "op": "pass_over",
                "queue": command.queue,
                "partition": command.partition,
                "rows": _flat(command.ranges),
                "why": str(command.why),
                **_in_epoch(command.epoch),
            }
        case NameProducer():
            return {"op": "name_producer", "queue": command.queue, "producer_id": command.producer_id}
        case BeginEpoch():
            return {
                "op": "begin_epoch",
                "queue": command.queue,
                "partition": command.partition,
                "epoch": command.epoch,
                "start": command.start,
            }


def _in_epoch(epoch: int) -> JsonObject:
    return {} if epoch == ANY_EPOCH else {"epoch": epoch}


def _flat(rows: tuple[tuple[int, ...], ...]) -> list[object]:
    return [number for row in rows for number in row]


def decode_command(raw: bytes) -> tuple[QueueCommand, int]:
    """Return a command and its number.

    Raises:
        CommandError: not one.
    """
    try:
        fields = Fields(parse_object(raw, bytes_max=COMMAND_BYTES_MAX), "command")
        number = fields.integer("n", low=0, high=INT64_MAX)
        command = _read(fields)
        fields.done()
    except FieldError as error:
        raise CommandError(str(error)) from error
    return command, number


def _read(fields: Fields) -> QueueCommand:
    op = fields.text("op", chars_max=20)
    if op == "create":
        positions = fields.integers("positions", count_max=PARTITIONS_PER_TOPIC_MAX, low=0, high=INT64_MAX)
        definition = QueueDefinition.from_stored(fields.value("queue"))
        return CreateQueue(
            definition=definition,
            positions=tuple(positions),
            epochs=_epochs(fields),
            principal=read_principal(fields),
        )
    if op == "alter":
        return AlterQueue(definition=QueueDefinition.from_stored(fields.value("queue")))
    queue = read_name(fields)
    match op:
        case "delete":
            return DeleteQueue(queue=queue)
        case "deliver":
            consumer = fields.text("consumer", chars_max=CONSUMER_CHARS_MAX)
            return Deliver(queue=queue, consumer=consumer, until_us=_us(fields), places=_places(fields))
        case "acknowledge":
            return Acknowledge(queue=queue, claims=_claims(fields))
        case "give_back":
            return GiveBack(queue=queue, due_us=_us(fields), claims=_claims(fields))
        case "extend":
            return Extend(queue=queue, until_us=_us(fields), claims=_claims(fields))
        case "condemn":
            reason = fields.text("reason", chars_max=REASON_CHARS_MAX + 20)
            return Condemn(queue=queue, reason=reason, claims=_claims(fields), epoch=_epoch(fields))
        case "drop":
            return Drop(queue=queue, claims=_claims(fields), epoch=_epoch(fields))
        case "bury":
            return Bury(queue=queue, places=_places(fields))
        case "pass_over":
            return PassOver(
                queue=queue,
                partition=fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
                ranges=tuple((first, following) for first, following in _rows(fields, 2)),
                why=fields.member("why", Passed),
                epoch=_epoch(fields),
            )
        case "name_producer":
            return NameProducer(queue=queue, producer_id=fields.integer("producer_id", low=0, high=INT64_MAX))
        case "begin_epoch":
            return BeginEpoch(
                queue=queue,
                partition=fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
                epoch=fields.integer("epoch", low=1, high=EPOCH_MAX),
                start=fields.integer("start", low=0, high=INT64_MAX),
            )
    raise FieldError(f"command {op!r} is unknown")


def read_principal(fields: Fields) -> str:
    """Take whose a queue is, NOBODY where it is not said. Raises FieldError."""
    has_one = fields.has("principal")
    return fields.text("principal", chars_min=1, chars_max=PRINCIPAL_CHARS_MAX) if has_one else NOBODY


def _epoch(fields: Fields) -> int:
    return fields.integer("epoch", low=1, high=EPOCH_MAX) if fields.has("epoch") else ANY_EPOCH


def _epochs(fields: Fields) -> tuple[int, ...]:
    if not fields.has("epochs"):
        return ()
    return tuple(fields.integers("epochs", count_max=PARTITIONS_PER_TOPIC_MAX, low=1, high=EPOCH_MAX))


def _us(fields: Fields) -> int:
    return fields.integer("us", low=0, high=INT64_MAX)


def _rows(fields: Fields, width: int) -> list[tuple[int, ...]]:
    numbers = fields.integers("rows", count_max=width * ROWS_PER_COMMAND_MAX, low=0, high=INT64_MAX)
    if len(numbers) % width:
        raise FieldError(f"rows are not of {width} numbers")
    return [tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)]


def _places(fields: Fields) -> tuple[Place, ...]:
    return tuple(Place(partition, offset) for partition, offset in _rows(fields, 2))


def _claims(fields: Fields) -> tuple[Claim, ...]:
    return tuple(Claim(partition, offset, deliveries) for partition, offset, deliveries in _rows(fields, 3))
