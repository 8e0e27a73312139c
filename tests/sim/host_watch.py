"""Which groups of a host may have changed since somebody looked: only these are checked after a turn.

Whatever changes a group ends in `Host.mark_dirty`, `Host.mark_if_ready` or `Host._advance`; they are watched. In case
something does not, every group is looked at now and then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

LOOK_AT_ALL_EVERY: Final = 64  # turns


class HostWatch:
    """Notes the groups of one host."""

    __slots__ = ("_host", "_touched", "_turns")

    def __init__(self) -> None:
        self._host: Any = None
        self._touched: dict[Any, None] = {}
        self._turns = 0

    def follow(self, host: Any) -> None:
        """Watch a host that has no groups yet."""
        mark, mark_if, advance, touched = host.mark_dirty, host.mark_if_ready, host._advance, self._touched

        def mark_dirty(group: Any) -> None:
            touched[group] = None
            mark(group)

        def mark_if_ready(group: Any) -> None:
            touched[group] = None
            mark_if(group)

        def advanced(group: Any, until_ns: int) -> None:
            touched[group] = None
            advance(group, until_ns)

        host.mark_dirty, host.mark_if_ready, host._advance = mark_dirty, mark_if_ready, advanced
        self._host = host

    def due(self) -> bool:
        """Return whether there is something to look at after this turn."""
        self._turns += 1
        return bool(self._touched) or not self._turns % LOOK_AT_ALL_EVERY

    def take(self) -> Iterable[Any]:
        """Return the groups that may have changed since the last call, in the order of their first change."""
        found = list(self._touched)
        self._touched.clear()
        if not self._turns % LOOK_AT_ALL_EVERY and self._host is not None:
            found = list(dict.fromkeys((*found, *self._host.groups.values())))
        return found
