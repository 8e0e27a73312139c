"""Who writes traces, and what was written: values. Light: a broker that writes none has them too."""

from __future__ import annotations

from dataclasses import dataclass, field

from georelay.trace.kinds import TraceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who writes: name of the region, mesh-wide broker id, and a name of this run, [0-9a-z]{1,32}."""

    region: str
    broker: int
    boot_id: str

    @property
    def writer(self) -> str:
        """Return the name in the metadata of files, as `us/1001`."""
        return f"{self.region}/{self.broker}"


@dataclass(slots=True)
class WriterStats:
    """Running counts; read from any thread.

    Attributes:
        rows_written: rows spooled, by kind; rows_dropped: rows given up, by kind.
        files_written, files_deleted: Parquet files. files, size_bytes: kept now.
        write_failures: calls that the disk refused. lost_bytes: of spools, behind their first damage.
        busy_ns: CPU time of the thread.
    """

    rows_written: dict[TraceKind, int] = field(default_factory=lambda: dict.fromkeys(TraceKind, 0))
    rows_dropped: dict[TraceKind, int] = field(default_factory=lambda: dict.fromkeys(TraceKind, 0))
    files_written: int = 0
    files_deleted: int = 0
    files: int = 0
    size_bytes: int = 0
    write_failures: int = 0
    lost_bytes: int = 0
    busy_ns: int = 0
