"""The Protocol between mesh control and one concern of its replicated state."""

from __future__ import annotations

from typing import Protocol

from georelay.fields import JsonObject


class ControlPart(Protocol):
    """One concern of the replicated state: "definitions", "regions", "homes".

    Rule 1: `apply` is deterministic: no clock, no randomness, nothing of this broker. Replicas that applied the same
    commands have equal snapshots.
    Rule 2: a command that cannot be fulfilled raises a GeorelayError and has changed nothing.
    """

    @property
    def name(self) -> str:
        """Return the part's name; it is written in the log and never changes."""

    def apply(self, command: JsonObject, *, index: int, append_us: int) -> JsonObject:
        """Apply one committed command; return its outcome.

        Args:
            index: mesh index of this command, one above that of the command before it, whichever part that was for;
                every row that the command makes carries it.
            append_us: wall clock of the leader that proposed it, never below that of an earlier command.

        Raises:
            GeorelayError: refused; nothing changed. FieldError counts as BadRequest.
        """

    def snapshot(self) -> JsonObject:
        """Return the whole state of the part; equal states have equal ones."""

    def restore(self, raw: JsonObject) -> None:
        """Replace the state by a snapshot's. Raises FieldError."""

    def elected(self) -> None:
        """This broker leads control, and has applied everything committed. Must not wait."""

    def deposed(self) -> None:
        """This broker leads control no more. Must not wait."""
