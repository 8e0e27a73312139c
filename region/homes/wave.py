"""Attempts of many streams, carried to their ends side by side: a page per region and stage, not a request per stream.

Rule 1: everything asked may be asked again: an answer that is lost costs time and nothing else.
Rule 2: a wave goes on until every attempt of it is over; it ends early only with the leadership.
Rule 3: one region that does not answer holds up the streams that need its answer; a wave holds only streams of one
        kind, home and target, so those are all it holds.
Rule 4: who answers is looked at anew in every round: regions that came back are asked again, and a chosen one that is
        silent before its epoch is committed is left out where the others suffice.
Rule 5: how long answers are waited for is each stream's own affair (mesh.home.patience_core). Once some streams have
        chosen and no other has its grace, those go on; what the others asked is asked again in the next round.
Rule 6: a forced attempt whose regions changed under it begins anew, with those of now: who joined may have acknowledged
        records with the old home, and who was removed cannot promise, nor be home.
        One that is refused so much is not begun anew, nor ended, until the regions change again: every try is an entry
        in the log of control.
Rule 7: after a recovery of control a promise counts once its region said in which epoch its log is: control may have
        lost that epoch. Asked after the promise, since no lower epoch begins in the log then. A home that has
        everything of its own epoch is one promise among others then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final, TypeAlias

import structlog

from georelay.clock import Clock
from georelay.errors import BadRequest, Diverged, Fenced, GeorelayError, OffsetOutOfRange, OutcomeUnknown, Unavailable
from georelay.ids import RegionNumber, StreamKey
from mesh.home.home_row import HomeRow, MoveKind, renewed_id
from mesh.home.move_core import Move, Stage
from mesh.home.patience_core import Patience
from mesh.home.promise_core import PromiseAnswer
from region.homes.asking import RegionAsker, pages
from region.homes.home_requests import (
    ENDS_METHOD,
    PROMISE_METHOD,
    SEAL_METHOD,
    Asked,
    EndAsked,
    LogEnds,
    PrefixEnd,
    PromiseAsked,
    SealAsked,
    Told,
)
from region.homes.part import STREAMS_PER_COMMAND_MAX, HomesPart, begin_command, end_command
from region.homes.ports import AskRegion, Control

log = structlog.get_logger()

FOLLOW_WAIT_MS: Final = 1_000  # of one question to the target
FOLLOW_MS_MAX: Final = 5_000  # after that the old home goes on: publishers wait all the while
LOOK_S: Final = 0.05  # at what is waited for: while a stream has its grace, and else
LOOK_S_MAX: Final = 0.25
AGAIN_S: Final = 0.1
AGAIN_S_MAX: Final = 2.0
_NS_PER_MS: Final = 1_000_000
_Question: TypeAlias = tuple[RegionNumber, frozenset[StreamKey]]  # whom, about what


class Wave:
    """One wave.

    Args:
        moves: at most WAVE_STREAMS_MAX, of one kind, home and target.
        is_heard: whether a region answered lately: for those that did not, nobody waits beyond need.
        leases_over: whether no broker of a region can hold a lease any more.
        begun_anew: told that another attempt took the place of one that was to begin anew (rule 6).
    """

    def __init__(
        self,
        moves: Sequence[Move],
        *,
        part: HomesPart,
        control: Control,
        ask: AskRegion,
        clock: Clock,
        is_heard: Callable[[RegionNumber], bool],
        leases_over: Callable[[RegionNumber], bool],
        begun_anew: Callable[[StreamKey], None] = lambda _key: None,
    ) -> None:
        self._begun_anew = begun_anew
        self.moves = list(moves)
        self._part = part
        self._control = control
        self._ask = ask
        self._clock = clock
        self._is_heard = is_heard
        self._leases_over = leases_over
        self._sealed_ns: dict[StreamKey, int] = {}
        self._refused: dict[StreamKey, tuple[tuple[RegionNumber, ...], GeorelayError]] = {}  # not begun anew with these
        self._patience = {move.row.key: Patience() for move in self.moves}

    @property
    def open(self) -> list[Move]:
        """Return the attempts that are not over."""
        return [move for move in self.moves if not move.is_over]

    async def run(self, slots: AbstractAsyncContextManager[Any] | None = None) -> None:
        """Return when every attempt is over. Raises what the loss of the leadership raises.

        Args:
            slots: held while regions are asked, not between two rounds: a wave that cannot go on holds up no other.
        """
        pause_s = AGAIN_S
        while self.open:
            before = [move.stage for move in self.moves]
            async with slots or nullcontext():
                self._notice_superseded()
                await self._round()
            self._notice_superseded()
            if [move.stage for move in self.moves] != before:
                pause_s = AGAIN_S
            elif self.open:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, AGAIN_S_MAX if not self._at(Stage.FENCING) else AGAIN_S)

    async def _round(self) -> None:
        await self._begin_anew([move for move in self.open if self._is_outdated(move) and not self._is_stuck(move)])
        for move in self.open:
            if move.note_gone(may_be_home=self._part.may_be_home, is_removed=self._part.is_removed):
                log.warning("home.target_gone", stream=str(move.row.key), target=move.moving.target)
        await self._seal(await self._known(self._at(Stage.SEALING)))
        await self._follow(self._at(Stage.FOLLOWING))
        await self._promise(self._at(Stage.PROMISING))
        for move in self._at(Stage.FENCING):
            if move.note_silent(self._is_heard):
                continue  # the others are asked in the next round
            move.fenced(leases_are_over=self._leases_over(move.row.home))
        await self._end([move for move in self._at(Stage.ENDING) if self._may_end(move)])

    def _at(self, stage: Stage) -> list[Move]:
        return [move for move in self.moves if move.stage is stage]

    def _notice_superseded(self) -> None:
        for move in self.open:
            row = self._part.row(move.row.key)
            if row is None or row.moving is None or row.moving.move_id != move.moving.move_id:
                move.superseded()

    # --- begun anew -------------------------------------------------------------------------------

    def _is_outdated(self, move: Move) -> bool:
        return move.moving.kind is MoveKind.FORCED and self._part.asked_now(move.row) != move.regions

    def _is_stuck(self, move: Move) -> bool:
        refused = self._refused.get(move.row.key)
        return refused is not None and refused[0] == self._part.asked_now(move.row)

    def _may_end(self, move: Move) -> bool:
        """Return False for an attempt that would be refused: a region joined, and it cannot begin anew."""
        if not self._is_stuck(move) or set(self._part.asked_now(move.row)) <= set(move.regions):
            return True
        move.fault = self._refused[move.row.key][1]
        return False

    async def _begin_anew(self, moves: Sequence[Move]) -> None:
        groups: dict[tuple[str, RegionNumber], list[Move]] = {}
        for move in moves:
            groups.setdefault((move.moving.move_id, move.moving.target), []).append(move)
        for (move_id, target), group in groups.items():
            for at in range(0, len(group), STREAMS_PER_COMMAND_MAX):
                keys = [move.row.key for move in group[at : at + STREAMS_PER_COMMAND_MAX]]
                command = begin_command(keys, move_id=renewed_id(move_id), kind=MoveKind.FORCED, target=target)
                outcome = await self._control.propose(self._part.name, command)
                refused = {key: text for key, _, text in self._part.read_refused(outcome)}
                for move in group:
                    if move.row.key in refused:
                        move.fault = BadRequest(refused[move.row.key])
                        self._refused[move.row.key] = self._part.asked_now(move.row), move.fault
                        log.warning("home.attempt_not_renewed", stream=str(move.row.key), reason=str(move.fault))
            self._notice_superseded()
            for move in group:
                row = self._part.row(move.row.key)
                if row is not None and row.moving is not None and row.moving.epoch > move.moving.epoch:
                    log.info("home.attempt_renewed", stream=str(row.key), epoch=row.moving.epoch)
                    self._begun_anew(row.key)

    # --- planned ----------------------------------------------------------------------------------

    async def _known(self, moves: Sequence[Move]) -> list[Move]:
        """Return the attempts of which every region says that it follows no epoch which control lost (rule 7)."""
        asked = {move.row.key: self._part.asked_now(move.row) for move in moves if self._doubts(move)}
        regions = sorted({region for of_stream in asked.values() for region in of_stream})
        about = [[EndAsked(key=key) for key, of_stream in asked.items() if region in of_stream] for region in regions]
        told = await asyncio.gather(
            *(self._ask_about(region, ENDS_METHOD, rows) for region, rows in zip(regions, about, strict=True))
        )
        ends = dict(zip(regions, told, strict=True))
        known: list[Move] = []
        for move in moves:
            said = {region: ends[region].get(move.row.key) for region in asked.get(move.row.key, ())}
            strange = [
                region for region, end in said.items() if not isinstance(end, LogEnds) or end.epoch > move.row.epoch
            ]
            if strange:
                move.fault = Unavailable(f"regions {strange} follow, or may follow, an epoch that mesh control lost")
            else:
                known.append(move)
        return known

    def _doubts(self, move: Move) -> bool:
        return not self._part.knows_epochs_of(move.row)

    async def _seal(self, moves: Sequence[Move]) -> None:
        for region, group in _grouped(moves, lambda move: move.row.home):
            asked = [
                SealAsked(
                    key=move.row.key, epoch=move.row.epoch, new_epoch=move.moving.epoch, move_id=move.moving.move_id
                )
                for move in group
            ]
            answers = await self._ask_about(region, SEAL_METHOD, asked)
            for move in group:
                told = answers[move.row.key]
                if isinstance(told, PrefixEnd):
                    move.sealed(told.offset, told.digest)
                    self._sealed_ns[move.row.key] = self._clock.monotonic_ns()
                elif isinstance(told, GeorelayError):
                    move.fault = told

    async def _follow(self, moves: Sequence[Move]) -> None:
        for region, group in _grouped(moves, lambda move: move.moving.target):
            asked = [EndAsked(key=move.row.key, until=move.sealed_at) for move in group if move.sealed_at is not None]
            answers = await self._ask_about(region, ENDS_METHOD, asked, wait_ms=FOLLOW_WAIT_MS)
            now_ns = self._clock.monotonic_ns()
            for move in group:
                told = answers[move.row.key]
                if isinstance(told, LogEnds) and move.target_arrived(told.epoch, told.high_watermark):
                    continue
                move.fault = told if isinstance(told, GeorelayError) else None
                if now_ns - self._sealed_ns[move.row.key] >= FOLLOW_MS_MAX * _NS_PER_MS:
                    log.warning("home.target_late", stream=str(move.row.key), target=region, end=move.sealed_at)
                    move.target_late()

    # --- forced -----------------------------------------------------------------------------------

    async def _promise(self, moves: Sequence[Move]) -> None:
        """Ask every region that has not promised yet; choose as soon as the answers allow."""
        asking = self._ask_for_promises(moves) if moves else {}
        pending = set(asking)
        try:
            while True:
                self._choose(moves, [asking[page] for page in pending])
                left = [move for move in moves if move.stage is Stage.PROMISING]
                now_ns = self._clock.monotonic_ns()
                in_grace = any(self._patience[move.row.key].is_in_grace(now_ns) for move in left)
                if not pending or not left or (len(left) < len(moves) and not in_grace):
                    return
                done, pending = await asyncio.wait(
                    pending, timeout=LOOK_S if in_grace else LOOK_S_MAX, return_when=asyncio.FIRST_COMPLETED
                )
                for page in done:
                    page.result()
        finally:
            for page in pending:
                page.cancel()

    def _ask_for_promises(self, moves: Sequence[Move]) -> dict[asyncio.Future[None], _Question]:
        """Begin to ask; return what each page of it is about."""
        asking: dict[asyncio.Future[None], _Question] = {}
        for region in sorted({region for move in moves for region in move.regions}):
            wanted = {move.row.key: move for move in moves if region in move.regions and region not in move.answered}
            asker = RegionAsker(region, self._ask)
            asked = (
                PromiseAsked(key=move.row.key, new_epoch=move.moving.epoch, table=move.row.table)
                for move in wanted.values()
            )
            for page in pages(asked):
                answered = asyncio.ensure_future(self._promises_of(region, asker, page, wanted))
                asking[answered] = region, frozenset(row.key for row in page)
        return asking

    async def _promises_of(
        self, region: RegionNumber, asker: RegionAsker, page: Sequence[Asked], wanted: Mapping[StreamKey, Move]
    ) -> None:
        promised: dict[StreamKey, PromiseAnswer] = {}
        for key, told in (await asker.page(PROMISE_METHOD, page)).items():
            move = wanted[key]
            if isinstance(told, PrefixEnd):
                promised[key] = PromiseAnswer(region=region, length=told.offset, digest=told.digest)
            elif isinstance(told, OffsetOutOfRange):
                promised[key] = PromiseAnswer.deleted(region, move.row)
            elif isinstance(told, GeorelayError):
                move.fault = Unavailable(f"region {region} did not promise: {told}")
        if self._part.is_recovered:
            promised = await self._with_unknown_epochs(asker, promised, wanted)
        for key, answer in promised.items():
            wanted[key].promised(answer)

    async def _with_unknown_epochs(
        self, asker: RegionAsker, promised: Mapping[StreamKey, PromiseAnswer], wanted: Mapping[StreamKey, Move]
    ) -> dict[StreamKey, PromiseAnswer]:
        """Return the promises of regions that said which epoch their logs are in (rule 7)."""
        known: dict[StreamKey, PromiseAnswer] = {}
        ends = await asker.page(ENDS_METHOD, [EndAsked(key=key) for key in promised]) if promised else {}
        for key, told in ends.items():
            move, answer = wanted[key], promised[key]
            if not isinstance(told, LogEnds):
                move.fault = Unavailable(f"region {answer.region} did not say which epoch it follows: {told}")
            elif told.epoch <= move.row.epoch or told.high_watermark <= answer.length:
                known[key] = answer
            else:
                known[key] = replace(answer, unknown_epoch=told.epoch)
                log.critical(
                    "home.epoch_unknown",
                    stream=str(key),
                    region=answer.region,
                    epoch=told.epoch,
                    first=answer.length,
                    following=told.high_watermark,
                )
        return known

    def _choose(self, moves: Iterable[Move], open_questions: Collection[_Question]) -> None:
        for move in moves:
            asked = {region for region, keys in open_questions if move.row.key in keys}
            try:
                if self._is_decided(move, asked):
                    move.fault = None
            except Diverged as error:
                if move.fault is None or str(move.fault) != str(error):
                    log.critical("home.promises_diverged", stream=str(move.row.key), reason=str(error))
                move.fault = error

    def _is_decided(self, move: Move, asked: Collection[RegionNumber]) -> bool:
        """Choose if it is time to; return whether a choice was made."""
        if move.stage is not Stage.PROMISING:
            return False
        avoided = [region for region in move.regions if not self._part.may_be_home(region)]
        trusts_home = not self._part.is_recovered
        if move.consider(waits_for_more=True, avoided=avoided, trusts_home=trusts_home):
            return True
        now_ns = self._clock.monotonic_ns()
        patience = self._patience[move.row.key]
        is_over = patience.is_over(move, asked=asked, is_heard=self._is_heard, now_ns=now_ns)
        return is_over and move.consider(waits_for_more=False, avoided=avoided, trusts_home=trusts_home)

    # --- both -------------------------------------------------------------------------------------

    async def _end(self, moves: Sequence[Move]) -> None:
        """Commit the new epochs; a lost answer is found out by looking at the rows."""
        for at in range(0, len(moves), STREAMS_PER_COMMAND_MAX):
            chunk = moves[at : at + STREAMS_PER_COMMAND_MAX]
            try:
                outcome = await self._control.propose("homes", end_command([m.ending for m in chunk if m.ending]))
            except OutcomeUnknown as error:
                for move in chunk:
                    move.fault = error
                continue
            refused = {key: text for key, _, text in self._part.read_refused(outcome)}
            for move in chunk:
                text = refused.get(move.row.key)
                if text is None:
                    self._ended(move)
                else:
                    move.fault = Fenced(text)

    def _ended(self, move: Move) -> None:
        move.committed()
        row = self._part.row(move.row.key)
        if row is None:
            return  # its topic was deleted meanwhile
        log.info("home.moved", stream=str(row.key), kind=str(move.moving.kind), **_shown(row, move))

    async def _ask_about(
        self, region: RegionNumber, method: str, asked: Sequence[Asked], *, wait_ms: int = 0
    ) -> dict[StreamKey, Told]:
        return await RegionAsker(region, self._ask).about(method, asked, wait_ms=wait_ms)


def _shown(row: HomeRow, move: Move) -> dict[str, int | bool]:
    kept = move.choice.kept_level if move.choice is not None else 1
    was = move.row.home
    shown = {"home": row.home, "was": was, "epoch": row.epoch, "start": row.start, "kept_level": kept}
    return {**shown, "accept_loss": row.accept_loss}


def _grouped(moves: Sequence[Move], region_of: Callable[[Move], RegionNumber]) -> list[tuple[RegionNumber, list[Move]]]:
    groups: dict[RegionNumber, list[Move]] = {}
    for move in moves:
        groups.setdefault(region_of(move), []).append(move)
    return sorted(groups.items())
