"""Where leadership should move, gently. Pure: no clock of its own, no randomness.

The leader of a group hands over to the first healthy voter of the preferred order. Every broker decides for the
groups it leads, so nobody has to be asked.

Rule 1: at most one hand-over per interval to the same broker; a group that just changed its leader rests first.
Rule 2: only to a voter that is alive and has nearly the whole log.
Rule 3: a hand-over that did not work is tried again later and later.
Rule 4: a broker that is being drained gives everything away without the first rest, and gets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from georelay.ids import BrokerId, GroupId

SETTLE_MS: Final = 30_000  # after a broker became active
PAIR_INTERVAL_MS: Final = 2_000
DRAIN_INTERVAL_MS: Final = 50
RETRY_MS: Final = 10_000  # doubled with every failure
RETRY_MS_MAX: Final = 320_000
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedGroup:
    """One group that this broker leads.

    Args:
        preferred: voters in the order in which they should lead.
        healthy: voters, without this broker, that could take over at once.
    """

    group_id: GroupId
    preferred: tuple[BrokerId, ...]
    healthy: frozenset[BrokerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMove:
    """Hand the leadership of `group_id` to `to`."""

    group_id: GroupId
    to: BrokerId


@dataclass(slots=True)
class _Attempt:
    failures: int
    not_before_ns: int


class BalancerCore:
    """Memory of one broker's hand-overs."""

    def __init__(self, *, me: BrokerId, now_ns: int) -> None:
        """`now_ns` is when this broker became active; monotonic, as every time here."""
        self._me = me
        self._active_since_ns = now_ns
        self._last_move_ns: dict[BrokerId, int] = {}
        self._attempts: dict[GroupId, _Attempt] = {}

    def plan(self, now_ns: int, led: Sequence[LedGroup], draining: frozenset[BrokerId]) -> list[LeaderMove]:
        """Return the hand-overs to begin now; each counts as tried."""
        self._forget_done(led)
        if not self.is_settled(now_ns, draining):
            return []
        drained = self._me in draining
        interval_ns = (DRAIN_INTERVAL_MS if drained else PAIR_INTERVAL_MS) * _MS
        moves = []
        for group in led:
            to = self._better_leader(group, draining)
            if to is None or not self._may_try(group.group_id, now_ns):
                continue
            last_ns = self._last_move_ns.get(to)
            if last_ns is not None and now_ns - last_ns < interval_ns:
                continue
            self._last_move_ns[to] = now_ns
            self._note_attempt(group.group_id, now_ns)
            moves.append(LeaderMove(group_id=group.group_id, to=to))
        return moves

    def is_settled(self, now_ns: int, draining: frozenset[BrokerId]) -> bool:
        """Return whether there may be hand-overs: this broker is drained, or active for SETTLE_MS."""
        return self._me in draining or now_ns - self._active_since_ns >= SETTLE_MS * _MS

    def _forget_done(self, led: Sequence[LedGroup]) -> None:
        still_led = {group.group_id for group in led}
        for group_id in [known for known in self._attempts if known not in still_led]:
            del self._attempts[group_id]  # the hand-over worked

    def _better_leader(self, group: LedGroup, draining: frozenset[BrokerId]) -> BrokerId | None:
        for voter in group.preferred:
            if voter in draining:
                continue
            if voter == self._me:
                return None
            if voter in group.healthy:
                return voter
        if self._me in draining:  # nobody of the preferred order is left: anybody is better than us
            return min(group.healthy - draining, default=None)
        return None

    def _may_try(self, group_id: GroupId, now_ns: int) -> bool:
        attempt = self._attempts.get(group_id)
        return attempt is None or now_ns >= attempt.not_before_ns

    def _note_attempt(self, group_id: GroupId, now_ns: int) -> None:
        failures = self._attempts[group_id].failures + 1 if group_id in self._attempts else 0
        rest_ms = min(RETRY_MS << failures, RETRY_MS_MAX)
        self._attempts[group_id] = _Attempt(failures, now_ns + rest_ms * _MS)
