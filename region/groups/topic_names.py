"""Names of topics and the streams behind them, for offsets: a name is for clients, a stream is what is stored.

Rule 1: the plain name of a topic with homes=every is this region's own stream; the qualified names are the others'.
Rule 2: a stream is told under its plain name where it has one here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from georelay.ids import StreamKey
from region.controller.topic import TopicView


class TopicNames:
    """Args:
    topics: every local name; topic: one of them; version: changes with them; is_deleted: of a topic id.
    """

    def __init__(
        self,
        *,
        topic: Callable[[str], TopicView | None],
        topics: Callable[[], Sequence[TopicView]],
        version: Callable[[], int],
        is_deleted: Callable[[bytes], bool],
    ) -> None:
        self.is_deleted = is_deleted
        self._topic = topic
        self._topics = topics
        self._version = version
        self._built_at = -1
        self._names: dict[tuple[bytes, int], str] = {}

    def key_of(self, name: str, partition: int) -> StreamKey | None:
        """Return the stream of a name's partition, None when there is none."""
        view = self._topic(name)
        if view is None or not 0 <= partition < view.partitions:
            return None
        return StreamKey(view.topic_id, view.origin, partition)

    def origin_of(self, name: str) -> tuple[bytes, int] | None:
        """Return (topic id, origin) of a name."""
        view = self._topic(name)
        return None if view is None else (view.topic_id, view.origin)

    def name_of(self, key: StreamKey) -> str | None:
        """Return the name of a stream here, None for a topic that is gone or not known yet."""
        if self._built_at != self._version():
            self._built_at = self._version()
            self._names = {}
            for view in self._topics():
                place = (view.topic_id, int(view.origin))
                if place not in self._names or view.name == view.definition.name:
                    self._names[place] = view.name
        return self._names.get((key.topic_id, int(key.origin)))
