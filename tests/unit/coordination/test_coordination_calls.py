"""Asking coordinators: where, how often, and what an answer may mean."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from georelay import errors
from georelay.errors import (
    AccessDenied,
    BadRequest,
    Busy,
    CoordinatorLoading,
    CoordinatorUnavailable,
    GeorelayError,
    HomeUnreachable,
    NotCoordinator,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
)
from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey
from region.controller.assignment import Assignment
from region.controller.topic import Homes, TopicDefinition, TopicSpec, TopicView
from region.coordination import call_answers, region_coordinators
from region.coordination.coordinators import COORDINATORS, INTERNAL_TOPIC
from region.coordination.part import Part
from region.coordination.region_coordinators import CALL_METHOD, RegionCoordinators
from tests.tiers import in_one_test

ME, OTHER, THIRD = BrokerId(1001), BrokerId(1002), BrokerId(1003)
TOPIC_ID = bytes(16)


def view_of(spec: TopicSpec) -> TopicView:
    definition = TopicDefinition(
        name=spec.name,
        topic_id=TOPIC_ID,
        partitions=spec.partitions,
        replication_factor=3,
        homes=spec.homes,
        home=RegionNumber(0),
        retention_ms=spec.retention_ms,
        retention_bytes=spec.retention_bytes,
        config=spec.config,
        index=1,
    )
    return TopicView(
        name=spec.name,
        topic_id=TOPIC_ID,
        wire_id=TOPIC_ID,
        partitions=spec.partitions,
        replication_factor=3,
        homes=spec.homes,
        home=RegionNumber(1),
        is_mirror_name=False,
        origin=RegionNumber(1),
        internal=True,
        definition=definition,
    )


class Bed:
    """RegionCoordinators over answers that the test gives; group ids are partitions + 1."""

    def __init__(self, make_bench: Callable[..., Any]) -> None:
        self.level = 3
        self.view: TopicView | None = view_of(region_coordinators.internal_topic())
        self.leader = {GroupId(row + 1): OTHER for row in range(COORDINATORS)}
        self.streams: dict[GroupId, Any] = {}
        self.asked: list[tuple[int, Mapping[str, Any]]] = []
        self.answers: list[dict[str, Any] | GeorelayError] = []
        self.created: list[TopicSpec] = []
        self.bench = make_bench()
        self.coordinators = RegionCoordinators(
            me=ME,
            region=RegionNumber(1),
            feature_level=lambda: self.level,
            find_topic=lambda name: self.view if name == INTERNAL_TOPIC else None,
            assignment_of=self.assignment_of,
            ensure_topic=self.ensure_topic,
            streams=self.streams,
            leader=lambda group_id: self.leader[group_id],
            ask=self.ask,
            rng=random.Random(1),
        )
        self.coordinators.register(Part.GROUPS, lambda _: self.bench.notes)

    def assignment_of(self, key: StreamKey) -> Assignment:
        assert (key.topic_id, key.origin) == (TOPIC_ID, 1)
        return Assignment.founded(GroupId(key.partition + 1), key, (ME, OTHER, THIRD), generation=1)

    async def ensure_topic(self, spec: TopicSpec) -> TopicView:
        self.created.append(spec)
        if len(self.created) == 1:
            raise HomeUnreachable("the definitions home is away")
        self.view = view_of(spec)
        return self.view

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        assert method == CALL_METHOD and 0 < timeout_s <= 60
        self.asked.append((broker, body))
        answer = self.answers.pop(0) if self.answers else {"ok": {}}
        if isinstance(answer, GeorelayError):
            raise answer
        return answer

    def lead(self, key: str) -> None:
        """Let this broker lead the coordinator of a key."""
        partition = self.coordinators.partition_of(key)
        self.streams[GroupId(partition + 1)] = self.bench.stream
        self.leader[GroupId(partition + 1)] = ME
        self.bench.log.lead()

    async def call(self, operation: str = "list", *, timeout_s: float = 5.0) -> dict[str, Any]:
        body = {"command": "a"}
        return await self.coordinators.call(
            Part.GROUPS, "k", operation, body, principal="User:alice", timeout_s=timeout_s
        )


@pytest.fixture
def bed(make_bench: Callable[..., Any]) -> Bed:
    return Bed(make_bench)


async def test_the_leader_elsewhere_is_asked_over_a_link(bed: Bed) -> None:
    bed.answers = [{"ok": {"answer": 1}}]
    assert await bed.call("list", timeout_s=7.0) == {"answer": 1}
    broker, body = bed.asked[0]
    assert broker == OTHER
    assert {**body, "timeout_ms": round(body["timeout_ms"], -2)} == {
        "part": 1,
        "partition": bed.coordinators.partition_of("k"),
        "operation": "list",
        "body": {"command": "a"},
        "principal": "User:alice",
        "timeout_ms": 7000,
    }


async def test_the_leader_here_is_asked_directly(bed: Bed) -> None:
    bed.lead("k")
    assert await bed.call("list") == {"partition": 3, "commands": []}
    assert not bed.asked
    assert bed.coordinators.part_here("k", Part.GROUPS) is bed.bench.notes
    assert list(bed.coordinators.parts_here(Part.GROUPS)) == [bed.bench.notes]


@pytest.mark.parametrize(
    "refusal",
    [NotCoordinator(), CoordinatorLoading("x"), CoordinatorUnavailable("x"), NotLeader()],
    ids=lambda error: type(error).__name__,
)
async def test_what_says_that_nothing_was_done_is_asked_again(bed: Bed, refusal: GeorelayError) -> None:
    bed.answers = [call_answers.failed(refusal), HomeUnreachable("the link is down"), {"ok": {"answer": 1}}]
    assert await bed.call() == {"answer": 1}
    assert [broker for broker, _ in bed.asked] == [OTHER] * 3


async def test_the_leader_that_was_named_is_asked_next(bed: Bed) -> None:
    bed.answers = [call_answers.failed(NotCoordinator(leader=THIRD)), call_answers.failed(NotCoordinator(leader=THIRD))]
    await bed.call()
    assert [broker for broker, _ in bed.asked] == [OTHER, THIRD, OTHER]


@pytest.mark.parametrize(
    "failure", [OutcomeUnknown("lost"), Busy("full"), Unavailable("x")], ids=lambda error: type(error).__name__
)
async def test_anything_else_is_told_at_once(bed: Bed, failure: GeorelayError) -> None:
    bed.answers = [call_answers.failed(failure)]
    with pytest.raises(type(failure)):
        await bed.call()
    assert len(bed.asked) == 1


async def test_an_answer_that_is_lost_is_never_asked_again(bed: Bed) -> None:
    bed.answers = [OutcomeUnknown("the link broke")]
    with pytest.raises(OutcomeUnknown):
        await bed.call()
    assert len(bed.asked) == 1


async def test_without_a_leader_a_call_ends_when_its_time_is_over(bed: Bed) -> None:
    bed.leader = dict.fromkeys(bed.leader, BrokerId(-1))
    with pytest.raises(CoordinatorUnavailable):
        await bed.call(timeout_s=0.05)
    with pytest.raises(CoordinatorUnavailable):
        await bed.coordinators.ready("k", timeout_s=0.05)
    assert not bed.asked


async def test_a_part_that_does_not_answer_in_time_has_an_unknown_outcome(bed: Bed) -> None:
    bed.lead("k")
    with pytest.raises(OutcomeUnknown):
        await bed.call("wait", timeout_s=0.05)


async def test_a_part_that_is_not_held_here_is_refused(bed: Bed) -> None:
    bed.lead("k")
    with pytest.raises(BadRequest):
        bed.coordinators.part_here("k", Part.TRANSACTIONS)
    assert list(bed.coordinators.parts_here(Part.TRANSACTIONS)) == []


async def test_a_leader_that_has_not_caught_up_says_so(bed: Bed) -> None:
    bed.leader = dict.fromkeys(bed.leader, ME)
    with pytest.raises(CoordinatorLoading):
        bed.coordinators.part_here("k", Part.GROUPS)


async def test_the_topic_is_made_at_first_use_and_again_after_a_failure(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_coordinators, "CREATE_AGAIN_S", 0.01)
    bed.view = None
    assert bed.coordinators.leader_of("k") == -1
    assert await bed.coordinators.gather(Part.GROUPS, "list", {}) == []
    assert await bed.coordinators.ready("k") == OTHER
    assert [(spec.name, spec.partitions, spec.homes) for spec in bed.created] == [
        (INTERNAL_TOPIC, COORDINATORS, Homes.EVERY)
    ] * 2
    await bed.coordinators.close()


async def test_no_topic_is_made_below_level_3(bed: Bed) -> None:
    bed.level, bed.view = 2, None
    assert bed.coordinators.leader_of("k") == -1
    await asyncio.sleep(0)
    assert not bed.created


async def test_a_topic_of_that_name_and_another_shape_is_not_used(bed: Bed) -> None:
    assert bed.view is not None
    bed.view = replace(bed.view, partitions=1)
    assert bed.coordinators.leader_of("k") == -1
    await asyncio.sleep(0)
    assert not bed.created


async def test_every_coordinator_is_asked_once(bed: Bed) -> None:
    bed.answers = [{"ok": {"n": row}} for row in range(COORDINATORS)]
    assert await bed.coordinators.gather(Part.GROUPS, "list", {}) == [{"n": row} for row in range(COORDINATORS)]
    assert sorted(body["partition"] for _, body in bed.asked) == list(range(COORDINATORS))


# --- errors in answers -------------------------------------------------------------------------------

CROSSING = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, GeorelayError) and value not in (GeorelayError, errors.NotHome)
]


@in_one_test("kind", CROSSING)
def test_an_error_arrives_as_what_it_was(kind: type[GeorelayError]) -> None:
    with pytest.raises(kind) as arrived:
        call_answers.result_of(call_answers.failed(kind("group")))
    assert type(arrived.value) is kind and "group" in str(arrived.value)


def test_details_arrive() -> None:
    with pytest.raises(NotLeader) as arrived:
        call_answers.result_of(call_answers.failed(NotLeader(leader=1002)))
    assert arrived.value.leader == 1002
    with pytest.raises(NotCoordinator) as moved:
        call_answers.result_of(call_answers.failed(NotCoordinator(leader=1003)))
    assert moved.value.leader == 1003
    with pytest.raises(AccessDenied) as denied:
        call_answers.result_of(call_answers.failed(AccessDenied.to("group")))
    assert denied.value.resource == "group"


@pytest.mark.parametrize(
    "answer",
    [{}, {"ok": 1}, {"error": 1}, {"error": {"code": "OF_THE_FUTURE", "text": "x"}}, {"error": {"code": "BUSY"}}],
    ids=str,
)
def test_what_cannot_be_read_leaves_the_outcome_unknown(answer: dict[str, Any]) -> None:
    with pytest.raises(OutcomeUnknown):
        call_answers.result_of(answer)
