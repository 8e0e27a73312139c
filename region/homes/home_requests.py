"""What control's leader asks regions about homes, and what they answer: JSON over links.

    home.ends     {rows: [{key, until}], wait_ms}             -> {rows: [{key, epoch, next, high_watermark, log_start}]}
                  with "transactions": true in a row             "open_transactions" in its answer
    home.seal     {rows: [{key, epoch, new_epoch, move_id}]}  -> {rows: [{key, offset, digest}]}
    home.promise  {rows: [{key, new_epoch, table}]}           -> {rows: [{key, offset, digest}]}
    home.ping     {}                                          -> {}, or a fault where the region has no leader

Rule 1: one request carries many streams (region.homes.asking); a region answers for each of them, with what was asked
        or a fault. A promise answered OFFSET_OUT_OF_RANGE was given, by a region that holds nothing of the history.
        After NOT_LEADER, UNAVAILABLE, HOME_UNREACHABLE and UNKNOWN_TOPIC another broker of it may do better; one that
        has nothing else for any stream answers the question with UNAVAILABLE.
Rule 2: "local": true asks a broker for the streams that it leads itself, and is only for brokers of its own region.
Rule 3: what comes from a peer is read with its bounds; a row too many or a key that was not asked for is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from georelay.errors import GeorelayError, HomeUnreachable, NotHome, NotLeader, Unavailable, UnknownTopic
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import Epoch, Offset, StreamKey
from mesh.home.home_row import EPOCH_MAX, HOME_EPOCHS_MAX, MOVE_ID_CHARS_MAX, key_json, read_key, read_table
from mesh.replication.faults import from_fault, to_fault
from mesh.replication.frames import Fault
from mesh.replication.ports import EpochRow
from mesh.replication.stream_header import DIGEST_BYTES

ENDS_METHOD: Final = "home.ends"
SEAL_METHOD: Final = "home.seal"
PROMISE_METHOD: Final = "home.promise"
PING_METHOD: Final = "home.ping"
WAVE_STREAMS_MAX: Final = 1_000  # of one request
WAIT_MS_MAX: Final = 10_000
EPOCH_ROW_BYTES_MAX: Final = 33  # of JSON: "[2147483647,9223372036854775807],"
_CHAR_BYTES_MAX: Final = 12  # of JSON: one character outside the first 65536, as two escapes
_QUESTIONS: Final = frozenset({ENDS_METHOD, SEAL_METHOD, PROMISE_METHOD})
FAULT_TEXT_CHARS_MAX: Final = 2_000  # read
FAULT_TEXT_CHARS_TOLD: Final = 400  # written: a thousand of them fit into one answer
_ROW_BYTES_MAX: Final = 250  # of JSON: the names of a stream, and four numbers
ASKED_ROW_BYTES_MAX: Final = _ROW_BYTES_MAX + max(
    HOME_EPOCHS_MAX * EPOCH_ROW_BYTES_MAX, MOVE_ID_CHARS_MAX * _CHAR_BYTES_MAX
)
ANSWER_ROW_BYTES_MAX: Final = 2 * _ROW_BYTES_MAX + FAULT_TEXT_CHARS_TOLD * _CHAR_BYTES_MAX
_NOWHERE: Final = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAsked:
    """Where does the region's log of this stream end? Answered once it reaches `until`, or when the time is over.

    Args:
        with_transactions: say also whether transactions are open in the log; an older broker refuses the question.
    """

    key: StreamKey
    until: Offset = _NOWHERE
    with_transactions: bool = False

    @property
    def bytes_max(self) -> int:
        """Return how many bytes of JSON the row has at most."""
        return _ROW_BYTES_MAX

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        asked = key_json(self.key) | {"until": self.until}
        return asked | {"transactions": True} if self.with_transactions else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAsked:
    """Close `epoch`, for ever: `new_epoch` follows."""

    key: StreamKey
    epoch: Epoch
    new_epoch: Epoch
    move_id: str

    @property
    def bytes_max(self) -> int:
        """Return how many bytes of JSON the row has at most."""
        return _ROW_BYTES_MAX + len(self.move_id) * _CHAR_BYTES_MAX

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return key_json(self.key) | {"epoch": self.epoch, "new_epoch": self.new_epoch, "move_id": self.move_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseAsked:
    """Follow no epoch below `new_epoch` any more, and say how long the log agrees with `table`."""

    key: StreamKey
    new_epoch: Epoch
    table: tuple[EpochRow, ...]

    @property
    def bytes_max(self) -> int:
        """Return how many bytes of JSON the row has at most."""
        return _ROW_BYTES_MAX + len(self.table) * EPOCH_ROW_BYTES_MAX

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return key_json(self.key) | {"new_epoch": self.new_epoch, "table": [list(row) for row in self.table]}


Asked: TypeAlias = EndAsked | SealAsked | PromiseAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """The end of one region's log of a stream.

    Args:
        has_open_transactions: below `next_offset`; None where that was not asked for.
    """

    epoch: Epoch
    next_offset: Offset
    high_watermark: Offset
    log_start: Offset
    has_open_transactions: bool | None = None

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        said: JsonObject = {
            "epoch": self.epoch,
            "next": self.next_offset,
            "high_watermark": self.high_watermark,
            "log_start": self.log_start,
        }
        if self.has_open_transactions is not None:
            said["open_transactions"] = self.has_open_transactions
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixEnd:
    """Where a sealed log ends, or how long a log agrees; `digest` is the chain before `offset`."""

    offset: Offset
    digest: bytes

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {"offset": self.offset, "digest": self.digest.hex()}


Told: TypeAlias = LogEnds | PrefixEnd | GeorelayError
_FOR_ANOTHER_BROKER: Final = (NotLeader, Unavailable, HomeUnreachable, UnknownTopic)
Answers: TypeAlias = Mapping[StreamKey, Told]


def is_for_another_broker(told: Told) -> bool:
    """Return whether a broker could not answer for a stream, and another one of its region may."""
    return isinstance(told, _FOR_ANOTHER_BROKER)


def asked_json(rows: Iterable[Asked], *, wait_ms: int = 0, local: bool = False) -> JsonObject:
    """Return the body of a request."""
    return {"rows": [row.to_json() for row in rows], "wait_ms": wait_ms, "local": local}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, read. `wait_ms` 0..10,000 is for home.ends; `local`: rule 2."""

    method: str
    rows: tuple[Asked, ...]
    wait_ms: int
    local: bool


def read_question(method: str, body: Mapping[str, Any]) -> Question:
    """Read the body of home.ends, home.seal or home.promise. Raises FieldError."""
    if method not in _QUESTIONS:
        raise FieldError(f"method {method[:40]!r} is unknown")
    fields = Fields(dict(body), method)
    items = fields.items("rows", count_max=WAVE_STREAMS_MAX)
    wait_ms = fields.integer("wait_ms", low=0, high=WAIT_MS_MAX)
    local = fields.flag("local")
    fields.done()
    rows = tuple(_read_asked(method, item) for item in items)
    if len({row.key for row in rows}) != len(rows):
        raise FieldError(f"{method} names one stream twice")
    return Question(method=method, rows=rows, wait_ms=wait_ms, local=local)


def answer_json(answers: Answers) -> JsonObject:
    """Return the body of an answer."""
    return {"rows": [key_json(key) | _told_json(told) for key, told in answers.items()]}


def read_answers(method: str, body: Mapping[str, Any], *, asked: Iterable[StreamKey]) -> dict[StreamKey, Told]:
    """Read the answer to a request about `asked`; streams that it leaves out are left out. Raises FieldError."""
    fields = Fields(dict(body), f"answer to {method}")
    known = set(asked)
    answers: dict[StreamKey, Told] = {}
    for item in fields.items("rows", count_max=len(known)):
        key, told = _read_told(method, item)
        if key not in known:
            raise FieldError(f"the answer to {method} names stream {key}, which was not asked for")
        answers[key] = told
    fields.done()
    return answers


def _read_epoch(fields: Fields, name: str) -> Epoch:
    return Epoch(fields.integer(name, low=0, high=EPOCH_MAX))


def _read_offset(fields: Fields, name: str) -> Offset:
    return Offset(fields.integer(name, low=0, high=INT64_MAX))


def _read_asked(method: str, item: object) -> Asked:
    fields = Fields(item, method)
    key = read_key(fields)
    asked: Asked
    if method == ENDS_METHOD:
        asked = EndAsked(
            key=key,
            until=_read_offset(fields, "until"),
            with_transactions=fields.has("transactions") and fields.flag("transactions"),
        )
    elif method == SEAL_METHOD:
        asked = SealAsked(
            key=key,
            epoch=_read_epoch(fields, "epoch"),
            new_epoch=_read_epoch(fields, "new_epoch"),
            move_id=fields.text("move_id", chars_min=1, chars_max=MOVE_ID_CHARS_MAX),
        )
    else:
        new_epoch = _read_epoch(fields, "new_epoch")
        asked = PromiseAsked(key=key, new_epoch=new_epoch, table=read_table(fields, "table"))
    fields.done()
    return asked


def _told_json(told: Told) -> JsonObject:
    if not isinstance(told, GeorelayError):
        return told.to_json()
    fault = to_fault(told)
    leader = told.leader if isinstance(told, NotLeader) else -1
    epoch, home = (max(told.epoch, 0), max(told.home, 0)) if isinstance(told, NotHome) else (0, 0)
    text = fault.text[:FAULT_TEXT_CHARS_TOLD]
    return {"fault": {"code": fault.code, "text": text, "leader": leader, "epoch": epoch, "home": home}}


def _read_told(method: str, item: object) -> tuple[StreamKey, Told]:
    fields = Fields(item, f"row of {method}")
    key = read_key(fields)
    told: Told
    if fields.has("fault"):
        told = _read_fault(fields.child("fault"))
    elif method == ENDS_METHOD:
        told = LogEnds(
            epoch=_read_epoch(fields, "epoch"),
            next_offset=_read_offset(fields, "next"),
            high_watermark=_read_offset(fields, "high_watermark"),
            log_start=_read_offset(fields, "log_start"),
            has_open_transactions=fields.flag("open_transactions") if fields.has("open_transactions") else None,
        )
    else:
        told = PrefixEnd(offset=_read_offset(fields, "offset"), digest=fields.blob("digest", size_bytes=DIGEST_BYTES))
    fields.done()
    return key, told


def _read_fault(fields: Fields) -> GeorelayError:
    fault = Fault(
        fields.text("code", chars_max=64),
        fields.text("text", chars_max=FAULT_TEXT_CHARS_MAX),
        leader=fields.integer("leader", low=-1, high=2**31 - 1),
        epoch=fields.integer("epoch", low=0, high=EPOCH_MAX),
        home=fields.integer("home", low=0, high=2**15 - 1),
    )
    fields.done()
    return from_fault(fault)
