"""Who writes down what became readable, and when: all that the core knows of traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from georelay.trace.kinds import LedgerKind
from mesh.tracing.aborted_core import CommittedEntry
from mesh.tracing.offset_run_core import LateRange


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

    def named_late(
        self, kind: LedgerKind, ranges: Sequence[LateRange], *, topic: str, origin: int, partition: int
    ) -> None:
        """Note ranges that committed when nobody who leads was there to say so; they may have been named before.

        Args:
            ranges: in the order of the log.
        """

    def aborted_late(
        self,
        entries: Sequence[CommittedEntry],
        *,
        topic: str,
        origin: int,
        partition: int,
        epoch: int,
        is_named: bool,
    ) -> None:
        """Follow the transactions in entries of which `named_late` is told, or that were named before."""

    def left(self, *, topic: str, origin: int, partition: int) -> None:
        """Note that this broker leads the group of a stream no longer."""
