"""Every error a user of georelay can meet: one row each, retry policy and outcome as data.

`outcome` answers the question that matters after a failed publish: is the record stored?
The same rows stand in docs/errors.md (a test compares them). Shells translate foreign errors
into these once; cores never see an OSError.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Retry(enum.Enum):
    """What a caller may do next."""

    NEVER = "never"  # the request itself is wrong
    LATER = "later"  # the same request, after a back-off
    REFRESH = "refresh"  # after asking again where the leader or the home is
    SIGN_IN = "sign_in"  # with other credentials


class Outcome(enum.Enum):
    """What became of the records of a publish."""

    NOT_STORED = "not_stored"
    UNKNOWN = "unknown"  # it may be stored: only an idempotent producer may send it again
    PENDING = "pending"  # stored, at a lower level than asked for so far: its position is known


class GeorelayError(Exception):
    """Base of all; never raised itself. `str(error)` is one line that says what to do."""

    code: ClassVar[str] = "INTERNAL"
    retry: ClassVar[Retry] = Retry.NEVER
    outcome: ClassVar[Outcome] = Outcome.NOT_STORED
    http_status: ClassVar[int] = 500


class BadRequest(GeorelayError):
    """A malformed request: field, length or value; the text names which."""

    code = "BAD_REQUEST"
    http_status = 400


class CorruptRecordBatch(GeorelayError):
    """A record batch whose length, magic, checksum, attributes or counts are wrong."""

    code = "CORRUPT_RECORD_BATCH"
    http_status = 400


class TooLarge(GeorelayError):
    """Over one of the limits of georelay.limits; the text names limit and size."""

    code = "TOO_LARGE"
    http_status = 413


class Unauthenticated(GeorelayError):
    """Missing or wrong credentials."""

    code = "UNAUTHENTICATED"
    retry = Retry.SIGN_IN
    http_status = 401


class AccessDenied(GeorelayError):
    """The caller is known and may not do this; the broker's audit log says what to grant."""

    code = "ACCESS_DENIED"
    retry = Retry.SIGN_IN
    http_status = 403

    resource: str = ""  # the word for its kind; never its name: the caller may not know whether it exists

    @classmethod
    def to(cls, resource: str) -> AccessDenied:
        """Return the error for a kind of resource ("topic", "group", ...)."""
        error = cls(f"not authorized for this {resource}")
        error.resource = resource
        return error


class PolicyViolation(GeorelayError):
    """Well-formed but not allowed, such as producing to a mirror's qualified name."""

    code = "POLICY_VIOLATION"
    http_status = 403


class UnknownTopic(GeorelayError):
    """No such topic or partition here."""

    code = "UNKNOWN_TOPIC"
    retry = Retry.REFRESH
    http_status = 404


class InvalidTopic(GeorelayError):
    """A topic name or definition that is not allowed."""

    code = "INVALID_TOPIC"
    http_status = 400


class TopicExists(GeorelayError):
    """The topic is there already."""

    code = "TOPIC_EXISTS"
    http_status = 409


class UnknownGroup(GeorelayError):
    """No consumer group of that name in this region."""

    code = "UNKNOWN_GROUP"
    http_status = 404


class GroupNotEmpty(GeorelayError):
    """The consumer group has members; what was asked for is done to groups without members only."""

    code = "GROUP_NOT_EMPTY"
    retry = Retry.LATER
    http_status = 409


class UnknownQueue(GeorelayError):
    """No queue of this name in this region."""

    code = "UNKNOWN_QUEUE"
    http_status = 404


class QueueExists(GeorelayError):
    """A queue of this name is there already, with another definition."""

    code = "QUEUE_EXISTS"
    http_status = 409


class LeaseExpired(GeorelayError):
    """The lease is over: its record was given back, acknowledged, or belongs to another consumer now."""

    code = "LEASE_EXPIRED"
    http_status = 409


class UnknownBinding(GeorelayError):
    """No binding of this name."""

    code = "UNKNOWN_BINDING"
    http_status = 404


class OffsetOutOfRange(GeorelayError):
    """Below the log start or beyond the log end."""

    code = "OFFSET_OUT_OF_RANGE"
    http_status = 416


class OutOfOrderSequence(GeorelayError):
    """A producer's sequence has a gap against the log end."""

    code = "OUT_OF_ORDER_SEQUENCE"
    http_status = 409


class UnknownProducer(OutOfOrderSequence):
    """A sequence other than 0 of a producer that the stream does not know, or one that another batch has.

    Its topic was made again, or so many others have published since that it is forgotten, or somebody else publishes
    under its id.
    """

    code = "UNKNOWN_PRODUCER"


class ProducerFenced(GeorelayError):
    """A newer epoch of the same producer id has published."""

    code = "PRODUCER_FENCED"
    http_status = 409


class ConcurrentTransactions(GeorelayError):
    """The transactional id's previous transaction, or an earlier request for it, is still being finished."""

    code = "CONCURRENT_TRANSACTIONS"
    retry = Retry.LATER
    http_status = 503


class InvalidTransactionState(GeorelayError):
    """The transaction is not open, or is already being ended the other way; the text says which."""

    code = "INVALID_TRANSACTION_STATE"
    http_status = 409


class UnknownTransactionalId(GeorelayError):
    """No transactional id of this name, or another producer id than the one it has: it expired or was never begun."""

    code = "UNKNOWN_TRANSACTIONAL_ID"
    http_status = 404


class InvalidTransactionTimeout(GeorelayError):
    """A transaction timeout outside of what the broker allows; the text names the limit."""

    code = "INVALID_TRANSACTION_TIMEOUT"
    http_status = 400


class NotLeader(GeorelayError):
    """This broker does not lead the stream inside its region."""

    code = "NOT_LEADER"
    retry = Retry.REFRESH
    http_status = 503

    def __init__(
        self, text: str = "this broker does not lead the stream; ask for the leader again", *, leader: int = -1
    ) -> None:
        super().__init__(text)
        self.leader = leader  # broker id, -1 when unknown


class NotHome(GeorelayError):
    """This region is not the home of the stream; a forwarded batch is never forwarded again."""

    code = "NOT_HOME"
    retry = Retry.REFRESH
    http_status = 503

    def __init__(self, text: str, *, epoch: int, home: int) -> None:
        super().__init__(text)
        self.epoch = epoch
        self.home = home  # region number


class Busy(GeorelayError):
    """A bounded queue is full; the text names it."""

    code = "BUSY"
    retry = Retry.LATER
    http_status = 503


class Throttled(GeorelayError):
    """The caller changes what the mesh consists of faster than one principal may; the text says when to go on."""

    code = "THROTTLED"
    retry = Retry.LATER
    http_status = 429

    retry_after_s: ClassVar[int] = 10  # what clients are told in a header, or as Kafka's throttle time


class DiskFull(GeorelayError):
    """The disk of the partition's leader has no room beyond its reserve: records are refused until there is more."""

    code = "DISK_FULL"
    retry = Retry.LATER
    http_status = 507


class HomeUnreachable(GeorelayError):
    """The home region (or the definitions home) cannot be reached; nothing was sent."""

    code = "HOME_UNREACHABLE"
    retry = Retry.LATER
    http_status = 503


class ControlUnavailable(GeorelayError):
    """No majority of mesh control can be reached from here; nothing was changed. Publishing and consuming go on."""

    code = "CONTROL_UNAVAILABLE"
    retry = Retry.LATER
    http_status = 503


class Unavailable(GeorelayError):
    """No leader, not ready, or shutting down."""

    code = "UNAVAILABLE"
    retry = Retry.LATER
    http_status = 503


class CoordinatorUnavailable(Unavailable):
    """No broker leads the coordinator of this group, transactional id or queue at the moment."""

    code = "COORDINATOR_UNAVAILABLE"


class CoordinatorLoading(Unavailable):
    """This broker was elected coordinator and does not know yet everything that was acknowledged before."""

    code = "COORDINATOR_LOADING"


class NotCoordinator(GeorelayError):
    """Another broker is the coordinator of this group, transactional id or queue."""

    code = "NOT_COORDINATOR"
    retry = Retry.REFRESH
    http_status = 503

    def __init__(
        self, text: str = "this broker is not the coordinator; ask for the coordinator again", *, leader: int = -1
    ) -> None:
        super().__init__(text)
        self.leader = leader  # broker id, -1 when unknown


class OutcomeUnknown(GeorelayError):
    """The answer was lost (leader change, timeout, broken link): the records may be stored."""

    code = "OUTCOME_UNKNOWN"
    retry = Retry.LATER
    outcome = Outcome.UNKNOWN
    http_status = 504


class NotEnoughRegions(GeorelayError):
    """Fewer regions than asked for can take the record now, or are within the topic's lag bounds; the text says which.

    Nothing was stored: what is refused before it is appended needs no clearing up.
    """

    code = "NOT_ENOUGH_REGIONS"
    retry = Retry.LATER
    http_status = 503


class DurabilityPending(GeorelayError):
    """Stored, but not in as many regions as asked for when the deadline passed; it goes on by itself.

    Do not send it again: ask what became of it with `Connection.resolve`.

    Args:
        topic, partition, epoch, offset: where it is (the first record, of several); -1: unknown to this client.
        regions: names of the regions that had it.
    """

    code = "DURABILITY_PENDING"
    outcome = Outcome.PENDING
    http_status = 202

    topic: str = ""
    partition: int = -1
    epoch: int = -1
    offset: int = -1
    regions: tuple[str, ...] = ()

    @classmethod
    def at(cls, topic: str, partition: int, *, epoch: int, offset: int, regions: tuple[str, ...]) -> DurabilityPending:
        """Return the error for one record."""
        where = ", ".join(regions) or "its home"
        error = cls(f"{topic}/{partition} offset {offset} is in {where}; more regions were asked for: resolve it later")
        error.topic, error.partition, error.epoch, error.offset = topic, partition, epoch, offset
        error.regions = regions
        return error


class Fenced(GeorelayError):
    """An older session epoch than the stream's current one."""

    code = "FENCED"
    http_status = 409


class Diverged(GeorelayError):
    """Two regions hold different records at one offset: the link stops and an alarm is raised."""

    code = "DIVERGED"
    http_status = 409


class TracesExpired(GeorelayError):
    """A position in a broker's traces whose rows were deleted; the text has the oldest that is left."""

    code = "TRACES_EXPIRED"
    http_status = 410


class ConfigError(GeorelayError):
    """A wrong flag, setting or file; the text says what to write instead."""

    code = "CONFIG"
    http_status = 400


class DataDirectoryError(GeorelayError):
    """A data directory that is locked, of another mesh or broker, or of an unknown format."""

    code = "DATA_DIRECTORY"


class StorageFailed(GeorelayError):
    """A write or sync failed: the data directory is stopped and the process ends."""

    code = "STORAGE_FAILED"
    outcome = Outcome.UNKNOWN
