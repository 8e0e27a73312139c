"""Who leads which group inside this region, as far as this broker was told: hints, never truth."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from georelay.ids import BrokerId, GroupId, Term
from georelay.limits import GROUPS_PER_BROKER_MAX

_ROW: Final = struct.Struct(">IQI")
NO_LEADER: Final = BrokerId(-1)


def encode_hints(rows: Iterable[tuple[GroupId, Term, BrokerId]]) -> bytes:
    """Return the body of a HINTS frame: rows of (group u32, term u64, leader u32)."""
    return b"".join(_ROW.pack(*row) for row in rows)


def decode_hints(body: bytes | memoryview) -> list[tuple[GroupId, Term, BrokerId]]:
    """Decode a HINTS body. Raises ValueError."""
    if len(body) % _ROW.size or len(body) > GROUPS_PER_BROKER_MAX * _ROW.size:
        raise ValueError(f"leader hints of {len(body)} bytes are not whole rows or too many")
    return [(GroupId(g), Term(t), BrokerId(b)) for g, t, b in _ROW.iter_unpack(body)]


class LeaderBook:
    """The newest hint per group: a hint of an older term never replaces one of a newer term.

    A leader that cannot be reached is hidden, not forgotten: it does not say again who it is when only silence
    came between.
    """

    def __init__(self) -> None:
        self._rows: dict[GroupId, tuple[Term, BrokerId]] = {}
        self._lost: set[BrokerId] = set()
        self.version = 0  # changes with every change of a leader

    def learn(self, group: GroupId, term: Term, leader: BrokerId) -> None:
        """Note that `leader` leads `group` in `term`."""
        known = self._rows.get(group)
        if known is not None and (known[0] > term or known == (term, leader)):
            return
        self._rows[group] = (term, leader)
        self.version += 1

    def forget(self, group: GroupId) -> None:
        """Forget a removed group."""
        if self._rows.pop(group, None) is not None:
            self.version += 1

    def lost(self, broker: BrokerId) -> None:
        """Hide every hint that names a broker which cannot be reached."""
        if broker not in self._lost:
            self._lost.add(broker)
            self.version += 1

    def found(self, broker: BrokerId) -> None:
        """Show the hints that name a broker which can be reached again."""
        if broker in self._lost:
            self._lost.remove(broker)
            self.version += 1

    def leader(self, group: GroupId) -> BrokerId:
        """Return the broker id of the leader, -1 while unknown or out of reach."""
        leader = self._rows.get(group, (Term(0), NO_LEADER))[1]
        return NO_LEADER if leader in self._lost else leader
