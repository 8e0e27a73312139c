"""Members as the Serf layer sees them: statuses ordered by logical time, intents that came too early (serf-wire 2.7).

Rule 1: an intent counts once, and only if it is later than what is known of the member; its time is stored first.
        (Storing it late let members tell each other the same leave for ever.)
Rule 2: an intent about a member that is not known waits for it, the newest per name, for INTENT_WAIT_S.
Rule 3: a member that fails keeps its row until it is reaped; the row is what reconnecting looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mesh.gossip.member import Address
from mesh.gossip.view import MemberChange, MemberStatus, MemberView

INTENT_WAIT_S: Final = 300.0
INTENTS_MAX: Final = 4_096
PRUNE_LEAVING_S: Final = 6.0  # the broadcast of its leave, 5 s, and a second more


@dataclass(slots=True, kw_only=True)
class MemberRow:
    """One member. `since`: when it failed or left, monotonic seconds; 0.0 while it is there."""

    name: str
    address: Address
    tags: Mapping[str, str]
    status: MemberStatus = MemberStatus.ALIVE
    ltime: int = 0
    since: float = 0.0

    def view(self, rtt_s: float | None = None) -> MemberView:
        """Return what others see."""
        return MemberView(name=self.name, address=self.address, status=self.status, tags=self.tags, rtt_s=rtt_s)


@dataclass(frozen=True, slots=True)
class _Early:
    ltime: int
    leaves: bool
    until: float


@dataclass(slots=True)
class Outcome:
    """What an intent did. `spread`: tell others; `refute`: it says that we leave, and we do not."""

    spread: bool = False
    refute: bool = False
    changes: list[tuple[MemberChange, MemberRow]] = field(default_factory=list)


class MemberTable:
    """Args: me: own name. is_leaving: whether this member itself leaves."""

    def __init__(self, *, me: str, is_leaving: Callable[[], bool]) -> None:
        self.rows: dict[str, MemberRow] = {}
        self._me = me
        self._is_leaving = is_leaving
        self._early: dict[str, _Early] = {}
        self._prunes: dict[str, float] = {}

    # --- what the member list below says -----------------------------------------------------------

    def joined(self, name: str, address: Address, tags: Mapping[str, str]) -> MemberRow:
        """Note a member that is alive; returns its row."""
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = MemberRow(name=name, address=address, tags=tags)
            early = self._early.pop(name, None)
            if early is not None:
                row.ltime = early.ltime
                row.status = MemberStatus.LEAVING if early.leaves else MemberStatus.ALIVE
        else:
            row.address, row.tags, row.status, row.since = address, tags, MemberStatus.ALIVE, 0.0
        return row

    def gone(self, name: str, now: float) -> MemberChange | None:
        """Note that a member is dead for the list below: it left if it said so, else it failed."""
        row = self.rows.get(name)
        if row is None:
            return None
        row.since = now
        if row.status is MemberStatus.LEAVING:
            row.status = MemberStatus.LEFT
            return MemberChange.LEFT
        if row.status is MemberStatus.ALIVE:
            row.status = MemberStatus.FAILED
            return MemberChange.FAILED
        return None

    def updated(self, name: str, address: Address, tags: Mapping[str, str]) -> MemberRow | None:
        """Note other tags; None: nobody has that name."""
        row = self.rows.get(name)
        if row is not None:
            row.address, row.tags = address, tags
        return row

    # --- intents -----------------------------------------------------------------------------------

    def leave_intended(self, name: str, ltime: int, *, prune: bool, now: float) -> Outcome:
        """Take in a leave intent, after the clock has witnessed it."""
        row = self.rows.get(name)
        if row is None:
            return Outcome(spread=self._came_early(name, ltime, leaves=True, now=now))
        if ltime <= row.ltime:
            return Outcome()
        if name == self._me and row.status is MemberStatus.ALIVE and not self._is_leaving():
            return Outcome(refute=True)
        row.ltime = ltime
        changes: list[tuple[MemberChange, MemberRow]] = []
        if row.status is MemberStatus.ALIVE:
            row.status = MemberStatus.LEAVING
        elif row.status is MemberStatus.FAILED:
            row.status, row.since = MemberStatus.LEFT, now
            changes.append((MemberChange.LEFT, row))
        if prune and row.status is MemberStatus.LEFT:
            changes.append((MemberChange.REAPED, self.rows.pop(name)))
        elif prune:
            self._prunes[name] = now + PRUNE_LEAVING_S
        return Outcome(spread=True, changes=changes)

    def join_intended(self, name: str, ltime: int, *, now: float) -> Outcome:
        """Take in a join intent, after the clock has witnessed it."""
        row = self.rows.get(name)
        if row is None:
            return Outcome(spread=self._came_early(name, ltime, leaves=False, now=now))
        if ltime <= row.ltime:
            return Outcome()
        row.ltime = ltime
        if row.status is MemberStatus.LEAVING:
            row.status = MemberStatus.ALIVE  # the leave was old news that came first
        return Outcome(spread=True)

    def _came_early(self, name: str, ltime: int, *, leaves: bool, now: float) -> bool:
        early = self._early.get(name)
        if early is not None and ltime <= early.ltime:
            return False
        if early is None and len(self._early) >= INTENTS_MAX:
            return False
        self._early[name] = _Early(ltime, leaves, now + INTENT_WAIT_S)
        return True

    # --- housekeeping ------------------------------------------------------------------------------

    def reap(self, now: float, *, failed_after_s: float, left_after_s: float) -> list[MemberRow]:
        """Forget members that are gone for long, and intents that waited for long; returns the members."""
        for name in [name for name, early in self._early.items() if early.until <= now]:
            del self._early[name]
        limits = {MemberStatus.FAILED: failed_after_s, MemberStatus.LEFT: left_after_s}
        old = [row for row in self.rows.values() if now - row.since >= limits.get(row.status, float("inf"))]
        for name in [name for name, due in self._prunes.items() if due <= now]:
            del self._prunes[name]
            row = self.rows.get(name)
            if row is not None and row not in old and row.status in (MemberStatus.LEAVING, MemberStatus.LEFT):
                old.append(row)
        for row in old:
            del self.rows[row.name]
        return old

    def erase(self, name: str) -> MemberRow | None:
        """Forget one member now."""
        return self.rows.pop(name, None)

    def of_status(self, status: MemberStatus) -> list[MemberRow]:
        """Return the members of one status."""
        return [row for row in self.rows.values() if row.status is status]
