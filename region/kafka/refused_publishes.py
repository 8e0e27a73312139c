"""Which records of a publish were not stored, told to the traces; nothing is done for a publish that is stored.

Rule 1: a redirection (another broker leads, another region is home) is no refusal: a client follows it and asks again.
Rule 2: records are counted once, when the end of their publish is known, also when the client was answered before.
Rule 3: what names no stream of this region is not counted here: nobody shall make up names of streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from georelay.errors import GeorelayError, NotHome, NotLeader, Outcome
from region.controller.topic import Homes
from region.kafka.error_map import RowRefused
from region.kafka.ports import Cluster, Published, TraceRecorder
from region.kafka.services import plain_name

NoteRefused = Callable[[str, int, int, BaseException], None]  # topic, partition, records, why


def nobody_notes(name: str, partition: int, records: int, error: BaseException) -> None:
    """Note nothing: for callers without traces."""


class RefusedPublishes:
    """Tells the recorder."""

    def __init__(self, cluster: Cluster, recorder: TraceRecorder) -> None:
        self._cluster = cluster
        self._recorder = recorder

    def note(self, name: str, partition: int, records: int, error: BaseException) -> None:
        """Note that records to a partition were not stored, or perhaps not.

        Args:
            name: as the client wrote it.
        """
        outcome = _outcome_of(error)
        if outcome is Outcome.PENDING or isinstance(error, (NotLeader, NotHome)):
            return
        view = self._cluster.topic(name)
        if view is None or view.is_mirror_name or view.internal or not 0 <= partition < view.partitions:
            return
        self._recorder.refused(
            topic=plain_name(view),
            origin=self._cluster.region_number if view.homes is Homes.EVERY else 0,
            partition=partition,
            records=records,
            is_decided=outcome is Outcome.NOT_STORED,
        )

    def note_end(self, name: str, partition: int, records: int, future: asyncio.Future[Published]) -> None:
        """Note a publish whose future is done."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self.note(name, partition, records, error)


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, GeorelayError):
        return error.outcome
    return Outcome.NOT_STORED if isinstance(error, RowRefused) else Outcome.UNKNOWN
