"""What the services of a broker (Kafka, gRPC, REST) need from their host: Protocols and values.

Rule 1: services import this file and nothing of topics, controller, raft or multiraft.
Rule 2: names are LOCAL topic names, plain or qualified ("us.orders"); plain with homes=every: the region's own stream.
Rule 3: every method that can fail raises errors of georelay.errors only.
Rule 4: what a synchronous method answers is this broker's cached view; it never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from georelay.durability import Durability
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.ports import Published
from mesh.replication.publish import Publish
from region.controller.topic import TopicDefaults, TopicSpec, TopicView
from region.geo.resolution import Resolved
from region.kafka.client_drain_core import ClientDrain
from region.kafka.operator_views import BrokerInfo, BrokerStorage, ProducerInfo, ReplicaSize

if TYPE_CHECKING:
    import asyncio


__all__ = [
    "AbortedRecords",
    "BrokerInfo",
    "BrokerStatus",
    "BrokerStorage",
    "Cluster",
    "CredentialCheck",
    "EntryHeaderLike",
    "EntryLike",
    "PartitionReplicas",
    "ProducerInfo",
    "Publish",
    "Published",
    "ReadAnswer",
    "ReplicaSize",
    "Stream",
    "StreamSnapshot",
    "TopicSpec",
    "TopicView",
    "TraceRecorder",
    "TraceSession",
]

NO_LEADER: Final = -1
BEFORE_HIGH_WATERMARK: Final = -1  # delete-records up to whatever is committed when the home decides
NO_REPLICAS: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """One broker of this region as operators see it.

    Args:
        state: of its life, in lower case: active, draining, drained, absent or removed.
        alive: whether this broker hears it now. kafka, admin: host:port, empty when not known.
        replicas: groups that it is a voter of, or -1 while unknown. leaders: those that it leads as far as is known.
        moving: replicas that are wanted on it or away from it and are not there yet; 0 when it is settled.
        detail: one line on what it waits for, such as "group 7: 3 of 9 segments"; empty when there is nothing to say.
    """

    id: int
    state: str
    alive: bool
    kafka: str = ""
    admin: str = ""
    replicas: int = NO_REPLICAS
    leaders: int = 0
    moving: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """Where the replicas of one partition are, and where they are going.

    Args:
        voters: brokers whose acknowledgement counts, as last reported.
        target: brokers that are wanted; equal to `voters` as a set when nothing moves.
        learners: brokers that catch up and do not count yet.
        behind_entries: (broker, log entries that it lacks) for learners, as the leader knows; empty elsewhere.
        group: number of the Raft group, that of its folder in every data directory of the region; -1: not known.
    """

    partition: int
    voters: tuple[int, ...]
    target: tuple[int, ...]
    learners: tuple[int, ...] = ()
    behind_entries: tuple[tuple[int, int], ...] = ()
    group: int = -1

    @property
    def is_settled(self) -> bool:
        """Return whether the wanted brokers, and no others, hold the partition."""
        return frozenset(self.voters) == frozenset(self.target) and not self.learners


class EntryHeaderLike(Protocol):
    """The part of a stream header that readers need (mesh.replication.stream_header.StreamHeader)."""

    @property
    def epoch(self) -> int:
        """Home epoch in which the batch was sequenced."""

    @property
    def append_us(self) -> int:
        """Append time at the home, microseconds since 1970; never goes back within a stream."""

    @property
    def received_ns(self) -> int:
        """When the first broker of the mesh received the batch, ns since 1970."""

    @property
    def entry_region(self) -> int:
        """Number of the region of that broker."""


class EntryLike(Protocol):
    """One committed entry that owns offsets: a record batch or a marker (region.log.entry.Entry)."""

    @property
    def base_offset(self) -> int:
        """First offset of the batch."""

    @property
    def record_count(self) -> int:
        """Offsets owned by it."""

    @property
    def payload(self) -> memoryview:
        """The Kafka v2 RecordBatch, base offset and home epoch stamped in."""

    def header(self) -> EntryHeaderLike:
        """Decode the stream part."""


class AbortedRecords(Protocol):
    """The records of one producer that an aborted transaction left in a stream (region.topics AbortedTransaction)."""

    @property
    def producer_id(self) -> int:
        """Whose."""

    @property
    def first_offset(self) -> Offset:
        """Its first record."""

    @property
    def last_offset(self) -> Offset:
        """Its marker: what this producer has above it belongs to another transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """Committed entries and the bounds of the stream at the moment of reading.

    Args:
        next_offset: where to read on: past what was left out because it was aborted or a marker; -1: after `entries`.
        last_stable_offset: readers of committed records have seen everything when they stand here; -1: unknown.
        epoch: home epoch of the last batch before `next_offset`, left out or not; 0: nothing was read, or unknown.
    """

    entries: Sequence[EntryLike]
    log_start: Offset
    high_watermark: Offset  # the visible end
    next_offset: int = -1
    last_stable_offset: int = -1
    epoch: int = 0

    @property
    def end(self) -> int:
        """Return where a reader that has caught up stands."""
        return self.high_watermark if self.last_stable_offset < 0 else self.last_stable_offset


class Stream(Protocol):
    """One stream hosted by this broker (a replica of its group)."""

    @property
    def key(self) -> StreamKey:
        """The mesh-wide identity."""

    @property
    def partition(self) -> int:
        """0-based."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the group inside its region."""

    @property
    def leader_id(self) -> int:
        """Broker id of the leader, -1 while unknown."""

    @property
    def is_home(self) -> bool:
        """Whether this region sequences the stream."""

    @property
    def knows_end(self) -> bool:
        """Whether this region decides where the stream ends: beyond it nothing can be elsewhere."""

    @property
    def home(self) -> RegionNumber:
        """Number of the home region."""

    @property
    def epoch(self) -> Epoch:
        """Current home epoch."""

    @property
    def log_start(self) -> Offset:
        """First offset kept."""

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed yet."""

    @property
    def visible_end(self) -> Offset:
        """First offset that consumers are not shown: the high watermark, or what min.insync.regions regions have."""

    @property
    def is_visible_end_known(self) -> bool:
        """Whether this replica knows that; else the leader of the region does, or will."""

    @property
    def last_stable_offset(self) -> Offset:
        """First offset that is not decided: an open transaction's first record, or the visible end."""

    @property
    def is_last_stable_known(self) -> bool:
        """Whether that is where the decided records end; for a while after a restart it is only the log start."""

    def aborted_between(self, first: Offset, following: Offset) -> Sequence[AbortedRecords]:
        """Return the aborted transactions that have records in first..following - 1, in the order of their markers."""

    @property
    def next_offset(self) -> Offset:
        """End of the log, uncommitted entries included."""

    async def confirmed_end(self) -> Offset:
        """Return a visible end that is not behind anything acknowledged, or shown, before the call; at the leader.

        A leader that was cut off and does not know it yet cannot answer: a quorum is asked first (read index). One that
        was just elected waits until enough regions have said what they have.

        Raises:
            NotLeader, Unavailable: ask again, or elsewhere.
        """

    def read(self, offset: Offset, max_bytes: int) -> Sequence[EntryLike] | None:
        """Return committed entries from the one that holds `offset` on, from memory.

        The first is always whole, the following fit in `max_bytes`. [] at the high watermark,
        None when `read_cold` must be asked. `offset` is in log_start..high_watermark.
        """

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[EntryLike]:
        """Return the same from the disk, read in a thread."""

    def add_waiter(self, callback: Callable[[], None]) -> Any:
        """Call `callback` at every move of the high watermark and when leadership is lost; returns a handle."""

    def remove_waiter(self, handle: Any) -> None:
        """Forget the waiter; harmless when it is gone already."""

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """Return (offset, timestamp) of the first committed batch whose newest record is not older."""

    async def max_timestamp(self) -> tuple[Offset, int] | None:
        """Return (offset, timestamp) of the committed batch with the newest timestamp; None when empty."""

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Return (largest known epoch <= `epoch`, its end) as OffsetForLeaderEpoch answers; (-1, -1): unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSnapshot:
    """Gauges of one hosted stream for /metrics and /v1/status."""

    topic: str
    partition: int
    origin: str  # region name; the home's for homes=one
    is_leader: bool
    is_home: bool
    epoch: int
    log_start: int
    high_watermark: int
    next_offset: int
    home_left: bool = False  # its home has left the mesh: nothing comes any more, and what there is, is everything
    home_high_watermark: int = -1  # -1: not known (or this region is the home)
    lag_ms: float = 0.0  # computed at the home; 0 at the home
    orphan_records: int = 0  # in branches that are kept in this region
    forward_jumps: int = 0  # of producers, accepted here after a loss of records, since the start
    is_sealed: bool = False  # nothing is published until a new home epoch begins
    stream: str = ""  # its name in the rows of links


class Cluster(Protocol):
    """The region and the mesh as one broker sees them."""

    @property
    def mesh_id(self) -> str:
        """Kafka cluster id."""

    @property
    def region(self) -> str:
        """Name of this broker's region."""

    @property
    def region_number(self) -> RegionNumber:
        """Its number."""

    @property
    def broker_id(self) -> int:
        """This broker."""

    @property
    def controller_id(self) -> int:
        """Leader of the region's controller group, -1 while unknown."""

    @property
    def metadata_epoch(self) -> int:
        """Changes whenever anything that Metadata answers has changed."""

    @property
    def has_left(self) -> bool:
        """Whether this region was removed from the mesh: clients have to go elsewhere."""

    @property
    def drain(self) -> ClientDrain:
        """Where Kafka clients go while operators drain this region for clients."""

    @property
    def auto_create_topics(self) -> bool:
        """Whether an unknown topic is created with defaults when it is used."""

    @property
    def topic_defaults(self) -> TopicDefaults:
        """What a topic gets whose creator names nothing."""

    def ready(self) -> bool:
        """Return whether this broker can commit: the controller group has a leader that commits, and is reached."""

    def brokers(self) -> Sequence[BrokerInfo]:
        """Return the brokers of this region."""

    def topics(self) -> Sequence[TopicView]:
        """Return every local name, qualified names included."""

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a local name."""

    def stream_names(self, name: str) -> Sequence[str]:
        """Return the local names that hold the topic's records: every origin's for a plain homes=every name."""

    def stream(self, name: str, partition: int) -> Stream | None:
        """Return the stream when a replica of it is hosted by this broker."""

    def leader_of(self, name: str, partition: int) -> int:
        """Return the broker id that leads the partition inside this region, -1 while unknown."""

    def epoch_of(self, name: str, partition: int) -> int:
        """Return the home epoch for Metadata's leader_epoch, -1 while unknown."""

    def home_of(self, name: str, partition: int) -> RegionNumber:
        """Return the region that sequences the partition now, wherever its topic was made (UnknownTopic)."""

    def replicas_of(self, name: str, partition: int) -> Sequence[int]:
        """Return the broker ids that hold replicas, in the order of assignment."""

    def check_topic(self, spec: TopicSpec) -> TopicSpec:
        """Return `spec` with its defaults filled in, without creating anything.

        Raises:
            InvalidTopic, TopicExists, PolicyViolation, TooLarge: the spec would be refused, and why.
        """

    async def create_topic(self, spec: TopicSpec, *, by: str = "") -> TopicView:
        """Create a topic at the definitions home and wait until this broker knows it.

        `by` is the principal whose share of topics it takes, "" for nobody's.

        Raises:
            the errors of `check_topic`; HomeUnreachable, Unavailable: nothing was created.
        """

    async def ensure_topic(self, name: str, *, by: str = "") -> TopicView:
        """Return a topic, created with defaults when it is unknown and that is allowed; wait until it is known here.

        However many ask at the same time, here and in other regions, all get the one topic.

        Raises:
            UnknownTopic: unknown, and auto-creation is off or the name is a mirror's. Others as create_topic.
        """

    async def delete_topic(self, name: str) -> None:
        """Delete a topic (UnknownTopic, PolicyViolation, HomeUnreachable)."""

    async def allocate_producer_id(self) -> int:
        """Return a producer id that no other region or broker ever returns."""

    async def alter_topic(self, name: str, settings: Mapping[str, str]) -> TopicView:
        """Change settings of a topic at the definitions home and wait until this broker knows them.

        `settings` are names and values of `TopicSpec.with_settings`; a setting that is not named keeps its value.

        Raises:
            UnknownTopic; InvalidTopic: unknown setting or value, or one that is fixed for life (homes, home);
            PolicyViolation: a mirror's name; HomeUnreachable, Unavailable: nothing changed; OutcomeUnknown.
        """

    async def add_partitions(self, name: str, count: int) -> TopicView:
        """Let a topic have `count` partitions, not fewer than now; wait until this broker knows them.

        Raises:
            UnknownTopic; InvalidTopic: fewer, or over PARTITIONS_PER_TOPIC_MAX; PolicyViolation: a mirror's name, or
            too many streams; HomeUnreachable, Unavailable: nothing changed; OutcomeUnknown.
        """

    async def delete_records(self, name: str, partition: int, before: int) -> Offset:
        """Delete the records below offset `before` for ever, in every region; return the log start that results.

        Goes to the leader of the home, wherever it is. `before` is 0..high watermark of the home, or
        BEFORE_HIGH_WATERMARK. At or below the log start nothing happens and the log start is returned. Safe to repeat.

        Raises:
            UnknownTopic; PolicyViolation: a mirror's name; OffsetOutOfRange: above the high watermark;
            NotLeader, NotHome, HomeUnreachable, Busy, Unavailable: nothing was deleted; OutcomeUnknown.
        """

    def producers_of(self, name: str, partition: int) -> Sequence[ProducerInfo]:
        """Return the producers that a hosted partition remembers, ascending by id (NotLeader: no replica here)."""

    def storage(self) -> BrokerStorage:
        """Return what this broker stores."""

    async def brokers_status(self) -> Sequence[BrokerStatus]:
        """Return the brokers of this region with their states, ascending by id (Unavailable)."""

    async def replicas_status(self, name: str) -> Sequence[PartitionReplicas]:
        """Return where the replicas of every partition are, ascending (UnknownTopic, Unavailable)."""

    async def add_broker(self, broker_id: int, peers: str) -> None:
        """Let a broker of this region take replicas: a new one, or one that was drained, absent or draining.

        `peers` is the host:port of its peer listener, empty for the one that is known. Safe to repeat.

        Raises:
            BadRequest: an id of another region, an address that is none; PolicyViolation: the state of the broker
            forbids it (a removed id never comes back with its old disk); Unavailable, OutcomeUnknown.
        """

    async def drain_broker(self, broker_id: int) -> None:
        """Begin to move every replica away from a broker; `brokers_status` shows the progress. Safe to repeat.

        Raises:
            BadRequest: no such broker; PolicyViolation: too few others remain; Unavailable, OutcomeUnknown.
        """

    async def remove_broker(self, broker_id: int) -> None:
        """Forget a broker that is drained (or absent and without replicas) for ever. Safe to repeat.

        Raises:
            BadRequest: no such broker; PolicyViolation: it still holds replicas; Unavailable, OutcomeUnknown.
        """

    async def reassign(self, name: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to these brokers of this region; `replicas_status` shows the progress.

        Raises:
            UnknownTopic; BadRequest: none, a broker twice or one that takes no replicas; Busy: too many moves;
            Unavailable, OutcomeUnknown.
        """

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        """Publish one batch; routes to the leader here or in the home region.

        The future resolves when its level is reached, or with `is_pending` when it was not in time: the batch is stored
        all the same. A level that cannot be given is refused before anything is stored: NotEnoughRegions,
        PolicyViolation.

        The method does its ordering work, and copies the batch, before it returns. A transactional batch is never
        forwarded: elsewhere than at the leader of its home it is refused with NotLeader or, where the home is another
        region, PolicyViolation.

        Raises:
            synchronously or in the future: UnknownTopic, PolicyViolation, NotLeader, NotHome, Busy,
            OutOfOrderSequence, ProducerFenced, InvalidTransactionState, HomeUnreachable, Unavailable (not stored),
            OutcomeUnknown.
        """

    async def resolve(
        self, name: str, partition: int, *, epoch: int, offset: int, durability: Durability, wait_ms: int = 0
    ) -> Resolved:
        """Return which regions have the record sequenced at (epoch, offset); asked of the leader of its home.

        With `wait_ms` (0..30000) it waits until they are enough for `durability`.

        Raises:
            UnknownTopic; OffsetOutOfRange: nothing was ever committed there; PolicyViolation: more regions than hold
            the topic; NotLeader, HomeUnreachable, Unavailable: ask again.
        """

    async def read_records(
        self, name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, *, read_uncommitted: bool = False
    ) -> ReadAnswer:
        """Read decided records (all with `read_uncommitted`) wherever a replica is: here or on another broker here.

        At the end for this reader it waits up to `wait_ms` for more. Offset -2 reads from the log start, -1 from
        that end.

        Raises:
            OffsetOutOfRange, UnknownTopic, Unavailable.
        """

    def snapshot(self) -> Sequence[StreamSnapshot]:
        """Return the gauges of the streams hosted here."""

    def status(self) -> Mapping[str, Any]:
        """Return the JSON object of GET /v1/status."""


class CredentialCheck(Protocol):
    """Users of the mesh (georelay.credentials.Credentials)."""

    @property
    def required(self) -> bool:
        """Whether clients must sign in."""

    def remembers(self, user: str, password: str) -> bool:
        """Return whether the password was right before."""

    async def authenticate(self, user: str, password: str) -> bool:
        """Return whether the password is right; the costly part runs in a thread."""

    async def authenticate_header(self, authorization: str | None) -> str:
        """Return the user of an `authorization: basic …` header (Unauthenticated: missing or wrong)."""


class TraceSession(Protocol):
    """Deliveries to one consumer of one partition (mesh.tracing.delivery_core.DeliverySession)."""

    @property
    def next_offset(self) -> int:
        """End of what was delivered."""

    def caught_up(self, now_ns: int) -> None:
        """Note that the consumer has reached the high watermark."""

    def delivered(
        self,
        *,
        epoch: int,
        base_offset: int,
        record_count: int,
        entry_region: int,
        received_ns: int,
        delivered_ns: int,
        size_bytes: int = 0,
        attempt: int = 1,
    ) -> None:
        """Note one batch handed to the socket."""


class TraceRecorder(Protocol):
    """Where deliveries are recorded (mesh.tracing.recorder.Recorder)."""

    def open_session(self, *, topic: str, origin: int, partition: int, offset: int, group: str = "") -> TraceSession:
        """Start a session; `topic` is the plain name in every region."""

    def refused(self, *, topic: str, origin: int, partition: int, records: int, is_decided: bool) -> None:
        """Note records of a publish that was answered with an error; the stream exists."""
