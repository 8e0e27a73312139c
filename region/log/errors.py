"""What can go wrong in a log besides the operating system saying no."""

from __future__ import annotations

from pathlib import Path

from georelay.errors import DataDirectoryError, Unavailable


class LogCorrupt(DataDirectoryError):
    """Bytes that were once durable are damaged: the broker refuses to start on them or to serve them.

    Never repaired by cutting: a replica that forgets what it acknowledged breaks its quorum.
    """

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class ReadInterrupted(Unavailable):
    """The log was truncated, or its folder removed, while it was read: read again."""


class StartMoved(ReadInterrupted):
    """The entries asked for are below the log's start: retention has removed them. Begin at `first_index`."""
