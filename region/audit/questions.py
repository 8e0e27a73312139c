"""What one broker asks another when streams are audited, and the answers: JSON over links.

    audit.digests  {rows: [{topic_id, origin, partition, at: [offset]}], local}
                   -> {rows: [{key, epochs, log_start, boundary, boundary_digest, end, end_digest, orphans, batches}]}
    audit.replicas {rows: [{topic_id, origin, partition}]} -> {rows: [{key, brokers: [id]}]}
    audit.replica  {rows: as in audit.digests, broker, local} -> as of audit.digests
    audit.deep     {topic_id, origin, partition, from, digest, local}
                   -> {first, following, end, digest, bytes, fault}

Rule 1: one request carries all streams of a page; a region answers for each of them, with its log or a fault.
Rule 2: "local": true asks a broker for the streams that it leads itself, or for its replicas of audit.replica, and is
        only for brokers of its own region.
Rule 3: what comes from a peer is read with its bounds; a stream or an offset that was not asked for is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from georelay.errors import GeorelayError, NotLeader
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from mesh.home.home_row import EPOCH_MAX, HOME_EPOCHS_MAX, TOPIC_ID_BYTES
from mesh.replication.faults import from_fault, to_fault
from mesh.replication.frames import Fault
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import table_fault
from mesh.replication.stream_header import DIGEST_BYTES
from region.audit.values import OFFSETS_MAX, BatchAt, LogView, OrphanRange, Told
from region.topics.orphan_core import ORPHAN_BRANCHES_MAX

METHOD_PREFIX: Final = "audit."
DIGESTS_METHOD: Final = "audit.digests"
REPLICAS_METHOD: Final = "audit.replicas"
REPLICA_METHOD: Final = "audit.replica"
DEEP_METHOD: Final = "audit.deep"
STREAMS_MAX: Final = 64  # of one request
REPLICAS_MAX: Final = 64  # of one stream in one region, learners included
FAULT_TEXT_CHARS_MAX: Final = 1_000
WHAT_CHARS_MAX: Final = 200
UNKNOWN_FROM: Final = -1  # of a deep audit: where the log begins
_U32_MAX: Final = 2**32 - 1
_BROKER_ID_MAX: Final = REGION_NUMBER_MAX * 1000 + BROKERS_PER_REGION_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestsAsked:
    """What a region's log of one stream looks like, and which batches hold the offsets `at`."""

    key: StreamKey
    at: tuple[Offset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepAsked:
    """Recompute the chain from stored bytes.

    Args:
        offset: begin at the batch that begins there; UNKNOWN_FROM: at the oldest stored one.
        digest: the chain before it as recomputed so far, 16 bytes; not looked at where the log begins.
    """

    key: StreamKey
    offset: int = UNKNOWN_FROM
    digest: bytes = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepFault:
    """A stored batch that fits neither its own header nor the chain; `stored`, `computed`: hex, or numbers as text."""

    first: Offset
    following: Offset
    what: str
    stored: str
    computed: str

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "first": self.first,
            "following": self.following,
            "what": self.what,
            "stored": self.stored,
            "computed": self.computed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepPiece:
    """What was recomputed of one log in one go.

    Args:
        first, following: offsets; equal at the end of the log.
        end: the high watermark now. digest: the recomputed chain before `following`.
        size_bytes: read from disk or memory.
        fault: the first batch that is wrong; nothing behind it was looked at.
    """

    first: Offset
    following: Offset
    end: Offset
    digest: bytes
    size_bytes: int
    fault: DeepFault | None = None

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "first": self.first,
            "following": self.following,
            "end": self.end,
            "digest": self.digest.hex(),
            "bytes": self.size_bytes,
            "fault": None if self.fault is None else self.fault.to_json(),
        }


# --- requests -----------------------------------------------------------------------------------------


def key_json(key: StreamKey) -> JsonObject:
    """Return the fields that name a stream."""
    return {"topic_id": key.topic_id.hex(), "origin": key.origin, "partition": key.partition}


def _read_key(fields: Fields) -> StreamKey:
    return StreamKey(
        fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES),
        RegionNumber(fields.integer("origin", low=0, high=REGION_NUMBER_MAX)),
        fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
    )


def _read_offset(fields: Fields, name: str, *, low: int = 0) -> Offset:
    return Offset(fields.integer(name, low=low, high=INT64_MAX))


def digests_json(rows: Sequence[DigestsAsked], *, local: bool = False) -> JsonObject:
    """Return the body of audit.digests."""
    return {"rows": [key_json(row.key) | {"at": list(row.at)} for row in rows], "local": local}


def read_digests(body: Mapping[str, Any]) -> tuple[tuple[DigestsAsked, ...], bool]:
    """Return (rows, local). Raises FieldError."""
    fields = Fields(dict(body), DIGESTS_METHOD)
    rows = _read_asked(fields)
    local = fields.flag("local")
    fields.done()
    return rows, local


def _read_asked(fields: Fields) -> tuple[DigestsAsked, ...]:
    rows = []
    for item in fields.items("rows", count_max=STREAMS_MAX):
        each = Fields(item, "stream")
        key = _read_key(each)
        at = each.integers("at", count_max=OFFSETS_MAX, low=0, high=INT64_MAX)
        each.done()
        rows.append(DigestsAsked(key=key, at=tuple(Offset(row) for row in at)))
    _check_once([row.key for row in rows])
    return tuple(rows)


def _check_once(keys: Sequence[StreamKey]) -> None:
    if len(set(keys)) != len(keys):
        raise FieldError("a question names one stream twice")


def replica_json(rows: Sequence[DigestsAsked], *, broker: BrokerId, local: bool = False) -> JsonObject:
    """Return the body of audit.replica."""
    return {**digests_json(rows, local=local), "broker": broker}


def read_replica(body: Mapping[str, Any]) -> tuple[tuple[DigestsAsked, ...], BrokerId, bool]:
    """Return (rows, broker, local). Raises FieldError."""
    fields = Fields(dict(body), REPLICA_METHOD)
    rows = _read_asked(fields)
    broker = BrokerId(fields.integer("broker", low=0, high=_BROKER_ID_MAX))
    local = fields.flag("local")
    fields.done()
    return rows, broker, local


def replicas_json(keys: Sequence[StreamKey]) -> JsonObject:
    """Return the body of audit.replicas."""
    return {"rows": [key_json(key) for key in keys]}


def read_replicas(body: Mapping[str, Any]) -> tuple[StreamKey, ...]:
    """Return the streams whose replicas are asked for. Raises FieldError."""
    fields = Fields(dict(body), REPLICAS_METHOD)
    keys = []
    for item in fields.items("rows", count_max=STREAMS_MAX):
        each = Fields(item, "stream")
        keys.append(_read_key(each))
        each.done()
    fields.done()
    _check_once(keys)
    return tuple(keys)


def deep_json(asked: DeepAsked, *, local: bool = False) -> JsonObject:
    """Return the body of audit.deep."""
    return key_json(asked.key) | {"from": asked.offset, "digest": asked.digest.hex(), "local": local}


def read_deep(body: Mapping[str, Any]) -> tuple[DeepAsked, bool]:
    """Return (what is asked, local). Raises FieldError."""
    fields = Fields(dict(body), DEEP_METHOD)
    asked = DeepAsked(
        key=_read_key(fields),
        offset=_read_offset(fields, "from", low=UNKNOWN_FROM),
        digest=fields.blob("digest", size_bytes=DIGEST_BYTES),
    )
    local = fields.flag("local")
    fields.done()
    return asked, local


# --- answers ------------------------------------------------------------------------------------------


def answer_json(answers: Mapping[StreamKey, Told]) -> JsonObject:
    """Return the body of an answer to audit.digests."""
    return {"rows": [key_json(key) | _told_json(told) for key, told in answers.items()]}


def brokers_json(brokers: Mapping[StreamKey, Sequence[BrokerId]]) -> JsonObject:
    """Return the body of an answer to audit.replicas."""
    return {"rows": [{**key_json(key), "brokers": list(row)} for key, row in brokers.items()]}


def read_brokers(
    body: Mapping[str, Any], *, asked: Sequence[StreamKey], region: RegionNumber
) -> dict[StreamKey, tuple[BrokerId, ...]]:
    """Read the answer of a region to audit.replicas; streams that it leaves out are left out. Raises FieldError."""
    fields = Fields(dict(body), f"answer to {REPLICAS_METHOD}")
    first = region * 1000 + 1
    found: dict[StreamKey, tuple[BrokerId, ...]] = {}
    for item in fields.items("rows", count_max=len(asked)):
        each = Fields(item, "stream")
        key = _read_key(each)
        brokers = each.integers("brokers", count_max=REPLICAS_MAX, low=first, high=first + BROKERS_PER_REGION_MAX - 1)
        each.done()
        if key not in asked or len(set(brokers)) != len(brokers):
            raise FieldError(f"the answer to {REPLICAS_METHOD} names a stream or a broker that it should not")
        found[key] = tuple(BrokerId(broker) for broker in brokers)
    fields.done()
    return found


def _told_json(told: Told) -> JsonObject:
    if isinstance(told, GeorelayError):
        fault = to_fault(told)
        leader = told.leader if isinstance(told, NotLeader) else -1
        return {"fault": {"code": fault.code, "text": fault.text[:FAULT_TEXT_CHARS_MAX], "leader": leader}}
    return {
        "epochs": [list(row) for row in told.epochs],
        "log_start": told.log_start,
        "boundary": told.boundary,
        "boundary_digest": told.boundary_digest.hex(),
        "end": told.end,
        "end_digest": told.end_digest.hex(),
        "orphans": [[row.epoch, row.first, row.following] for row in told.orphans],
        "batches": [[at, *_batch_row(batch)] for at, batch in told.batches.items()],
    }


def _batch_row(batch: BatchAt) -> list[object]:
    return [batch.first, batch.following, batch.epoch, batch.digest.hex(), batch.crc]


def read_answers(body: Mapping[str, Any], *, asked: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
    """Read the answer to `asked`; streams that it leaves out are left out. Raises FieldError."""
    fields = Fields(dict(body), f"answer to {DIGESTS_METHOD}")
    known = {row.key: row for row in asked}
    answers: dict[StreamKey, Told] = {}
    for item in fields.items("rows", count_max=len(known)):
        each = Fields(item, "log")
        key = _read_key(each)
        if key not in known:
            raise FieldError(f"the answer to {DIGESTS_METHOD} names stream {key}, which was not asked for")
        answers[key] = _read_fault(each.child("fault")) if each.has("fault") else _read_view(each, known[key].at)
        each.done()
    fields.done()
    return answers


def _read_fault(fields: Fields) -> GeorelayError:
    fault = Fault(
        fields.text("code", chars_max=64),
        fields.text("text", chars_max=FAULT_TEXT_CHARS_MAX),
        leader=fields.integer("leader", low=-1, high=2**31 - 1),
    )
    fields.done()
    return from_fault(fault)


def _read_view(fields: Fields, at: Sequence[Offset]) -> LogView:
    view = LogView(
        epochs=_read_epochs(fields),
        log_start=_read_offset(fields, "log_start"),
        boundary=_read_offset(fields, "boundary"),
        boundary_digest=fields.blob("boundary_digest", size_bytes=DIGEST_BYTES),
        end=_read_offset(fields, "end"),
        end_digest=fields.blob("end_digest", size_bytes=DIGEST_BYTES),
        orphans=tuple(_read_orphan(row) for row in fields.items("orphans", count_max=ORPHAN_BRANCHES_MAX)),
    )
    if not view.boundary <= view.log_start <= view.end:
        raise FieldError(f"a log of {view.boundary}..{view.log_start}..{view.end} makes no sense")
    batches = dict(_read_batch(row) for row in fields.items("batches", count_max=len(at)))
    if not batches.keys() <= set(at):
        raise FieldError("the answer has a batch at an offset that was not asked for")
    return replace(view, batches=batches)


def _read_epochs(fields: Fields) -> tuple[EpochRow, ...]:
    rows = tuple(
        (Epoch(epoch), Offset(start))
        for epoch, start in (
            _integers(row, "epoch", (EPOCH_MAX, INT64_MAX)) for row in fields.items("epochs", count_max=HOME_EPOCHS_MAX)
        )
    )
    if rows and (fault := table_fault(rows)):
        raise FieldError(fault)
    return rows


def _read_orphan(row: object) -> OrphanRange:
    epoch, first, following = _integers(row, "orphan branch", (EPOCH_MAX, INT64_MAX, INT64_MAX))
    if first >= following:
        raise FieldError("an orphan branch without records")
    return OrphanRange(epoch=Epoch(epoch), first=Offset(first), following=Offset(following))


def _read_batch(row: object) -> tuple[Offset, BatchAt]:
    if not isinstance(row, list) or len(row) != 6:
        raise FieldError("a batch is not a list of 6")
    digest = Fields({"digest": row[4]}, "batch").blob("digest", size_bytes=DIGEST_BYTES)
    numbers = [*row[:4], row[5]]
    at, first, following, epoch, crc = _integers(
        numbers, "batch", (INT64_MAX, INT64_MAX, INT64_MAX, EPOCH_MAX, _U32_MAX)
    )
    if not first <= at < following:
        raise FieldError(f"a batch of {first}..{following} does not hold offset {at}")
    return Offset(at), BatchAt(
        first=Offset(first), following=Offset(following), epoch=Epoch(epoch), digest=digest, crc=crc
    )


def _integers(row: object, what: str, highs: Sequence[int]) -> list[int]:
    if not isinstance(row, list) or len(row) != len(highs):
        raise FieldError(f"{what} is not a list of {len(highs)}")
    found = []
    for value, high in zip(row, highs, strict=True):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
            raise FieldError(f"a number of {what} is not an integer of 0..{high}")
        found.append(value)
    return found


def read_piece(body: Mapping[str, Any]) -> DeepPiece:
    """Read the answer to audit.deep. Raises FieldError."""
    fields = Fields(dict(body), f"answer to {DEEP_METHOD}")
    raw_fault = fields.value("fault")
    piece = DeepPiece(
        first=_read_offset(fields, "first"),
        following=_read_offset(fields, "following"),
        end=_read_offset(fields, "end"),
        digest=fields.blob("digest", size_bytes=DIGEST_BYTES),
        size_bytes=fields.integer("bytes", low=0, high=INT64_MAX),
        fault=None if raw_fault is None else _read_deep_fault(Fields(raw_fault, "fault")),
    )
    fields.done()
    if not piece.first <= piece.following:
        raise FieldError(f"a piece of {piece.first}..{piece.following} makes no sense")
    return piece


def _read_deep_fault(fields: Fields) -> DeepFault:
    fault = DeepFault(
        first=_read_offset(fields, "first"),
        following=_read_offset(fields, "following"),
        what=fields.text("what", chars_max=WHAT_CHARS_MAX),
        stored=fields.text("stored", chars_max=WHAT_CHARS_MAX),
        computed=fields.text("computed", chars_max=WHAT_CHARS_MAX),
    )
    fields.done()
    return fault
