"""Who may begin a new generation: a leader that nobody hears from is no reason to refuse."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import ControlUnavailable, GeorelayError, OutcomeUnknown, PolicyViolation
from region.control.recovering import Recovering
from region.control.replica import ReplicaName
from region.controller.commands import DefineTopic, LearnMesh
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

    me, disk, has_rival, enabled = 1001, "mine", False, True
    replica: Any = None

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


class WithAReplica(AfterTheVotersLostTheirDisks):
    """A broker with a replica that takes another one for the leader. `known_disk` is what control heard of it."""

    known_disk = "mine"

    def __init__(
        self,
        home: Any,
        state: Any,
        error: GeorelayError | None,
        *,
        is_leader: bool = False,
        hears_leader: bool = False,
    ) -> None:
        super().__init__(home, error)
        self.gave_up = 0
        self.snapshots: list[bytes] = []
        self.state = state
        self.replica = SimpleNamespace(
            name=ReplicaName(generation=1, control_id="a" * 32, replica=4, founder=False),
            is_leader=is_leader,
            hears_leader=hears_leader,
            leader=VoterRow(replica=3, broker=3001, disk="there", address=""),  # type: ignore[arg-type]
            give_up_log=self._give_up,
        )

    def row(self) -> ControlRow:
        own = VoterRow(replica=4, broker=1001, disk=self.known_disk, address="")  # type: ignore[arg-type]
        return replace(LOST, members=(*LOST.members, own), learners=(4,))

    def _give_up(self) -> None:
        self.gave_up += 1

    async def begin_anew(self, name: Any, own: Any, snapshot: bytes, *, instead_of: Any) -> None:
        assert instead_of is self.replica and own.disk == "mine"
        self.begun.append((name.generation, own.broker))
        self.snapshots.append(snapshot)


async def test_a_learner_that_never_heard_its_leader_step_down_does_not_keep_a_generation_from_beginning(
    home: Any, control: Any
) -> None:
    broker = WithAReplica(home, control.state, ControlUnavailable("nobody leads"))
    assert (await recovering(broker).recover())["generation"] == 2
    assert broker.begun == [(2, 1001)] and broker.gave_up == 1


@pytest.mark.parametrize("is_leader", [False, True])
async def test_none_begins_with_a_replica_while_its_leader_answers(home: Any, control: Any, is_leader: bool) -> None:
    broker = WithAReplica(home, control.state, None, is_leader=is_leader)
    with pytest.raises(PolicyViolation, match="has a leader"):
        await recovering(broker).recover()
    assert broker.begun == [] and broker.gave_up == 0


async def test_the_survivor_is_on_its_disk_also_when_control_never_heard_that_it_was_made(
    home: Any, control: Any
) -> None:
    broker = WithAReplica(home, control.state, ControlUnavailable("nobody leads"))
    broker.known_disk = ""  # a voter without a disk would be made again, empty, under the same number
    await recovering(broker).recover()
    assert broker.begun == [(2, 1001)]


class Slow(WithAReplica):
    """A broker whose question to the leader takes until `answer` is set."""

    def __init__(self, home: Any, state: Any) -> None:
        super().__init__(home, state, None)
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def call(self, method: str, _: Any, *, timeout_s: float) -> Any:
        self.asked.set()
        await self.answer.wait()
        raise ControlUnavailable("nobody leads")

    async def begin_anew(self, name: Any, own: Any, _: bytes, *, instead_of: Any) -> None:
        self.begun.append((name.generation, own.broker))
        self.replica = SimpleNamespace(name=name, is_leader=True, hears_leader=True, leader=own)


async def test_of_two_recoveries_at_a_time_one_is_refused(home: Any, control: Any) -> None:
    broker = Slow(home, control.state)
    shell = recovering(broker)
    first = asyncio.create_task(shell.recover())
    await broker.asked.wait()
    with pytest.raises(PolicyViolation, match="under way"):
        await shell.recover()
    with pytest.raises(PolicyViolation, match="under way"):
        await shell.recover_here()
    broker.answer.set()
    assert (await first)["generation"] == 2
    assert (broker.begun, broker.gave_up) == ([(2, 1001)], 1)
    with pytest.raises(PolicyViolation, match="has a leader"):
        await shell.recover()


async def test_after_a_recovery_that_failed_another_may_begin(home: Any, control: Any) -> None:
    broker = WithAReplica(home, control.state, None)
    shell = recovering(broker)
    with pytest.raises(PolicyViolation, match="has a leader"):
        await shell.recover()
    broker.error = ControlUnavailable("nobody leads")
    assert (await shell.recover())["generation"] == 2


async def test_a_replica_that_was_replaced_while_the_leader_was_asked_gives_nothing_up(home: Any, control: Any) -> None:
    broker = Slow(home, control.state)
    first = asyncio.create_task(recovering(broker).recover())
    await broker.asked.wait()
    broker.replica = SimpleNamespace(name=ReplicaName(generation=3, control_id="c" * 32, replica=4, founder=False))
    broker.answer.set()
    with pytest.raises(PolicyViolation, match="changed"):
        await first
    assert (broker.begun, broker.gave_up) == ([], 0)


async def test_a_leader_elected_while_the_last_one_was_asked_ends_the_recovery(home: Any, control: Any) -> None:
    broker = Slow(home, control.state)
    first = asyncio.create_task(recovering(broker).recover())
    await broker.asked.wait()
    broker.replica.hears_leader = True
    broker.answer.set()
    with pytest.raises(PolicyViolation, match="has a leader"):
        await first
    assert (broker.begun, broker.gave_up) == ([], 0)


async def test_a_replica_made_while_the_leader_was_asked_ends_a_recovery_without_one(remembering: Any) -> None:
    broker = Slow(remembering, None)
    broker.replica = None
    first = asyncio.create_task(recovering(broker).recover())
    await broker.asked.wait()
    broker.replica = SimpleNamespace(name=ReplicaName(generation=1, control_id="a" * 32, replica=4, founder=False))
    broker.answer.set()
    with pytest.raises(PolicyViolation, match="changed"):
        await first
    assert broker.begun == []


async def test_a_voter_that_hears_its_leader_refuses_however_slowly_that_one_answers(home: Any, control: Any) -> None:
    late = OutcomeUnknown("control.status: no answer in time (broker 3001)")
    broker = WithAReplica(home, control.state, late, hears_leader=True)
    with pytest.raises(PolicyViolation, match="has a leader"):
        await recovering(broker).recover()
    assert (broker.begun, broker.gave_up) == ([], 0)


async def test_of_two_leaders_with_one_generation_the_one_that_is_heard_does_not_refuse(
    home: Any, control: Any
) -> None:
    broker = WithAReplica(home, control.state, None, hears_leader=True)
    broker.has_rival = True
    assert (await recovering(broker).recover())["generation"] == 2


async def test_who_is_asked_for_a_replica_that_it_lost_begins_with_what_its_controller_pulled(remembering: Any) -> None:
    control = AfterTheVotersLostTheirDisks(remembering, ControlUnavailable("nobody leads"))
    assert (await recovering(control).recover_here())["generation"] == 2
    assert control.begun == [(2, 1001)]


async def test_a_broker_that_may_hold_no_replica_begins_no_generation(remembering: Any) -> None:
    control = AfterTheVotersLostTheirDisks(remembering, ControlUnavailable("nobody leads"))
    control.enabled = False
    for attempt in (recovering(control).recover, recovering(control).recover_here):
        with pytest.raises(PolicyViolation, match="may hold none"):
            await attempt()
    assert control.begun == []


OWN = VoterRow(replica=4, broker=1001, disk="mine", address="")  # type: ignore[arg-type]
NEWER = VoterRow(replica=5, broker=1002, disk="there", address="")  # type: ignore[arg-type]


class WithAnEmptyReplica(WithAReplica):
    """A broker whose replica was made just before the majority was lost; `row` says which replicas control has.

    Its log may hold what makes its state whole: nothing of it is known as committed before the log is given up.
    """

    def __init__(
        self, home: Any, state: Any, error: GeorelayError, *rows: VoterRow, applies: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(home, state, error)
        self.replica.leader = None
        self.rows = rows
        self.applies = applies
        self.asked: list[int] = []

    def row(self) -> ControlRow:
        return replace(LOST, members=self.rows)

    def _give_up(self) -> None:
        super()._give_up()
        self.applies()

    async def ask(self, broker: int, *_: Any, **__: Any) -> Any:
        self.asked.append(broker)
        return {"ok": {"generation": 2}}


NOBODY_LEADS = ControlUnavailable("nobody leads")


@pytest.mark.parametrize("rows", [(), (OWN,)], ids=["unheard of", "known"])
async def test_a_replica_that_never_held_the_state_gives_way_to_what_its_controller_pulled(
    remembering: Any, make_control: Any, rows: tuple[VoterRow, ...]
) -> None:
    broker = WithAnEmptyReplica(remembering, make_control().state, NOBODY_LEADS, *LOST.members, *rows)
    assert (await recovering(broker).recover())["generation"] == 2
    assert broker.begun == [(2, 1001)]


@pytest.mark.parametrize("rows", [(), (OWN,)], ids=["unheard of", "known"])
async def test_what_a_replica_has_in_its_log_is_better_than_what_its_controller_pulled(
    remembering: Any, make_control: Any, make_topic: Any, rows: tuple[VoterRow, ...]
) -> None:
    made = make_control()

    def apply_log() -> None:
        made.begin(remembering.state, founder=1001)
        made.open()
        made.define(DefineTopic(definition=make_topic("unpulled", 7)))
        for _ in range(3):  # replicas 2 to 4: the last one is this broker's
            made.state.members._rows.clear()
            made.append("members", {"do": "add", "broker": 1001, "address": "h:1"})

    broker = WithAnEmptyReplica(remembering, made.state, NOBODY_LEADS, *LOST.members, *rows, applies=apply_log)
    assert (await recovering(broker).recover())["generation"] == 2
    assert broker.begun == [(2, 1001)] and b"unpulled" in broker.snapshots[0]


async def test_a_replica_that_never_held_the_state_leaves_the_recovery_to_a_newer_one_of_its_region(
    remembering: Any, make_control: Any
) -> None:
    broker = WithAnEmptyReplica(remembering, make_control().state, NOBODY_LEADS, NEWER)
    assert (await recovering(broker).recover())["generation"] == 2
    assert (broker.asked, broker.begun, broker.gave_up) == ([1002], [], 0)


async def test_nothing_is_given_up_where_nothing_is_known(home: Any, make_control: Any) -> None:
    broker = WithAnEmptyReplica(home, make_control().state, NOBODY_LEADS, *LOST.members)
    with pytest.raises(PolicyViolation, match="never heard of mesh control"):
        await recovering(broker).recover()
    assert (broker.begun, broker.gave_up) == ([], 0)


async def test_a_replica_that_was_retired_recovers_nothing_and_goes_on(remembering: Any, control: Any) -> None:
    broker = WithAnEmptyReplica(remembering, control.state, NOBODY_LEADS, *LOST.members)
    with pytest.raises(PolicyViolation, match="none any more"):
        await recovering(broker).recover()
    assert (broker.begun, broker.gave_up) == ([], 0)


async def test_a_replica_that_was_retired_leaves_the_recovery_to_the_one_in_its_place(
    remembering: Any, control: Any
) -> None:
    broker = WithAnEmptyReplica(remembering, control.state, NOBODY_LEADS, NEWER)
    assert (await recovering(broker).recover())["generation"] == 2
    assert (broker.asked, broker.begun, broker.gave_up) == ([1002], [], 0)


async def test_a_leader_that_answers_keeps_the_log_of_a_replica_without_state(
    remembering: Any, make_control: Any
) -> None:
    broker = WithAnEmptyReplica(remembering, make_control().state, NOBODY_LEADS, *LOST.members)
    broker.error = None
    with pytest.raises(PolicyViolation, match="has a leader"):
        await recovering(broker).recover()
    assert (broker.begun, broker.gave_up) == ([], 0)


@pytest.mark.parametrize("rows", [LOST.members, (NEWER,)], ids=["its own region's is lost", "another broker has it"])
async def test_a_replica_without_state_begins_no_second_control_of_its_own_generation(
    remembering: Any, make_control: Any, rows: tuple[VoterRow, ...]
) -> None:
    broker = WithAnEmptyReplica(remembering, make_control().state, NOBODY_LEADS, *rows)
    broker.replica.name = replace(broker.replica.name, generation=2)  # of which this region has not pulled anything yet
    with pytest.raises(PolicyViolation, match="nothing of generation 2"):
        await recovering(broker).recover()
    assert (broker.asked, broker.begun, broker.gave_up) == ([], [], 0)
