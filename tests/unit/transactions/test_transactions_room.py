"""Who may keep how much at one coordinator of transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, GeorelayError, PolicyViolation
from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.transactions.transaction_core import State

ALICE, MALLORY = "User:alice", "User:mallory"


@pytest.fixture
def coordinator(make_coordinator: Any) -> Any:
    coordinator = make_coordinator()
    coordinator.log.feature_level = PRINCIPALS_LEVEL
    return coordinator


async def init(coordinator: Any, name: str, principal: str) -> Any:
    return await coordinator.part.call("init", {"transactional_id": name, "timeout_ms": 60_000}, principal=principal)


async def fill(coordinator: Any, principal: str, count: int) -> list[Any]:
    """Make transactional ids as a principal; return what became of each."""
    made = (init(coordinator, f"{principal}-{number}", principal) for number in range(count))
    return await asyncio.gather(*made, return_exceptions=True)


async def test_a_principal_that_fills_its_share_leaves_ids_for_another_one(coordinator: Any) -> None:
    coordinator.part.book.ids.room = 20
    refused = [row for row in await fill(coordinator, MALLORY, 20) if isinstance(row, GeorelayError)]
    assert {type(row) for row in refused} == {PolicyViolation}
    assert MALLORY in str(refused[0])
    assert (await init(coordinator, "billing", ALICE))["producer_epoch"] == 0
    assert coordinator.part.book.ids.held_by(MALLORY) == 10


async def test_long_ids_and_participants_count_in_bytes(coordinator: Any) -> None:
    book = coordinator.part.book
    book.bytes.room = 6_000
    made = await init(coordinator, "m" * 1_000, MALLORY)
    owner = {"transactional_id": "m" * 1_000, "producer_id": made["producer_id"], "producer_epoch": 0}

    async def add(number: int) -> None:
        group = f"{number}" * 250
        await coordinator.part.call("add_offsets", {**owner, "group_id": group}, principal=MALLORY)

    for number in range(6):
        await add(number)
    with pytest.raises(PolicyViolation):
        await add(6)
    assert book.bytes.held_by(MALLORY) <= 3_000
    assert (await init(coordinator, "billing", ALICE))["producer_epoch"] == 0
    await coordinator.part.call("end", {**owner, "is_commit": True}, principal=MALLORY)  # an end always fits
    assert book.get("m" * 1_000).state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


async def test_an_id_of_a_full_share_goes_on(coordinator: Any) -> None:
    await init(coordinator, "billing", ALICE)
    coordinator.part.book.ids.room = coordinator.part.book.bytes.room = 0
    assert (await init(coordinator, "billing", ALICE))["producer_epoch"] == 1
    with pytest.raises(Busy):
        await init(coordinator, "another", ALICE)


async def test_another_leader_knows_whose_the_ids_are(coordinator: Any) -> None:
    await fill(coordinator, MALLORY, 3)
    coordinator.restart()
    book = coordinator.part.book
    assert (book.ids.held_by(MALLORY), book.bytes.held_by(MALLORY)) == (3, book.bytes.used)


@pytest.mark.parametrize("text", ["\x00", '"', "ü", "😀"])
async def test_no_text_takes_more_in_a_snapshot_than_is_counted(coordinator: Any, text: str) -> None:
    made = await init(coordinator, text * 250, text * 250)
    owner = {"transactional_id": text * 250, "producer_id": made["producer_id"], "producer_epoch": 0}
    await coordinator.part.call("add_offsets", {**owner, "group_id": text * 250}, principal=ALICE)
    await coordinator.part.call("add_partitions", {**owner, "partitions": [["a", 0], ["b", 3]]}, principal=ALICE)
    assert coordinator.part.book.bytes.used >= len(coordinator.part.snapshot())


async def test_below_its_feature_level_nobody_is_written_down(coordinator: Any) -> None:
    coordinator.log.feature_level = PRINCIPALS_LEVEL - 1
    await init(coordinator, "billing", ALICE)
    assert b"principal" not in coordinator.log.commands[-1][3] + coordinator.part.snapshot()
    coordinator.log.feature_level = PRINCIPALS_LEVEL
    await init(coordinator, "billing", ALICE)
    assert coordinator.part.book.ids.held_by(ALICE) == 1
