"""A region that deleted everything up to which it agrees: its promise counts, and no offset is given out twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import OffsetOutOfRange, Unavailable
from georelay.fields import JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import NOT_CHOSEN, HomeRow, MoveKind, Moving
from mesh.home.move_core import Move, Stage
from mesh.home.promise_core import Choice, PromiseAnswer, choose
from region.homes.home_requests import PrefixEnd, Told, answer_json, read_question
from region.homes.reports import MoveReport
from region.homes.wave import Wave

ONE, TWO, THREE = REGIONS = (RegionNumber(1), RegionNumber(2), RegionNumber(3))
KEY = StreamKey(b"r" * 16, RegionNumber(0), 0)
ROW = replace(
    HomeRow.first(KEY.topic_id, 0, home=TWO, regions=REGIONS, digest=b"e" * 16),
    epoch=Epoch(2), start=Offset(300), table=((Epoch(1), Offset(0)), (Epoch(2), Offset(300))),
    homes=((Epoch(1), ONE), (Epoch(2), TWO)), last_epoch=Epoch(3), index=4,
    moving=Moving(move_id="m", kind=MoveKind.FORCED, epoch=Epoch(3), target=NOT_CHOSEN),
)  # fmt: skip


def stored(region: RegionNumber, length: int, digest: bytes = b"d" * 16) -> PromiseAnswer:
    return PromiseAnswer(region=region, length=Offset(length), digest=digest)


def chosen(*answers: PromiseAnswer) -> Choice:
    by_region = {answer.region: answer for answer in answers}
    choice = choose(ROW, by_region, regions=REGIONS, level=2)
    assert choice is not None
    return choice


@pytest.mark.parametrize("length", [300, 340])
def test_who_stores_the_history_goes_on_and_the_promise_of_who_deleted_it_counts(length: int) -> None:
    choice = chosen(PromiseAnswer.deleted(ONE, ROW), stored(THREE, length))
    assert (choice.home, choice.start, choice.kept_level, choice.is_enough) == (THREE, length, 2, True)


def test_the_digest_that_nobody_there_has_is_not_compared() -> None:
    assert PromiseAnswer.deleted(ONE, ROW).digest != stored(THREE, 300).digest
    assert chosen(PromiseAnswer.deleted(ONE, ROW), stored(THREE, 300)).digest == b"d" * 16


def test_offsets_that_it_may_have_acknowledged_are_not_given_out_twice() -> None:
    choice = chosen(PromiseAnswer.deleted(ONE, ROW), stored(THREE, 299))
    assert (choice.home, choice.start, choice.is_enough) == (THREE, 299, False)


def test_nobody_who_deleted_everything_becomes_home_unless_a_loss_is_accepted() -> None:
    choice = chosen(PromiseAnswer.deleted(ONE, ROW), PromiseAnswer.deleted(THREE, ROW))
    assert (choice.start, choice.digest, choice.is_enough) == (ROW.start, ROW.digest, False)
    move = Move(ROW, level=2, needs_lease=False, accept_loss=True)
    for region in (ONE, THREE):
        move.promised(PromiseAnswer.deleted(region, ROW))
    assert move.consider(waits_for_more=False) and move.fenced(leases_are_over=False)
    assert move.ending is not None and (move.ending.start, move.ending.accept_loss) == (300, True)


def test_a_home_that_deleted_everything_does_not_answer_for_every_level() -> None:
    choice = chosen(PromiseAnswer.deleted(TWO, ROW), stored(THREE, 300))
    assert (choice.home, choice.kept_level) == (THREE, 2)


def test_an_attempt_says_that_who_promised_does_not_store_enough() -> None:
    move = Move(ROW, level=2, needs_lease=False)
    for answer in (PromiseAnswer.deleted(ONE, ROW), stored(THREE, 299)):
        move.promised(answer)
    assert not move.consider(waits_for_more=False)
    assert (move.waiting.regions, move.waiting.promised) == ((TWO,), (ONE, THREE))
    assert "300" in move.waiting.fault
    report = MoveReport(move_id="m", kind="forced", keys=(KEY,))
    report.observe([move])
    assert report.waiting == {KEY: move.waiting.fault}


class Answering:
    """Two regions that answer: one deleted what it agrees to. The home is lost."""

    is_recovered = False

    def is_removed(self, region: RegionNumber) -> bool:
        return False

    def row(self, key: StreamKey) -> HomeRow:
        return ROW

    def asked_now(self, row: HomeRow) -> tuple[RegionNumber, ...]:
        return row.regions

    def may_be_home(self, region: RegionNumber) -> bool:
        return True

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if region == TWO:
            raise Unavailable("region 2 is lost")
        told: dict[RegionNumber, Told] = {
            ONE: OffsetOutOfRange("agrees up to 300, begins at 600"),
            THREE: PrefixEnd(offset=Offset(310), digest=b"d" * 16),
        }
        return answer_json({row.key: told[region] for row in read_question(method, body).rows})

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        self.command = command
        return {"refused": []}

    def read_refused(self, outcome: JsonObject) -> list[Any]:
        return []


async def test_a_forced_move_goes_on_with_a_region_that_deleted_its_history() -> None:
    regions: Any = Answering()
    move = Move(ROW, level=2, needs_lease=False)
    wave = Wave(
        [move], part=regions, control=regions, ask=regions.ask, clock=SystemClock(),
        is_heard=lambda region: region != TWO, leases_over=lambda _: True,
    )  # fmt: skip
    await wave.run()
    assert move.stage is Stage.OVER
    (end,) = regions.command["ends"]
    assert (end["home"], end["start"]) == (THREE, 310)
