"""What geo acknowledgements need of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey


class GeoHeader(Protocol):
    """The part of an entry's header that the age of records is taken from."""

    @property
    def append_us(self) -> int:
        """Append time at the home, microseconds since 1970."""


class GeoEntry(Protocol):
    """One committed entry."""

    def header(self) -> GeoHeader:
        """Decode the stream part."""


class GeoStream(Protocol):
    """One hosted stream (region.topics.hosted_stream.HostedStream)."""

    @property
    def key(self) -> StreamKey:
        """The stream."""

    @property
    def topic(self) -> str:
        """Plain name of its topic."""

    @property
    def partition(self) -> int:
        """0-based."""

    @property
    def home(self) -> RegionNumber:
        """The region that sequences it."""

    @property
    def is_home(self) -> bool:
        """Whether that is this region."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it in this region."""

    @property
    def epoch(self) -> Epoch:
        """Newest committed home epoch."""

    @property
    def log_start(self) -> Offset:
        """First offset kept."""

    @property
    def high_watermark(self) -> Offset:
        """First offset not committed in this region."""

    @property
    def next_offset(self) -> Offset:
        """End of the log, uncommitted entries included."""

    def epoch_table(self) -> Sequence[tuple[Epoch, Offset]]:
        """Return the committed (epoch, start) rows, ascending."""

    @property
    def decided_table(self) -> Sequence[tuple[Epoch, Offset]]:
        """Control's newest (epoch, start) rows, ascending; empty where the home never moved."""

    def read(self, offset: Offset, max_bytes: int) -> Sequence[GeoEntry] | None:
        """Return committed entries from memory; None: only on disk. OffsetOutOfRange: deleted."""

    def add_waiter(self, callback: Callable[[], None]) -> int:
        """Call back when high watermark or log start move, an epoch is committed or the leadership changes."""

    def wake_readers(self) -> None:
        """Let everybody who waits for records look again."""
