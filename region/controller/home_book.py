"""Homes of streams as mesh control ordered them, newest last.

Rule: one command of control may move the homes of a thousand streams; their rows share its index. A position in the
book is therefore (index, topic id, partition, origin), and a reader that stopped inside a command goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from georelay.ids import RegionNumber, StreamKey
from mesh.home.home_row import ONE_HOME, HomeRow

HomePosition: TypeAlias = tuple[int, bytes, int, int]  # index, topic id, partition, origin
BEFORE_ALL: Final[HomePosition] = (0, b"", -1, -1)


def position_of(row: HomeRow) -> HomePosition:
    """Return where a row stands in the book."""
    return (row.index, row.topic_id, row.partition, row.origin)


class HomeBook:
    """The newest row of every stream whose home is not simply its topic's.

    Invariants: 1 one row per stream   2 rows are in order of position   3 no row is above `position`.
    """

    def __init__(self) -> None:
        self.position: HomePosition = BEFORE_ALL
        self._rows: dict[StreamKey, HomeRow] = {}

    def __len__(self) -> int:
        """Return how many streams have a row."""
        return len(self._rows)

    @property
    def index(self) -> int:
        """Return the index of the newest row that was entered."""
        return self.position[0]

    def find(self, topic_id: bytes, partition: int, origin: RegionNumber = ONE_HOME) -> HomeRow | None:
        """Return the row of a stream, None when it has the first one."""
        return self._rows.get(StreamKey(topic_id, origin, partition))

    def rows(self) -> Iterator[HomeRow]:
        """Return all rows, in order of position."""
        return iter(self._rows.values())

    def since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return at most `limit` rows above a position, the lowest first."""
        newer: list[HomeRow] = []
        for row in reversed(self._rows.values()):
            if position_of(row) <= position:
                break
            newer.append(row)
        newer.reverse()
        return newer[:limit]

    def remember(self, row: HomeRow) -> None:
        """Enter a row at the end, in place of the one with its stream."""
        assert position_of(row) > self.position, (position_of(row), self.position)
        self._rows.pop(row.key, None)
        self._rows[row.key] = row
        self.position = position_of(row)

    def pass_over(self, row: HomeRow) -> None:
        """Move on without entering a row: its topic is gone for ever."""
        self.position = max(self.position, position_of(row))

    def forget(self, topic_id: bytes) -> None:
        """Drop the rows of a topic that was deleted."""
        for key in [key for key in self._rows if key.topic_id == topic_id]:
            del self._rows[key]
