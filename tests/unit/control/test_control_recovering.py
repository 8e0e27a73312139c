"""Who may begin a new generation: a leader that nobody hears from is no reason to refuse."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import ControlUnavailable, GeorelayError, OutcomeUnknown, PolicyViolation
from region.control.recovering import Recovering
from region.controller.commands import LearnMesh
from region.controller.effects import Done
from region.controller.mesh_rows import ControlRow, RegionRow, VoterRow

LOST = ControlRow(
    generation=1,
    control_id="a" * 32,
    members=(VoterRow(replica=1, broker=1001, disk="gone", address=""),),  # type: ignore[arg-type]
    voters=(1,),
    index=5,
)


class AfterTheVotersLostTheirDisks:
    """A broker without a replica whose questions about a leader end with `error`, or with an answer."""

    me, disk, replica, has_rival = 1001, "mine", None, False

    def __init__(self, home: Any, error: GeorelayError | None) -> None:
        self.controller = SimpleNamespace(state=home.state)
        self.error = error
        self.begun: list[Any] = []

    def row(self) -> ControlRow:
        return LOST

    async def ask(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("there is no replica in this region to ask")

    async def call(self, method: str, _: Any, *, timeout_s: float) -> Any:
        assert method == "status" and timeout_s > 0
        if self.error is not None:
            raise self.error
        return {}

    async def begin_anew(self, name: Any, own: Any, _: bytes, *, instead_of: Any) -> None:
        assert instead_of is None
        self.begun.append((name.generation, own.broker))


@pytest.fixture
def remembering(home: Any) -> Any:
    region = RegionRow(number=1, name="us", index=1)  # type: ignore[arg-type]
    assert isinstance(home.apply(LearnMesh(control=LOST, regions=(region,))), Done)
    return home


def recovering(control: AfterTheVotersLostTheirDisks) -> Recovering:
    return Recovering(control, clock=SystemClock(), rng=random.Random(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [ControlUnavailable("nobody leads"), OutcomeUnknown("control.status: no answer in time (broker 3001)")]
)
async def test_a_generation_begins_when_no_leader_answers(remembering: Any, error: GeorelayError) -> None:
    control = AfterTheVotersLostTheirDisks(remembering, error)
    assert (await recovering(control).recover())["generation"] == 2
    assert control.begun == [(2, 1001)]


async def test_none_begins_while_a_leader_answers(remembering: Any) -> None:
    control = AfterTheVotersLostTheirDisks(remembering, None)
    with pytest.raises(PolicyViolation, match="has a leader"):
        await recovering(control).recover()
    assert control.begun == []
