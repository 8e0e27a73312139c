"""Whose disk is which, as the controller's log says that was found at start and is not applied again yet.

Votes count from the first moment, and what is committed is known only once there is a leader. Until then:

Rule 1: a disk that a later entry has replaced is not heard, whether that entry is committed or not: two disks of one
        broker could help two leaders into office.
Rule 2: the disk that replaces it is heard, or a region that starts again without one of its brokers would never have
        a leader. It gives no vote before its own log says that it was taken in.
Rule 3: a registration changes no disk, except the first one of a broker and the first one after its removal.
"""

from __future__ import annotations

from dataclasses import dataclass

from georelay.ids import BrokerId, RaftIndex
from region.controller.commands import CommandError, RegisterBroker, RemoveBroker, ReplaceDisk, decode

_GONE = ""  # the broker was removed


@dataclass(frozen=True, slots=True)
class _Row:
    index: RaftIndex
    disk: str
    replaces: bool  # counts more than what is applied


class RecoveredDisks:
    """Disks by broker, as the entries above the applied ones name them."""

    def __init__(self) -> None:
        self._rows: dict[BrokerId, list[_Row]] = {}

    def note(self, index: RaftIndex, command: bytes) -> None:
        """Take in one command that was found in the log, in order."""
        try:
            decoded = decode(command)
        except CommandError:
            return  # `apply` stops the group, if it is committed
        if isinstance(decoded, RegisterBroker):
            self._registered(index, decoded.registration.broker, decoded.registration.disk_uuid)
        elif isinstance(decoded, ReplaceDisk):
            self._replaced(index, decoded.registration.broker, decoded.registration.disk_uuid, decoded.replaces)
        elif isinstance(decoded, RemoveBroker):
            self._rows.setdefault(decoded.broker, []).append(_Row(index, _GONE, False))

    def _registered(self, index: RaftIndex, broker: BrokerId, disk: str) -> None:
        rows = self._rows.setdefault(broker, [])
        if not rows or rows[-1].disk == _GONE:
            rows.append(_Row(index, disk, bool(rows)))

    def _replaced(self, index: RaftIndex, broker: BrokerId, disk: str, replaces: str) -> None:
        rows = self._rows.setdefault(broker, [])
        if not rows or rows[-1].disk == replaces:
            rows.append(_Row(index, disk, True))

    def truncated(self, from_index: RaftIndex) -> None:
        """Forget what the entries from `from_index` on said."""
        self._rows = {broker: [row for row in rows if row.index < from_index] for broker, rows in self._rows.items()}

    def disk_of(self, broker: BrokerId, *, applied: str | None, applied_index: RaftIndex) -> str | None:
        """Return the disk that may speak for a broker; None while nothing is known.

        Args:
            applied: what the state after `applied_index` says.
        """
        rows = [row for row in self._rows.get(broker, ()) if row.index > applied_index and row.disk != _GONE]
        if rows and rows[-1].replaces:
            return rows[-1].disk
        if applied is not None or not rows:
            return applied
        return rows[-1].disk
