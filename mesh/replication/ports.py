"""What replication needs from the broker that hosts it; `region` implements these Protocols.

Rule 1: plain methods are called on the event loop and return at once; only `async` ones may touch a disk.
Rule 2: a log that is not led here refuses (`is_serving`, `is_leader`); replication never guesses a position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.level import REGION_LEVEL, AskedLevel
from mesh.replication.stream_header import StreamHeader

JsonObject = Mapping[str, Any]
EpochRow = tuple[Epoch, Offset]  # (epoch, its first offset)
_FIRST_OFFSET: Final = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a batch was stored. `append_us` is the home's append time, microseconds since 1970.

    Args:
        regions: those known to have it, the home that sequences it now first.
        level: how many regions have it, as far as that is known.
        is_pending: fewer than were asked for when the deadline passed.
        is_isolated: its home was cut off from the majority of mesh control when it was committed: a forced move of the
            home may leave it in an orphan branch.
    """

    epoch: Epoch
    base_offset: Offset
    append_us: int
    log_start: Offset = _FIRST_OFFSET
    regions: tuple[RegionNumber, ...] = ()
    level: int = 1
    is_pending: bool = False
    is_isolated: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: a JSON object and bytes that need no encoding (record batches)."""

    body: JsonObject = field(default_factory=dict)
    attachment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPoint:
    """Where a mirror continues that is behind everything its home stores.

    Args:
        last: newest offset that the mirror gives up; digest: digest chain after it (16 bytes).
        table: the home's epochs that began at or below last + 1, at least one.
        producers: the home's producer states after `last`, opaque here: regions know what they mean, and from which
            version of the link on.
    """

    last: Offset
    digest: bytes
    table: tuple[EpochRow, ...]
    producers: bytes


class WatermarkListener(Protocol):
    """Who tells a mirror which records enough regions have."""

    def watermark_moved(self) -> None:
        """There may be news: ask for `HomeGeo.watermark_to_tell`."""


class HomeGeo(Protocol):
    """Home side: who counts what mirrors have committed."""

    def joined(self, region: RegionNumber, session: Hashable, listener: WatermarkListener) -> None:
        """A mirror of that region, in the current epoch, is served."""

    def left(self, region: RegionNumber, session: Hashable) -> None:
        """It is not any more."""

    def acknowledged(self, region: RegionNumber, *, epoch: Epoch, offset: Offset) -> None:
        """It has committed everything below `offset`, as it says in a session of `epoch`."""

    def watermark_to_tell(self) -> tuple[int, Offset] | None:
        """Return (k, first offset that fewer than k regions have) for mirrors that cannot know it themselves."""


class MirrorGeo(Protocol):
    """Mirror side: who shows consumers what enough regions have."""

    def told(self, k: int, watermark: Offset) -> None:
        """The home says, in a session of the mirror's current epoch, that `k` regions have all below `watermark`."""


class CommittedEntry(Protocol):
    """One committed entry that owns offsets, exactly as the home wrote it."""

    @property
    def stream_part(self) -> bytes:
        """The 80 bytes every region holds verbatim."""

    @property
    def payload(self) -> bytes | memoryview:
        """The record batch."""

    @property
    def base_offset(self) -> Offset:
        """First offset owned."""

    @property
    def next_offset(self) -> Offset:
        """First offset after it."""


class CommittedLog(Protocol):
    """Home side: the committed part of one stream's log on this broker."""

    @property
    def key(self) -> StreamKey:
        """The stream."""

    @property
    def is_serving(self) -> bool:
        """Whether mirrors may be served from here: this broker leads the stream, of a home or of who was it."""

    @property
    def is_home(self) -> bool:
        """Whether this region sequences the stream."""

    @property
    def epoch(self) -> Epoch:
        """Newest committed home epoch: the session epoch of a mirror that is up to date."""

    @property
    def control_index(self) -> int:
        """Index of the definitions that proves the epoch table."""

    @property
    def log_start(self) -> Offset:
        """First offset that readers may ask for; never goes back."""

    @property
    def served_from(self) -> Offset:
        """First offset from which whole batches are stored: at or below the log start."""

    def skip_point(self, *, checksums: bool = False) -> SkipPoint:
        """Return what a mirror below `served_from` needs to continue there.

        Args:
            checksums: of the batches of producers too; the mirror's broker knows how they travel.
        """

    @property
    def high_watermark(self) -> Offset:
        """First offset not yet committed."""

    @property
    def geo(self) -> HomeGeo | None:
        """Who counts acknowledgements; None: nobody."""

    def epoch_table(self) -> Sequence[EpochRow]:
        """Return the committed epochs, ascending."""

    def read(self, offset: Offset, max_bytes: int) -> Sequence[CommittedEntry] | None:
        """Return committed entries from memory, the first always whole; [] at the hwm; None: only on disk."""

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[CommittedEntry]:
        """Return committed entries from disk."""

    async def digest_before(self, offset: Offset) -> bytes | None:
        """Return the digest chain of the entry that ends at `offset` (digest_0 at 0); None: no entry ends there."""

    def add_waiter(self, callback: Callable[[], None]) -> int:
        """Call `callback` when hwm or log start move, an epoch is committed or the leadership is lost."""

    def remove_waiter(self, handle: int) -> None:
        """Forget a waiter."""


class MirrorLog(Protocol):
    """Mirror side: the log of one stream whose home is another region, on the broker that leads it here."""

    @property
    def key(self) -> StreamKey:
        """The stream."""

    @property
    def home(self) -> RegionNumber:
        """The region that sequences it."""

    @property
    def source(self) -> RegionNumber:
        """The region to ask for what comes next: the home; for a new home that lacks records, one that was before."""

    @property
    def promised(self) -> Epoch:
        """Epoch of the newest PROMISE in the log, uncommitted included, or 0: homes of lower epochs are not heard."""

    @property
    def geo(self) -> MirrorGeo | None:
        """Who is told of watermarks; None: nobody."""

    @property
    def decided(self) -> Epoch:
        """Epoch of which control said here that `source` is, or comes after, its home; 0 while nothing was said."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it and its first entry of the term is committed."""

    @property
    def epoch(self) -> Epoch:
        """Newest COMMITTED epoch: what fences. 0 before the first."""

    @property
    def next_offset(self) -> Offset:
        """Log END, uncommitted entries included."""

    @property
    def end_digest(self) -> bytes:
        """Digest chain at the log end (16 bytes)."""

    @property
    def high_watermark(self) -> Offset:
        """First offset not yet committed."""

    def append_batch(self, header: StreamHeader, payload: bytes) -> None:
        """Append ONE entry verbatim; the log end has moved when it returns.

        Raises:
            NotLeader, Busy: nothing was appended.
        """

    async def append_epoch(
        self, epoch: Epoch, *, start: Offset, digest: bytes, control_index: int, proven: Epoch
    ) -> None:
        """Append an EPOCH entry and wait for its commit.

        Args:
            proven: newest epoch of the table that says so; not below `promised`.

        Raises:
            Diverged: our digest at start - 1 is another one. NotLeader, Busy: not appended.
            OutcomeUnknown: leadership lost before the commit.
        """

    async def append_skip(self, point: SkipPoint) -> None:
        """Append a SKIP entry and wait for its commit: the log then begins and ends at `point.last` + 1.

        Raises:
            BadRequest: the home sent something that makes no sense. NotLeader, Busy, Unavailable: not appended.
            OutcomeUnknown: leadership lost before the commit.
        """

    def home_start_moved(self, log_start: Offset) -> None:
        """Remember the home's log start; the mirror's follows in its own time."""

    def add_waiter(self, callback: Callable[[], None]) -> int:
        """Call `callback` when the hwm moves or the leadership is lost."""

    def remove_waiter(self, handle: int) -> None:
        """Forget a waiter."""


class Publisher(Protocol):
    """Stores batches that another broker received; never forwards them again."""

    def publish_forwarded(
        self,
        key: StreamKey,
        batch: bytes,
        *,
        received_ns: int,
        entry_region: RegionNumber,
        level: AskedLevel = REGION_LEVEL,
    ) -> asyncio.Future[Published]:
        """Append one batch now (order = call order); the future resolves at its level, or as pending.

        Raises:
            GeorelayError: not stored (NotHome with epoch and home, NotLeader with a hint, Busy, ...).
        """


class RequestHandler(Protocol):
    """Answers named requests of other brokers."""

    async def handle(self, method: str, body: JsonObject, *, from_broker: BrokerId) -> Answer:
        """Return the answer; a GeorelayError travels to the asker with its class and text."""


class StreamDirectory(Protocol):
    """Finds streams on this broker."""

    def committed_log(self, key: StreamKey) -> CommittedLog | None:
        """Return the stream if it is hosted here and this region is its home."""

    def leader_of(self, key: StreamKey) -> int:
        """Return the broker of this region that leads it, -1 while unknown."""
