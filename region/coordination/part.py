"""What hangs on a coordinator: the Protocol between its log and the state that one kind of client needs.

Rule 1: replicated state changes in `apply` and `restore` only, and is a function of the commands: no clock, no
        randomness, nothing of this broker. What the leader decides with a clock stands in the command.
Rule 2: what only the leader knows (timers, who waits) begins with `elected` and ends with `deposed`.
Rule 3: several commands may have one index: those that were proposed in one turn of the event loop.
"""

from __future__ import annotations

import enum
from typing import Any, Final, Protocol, TypeAlias

from georelay.ids import RaftIndex

JsonObject: TypeAlias = dict[str, Any]


class Part(enum.IntEnum):
    """Kinds of state. The number is the key of every record that holds a command; it never changes."""

    GROUPS = 1
    TRANSACTIONS = 2
    QUEUES = 3


IN_USE: Final = 2**63 - 1  # a claim that no other one is above


class CommandError(Exception):
    """A committed command that a part does not know, or that cannot be: our bug, and the replica stops."""


class CoordinatorPart(Protocol):
    """Replicated state of one coordinator, and the service of its leader."""

    @property
    def part(self) -> Part:
        """Return which one it is."""

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        """Follow one committed command, in the order of the log, each exactly once.

        Args:
            append_us: when the leader appended it, us since 1970; never goes back within a coordinator.

        Raises:
            CommandError: unknown or impossible; the replica stops.
        """

    def snapshot(self) -> bytes:
        """Return the state after the newest command given to `apply`: equal bytes on every replica at equal index.

        Runs on the event loop, so it should take milliseconds; at most PART_SNAPSHOT_BYTES_MAX.
        """

    def restore(self, raw: bytes) -> None:
        """Replace the state by what `snapshot` returned; b"" is the state before the first command.

        Raises:
            ValueError: not a snapshot, or of a version that is unknown.
        """

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        """Begin a new home epoch of the stream: who was told something in an earlier one is told no more.

        As `apply` a function of the log, on every replica at the same place; never while this part is elected.

        Args:
            epoch: its number; no other history of this stream has an epoch of that number.
            is_whole: everything that was answered in the epoch before is known here; else its home may have answered
                more than anybody has.
        """

    def claim(self, name: str) -> int:
        """Return when, us since 1970, a name was last used, as far as the replicated state says; 0 for an unknown one.

        IN_USE for a group that has members. The same name in the coordinators of two regions belongs to the one with
        the higher claim. Asked on every request: it must be quick.
        """

    def elected(self) -> None:
        """Begin to serve: this broker leads, and every command that was ever acknowledged is applied."""

    def deposed(self) -> None:
        """Stop serving: whoever waits is told NotLeader, timers end. Called only after `elected`."""

    def close(self) -> None:
        """Let everything go that waits or is timed; only `apply` and `snapshot` may still come."""

    async def call(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        """Answer one operation that was routed here; only while this broker leads.

        Args:
            body: JSON as it came, from a broker of this region that has checked the client's rights.
            principal: who asks, "" for a broker itself.

        Raises:
            GeorelayError of georelay.errors: travels to the caller by its code.
        """
