"""Who may keep how much at one coordinator of queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, GeorelayError, PolicyViolation, Unavailable
from region.coordination.coordinators import PRINCIPALS_LEVEL

ALICE, MALLORY = "User:alice", "User:mallory"


@pytest.fixture
def shared(scene: Any) -> Any:
    scene.log.feature_level = PRINCIPALS_LEVEL
    scene.cluster.make("orders", 1)
    return scene


async def create(scene: Any, name: str, principal: str) -> Any:
    return await scene.part.call("create", {"queue": name, "topic": "orders"}, principal=principal)


async def test_a_principal_that_fills_its_share_leaves_queues_for_another_one(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.queues.state_core.QUEUES_PER_COORDINATOR_MAX", 8)
    made = await asyncio.gather(*(create(shared, f"m{n}", MALLORY) for n in range(8)), return_exceptions=True)
    refused = [row for row in made if isinstance(row, GeorelayError)]
    assert {type(row) for row in refused} == {PolicyViolation}
    assert MALLORY in str(refused[0])
    assert shared.part.counters.room_refusals == len(refused) == 4
    assert (await create(shared, "bills", ALICE))["name"] == "bills"
    await shared.part.call("delete", {"queue": "m0"}, principal=MALLORY)
    await shared.part.call("delete", {"queue": "m1"}, principal=MALLORY)
    assert (await create(shared, "m9", MALLORY))["name"] == "m9"


async def test_queues_that_are_made_at_the_same_time_are_not_more_than_the_coordinator_holds(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.log.feature_level = PRINCIPALS_LEVEL - 1
    monkeypatch.setattr("region.queues.state_core.QUEUES_PER_COORDINATOR_MAX", 3)
    made = await asyncio.gather(*(create(shared, f"q{n}", ALICE) for n in range(6)), return_exceptions=True)
    assert [type(row) for row in made if isinstance(row, GeorelayError)] == [Busy] * 3


async def test_records_of_one_principals_queues_leave_rows_for_those_of_another(
    shared: Any, monkeypatch: pytest.MonkeyPatch, settled: Any
) -> None:
    monkeypatch.setattr("region.queues.state_core.ROWS_PER_COORDINATOR_MAX", 40)
    for name, principal in (("m0", MALLORY), ("m1", MALLORY), ("bills", ALICE)):
        await create(shared, name, principal)
    await shared.publish(*"abcdefghijklmnopqrstuvwxyz0123456789")
    taken = [len(await shared.receive("c", 100, queue=name)) for name in ("m0", "m1")]
    assert sum(taken) <= 20
    assert len(await shared.receive("c", 100, queue="bills")) == 10


async def test_whose_a_queue_is_is_known_to_another_leader(shared: Any) -> None:
    await create(shared, "m0", MALLORY)
    part = shared.new_part()
    part.restore(shared.part.snapshot())
    assert part.snapshot() == shared.part.snapshot()
    assert part.queue_shares().held_by(MALLORY) == 1


async def test_below_its_feature_level_nobody_is_written_down(shared: Any) -> None:
    shared.log.feature_level = PRINCIPALS_LEVEL - 1
    await create(shared, "bills", ALICE)
    assert b"principal" not in shared.log.commands[-1][3] + shared.part.snapshot()


async def test_names_of_consumers_do_not_fill_the_state(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.queues.kept_texts.TEXT_BYTES_MAX", 4_000)
    shared.part.elected()  # counts with the new limit
    for name, principal in (("m0", MALLORY), ("bills", ALICE)):
        await create(shared, name, principal)
    await shared.publish(*"abcdefghij")

    async def take(number: int) -> Any:
        return await shared.receive(f"{number}" * 250, 1, queue="m0")

    for number in range(7):
        (row,) = await take(number)
    with pytest.raises(Busy, match="use names again"):
        await take(8)
    assert len(await shared.receive("c" * 250, 1, queue="bills")) == 1
    (again,) = await shared.receive("6" * 250, 1, queue="m0")  # a name that is known
    assert await shared.codes("acknowledge", [row, again], queue="m0") == ["OK", "OK"]
    await shared.pass_s(2)
    assert len(await take(8)) == 1


async def test_reasons_of_rejects_do_not_fill_the_state(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.queues.kept_texts.TEXT_BYTES_MAX", 1_000)
    shared.part.elected()
    await create(shared, "m0", MALLORY)
    await shared.publish(*"abcdef")
    rows = await shared.receive("c", 6, queue="m0")
    monkeypatch.setattr(shared.cluster, "publish", unwritable)
    for number, row in enumerate(rows):
        more = {"then": "dead_letter", "reason": f"{number}" * 200}
        assert await shared.codes("reject", [row], queue="m0", **more) == ["OK"]
    kept = sorted(row.reason for _, row in shared.part.live("m0").state.rows())
    assert [len(reason) for reason in kept] == [8, 8, 8, 8, 210, 210]
    assert kept[0] == "rejected"


def unwritable(*_: Any, **__: Any) -> Any:
    raise Unavailable("the dead-letter topic cannot be written")


async def test_records_that_expire_become_dead_letters_when_there_are_rows_for_them(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.queues.state_core.ROWS_PER_COORDINATOR_MAX", 8)
    await shared.part.call("create", {"queue": "m0", "topic": "orders", "ttl_ms": 1_000}, principal=MALLORY)
    await create(shared, "bills", ALICE)
    publish = shared.cluster.publish
    shared.cluster.publish = unwritable
    await shared.publish(*"abcdefghij")
    for _ in range(5):
        await shared.pass_s(1)
    assert len(list(shared.part.live("m0").state.rows())) == 4
    assert len(await shared.receive("c", 10, queue="bills")) == 2
    shared.cluster.publish = publish
    for _ in range(30):
        await shared.pass_s(1)
    assert sorted(letter.value for letter in shared.cluster.records("m0-dead-letters")) == [
        value.encode() for value in "abcdefghij"
    ]
