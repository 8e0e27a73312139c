"""A campaign as values: what is offered, where, what is broken when, and what must be kept. Times are seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

REGIONS: Final = ("us", "eu", "ap")
TRANSACTIONS: Final = "transactions"
TRANSFORMER: Final = "transformer"
GROUP_MEMBER: Final = "group-member"
QUEUE_CONSUMER: Final = "queue-consumer"
MOVING_READER: Final = "moving-reader"
QUEUE: Final = "bills"  # which they consume
EXIT_CANNOT_RUN: Final = 3  # of `georelay load`, of Locust and of engines
SHARING: Final = ("group", "queue")  # kinds of readers that share partitions or records with others


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the latency and the throughput must be; None: not judged.

    Args:
        floor_ms: one-way delay of a pair such as "us->eu": it comes on top of deliver_p99_ms_max; of a topic: the least
            time until its records are acknowledged, on top of publish_p99_ms_max.
        published_share_min: of the records offered, how many must be acknowledged.
    """

    deliver_p99_ms_max: float | None = None
    floor_ms: Mapping[str, float] = field(default_factory=dict)
    publish_p99_ms_max: float | None = None
    records_per_s_min: float | None = None
    published_share_min: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The mesh. up: started here; wan: here, in a test bed with the round trips `pairs`; endpoints: one that runs.

    inventory: one that runs where Ansible deployed it.

    Args:
        tls: everywhere, in a mesh that is started here; a test bed always has it.
        clocks: by how many milliseconds the clocks of a region are wrong.
        congestion_control: of TCP between the regions of a test bed; "": the kernel's.
        commit: brokers begin with the code of that one, and without a mesh secret; "": with this code.
        inventory: what `ansible-inventory -i` takes.
        data, bed: of a mesh that runs: the --data and --wan-name of its `georelay up`, so that it can be broken.
        break_command, mend_command: kill {broker} of {region} for good, and start it again, where it is elsewhere;
            "" with an inventory: by Ansible.
    """

    kind: str = "up"
    regions: tuple[str, ...] = REGIONS
    brokers_per_region: int = 1
    tls: bool = False
    pairs: str = ""
    endpoints: str = ""
    inventory: str = ""
    clocks: Mapping[str, float] = field(default_factory=dict)
    congestion_control: str = ""
    commit: str = ""
    data: str = ""
    bed: str = ""
    break_command: str = ""
    mend_command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that the campaign creates; home "": the nearest region.

    Args:
        homes: one, or every: each region has a stream of its own, which others read as `region.name`.
        brokers: which have its replicas before the load begins; (): as the mesh does it.
        filled_mb: how much is in it then, of nobody's, in records of filled_record_bytes: no users, no readers.
    """

    name: str
    partitions: int = 1
    home: str = ""
    homes: str = "one"
    settings: Mapping[str, str] = field(default_factory=dict)
    brokers: tuple[str, ...] = ()
    filled_mb: float = 0.0
    filled_record_bytes: int = 65_536

    def stream_of(self, region: str) -> str:
        """Return the name under which everybody reads what is published in a region."""
        return self.name if self.homes == "one" else f"{region}.{self.name}"

    def streams(self, regions: Iterable[str]) -> list[str]:
        """Return the names of all its streams."""
        return list(dict.fromkeys(self.stream_of(region) for region in regions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """For a while so many users offer so many records per second together."""

    seconds: float
    users: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """One kind of user.

    Args:
        kind: kafka, native, grpc, rest, websocket, text, or transactions (of the SDK; one writes a record to each of
            the topics).
        regions: where they connect, in turn; (): in every region.
        connections: of each region; each has one request out at a time (all but kafka and native).
        abort_share: of transactions that are aborted on purpose.
        sends_again: what is refused, or not answered in time (of kafka; the others always do).
        keys: uniform, zipf:EXPONENT, or hot:SHARE (that share has one key).
        batch_ms: how long a client waits for more before it sends.
        durability: of native: region, or geo:2 and more.
    """

    kind: str
    topics: tuple[str, ...]
    weight: int = 1
    regions: tuple[str, ...] = ()
    arrival: str = "poisson"
    payload_bytes: int = 200
    keys: str = "uniform"
    key_count: int = 1_000
    batch_ms: float = 0.0
    connections: int = 8
    abort_share: float = 0.0
    sends_again: bool = True
    durability: str = "region"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Who reads: so many consumers in each of these regions; (): in every region.

    Args:
        kind: kafka, aiokafka, native, rest, websocket, text (each reads everything), group (Kafka's) or queue (the
            SDK's).
        groups: the consumers of a region share so many groups, or queues, in turn.
        pause_ms: how long a record takes its reader.
        stay_s, away_s: so long it reads, so long it is gone; 0: it stays.
    """

    topics: tuple[str, ...]
    kind: str = "kafka"
    regions: tuple[str, ...] = ()
    count: int = 1
    groups: int = 1
    pause_ms: float = 0.0
    stay_s: float = 0.0
    away_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Return whether records wait for it on purpose, so that its latencies say nothing about the mesh."""
        return bool(self.pause_ms or self.away_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """So many processes of foreign clients in the first region, which may be killed: each comes back.

    Args:
        kind: transactional-writer (to all topics), transformer (from the first topic to the second), queue-consumer
            (of the queue QUEUE over its topic), group-member (of a group of its own), or moving-reader (reads at its
            topic's home and, once it was killed, elsewhere).
        client, assignor: of group-member.
    """

    kind: str
    topics: tuple[str, ...]
    count: int = 1
    client: str = ""
    assignor: str = "range"

    @property
    def name(self) -> str:
        """Return what faults call them: the kind, or the client of a group and its assignor unless that is range."""
        return " ".join((self.client or self.kind, *([self.assignor] if self.assignor != "range" else [])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is broken, when, what exactly, and for how long; ms, percent, mbit, per_s: by how much (load.faults)."""

    at_s: float
    do: str
    what: str = ""
    for_s: float = 0.0
    ms: float = 0.0
    percent: float = 0.0
    mbit: float = 0.0
    per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What is judged besides the target.

    Args:
        history: nothing lost, twice or out of order, by the checker of recorded histories.
        caught_up_s_max: longest time from a heal until every reader is up to date.
        silence_s_max: longest time without an acknowledgement of a partition that is written to.
        slowdown_max: p99 of deliveries under any fault, in that before the first one; 10 ms more are always allowed.
        report: make the report of the traces and compare it with the clients' books.
        replicas: compare replicas by their files, at the end and whenever a fault has moved some.
        ends: every broker of a topic's home is asked for its ends all the time; what it says counts what was
            acknowledged before.
        finds_loss: acknowledged records are lost, and the history must show it: a test of the test.
        orphans: what the home alone acknowledged may be in an orphan branch instead, exactly where it was said to be.
        settle_s: how long is waited for records that are still under way.
    """

    history: bool = True
    caught_up_s_max: float | None = None
    silence_s_max: float | None = None
    slowdown_max: float | None = None
    report: bool = False
    replicas: bool = False
    ends: bool = False
    finds_loss: bool = False
    orphans: bool = False
    settle_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Bounds of the generator itself: outside them a run is INVALID, whatever its numbers are.

    Args:
        cpu_share_max: of one core, of the busiest second tenth of each of its processes.
        lag_p99_ms_max: how late it sends what is due.
        in_flight_max: records of one process that are not answered yet; one more counts as a failure.
        idle_share_min: how much of the machine nobody uses; None: not judged.
        router_lag_ms_max: how late the router of a test bed is at its worst in its busiest second tenth; None: not
            judged.
        warm_up_s: so long clients connect; latencies of those seconds are not judged.
    """

    cpu_share_max: float = 0.6
    lag_p99_ms_max: float = 2.0
    in_flight_max: int = 20_000
    idle_share_min: float | None = None
    router_lag_ms_max: float | None = None
    warm_up_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """All of it."""

    name: str
    about: str
    topics: tuple[Topic, ...]
    stages: tuple[Stage, ...]
    users: tuple[Users, ...]
    readers: tuple[Readers, ...] = ()
    programs: tuple[Programs, ...] = ()
    faults: tuple[Fault, ...] = ()
    target: Target = Target()
    topology: Topology = Topology()
    checks: Checks = Checks()
    generator: Generator = Generator()
    seed: int = 1

    @property
    def seconds(self) -> float:
        """Return how long is loaded."""
        return sum(stage.seconds for stage in self.stages)

    def sent_once(self) -> frozenset[str]:
        """Return the streams whose publishers do not send again what was refused."""
        regions = self.topology.regions
        return frozenset(
            stream
            for topic in self.topics
            if not any(users.sends_again for users in self.users if topic.name in users.topics)
            for stream in topic.streams(regions)
        )

    def stage_at(self, seconds: float) -> Stage | None:
        """Return the stage at a time after the begin, None after the last one."""
        end = 0.0
        for stage in self.stages:
            end += stage.seconds
            if seconds < end:
                return stage
        return None

    def rate_of_one_user(self, seconds: float) -> float:
        """Return what one user offers per second then: all users of a stage offer the same."""
        stage = self.stage_at(seconds)
        return stage.rate / stage.users if stage is not None and stage.users else 0.0
