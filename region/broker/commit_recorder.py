"""Who writes down what became readable, and when: all that the core knows of traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mesh.tracing.aborted_core import CommittedEntry


class CommitRecorder(Protocol):
    """Who writes down what became readable, and when (mesh.tracing.recorder)."""

    def committed(
        self,
        *,
        topic: str,
        origin: int,
        partition: int,
        epoch: int,
        from_offset: int,
        to_offset: int,
        now_ns: int,
        home: int = 0,
        entries: Sequence[CommittedEntry] = (),
    ) -> None:
        """Note offsets [from_offset, to_offset) committed at their home."""

    def replicated(
        self,
        *,
        topic: str,
        origin: int,
        partition: int,
        epoch: int,
        from_offset: int,
        to_offset: int,
        now_ns: int,
        home: int = 0,
        entries: Sequence[CommittedEntry] = (),
    ) -> None:
        """Note offsets [from_offset, to_offset) committed at a mirror."""
