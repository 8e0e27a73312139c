"""The way to control's leader: hints, open links first, and what is said when nobody answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from georelay.errors import ControlUnavailable, HomeUnreachable, NotLeader, OutcomeUnknown, PolicyViolation
from georelay.ids import BrokerId
from region.control.calls import ControlCalls
from region.controller.mesh_rows import ControlRow, VoterRow

ME, US, EU, AP = BrokerId(4001), BrokerId(1001), BrokerId(2001), BrokerId(3001)


def row_of(generation: int = 1, control_id: str = "a" * 32) -> ControlRow:
    members = tuple(
        VoterRow(replica=number, broker=broker, disk="d", address="h:1")
        for number, broker in enumerate((US, EU, AP), start=1)
    )
    return ControlRow(generation=generation, control_id=control_id, members=members, voters=(1, 2, 3), index=generation)


class World:
    def __init__(self) -> None:
        self.row: ControlRow | None = row_of()
        self.answers: dict[BrokerId, Any] = {}
        self.open: set[BrokerId] = {US, EU, AP}
        self.asked: list[BrokerId] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.calls = ControlCalls(
            me=ME,
            row=lambda: self.row,
            founders=lambda: [US],
            leader=lambda: -1,
            ask=self.ask,
            here=self.here,
            link_is_open=lambda broker: broker in self.open,
            newer=self.learn,
        )

    def learn(self, row: ControlRow) -> None:
        self.row = row

    async def here(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.ask(ME, method, body, timeout_s=1)

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        assert method == "control.do" and timeout_s > 0
        self.asked.append(broker)
        self.bodies.append(body)
        answer = self.answers.get(broker, HomeUnreachable(f"broker {broker} is away"))
        if callable(answer):
            answer = answer(body)
        if isinstance(answer, Exception):
            raise answer
        return {"ok": answer}


@pytest.fixture
def world() -> World:
    return World()


async def test_a_hint_leads_to_the_leader_and_is_remembered(world: World) -> None:
    for broker in (US, EU):
        world.answers[broker] = NotLeader(leader=AP)
    world.answers[AP] = {"done": True}
    assert await world.calls.call("do", {}, timeout_s=1) == {"done": True}
    world.asked.clear()
    await world.calls.call("do", {}, timeout_s=1)
    assert world.asked == [AP]


async def test_replicas_with_an_open_link_come_first(world: World) -> None:
    world.open = {EU}
    world.answers[EU] = {}
    await world.calls.call("do", {}, timeout_s=1)
    assert world.asked == [EU]


async def test_without_a_majority_the_text_says_what_still_works(world: World) -> None:
    with pytest.raises(ControlUnavailable, match="publishing and consuming go on"):
        await world.calls.call("do", {}, timeout_s=0.05)


async def test_a_refusal_of_the_leader_is_the_answer(world: World) -> None:
    for broker in (US, EU, AP):
        world.answers[broker] = PolicyViolation("no")
    with pytest.raises(PolicyViolation):
        await world.calls.call("do", {}, timeout_s=1)
    assert len(world.asked) == 1


async def test_a_question_whose_answer_was_lost_is_not_sent_again(world: World) -> None:
    for broker in (US, EU, AP):
        world.answers[broker] = OutcomeUnknown("lost")
    with pytest.raises(OutcomeUnknown):
        await world.calls.call("do", {}, timeout_s=1)
    assert len(world.asked) == 1


async def test_a_read_goes_on_to_the_next_replica_even_after_a_lost_answer(world: World) -> None:
    world.answers = {US: OutcomeUnknown("lost"), EU: OutcomeUnknown("lost"), AP: {"rows": []}}
    assert await world.calls.read("do", {}) == {"rows": []}


async def test_who_knows_a_newer_control_is_asked_again_in_its_name(world: World) -> None:
    newer = row_of(2, "b" * 32)

    def answer(body: Mapping[str, Any]) -> Any:
        return {"done": True} if body["generation"] == 2 else None

    async def ask(broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        said = answer(body)
        return {"newer": newer.to_json()} if said is None else {"ok": said}

    world.calls._ask = ask
    assert await world.calls.call("do", {}, timeout_s=1) == {"done": True}
    assert world.row == newer


async def test_before_anything_is_known_the_founder_is_asked(world: World) -> None:
    world.row = None
    world.answers[US] = {}
    await world.calls.call("do", {}, timeout_s=1)
    assert world.asked == [US]
    assert world.bodies[0]["generation"] == 0


async def test_a_leader_that_is_gone_is_asked_after_those_with_an_open_link(world: World) -> None:
    world.answers = {AP: {}}
    world.open = {AP}
    await world.calls.call("do", {}, timeout_s=1)
    world.open, world.answers = {US, EU}, {US: {}, EU: {}}
    world.asked.clear()
    await world.calls.call("do", {}, timeout_s=1)
    assert AP not in world.asked
