"""Calls that gRPC's core has accepted and that no handler has seen yet: a busy loop takes one per turn, the others wait
where nobody looks. The core's own books (channelz) say how many have begun.

Rule 1: looked up at most once per LOOK_NS, and only when a call comes.
Rule 2: some calls end before they are seen, and are never missed: what is left over when fewest wait is not counted.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Final

from grpc._cython import cygrpc

LOOK_NS: Final = 100_000_000
LOOKS_KEPT: Final = 100  # the fewest of so many looks wait for nothing


def newest_server() -> int:
    """Return the number by which the core knows the server that was made last; 0 without one that keeps books."""
    return max((int(row["ref"]["serverId"]) for row in _servers()), default=0)


def calls_begun(server: int) -> int:
    """Return how many calls have begun at a server, 0 while it is unknown."""
    row = next((row for row in _servers() if int(row["ref"]["serverId"]) == server), None)
    return 0 if row is None else int(row["data"].get("callsStarted", 0))


def _servers() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(cygrpc.channelz_get_servers(0)).get("server", [])
    return rows


class PendingCalls:
    """Of one server. `waiting`: how many calls there were at the last look."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._seen = 0
        self._look_at_ns = 0
        self._unseen: deque[int] = deque(maxlen=LOOKS_KEPT)
        self.waiting = 0

    def seen(self, now_ns: int) -> None:
        """Note that a call has come to a handler."""
        self._seen += 1
        if now_ns >= self._look_at_ns:
            self._look_at_ns = now_ns + LOOK_NS
            self._unseen.append(calls_begun(self._server) - self._seen)
            self.waiting = self._unseen[-1] - min(self._unseen)
