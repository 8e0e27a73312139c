"""A fresh broker votes only where nobody can have promised anything before."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from georelay.errors import BadRequest, Unavailable
from georelay.fields import FieldError
from georelay.ids import BrokerId, RegionNumber
from region.controller import answers
from region.controller.founding import FOUNDING, answer_of, answer_while_fresh, settle_founding
from region.controller.founding_core import Found, Founding, FoundingRecord, Join, Standing, Status
from tests.tiers import first

B1, B2, B3 = BrokerId(1001), BrokerId(1002), BrokerId(1003)
FOUNDERS = (B1, B2, B3)


def fresh(me: BrokerId, disk: str = "") -> Founding:
    return Founding(me=me, disk=disk or f"disk-{me}", founders=FOUNDERS)


def record(**other: str) -> FoundingRecord:
    disks = {broker: f"disk-{broker}" for broker in FOUNDERS}
    disks.update({BrokerId(int(name.removeprefix("b"))): disk for name, disk in other.items()})
    return FoundingRecord(disks=tuple(sorted(disks.items())))


def test_region_of_one_founds_at_once() -> None:
    alone = Founding(me=B1, disk="d", founders=(B1,))
    assert alone.decision == Found(record=FoundingRecord(disks=((B1, "d"),)))


def test_nothing_is_decided_before_every_founder_was_heard() -> None:
    one, two = fresh(B1), fresh(B2)
    for _ in range(3):
        one.heard(two.status())
        two.heard(one.status())
    assert one.decision is None and two.decision is None
    assert one.missing() == (B3,)


def test_founders_that_are_all_fresh_agree_on_one_record() -> None:
    brokers = [fresh(broker) for broker in FOUNDERS]
    for _ in range(2):
        for asking, asked in itertools.permutations(brokers, 2):
            asking.heard(asked.status())
    assert [broker.decision for broker in brokers] == [Found(record=record())] * 3


def test_everybody_being_fresh_is_not_enough_before_everybody_has_said_so_to_everybody() -> None:
    one, two, three = (fresh(broker) for broker in FOUNDERS)
    one.heard(two.status())
    one.heard(three.status())
    assert one.status().record == record()  # it proposes
    assert one.decision is None  # but the others have not heard each other


def test_founder_that_comes_late_is_named_by_those_who_decided() -> None:
    late = fresh(B3)
    late.heard(Status(broker=B1, disk="disk-1001", standing=Standing.FOUNDED, record=record()))
    assert late.decision == Found(record=record())
    assert late.status().standing is Standing.FOUNDED


def test_broker_whose_disk_is_not_the_one_that_founded_joins() -> None:
    replaced = fresh(B3, "blank")
    replaced.heard(Status(broker=B1, disk="disk-1001", standing=Standing.FOUNDED, record=record()))
    assert replaced.decision == Join()


@pytest.mark.parametrize("known", [None, record(b1003="other")])
def test_broker_that_sees_a_formed_region_joins(known: FoundingRecord | None) -> None:
    joining = fresh(B3)
    joining.heard(Status.from_json(answer_of(broker=BrokerId(1009), disk="d", record=known, is_formed=True)))
    assert joining.decision == Join()


def test_founder_that_restarts_after_the_region_was_formed_is_one_still() -> None:
    again = fresh(B3)
    again.heard(Status.from_json(answer_of(broker=B1, disk="disk-1001", record=record(), is_formed=True)))
    assert again.decision == Found(record=record())


def test_disk_that_was_replaced_while_founding_is_never_believed_again() -> None:
    one = fresh(B1)
    two, old, new = fresh(B2), fresh(B3, "old"), fresh(B3, "new")
    for other in (two, old):
        one.heard(other.status())
    assert one.status().record == record(b1003="old")
    one.heard(new.status())
    one.heard(old.status())  # an answer that was on its way for long
    assert one.status().record == record(b1003="new")


def test_whoever_is_not_configured_as_a_founder_has_no_say() -> None:
    one = fresh(B1)
    one.heard(Status(broker=BrokerId(1007), disk="x", standing=Standing.FRESH))
    assert set(one.missing()) == {B2, B3}
    with pytest.raises(FieldError):
        Founding(me=B1, disk="d", founders=(B2, B3))


@pytest.mark.parametrize("seed", first(40, range(300)))
def test_founders_never_decide_differently_whatever_is_lost_late_or_replaced(seed: int) -> None:
    """Disks are replaced and processes restart while answers are on their way; links keep the order of each."""
    rng = random.Random(seed)
    running: dict[BrokerId, Founding] = {broker: fresh(broker, f"{broker}-0") for broker in FOUNDERS}
    stored: dict[BrokerId, FoundingRecord] = {}
    links: dict[tuple[BrokerId, BrokerId, str], list[Status]] = {}
    lives = 0
    for _ in range(200):
        broker = rng.choice(FOUNDERS)
        me = running[broker]
        kind = rng.random()
        if kind < 0.5:
            other = rng.choice([b for b in FOUNDERS if b != broker])
            # The question carries the asker's status; the answer waits on the link of these two processes.
            running[other].heard(me.status())
            links.setdefault((other, broker, me.disk), []).append(running[other].status())
        elif kind < 0.95:
            waiting = [key for key, queue in links.items() if queue and key[1] == broker and key[2] == me.disk]
            if waiting:
                me.heard(links[rng.choice(waiting)].pop(0))
        elif kind < 0.975:
            lives += 1
            stored.pop(broker, None)
            running[broker] = fresh(broker, f"{broker}-{lives}")
        elif broker not in stored:
            links = {key: queue for key, queue in links.items() if key[1] != broker}
            running[broker] = fresh(broker, me.disk)
        for founder, process in running.items():
            if isinstance(process.decision, Found):
                assert process.decision.record.names(founder, process.disk)
                stored[founder] = process.decision.record
        assert len(set(stored.values())) <= 1, stored  # on all disks that are there; what is lost promises nothing


def test_record_and_status_survive_their_json() -> None:
    assert FoundingRecord.from_json(record().to_json()) == record()
    status = Status(broker=B1, disk="d", standing=Standing.FOUNDED, record=record())
    assert Status.from_json(status.to_json()) == status
    assert Status.from_json({**status.to_json(), "hops": 0}) == status


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"broker": 1001, "disk": "d", "standing": "asleep", "record": None},
        {"broker": 1001, "disk": "", "standing": "fresh", "record": None},
        {"broker": 1001, "disk": "d", "standing": "fresh", "record": {"v": 2, "disks": {"1001": "d"}}},
        {"broker": 1001, "disk": "d", "standing": "fresh", "record": {"v": 1, "disks": {}}},
        {"broker": 1001, "disk": "d", "standing": "fresh", "record": {"v": 1, "disks": {"+1001": "d"}}},
        {"broker": 1001, "disk": "d", "standing": "fresh", "record": {"v": 1, "disks": {"01001": "d"}}},
    ],
    ids=str,
)
def test_garbage_in_a_founding_call_is_a_bad_request(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        answer_while_fresh(fresh(B2), body)


async def test_founders_find_each_other_over_calls_and_agree() -> None:
    brokers = {broker: fresh(broker) for broker in FOUNDERS}
    up: set[BrokerId] = {B1, B2}

    async def request(
        *, region: RegionNumber, broker: BrokerId | None, method: str, body: dict[str, object]
    ) -> dict[str, object]:
        assert method == FOUNDING and broker is not None
        await asyncio.sleep(0)
        if broker not in up:
            raise Unavailable("not there")
        return answers.ok(answer_while_fresh(brokers[broker], body))

    def settle(broker: BrokerId) -> asyncio.Task[Any]:
        return asyncio.ensure_future(settle_founding(brokers[broker], request, region=RegionNumber(1), pause_s=0.001))

    early = [settle(B1), settle(B2)]
    done, _ = await asyncio.wait(early, timeout=0.02)
    assert not done
    up.add(B3)
    assert await asyncio.gather(*early, settle(B3)) == [Found(record=record())] * 3
