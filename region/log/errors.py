"""What can go wrong in a log besides the operating system saying no."""

from __future__ import annotations

from pathlib import Path

from georelay.errors import DataDirectoryError, StorageFailed, Unavailable


class LogCorrupt(DataDirectoryError):
    """Bytes that were once durable are damaged: the broker refuses to start on them or to serve them.

    Never repaired by cutting: a replica that forgets what it acknowledged breaks its quorum.
    """

    verdict = "is damaged"

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} {self.verdict} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class LogUnreadable(LogCorrupt):
    """The disk does not give bytes back that were once durable.

    Damage to whoever reads them, and repaired like it. A log that is being opened may wait for them a little: a bad
    sector stays bad, a disk that is away comes back. Nothing is cut or put aside for it.
    """

    verdict = "cannot be read"


class OpenNotDurable(StorageFailed):
    """A write or sync failed while a log was opened: the data directory must not be used again by this process."""


class ReadInterrupted(Unavailable):
    """The log was truncated, or its folder removed, while it was read: read again."""


class StartMoved(ReadInterrupted):
    """The entries asked for are below the log's start: retention has removed them. Begin at `first_index`."""
