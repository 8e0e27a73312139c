"""Moves that somebody asks for, at the leader of mesh control: checked, begun in windows, reported.

Rule 1: a planned move is begun in windows of 1000 streams; the next window waits for the one before. A forced one is
        begun whole: a stream that cannot go on holds up no other, and the driver carries a few thousand at a time.
Rule 2: a planned move is refused before anything is sealed when the target is far behind or does not answer; a forced
        one before anything is promised when too few regions answer. What has begun is carried on until it is over.
        After a recovery of control the first planned move of a stream is refused, too, unless every region says that it
        follows no epoch which control lost: the old home and the target know nothing of that, and nobody promises.
Rule 3: who accepts a loss ends the attempt that is under way when it is asked for, or else the one that begins then,
        and no other that took its place; no further epoch is needed for that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import BadRequest, Busy, GeorelayError, NotEnoughRegions, Unavailable, UnknownTopic
from georelay.ids import Epoch, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow, MoveKind, Moving, first_id
from mesh.home.promise_core import answers_needed
from region.homes.asking import RegionAsker
from region.homes.driver import MoveDriver
from region.homes.home_requests import ENDS_METHOD, PING_METHOD, WAVE_STREAMS_MAX, EndAsked, LogEnds, Told
from region.homes.levels import protected_level
from region.homes.part import STREAMS_PER_COMMAND_MAX, HomesPart, MeshTopics, begin_command
from region.homes.ports import AskRegion, Control
from region.homes.reports import MoveReport, MoveReports
from region.homes.tasks import OwnedTasks

log = structlog.get_logger()

NEAR_RECORDS: Final = 1_000  # a target so close gets the rest within the pause that sealing is anyway
CATCH_UP_S: Final = 15.0
LOOK_AGAIN_S: Final = 0.2
PING_TIMEOUT_S: Final = 2.0
MOVES_AT_ONCE_MAX: Final = 16
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAsked:
    """A wish: these streams, planned to `target`, or forced to wherever the promises say."""

    keys: tuple[StreamKey, ...]
    kind: MoveKind
    target: RegionNumber
    accept_loss: bool = False


class MoveDesk:
    """Begins moves and follows them until they are over. Arguments: see HomeLeader."""

    def __init__(
        self,
        *,
        part: HomesPart,
        topics: MeshTopics,
        control: Control,
        ask: AskRegion,
        driver: MoveDriver,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._part = part
        self._topics = topics
        self._control = control
        self._ask = ask
        self._driver = driver
        self._clock = clock
        self._rng = rng
        self._reports = MoveReports()
        self._tasks = OwnedTasks()
        self._look = asyncio.Event()

    def stop(self) -> None:
        """Forget everything: this broker leads no more, another one carries on what was begun."""
        self._tasks.cancel()
        self._reports.clear()

    def look(self) -> None:
        """Look at the book again: an attempt is over."""
        self._look.set()

    def begin(self, asked: MoveAsked) -> MoveReport:
        """Begin a move; return its report, which grows.

        Raises:
            UnknownTopic: one of the streams has no home that could move. Busy: too many moves are under way.
        """
        unknown = next((key for key in asked.keys if self._part.row(key) is None), None)
        if unknown is not None:
            raise UnknownTopic(f"stream {unknown} has no home that could move")
        if len(self._tasks) >= MOVES_AT_ONCE_MAX:
            raise Busy(f"{len(self._tasks)} moves are under way: wait until one is over")
        move_id = f"{asked.kind}-{self._rng.getrandbits(64):016x}"
        report = MoveReport(move_id=move_id, kind=str(asked.kind), keys=asked.keys)
        self._reports.add(report)
        self._tasks.spawn(self._carry_out(asked, report), f"home-move-{move_id}")
        return report

    def progress(self, move_id: str) -> MoveReport:
        """Return the report of a move. Raises UnknownTopic."""
        report = self._reports.find(move_id)
        if report is None:
            raise UnknownTopic(
                "the leader of mesh control knows no such move (any more): the homes say what became of it"
            )
        if not report.is_over:
            carried = (self._driver.carried(key) for key in report.keys)
            report.observe([move for move in carried if move is not None])
        return report

    async def check_answers(self, asked: MoveAsked) -> None:
        """Refuse a forced move that too few regions would answer, before anything is promised.

        Raises:
            NotEnoughRegions: names the regions that answer. Not Unavailable: that would be asked again and again.
        """
        heard = await self._reachable(asked)
        for key in asked.keys if not asked.accept_loss else ():
            row = self._part.row(key)
            topic = self._topics.find(key.topic_id)
            if row is None or topic is None:
                continue
            regions = self._part.asked_now(row)
            level = protected_level(topic, regions=len(regions))
            needed = answers_needed(regions=len(regions), level=level)
            answering = [region for region in regions if region in heard]
            if len(answering) < needed and (self._part.is_recovered or row.home not in heard):
                raise NotEnoughRegions(
                    f"{topic.name} partition {key.partition}: {needed} of its regions {list(regions)} have to "
                    f"promise to keep what {level} regions acknowledged, and {answering} answer; nothing was begun. "
                    "Bring another region back, or accept the loss"
                )

    async def _reachable(self, asked: MoveAsked) -> set[RegionNumber]:
        rows = (self._part.row(key) for key in asked.keys)
        regions = sorted({region for row in rows if row is not None for region in self._part.asked_now(row)})
        answers = await asyncio.gather(*(self._answers(region) for region in regions))
        return {region for region, answered in zip(regions, answers, strict=True) if answered}

    async def _answers(self, region: RegionNumber) -> bool:
        try:
            await self._ask(region, PING_METHOD, {}, timeout_s=PING_TIMEOUT_S)
        except GeorelayError:
            return False
        return True

    # --- one move ---------------------------------------------------------------------------------

    async def _carry_out(self, asked: MoveAsked, report: MoveReport) -> None:
        step = WAVE_STREAMS_MAX if asked.kind is MoveKind.PLANNED else max(len(asked.keys), 1)
        try:
            for at in range(0, len(asked.keys), step):
                await self._window(asked, asked.keys[at : at + step], report)
        except GeorelayError as error:
            left = (key for key in asked.keys if key not in report.ended and key not in report.refused)
            report.refused.update(dict.fromkeys(left, error))
        report.end()
        log.info("home.move_ended", move=report.move_id, moved=len(report.ended), refused=len(report.refused))

    async def _window(self, asked: MoveAsked, keys: Sequence[StreamKey], report: MoveReport) -> None:
        if asked.kind is MoveKind.PLANNED:
            keys = await self._near(keys, asked.target, report)
        epochs: dict[StreamKey, Epoch] = {}
        for at in range(0, len(keys), WAVE_STREAMS_MAX):
            epochs |= await self._begin_wave(asked, keys[at : at + WAVE_STREAMS_MAX], report)
        await self._until_over(epochs)
        for key, epoch in epochs.items():
            self._note_end(asked, key, epoch, report)

    async def _begin_wave(
        self, asked: MoveAsked, keys: Sequence[StreamKey], report: MoveReport
    ) -> dict[StreamKey, Epoch]:
        """Commit attempts for one wave's worth of streams, and have them carried on; return their epochs."""
        names = {key: self._forced_name(key) for key in keys} if asked.accept_loss else {}
        await self._propose(asked, [key for key in keys if not names.get(key)], report)
        epochs: dict[StreamKey, Epoch] = {}
        for key in keys:
            row = self._part.row(key)
            if key not in report.refused and row is not None and row.moving is not None:
                epochs[key] = row.moving.epoch
        if asked.accept_loss:
            meant = {key: names[key] or report.move_id for key in epochs}
            self._driver.accept_loss(meant)
        self._driver.wake()
        return epochs

    async def _propose(self, asked: MoveAsked, keys: Sequence[StreamKey], report: MoveReport) -> None:
        for at in range(0, len(keys), STREAMS_PER_COMMAND_MAX):
            chunk = list(keys[at : at + STREAMS_PER_COMMAND_MAX])
            command = begin_command(chunk, move_id=report.move_id, kind=asked.kind, target=asked.target)
            outcome = await self._control.propose(self._part.name, command)
            for key, code, text in self._part.read_refused(outcome):
                report.refused[key] = Busy(text) if code == Busy.code else BadRequest(text)

    async def _until_over(self, epochs: dict[StreamKey, Epoch]) -> None:
        """Wait until no attempt of `epochs` is the newest of its stream; follow those that begin anew into `epochs`."""
        names = {key: first_id(moving.move_id) for key in epochs if (moving := self._moving(key)) is not None}
        while True:
            self._look.clear()
            for key, name in names.items():
                moving = self._moving(key)
                if moving is not None and first_id(moving.move_id) == name:
                    epochs[key] = moving.epoch
            if not any(self._is_open(key, epoch) for key, epoch in epochs.items()):
                return
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._look.wait()
            except TimeoutError:
                continue

    def _moving(self, key: StreamKey) -> Moving | None:
        row = self._part.book.row(key)
        return None if row is None else row.moving

    def _is_open(self, key: StreamKey, epoch: Epoch) -> bool:
        moving = self._moving(key)
        return moving is not None and moving.epoch == epoch

    def _forced_name(self, key: StreamKey) -> str:
        """Return the move id of the forced attempt under way, "" for none."""
        moving = self._moving(key)
        return moving.move_id if moving is not None and moving.kind is MoveKind.FORCED else ""

    def _note_end(self, asked: MoveAsked, key: StreamKey, epoch: Epoch, report: MoveReport) -> None:
        row = self._part.row(key)
        if row is None:
            report.refused[key] = UnknownTopic(f"the topic of {key} was deleted meanwhile")
        elif row.epoch != epoch:
            report.refused[key] = Unavailable(f"another attempt took the place of this one; the home is {row.home}")
        elif asked.kind is MoveKind.PLANNED and row.home != asked.target:
            report.refused[key] = Unavailable(
                f"region {asked.target} did not get all records in time, or takes no homes any more: "
                f"region {row.home} goes on, in epoch {epoch}"
            )
        else:
            report.ended[key] = (row, self._driver.kept_level(key, epoch))

    # --- before a planned move --------------------------------------------------------------------

    async def _near(self, keys: Sequence[StreamKey], target: RegionNumber, report: MoveReport) -> list[StreamKey]:
        """Return the streams of which the target has nearly everything; wait for it, and refuse the others."""
        until_ns = self._clock.monotonic_ns() + int(CATCH_UP_S * _NS_PER_S)
        near: set[StreamKey] = set()
        faults: dict[StreamKey, GeorelayError] = {}
        while True:
            left = [key for key in keys if key not in near]
            faults = await self._not_near(left, target)
            near.update(key for key in left if key not in faults)
            if not faults or self._clock.monotonic_ns() >= until_ns:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        report.refused.update(faults)
        return [key for key in keys if key in near]

    async def _not_near(self, keys: Sequence[StreamKey], target: RegionNumber) -> dict[StreamKey, GeorelayError]:
        """Return what keeps streams from moving to `target` now."""
        rows = {key: row for key in keys if (row := self._part.row(key)) is not None}
        asked: dict[RegionNumber, list[StreamKey]] = {target: list(keys)}
        for key, row in rows.items():
            everywhere = () if self._part.knows_epochs_of(row) else self._part.asked_now(row)
            for region in {row.home, *everywhere} - {target}:
                asked.setdefault(region, []).append(key)
        told = await asyncio.gather(*(self._ends_of(region, of_region) for region, of_region in asked.items()))
        ends = dict(zip(asked, told, strict=True))
        faults = {}
        for key in keys:
            at_home = ends[rows[key].home].get(key) if key in rows else None
            fault = _lag_fault(at_home, ends[target].get(key), target) or self._epoch_fault(rows.get(key), ends)
            if fault is not None:
                faults[key] = fault
        return faults

    def _epoch_fault(
        self, row: HomeRow | None, ends: Mapping[RegionNumber, Mapping[StreamKey, Told]]
    ) -> GeorelayError | None:
        """Return what says that a region follows, or may follow, an epoch that control lost."""
        if row is None or self._part.knows_epochs_of(row):
            return None
        for region in self._part.asked_now(row):
            told = ends.get(region, {}).get(row.key)  # None of one that joined meanwhile
            if not isinstance(told, LogEnds):
                return Unavailable(
                    f"region {region} did not say which epoch it follows, and mesh control was recovered: ask again, "
                    f"or let the others promise with 'georelay home failover' first ({told or 'not asked yet'})"
                )
            if told.epoch > row.epoch:
                return Unavailable(
                    f"region {region} follows epoch {told.epoch}, which mesh control lost: 'georelay home failover' "
                    "says what that has, and ends it"
                )
        return None

    async def _ends_of(self, region: RegionNumber, keys: Sequence[StreamKey]) -> Mapping[StreamKey, Told]:
        return await RegionAsker(region, self._ask).about(ENDS_METHOD, [EndAsked(key=key) for key in keys])


def _lag_fault(home: Told | None, target: Told | None, region: RegionNumber) -> GeorelayError | None:
    for told in (home, target):
        if isinstance(told, GeorelayError):
            return told
    if not isinstance(home, LogEnds) or not isinstance(target, LogEnds):
        return Unavailable(f"region {region} or the home did not say how far the stream is")
    if target.epoch != home.epoch:  # how long its log is says nothing
        return Unavailable(f"region {region} is in epoch {target.epoch} of the stream, the home in {home.epoch}")
    lag = home.high_watermark - target.high_watermark
    return None if lag <= NEAR_RECORDS else Unavailable(f"region {region} is {lag} records behind the home")


def distinct(keys: Iterable[StreamKey]) -> tuple[StreamKey, ...]:
    """Return the streams without repetitions, in order."""
    return tuple(dict.fromkeys(keys))
