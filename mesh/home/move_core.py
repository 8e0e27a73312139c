"""One attempt to move one stream's home: what it waits for, and how it ends. Pure.

    planned:  SEALING --sealed--> FOLLOWING --target_arrived--> ENDING --committed--> OVER
                                  FOLLOWING --target_late-----> ENDING   (the same home, in the new epoch)
                                  ENDING ----target_is_gone---> ENDING   (the same)
    forced:   PROMISING --promises_suffice--> FENCING --home_is_fenced--> ENDING --committed--> OVER
                                              FENCING --choice_is_silent--> PROMISING

Rule 1: every stage can be entered again from the row alone: to seal and to promise are asked again with the same epoch
        and answered the same. So any control leader resumes what another began.
Rule 2: no region is asked to take anything back. A seal is never taken off, a promise never taken back.
Rule 3: FENCING ends at once when the home itself promised, or the topic has failover=manual. Else it waits until the
        home can hold no lease.
Rule 4: control may say at any stage that the attempt is over: another took its place.
Rule 5: a region that was chosen and is silent before the new epoch is committed is left out, as if it had not answered:
        what the others promised may suffice without it. Never fewer than the level needs; then they are waited for.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from georelay.errors import GeorelayError
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.home.home_book_core import Ending
from mesh.home.home_row import HomeRow, MoveKind, Moving
from mesh.home.promise_core import Choice, PromiseAnswer, answers_needed, choose


class Stage(enum.Enum):
    """What an attempt waits for."""

    SEALING = "sealing"  # the old home closes its log
    FOLLOWING = "following"  # the target gets everything up to the seal
    PROMISING = "promising"  # enough regions promise
    FENCING = "fencing"  # the old home stops acknowledging
    ENDING = "ending"  # control commits the new epoch
    OVER = "over"


class Step(enum.Enum):
    """What happened."""

    SEALED = "sealed"
    TARGET_ARRIVED = "target_arrived"
    TARGET_LATE = "target_late"
    TARGET_IS_GONE = "target_is_gone"
    PROMISES_SUFFICE = "promises_suffice"
    HOME_IS_FENCED = "home_is_fenced"
    CHOICE_IS_SILENT = "choice_is_silent"
    COMMITTED = "committed"
    SUPERSEDED = "superseded"  # control says that the attempt is over


TRANSITIONS: Final[Mapping[tuple[Stage, Step], Stage]] = MappingProxyType(
    {
        (Stage.SEALING, Step.SEALED): Stage.FOLLOWING,
        (Stage.FOLLOWING, Step.TARGET_ARRIVED): Stage.ENDING,
        (Stage.FOLLOWING, Step.TARGET_LATE): Stage.ENDING,
        (Stage.FOLLOWING, Step.TARGET_IS_GONE): Stage.ENDING,
        (Stage.ENDING, Step.TARGET_IS_GONE): Stage.ENDING,
        (Stage.PROMISING, Step.PROMISES_SUFFICE): Stage.FENCING,
        (Stage.FENCING, Step.HOME_IS_FENCED): Stage.ENDING,
        (Stage.FENCING, Step.CHOICE_IS_SILENT): Stage.PROMISING,
        (Stage.ENDING, Step.COMMITTED): Stage.OVER,
        (Stage.SEALING, Step.SUPERSEDED): Stage.OVER,
        (Stage.FOLLOWING, Step.SUPERSEDED): Stage.OVER,
        (Stage.PROMISING, Step.SUPERSEDED): Stage.OVER,
        (Stage.FENCING, Step.SUPERSEDED): Stage.OVER,
        (Stage.ENDING, Step.SUPERSEDED): Stage.OVER,
    }
)
_FIRST: Final[Mapping[MoveKind, Stage]] = MappingProxyType(
    {MoveKind.PLANNED: Stage.SEALING, MoveKind.FORCED: Stage.PROMISING}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What an attempt waits for, for people.

    Args:
        regions: who is to answer; empty when nobody is. Of them, and of those in `promised`, `needed` have to promise.
        fault: the newest thing that went wrong, "" for nothing.
    """

    stage: Stage
    regions: tuple[RegionNumber, ...]
    promised: tuple[RegionNumber, ...] = ()
    needed: int = 0
    fault: str = ""


class Move:
    """The attempt that a row says is under way.

    Args:
        row: with `moving`.
        level: k, records acknowledged by that many regions must be kept by a forced move.
        needs_lease: the topic has failover=auto.
        accept_loss: a forced move may go on with fewer answers than `level` needs.
    """

    def __init__(
        self,
        row: HomeRow,
        *,
        level: int,
        needs_lease: bool,
        accept_loss: bool = False,
    ) -> None:
        if row.moving is None:
            raise ValueError(f"{row.key}: nothing is under way")
        self.row = row
        self.moving: Moving = row.moving
        self.regions = row.regions  # whose acknowledgement may count in the present epoch: n of the quorum rule
        self.level = level
        self.needs_lease = needs_lease
        self.accept_loss = accept_loss
        self.stage = _FIRST[row.moving.kind]
        self.fault: GeorelayError | None = None  # the newest thing that went wrong
        self.choice: Choice | None = None
        self._answers: dict[RegionNumber, PromiseAnswer] = {}
        self._ending: Ending | None = None
        self._end: tuple[Offset, bytes] | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to do."""
        return self.stage is Stage.OVER

    @property
    def answered(self) -> frozenset[RegionNumber]:
        """Return the regions that promised."""
        return frozenset(self._answers)

    @property
    def sealed_at(self) -> Offset | None:
        """Return the first offset of the new epoch, None while the old home has not sealed."""
        return None if self._end is None else self._end[0]

    @property
    def ending(self) -> Ending | None:
        """Return what control has to commit, None in every stage but ENDING."""
        return self._ending if self.stage is Stage.ENDING else None

    @property
    def has_enough(self) -> bool:
        """Return whether the promises suffice, and more of them could only make the orphan branch shorter."""
        return self.stage is Stage.PROMISING and self.choice is not None and self.choice.is_enough

    @property
    def waiting(self) -> Waiting:
        """Return what the attempt waits for now."""
        fault = "" if self.fault is None else str(self.fault)
        if self.stage is Stage.PROMISING:
            return Waiting(
                stage=self.stage,
                regions=tuple(region for region in self.regions if region not in self._answers),
                promised=tuple(sorted(self._answers)),
                needed=answers_needed(regions=len(self.regions), level=self.level),
                fault=self._unknown_fault() or fault or self._short_fault(),
            )
        asked = {
            Stage.SEALING: (self.row.home,),
            Stage.FOLLOWING: (self.moving.target,),
            Stage.FENCING: (self.row.home,),
        }
        return Waiting(stage=self.stage, regions=asked.get(self.stage, ()), fault=fault)

    def _unknown_fault(self) -> str:
        """Say which regions have records in an epoch that control does not know."""
        strangers = [answer for _, answer in sorted(self._answers.items()) if answer.unknown_epoch]
        if not strangers:
            return ""
        epochs, first = sorted({answer.unknown_epoch for answer in strangers}), min(row.length for row in strangers)
        return (
            f"regions {[answer.region for answer in strangers]} follow epochs {epochs}, which mesh control lost: "
            f"if the loss is accepted, what they have from offset {first} on becomes orphan branches"
        )

    def _short_fault(self) -> str:
        """Say why promises of enough regions do not suffice."""
        gone = sorted(answer.region for answer in self._answers.values() if not answer.is_stored)
        if not gone or (self.choice is not None and self.choice.is_enough):
            return ""
        return f"regions {gone} deleted what they agree to, and nobody who promised stores it up to {self.row.start}"

    # --- planned ----------------------------------------------------------------------------------

    def sealed(self, end: Offset, digest: bytes) -> None:
        """Follow the old home's answer: its committed SEAL stands at `end`."""
        self._step(Step.SEALED)
        self._end = (end, digest)

    def target_arrived(self, epoch: Epoch, high_watermark: Offset) -> bool:
        """Follow how far the target is; return whether it has everything.

        In an older epoch it has not: what it holds may be a branch of its own, longer than the stream.
        """
        assert self._end is not None, self.stage
        if epoch != self.row.epoch or high_watermark < self._end[0]:
            return False
        self._end_with(Step.TARGET_ARRIVED, self.moving.target)
        return True

    def target_late(self) -> None:
        """Give up waiting for the target: the old home goes on, in the new epoch."""
        self._end_with(Step.TARGET_LATE, self.row.home)

    def note_gone(
        self, *, may_be_home: Callable[[RegionNumber], bool], is_removed: Callable[[RegionNumber], bool]
    ) -> bool:
        """Leave the home where it is if the target is not to get it any more; return whether that was so.

        Args:
            may_be_home: whether a region takes homes; one that leaves takes none. is_removed: whether it left.
        """
        waits = self.stage in (Stage.FOLLOWING, Stage.ENDING) and self.moving.kind is MoveKind.PLANNED
        target = self.moving.target if self._ending is None else self._ending.home
        if not waits or target == self.row.home or may_be_home(target):
            return False
        if not is_removed(target) and not may_be_home(self.row.home):
            return False  # both leave: as good here as there
        self._end_with(Step.TARGET_IS_GONE, self.row.home)
        return True

    # --- forced -----------------------------------------------------------------------------------

    def promised(self, answer: PromiseAnswer) -> None:
        """Follow one region's promise; answers that come again, or after the choice, change nothing."""
        if self.stage is Stage.PROMISING:
            self._answers[answer.region] = answer

    def consider(
        self, *, waits_for_more: bool, avoided: Collection[RegionNumber] = (), trusts_home: bool = True
    ) -> bool:
        """Choose if the promises suffice; return whether a choice was made.

        Args:
            waits_for_more: more answers may still come, and a choice without them could make an orphan branch that is
                longer than need be: choose only if everything is known already.
            avoided: regions that take no homes (promise_core, rule 6).
            trusts_home: control knows every epoch that anybody was home in (promise_core, rule 3).

        Raises:
            Diverged: two regions hold different records in agreed epochs.
        """
        if self.stage is not Stage.PROMISING:
            return False
        self.choice = choice = choose(
            self.row,
            self._answers,
            regions=self.regions,
            level=self.level,
            preferred=self.moving.target,
            avoided=avoided,
            trusts_home=trusts_home,
        )
        if choice is None or not (choice.is_enough or (self.accept_loss and not waits_for_more)):
            return False
        if waits_for_more and choice.kept_level > 1 and len(choice.answered) < len(self.regions):
            return False
        self._step(Step.PROMISES_SUFFICE)
        return True

    def note_silent(self, is_heard: Callable[[RegionNumber], bool]) -> bool:
        """Leave the chosen region out if it is silent; return whether it was. It is asked again (rule 5)."""
        choice = self.choice
        if self.stage is not Stage.FENCING or choice is None or is_heard(choice.home):
            return False
        del self._answers[choice.home]
        self.choice = None
        self._step(Step.CHOICE_IS_SILENT)
        return True

    def fenced(self, *, leases_are_over: bool) -> bool:
        """Return whether the new epoch may start: the old home acknowledges no more, or never had to stop."""
        if self.stage is not Stage.FENCING:
            return False
        choice = self.choice
        assert choice is not None, self.row.key
        if self.needs_lease and self.row.home not in choice.answered and not leases_are_over:
            return False
        self._end = (choice.start, choice.digest)
        self._end_with(Step.HOME_IS_FENCED, choice.home)
        return True

    # --- both -------------------------------------------------------------------------------------

    def committed(self) -> None:
        """Follow control's commit of the end."""
        self._step(Step.COMMITTED)

    def superseded(self) -> None:
        """Follow control's word that the attempt is over already."""
        if not self.is_over:
            self._step(Step.SUPERSEDED)

    def _end_with(self, step: Step, home: RegionNumber) -> None:
        self._step(step)
        assert self._end is not None, self.stage
        start, digest = self._end
        self._ending = Ending(
            key=self.row.key,
            move_id=self.moving.move_id,
            home=home,
            start=start,
            digest=digest,
            accept_loss=self.choice is not None and not self.choice.is_enough,
        )

    def _step(self, step: Step) -> None:
        following = TRANSITIONS.get((self.stage, step))
        assert following is not None, f"{self.row.key}: {step.value} while {self.stage.value}"
        self.stage = following
