"""How far the copies of each binding are, per source stream: replicated with the queues of a coordinator. Pure.

Rule 1: the coordinator of a binding's name keeps them, that of the region which was the stream's first home, wherever
        both are at home now. A row is (binding, its index, source stream).
Rule 2: a row only moves on: a save that is older, or of another producer, or of an earlier epoch changes nothing.
Rule 3: a new home of the stream takes a row over, with a producer of its own: what the old one copied of a branch that
        was cut off has the numbers of the old producer, and copies of other records must not be taken for those.
Rule 4: a home that never copied anything of where the next epoch begins, or beyond, hands its row over as it is: its
        copies are those that the next home makes too, with the same numbers, and the target stores each once.
Rule 5: everything below `cursor` is copied; `sequence` is the number of records that the producer has published then.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import REGION_NUMBER_MAX
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from mesh.home.home_row import EPOCH_MAX
from region.coordination.coordinators import COORDINATION_LEVEL, MOVES_LEVEL
from region.coordination.part import CommandError

COPY_MARK: Final = b"C"  # the first byte of these commands; those of queues begin with a brace
FIRST_EPOCH: Final = 1
ROWS_MAX: Final = 20_000  # of one coordinator
STREAM_CHARS_MAX: Final = 60


class CopyKey(NamedTuple):
    """Which copies. `defined_at` is the index of the binding's definition, `stream` what stream_text returns."""

    binding: str
    defined_at: int
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """Args:
    partitions: of the target, as long as nothing is under way: copies go to source partition modulo these.
    epoch: home epoch of the source in which the copies were made.
    """

    producer_id: int
    cursor: int
    sequence: int
    partitions: int
    epoch: int = FIRST_EPOCH

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {name: value for name, value in asdict(self).items() if name != "epoch" or value > FIRST_EPOCH}


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginCopies:
    """Enters a row where there is none."""

    key: CopyKey
    row: CopyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCopies:
    """Moves a row of this producer on."""

    key: CopyKey
    row: CopyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewCopies:
    """Replaces the producer of a row of that epoch which still has `instead_of`; its sequence begins again."""

    key: CopyKey
    row: CopyRow
    instead_of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCopies:
    """Gives a row of an earlier epoch to the home of a newer one; its cursor is not beyond that of `row`."""

    key: CopyKey
    row: CopyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class HandCopies:
    """Gives a row that is of the epoch `ended`, and has this producer, to the home of a later epoch as it is."""

    key: CopyKey
    producer_id: int
    ended: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCopies:
    """Forgets the rows of a binding with that index or a lower one."""

    binding: str
    index: int


CopyCommand = BeginCopies | SaveCopies | RenewCopies | TakeCopies | HandCopies | ForgetCopies


def encode_copy_command(command: CopyCommand, number: int) -> bytes:
    """Return the bytes of a command; `number` as in region.queues.commands_core."""
    value: JsonObject
    match command:
        case ForgetCopies():
            value = {"op": "forget", "binding": command.binding, "index": command.index}
        case RenewCopies():
            value = {"op": "renew", **named(command.key), **command.row.to_json(), "instead_of": command.instead_of}
        case BeginCopies():
            value = {"op": "begin", **named(command.key), **command.row.to_json()}
        case TakeCopies():
            value = {"op": "take", **named(command.key), **command.row.to_json()}
        case HandCopies():
            hand = {"producer_id": command.producer_id, "ended": command.ended, "epoch": command.epoch}
            value = {"op": "hand", **named(command.key), **hand}
        case SaveCopies():
            value = {"op": "save", **named(command.key), **command.row.to_json()}
    return COPY_MARK + dump_object({**value, "n": number})


def decode_copy_command(raw: bytes) -> tuple[CopyCommand, int]:
    """Return a command and its number (CommandError: not one)."""
    try:
        fields = Fields(parse_object(raw[len(COPY_MARK) :]), "command")
        number = fields.integer("n", low=0, high=INT64_MAX)
        command = _read(fields)
        fields.done()
    except FieldError as error:
        raise CommandError(str(error)) from error
    return command, number


def needed_level(command: CopyCommand) -> int:
    """Return the feature level from which every broker of a region understands a command."""
    match command:
        case TakeCopies() | HandCopies():
            return MOVES_LEVEL
        case BeginCopies() | SaveCopies() | RenewCopies() if command.row.epoch > FIRST_EPOCH:
            return MOVES_LEVEL
    return COORDINATION_LEVEL


def _read(fields: Fields) -> CopyCommand:
    op = fields.text("op", chars_max=10)
    if op == "forget":
        return ForgetCopies(
            binding=fields.text("binding", chars_max=100), index=fields.integer("index", low=0, high=INT64_MAX)
        )
    if op == "hand":
        return read_hand(fields)
    key, row = read_key(fields), read_row(fields)
    if op == "renew":
        return RenewCopies(key=key, row=row, instead_of=fields.integer("instead_of", low=0, high=INT64_MAX))
    if op == "begin":
        return BeginCopies(key=key, row=row)
    if op == "take":
        return TakeCopies(key=key, row=row)
    if op == "save":
        return SaveCopies(key=key, row=row)
    raise FieldError(f"command {op!r} is unknown")


def named(key: CopyKey) -> JsonObject:
    """Return the fields of a key."""
    return {"binding": key.binding, "index": key.defined_at, "stream": key.stream}


def read_key(fields: Fields) -> CopyKey:
    """Take the fields of a key. Raises FieldError."""
    return CopyKey(
        fields.text("binding", chars_min=1, chars_max=100),
        fields.integer("index", low=0, high=INT64_MAX),
        fields.text("stream", chars_min=1, chars_max=STREAM_CHARS_MAX),
    )


def read_row(fields: Fields) -> CopyRow:
    """Take the fields of a row. Raises FieldError."""
    return CopyRow(
        producer_id=fields.integer("producer_id", low=0, high=INT64_MAX),
        cursor=fields.integer("cursor", low=0, high=INT64_MAX),
        sequence=fields.integer("sequence", low=0, high=INT64_MAX),
        partitions=fields.integer("partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX),
        epoch=fields.integer("epoch", low=FIRST_EPOCH, high=EPOCH_MAX) if fields.has("epoch") else FIRST_EPOCH,
    )


def read_hand(fields: Fields) -> HandCopies:
    """Take the fields of a row that is handed over. Raises FieldError."""
    return HandCopies(
        key=read_key(fields),
        producer_id=fields.integer("producer_id", low=0, high=INT64_MAX),
        ended=fields.integer("ended", low=FIRST_EPOCH, high=EPOCH_MAX),
        epoch=fields.integer("epoch", low=FIRST_EPOCH + 1, high=EPOCH_MAX),
    )


def stream_text(topic_id: bytes, origin: int, partition: int) -> str:
    """Return the text of a stream in a key."""
    assert 0 <= origin <= REGION_NUMBER_MAX
    return f"{topic_id.hex()}.{origin}.{partition}"


class CopyBook:
    """The rows of one coordinator."""

    def __init__(self) -> None:
        self._rows: dict[CopyKey, CopyRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: CopyKey) -> CopyRow | None:
        """Return a row."""
        return self._rows.get(key)

    def of(self, binding: str) -> list[tuple[CopyKey, CopyRow]]:
        """Return the rows of a binding."""
        return [(key, row) for key, row in self._rows.items() if key.binding == binding]

    def apply(self, command: CopyCommand) -> None:
        """Follow one committed command."""
        match command:
            case ForgetCopies():
                gone = [key for key, _ in self.of(command.binding) if key.defined_at <= command.index]
                for key in gone:
                    del self._rows[key]
            case BeginCopies():
                self._rows.setdefault(command.key, command.row)
            case SaveCopies():
                known = self._rows.get(command.key)
                row = command.row
                is_same = known is not None and known.producer_id == row.producer_id
                if known is not None and is_same and known.cursor <= row.cursor and known.epoch <= row.epoch:
                    self._rows[command.key] = row
            case RenewCopies():
                known = self._rows.get(command.key)
                is_same = known is not None and known.producer_id == command.instead_of
                if known is not None and is_same and known.epoch == command.row.epoch:
                    self._rows[command.key] = replace(command.row, cursor=known.cursor, sequence=0)
            case HandCopies():
                known = self._rows.get(command.key)
                is_same = known is not None and known.producer_id == command.producer_id
                if known is not None and is_same and known.epoch == command.ended < command.epoch:
                    self._rows[command.key] = replace(known, epoch=command.epoch)
            case TakeCopies():
                known = self._rows.get(command.key)
                if known is not None and known.epoch < command.row.epoch:
                    cursor = min(known.cursor, command.row.cursor)
                    self._rows[command.key] = replace(command.row, cursor=cursor, sequence=0)

    def to_json(self) -> list[object]:
        """Return the rows, sorted."""
        return [{**named(key), **row.to_json()} for key, row in sorted(self._rows.items())]

    def restore(self, items: list[object]) -> None:
        """Replace the rows by what `to_json` returned. Raises FieldError."""
        self._rows = {}
        for item in items:
            fields = Fields(item, "copies")
            key = read_key(fields)
            self._rows[key] = read_row(fields)
            fields.done()
