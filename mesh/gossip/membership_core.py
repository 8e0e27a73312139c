"""The rules of SWIM: what becomes of a claim that a member is alive, suspect or dead. Pure.

Rule 1: a claim counts only with the member's own incarnation: a higher one beats everything, at the same one dead beats
        suspect beats alive. Only the member itself raises its incarnation, to refute.
Rule 2: a suspect becomes dead when its time to defend itself is over (suspicion_core.py), never sooner.
Rule 3: a name belongs to an address. Another address takes it over only from one that left, or that is dead for
        `dead_reclaim_s`; else it is a conflict and the claim is void. Who meets its own name elsewhere (a restart at
        another address, before the old one was found dead) announces itself again every REANNOUNCE_EVERY_S, for
        REANNOUNCE_FOR_S after it was last met: until a state exchange brings it up others would not know it.
Rule 4: every claim that changed something is told on, under the member's name: an older rumour about it is void.
Rule 5: nothing is taken from a member whose versions we cannot speak: one wrong vector, passed on, spoils the state
        exchanges of innocent members. Nor an accusation that could not be refuted in 32 bits.

Source: "SWIM", sections 4.2 and 4.4; "Lifeguard", 3.2; docs/protocol/gossip.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mesh.gossip.awareness_core import Awareness
from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.codec import Alive, Dead, MemberRow, Suspect, encode
from mesh.gossip.effects import Effect, MemberJoined, MemberLeft, MemberUpdated, NameConflict
from mesh.gossip.member import INCARNATION_MAX, OUR_VERSIONS, Member, MemberState, Versions
from mesh.gossip.roster_core import Roster
from mesh.gossip.suspicion_core import Suspicion, suspicion_bounds
from mesh.gossip.timing import Timing

# Nobody comes near it by refuting: beyond it, a claim is an attempt to exhaust the 32 bits.
ACCUSED_INCARNATION_MAX: Final = INCARNATION_MAX - 2**20
REANNOUNCE_EVERY_S: Final = 5.0
REANNOUNCE_FOR_S: Final = 120.0  # longer than it takes to find a member dead, and to take its name from it
_NEVER: Final = float("inf")


class Membership:
    """Claims in, states and rumours out.

    Args:
        own: ourselves; enters by `start`.
        timing: of the pool.
        roster: who is known.
        queue: where rumours go.
        awareness: rises when we must refute.
        effects: where news for the layer above goes.
        counts: what was dropped, by fixed names.
    """

    def __init__(
        self,
        *,
        own: Member,
        timing: Timing,
        roster: Roster,
        queue: BroadcastQueue,
        awareness: Awareness,
        effects: list[Effect],
        counts: Counter[str],
    ) -> None:
        self._own = own
        self._timing = timing
        self._roster = roster
        self._queue = queue
        self._awareness = awareness
        self._effects = effects
        self._counts = counts
        self._suspicions: dict[str, Suspicion] = {}
        self.own_ticket = 0  # of the newest rumour about ourselves
        self.is_leaving = False
        self._reannounce_at = _NEVER
        self._reannounce_until = 0.0

    @property
    def own(self) -> Member:
        """Return ourselves as the pool shall see us."""
        return self._roster.get(self._own.name) or self._own

    def announce(self, *, now: float, meta: bytes | None = None) -> None:
        """Tell the pool that we are here; later, with one incarnation more, that our tags are `meta`."""
        known = self._roster.get(self._own.name)
        incarnation = self._own.incarnation if known is None else known.incarnation + 1
        claim = Alive(
            incarnation=incarnation,
            name=self._own.name,
            address=self._own.address,
            meta=self.own.meta if meta is None else meta,
            versions=OUR_VERSIONS,
        )
        self._accept_alive(claim, known, now)

    def leave(self, now: float) -> None:
        """Say that we go; from now on nobody's claim that we are dead is refuted."""
        if self.is_leaving:
            return
        self.is_leaving = True
        self._reannounce_at = _NEVER
        own = self.own
        self.on_dead(Dead(incarnation=own.incarnation, name=own.name, accuser=own.name), now)

    def on_alive(self, claim: Alive, now: float) -> None:
        """Judge a claim that a member lives."""
        is_own = claim.name == self._own.name
        if is_own and self.is_leaving:
            return
        if not claim.versions.agrees_with(OUR_VERSIONS):
            self._counts["alive.version_refused"] += 1
            return
        if not is_own and claim.address == self._own.address:
            self._counts["alive.at_our_address"] += 1
            return
        known = self._roster.get(claim.name)
        if known is None and self._roster.is_full:
            self._counts["alive.pool_full"] += 1
            return
        moved = known is not None and known.address != claim.address
        if moved and known is not None and not self._may_take_over(known, now):
            self._counts["alive.conflict"] += 1
            self._effects.append(NameConflict(member=known, address=claim.address, meta=claim.meta))
            if is_own:
                self._reannounce_until = now + REANNOUNCE_FOR_S
                self._reannounce_at = min(self._reannounce_at, now + REANNOUNCE_EVERY_S)
            return
        if is_own:
            self._judge_own_alive(claim, now)
        elif known is None or moved or claim.incarnation > known.incarnation:
            self._accept_alive(claim, known, now)

    def on_suspect(self, claim: Suspect, now: float) -> None:
        """Judge an accusation."""
        known = self._accused(claim)
        if known is None:
            return
        running = self._suspicions.get(claim.name)
        if running is not None:
            if running.confirm(claim.accuser):
                self._tell(claim)
            return
        if known.state is not MemberState.ALIVE:
            return
        if claim.name == self._own.name:
            self._refute(claim.incarnation, now)
            return
        self._tell(claim)
        self._roster.put(replace(known, state=MemberState.SUSPECT, incarnation=claim.incarnation, changed_at=now))
        bounds = suspicion_bounds(self._timing, len(self._roster))
        self._suspicions[claim.name] = Suspicion(accuser=claim.accuser, bounds=bounds, now=now)

    def on_dead(self, claim: Dead, now: float) -> None:
        """Judge a death notice; one that the member signed itself is a farewell."""
        known = self._accused(claim)
        if known is None or known.is_gone:
            return
        if claim.name == self._own.name and not self.is_leaving:
            self._refute(claim.incarnation, now)
            return
        self._suspicions.pop(claim.name, None)
        self._tell(claim)
        state = MemberState.LEFT if claim.accuser == claim.name else MemberState.DEAD
        gone = replace(known, state=state, incarnation=claim.incarnation, changed_at=now)
        self._roster.put(gone)
        self._effects.append(MemberLeft(member=gone))

    def merge(self, rows: Iterable[MemberRow], now: float) -> None:
        """Judge the rows of a push/pull state.

        A row that is alive with versions that somebody alive here, or in an earlier row, cannot speak is left out.
        Dead is only suspected: so the accused can still refute.
        """
        vectors = _Agreement()
        for member in self._roster.values():
            if member.state is MemberState.ALIVE:
                vectors.add(member.versions)
        for row in rows:
            if row.state is MemberState.ALIVE:
                if not vectors.add(row.versions):
                    self._counts["alive.version_refused"] += 1
                    continue
                claim = Alive(
                    incarnation=row.incarnation,
                    name=row.name,
                    address=row.address,
                    meta=row.meta,
                    versions=row.versions,
                )
                self.on_alive(claim, now)
            elif row.state is MemberState.LEFT:
                self.on_dead(Dead(incarnation=row.incarnation, name=row.name, accuser=row.name), now)
            else:
                self.on_suspect(Suspect(incarnation=row.incarnation, name=row.name, accuser=self._own.name), now)

    def suspect(self, name: str, now: float) -> None:
        """Accuse a member that did not answer us."""
        member = self._roster.get(name)
        if member is not None:
            self.on_suspect(Suspect(incarnation=member.incarnation, name=name, accuser=self._own.name), now)

    def next_due(self) -> float:
        """Return when the next suspicion ends, or we announce ourselves again; infinity without either."""
        ends = min((suspicion.deadline for suspicion in self._suspicions.values()), default=_NEVER)
        return min(ends, self._reannounce_at)

    def tick(self, now: float) -> None:
        """Declare dead whose time is over; announce ourselves again where that is due."""
        if self._reannounce_at <= now:
            following = self._reannounce_at + REANNOUNCE_EVERY_S
            self._reannounce_at = max(following, now) if following <= self._reannounce_until else _NEVER
            self._tell(_alive_claim(self.own))
        for name, suspicion in list(self._suspicions.items()):
            member = self._roster.get(name)
            if suspicion.deadline <= now and member is not None:
                self.on_dead(Dead(incarnation=member.incarnation, name=name, accuser=self._own.name), now)

    def defer(self, until: float) -> None:
        """Let no suspicion end before `until`."""
        for suspicion in self._suspicions.values():
            suspicion.defer(until)

    def _may_take_over(self, known: Member, now: float) -> bool:
        if known.state is MemberState.LEFT:
            return True
        reclaim_s = self._timing.dead_reclaim_s
        return known.state is MemberState.DEAD and reclaim_s > 0 and now - known.changed_at > reclaim_s

    def _accused(self, claim: Suspect | Dead) -> Member | None:
        """Return the member that an accusation is about, None if it is void."""
        known = self._roster.get(claim.name)
        if known is None or claim.incarnation < known.incarnation:
            return None
        if claim.incarnation > ACCUSED_INCARNATION_MAX:
            self._counts["claim.incarnation_refused"] += 1
            return None
        return known

    def _judge_own_alive(self, claim: Alive, now: float) -> None:
        own = self.own
        if claim.incarnation < own.incarnation:
            return
        is_same = claim.meta == own.meta and claim.versions == own.versions
        if claim.incarnation == own.incarnation and is_same:
            return  # our own rumour, come back
        if claim.incarnation > ACCUSED_INCARNATION_MAX:
            self._counts["claim.incarnation_refused"] += 1
            return
        self._refute(claim.incarnation, now)

    def _refute(self, accused: int, now: float) -> None:
        own = self.own
        self._awareness.apply(+1)
        self._counts["refuted"] += 1
        self._roster.put(replace(own, incarnation=max(own.incarnation, accused) + 1))
        self._tell(_alive_claim(self.own))

    def _accept_alive(self, claim: Alive, known: Member | None, now: float) -> None:
        self._suspicions.pop(claim.name, None)
        self._tell(claim)
        was_alive = known is not None and known.state is MemberState.ALIVE
        member = Member(
            name=claim.name,
            address=claim.address,
            meta=claim.meta,
            versions=claim.versions,
            state=MemberState.ALIVE,
            incarnation=claim.incarnation,
            changed_at=known.changed_at if known is not None and was_alive else now,
        )
        self._roster.put(member)
        if known is None or known.is_gone:
            self._effects.append(MemberJoined(member=member))
        elif known.meta != member.meta:
            self._effects.append(MemberUpdated(member=member))

    def _tell(self, claim: Alive | Suspect | Dead) -> None:
        ticket = self._queue.push(encode(claim), key=claim.name)
        if claim.name == self._own.name:
            self.own_ticket = ticket


def _alive_claim(member: Member) -> Alive:
    return Alive(
        incarnation=member.incarnation,
        name=member.name,
        address=member.address,
        meta=member.meta,
        versions=member.versions,
    )


class _Agreement:
    """Whether many members speak each other's versions: every current one within every range."""

    __slots__ = ("_high", "_low", "_now_high", "_now_low")

    def __init__(self) -> None:
        self._low, self._high = (0, 0), (255, 255)  # of memberlist, of the layer above
        self._now_low, self._now_high = (255, 255), (0, 0)

    def add(self, vector: Versions) -> bool:
        """Take in one more vector; False, and nothing changed, if it clashes."""
        low = (max(self._low[0], vector.pmin), max(self._low[1], vector.dmin))
        high = (min(self._high[0], vector.pmax), min(self._high[1], vector.dmax))
        now_low = (min(self._now_low[0], vector.pcur), min(self._now_low[1], vector.dcur))
        now_high = (max(self._now_high[0], vector.pcur), max(self._now_high[1], vector.dcur))
        for part in range(2):
            if low[part] > now_low[part] or now_high[part] > high[part]:
                return False
        self._low, self._high, self._now_low, self._now_high = low, high, now_low, now_high
        return True
