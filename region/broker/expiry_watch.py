"""Tells the traces what retention and operators deleted: log starts, looked at in turn.

Rule: some streams per second, never all of many: nothing here may hold the event loop. The first look at a stream
says that everything below its log start is gone, whoever deleted it: ranges may be told twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from georelay.cadence import pause_s
from georelay.ids import Epoch, Offset, StreamKey
from mesh.tracing.recorder import Recorder
from region.controller.topic import INTERNAL_PREFIX

PERIOD_S: Final = 1.0
STREAMS_PER_TICK: Final = 100


class WatchedStream(Protocol):
    """A stream hosted here, as far as its log start goes."""

    @property
    def key(self) -> StreamKey:
        """Which stream."""

    @property
    def topic(self) -> str:
        """Plain name."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it."""

    @property
    def epoch(self) -> Epoch:
        """Home epoch."""

    @property
    def log_start(self) -> Offset:
        """First offset kept."""


class ExpiryWatch:
    """Walks the streams of a broker. `streams`: those hosted here now."""

    def __init__(self, recorder: Recorder, streams: Callable[[], Collection[WatchedStream]]) -> None:
        self._recorder = recorder
        self._streams = streams
        self._left: list[WatchedStream] = []
        self._starts: dict[StreamKey, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look every second from now on."""
        self._timer = asyncio.get_running_loop().call_later(pause_s(PERIOD_S), self._on_timer)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self.start()
        self.look()

    def look(self) -> None:
        """Look at the next streams."""
        if not self._left:
            self._left = list(self._streams())
            if len(self._starts) > 2 * len(self._left) + 100:  # most of them were deleted or moved away
                self._starts = {s.key: self._starts[s.key] for s in self._left if s.key in self._starts}
        looked_at, self._left = self._left[-STREAMS_PER_TICK:], self._left[:-STREAMS_PER_TICK]
        for stream in looked_at:
            known = self._starts.get(stream.key, 0)
            if not stream.is_leader:
                self._starts.pop(stream.key, None)
            elif stream.log_start > known and not stream.topic.startswith(INTERNAL_PREFIX):
                self._starts[stream.key] = stream.log_start
                self._recorder.expired(
                    topic=stream.topic,
                    origin=stream.key.origin,
                    partition=stream.key.partition,
                    epoch=stream.epoch,
                    from_offset=known,
                    to_offset=stream.log_start,
                )
