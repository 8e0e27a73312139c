"""Who may keep how much at one coordinator of groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.api import ErrorCode
from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.groups.offsets_core import CommittedOffset
from region.groups.settings import GROUPS_PER_COORDINATOR_MAX, OFFSET_METADATA_BYTES_MAX
from region.groups.values import Identity
from tests.unit.groups.coordinator_world import World, ignore, stable, turn, wish

ALICE, MALLORY = "User:alice", "User:mallory"


ROOM_BYTES = 400_000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("region.groups.state_core.STATE_BYTES_MAX", ROOM_BYTES)
    made = World()
    made.log.feature_level = PRINCIPALS_LEVEL
    made.log.elect()
    return made


async def commit(world: World, group: str, principal: str, *, metadata: str = "", partition: int = 0) -> str:
    """Commit one offset as a principal; return the code."""
    row = {"topic": "orders", "partition": partition, "offset": 5, "metadata": metadata}
    answer = await world.part.call("commit", {"group": group, "offsets": [row]}, principal=principal)
    return ErrorCode(answer["partitions"][0]["error_code"]).name


async def fill(world: World, principal: str, *, metadata: str = "x" * OFFSET_METADATA_BYTES_MAX) -> list[str]:
    """Commit to one group after the other as a principal; return the codes."""
    made = (commit(world, f"{principal}-{number}", principal, metadata=metadata) for number in range(120))
    return await asyncio.gather(*made)


async def test_a_principal_that_fills_its_share_leaves_room_for_another_one(world: World) -> None:
    codes = await fill(world, MALLORY)
    assert {"NONE", "POLICY_VIOLATION"} == set(codes)
    assert await commit(world, "billing", ALICE, metadata="x" * OFFSET_METADATA_BYTES_MAX) == "NONE"
    assert world.part._state.shares.held_by(MALLORY) <= ROOM_BYTES // 2
    assert world.part.counters.room_refusals == codes.count("POLICY_VIOLATION")


async def test_however_many_came_before_there_is_room_for_one_more(world: World) -> None:
    for number in range(6):
        await fill(world, f"User:mallory{number}")
    assert await commit(world, "billing", ALICE, metadata="x" * OFFSET_METADATA_BYTES_MAX) == "NONE"


async def test_an_existing_group_of_a_full_share_goes_on_and_does_not_grow(world: World) -> None:
    await fill(world, MALLORY)
    group = f"{MALLORY}-0"
    assert await commit(world, group, MALLORY, metadata="y" * OFFSET_METADATA_BYTES_MAX) == "NONE"
    assert await commit(world, group, MALLORY, metadata="y" * OFFSET_METADATA_BYTES_MAX, partition=1) == (
        "POLICY_VIOLATION"
    )


async def test_a_full_coordinator_still_commits_what_takes_no_more_than_before(world: World) -> None:
    assert await commit(world, "billing", ALICE, metadata="at noon") == "NONE"
    world.part._state.shares.room = 0
    assert await commit(world, "billing", ALICE, metadata="at four") == "NONE"
    assert await commit(world, "billing", ALICE, metadata="at eleven") == "INVALID_COMMIT_OFFSET_SIZE"


async def test_what_a_principal_has_on_its_way_counts_before_it_is_applied(world: World) -> None:
    world.log.hold()
    filling = asyncio.ensure_future(fill(world, MALLORY))
    await turn()
    world.log.release()
    assert "POLICY_VIOLATION" in await filling
    assert world.part._state.shares.held_by(MALLORY) <= ROOM_BYTES // 2


async def test_a_new_leader_knows_whose_the_groups_are(world: World) -> None:
    await fill(world, MALLORY)
    part = world.fail_over()
    assert await commit(world, "one-more", MALLORY, metadata="x" * OFFSET_METADATA_BYTES_MAX) in (
        "GROUP_MAX_SIZE_REACHED",
        "POLICY_VIOLATION",
    )
    assert part._state.find("User:mallory-0").principal == MALLORY  # type: ignore[union-attr]


async def test_deleting_groups_makes_room_for_their_principal(world: World) -> None:
    await fill(world, MALLORY)
    for number in range(20):
        await world.part.call("delete", {"group": f"{MALLORY}-{number}"}, principal=MALLORY)
    assert await commit(world, "one-more", MALLORY) == "NONE"


async def test_groups_that_were_only_joined_are_shared_too(world: World) -> None:
    for number in range(GROUPS_PER_COORDINATOR_MAX):
        body = {"group": f"g{number}", "protocols": [], "needs_member_id": True}
        asked = asyncio.ensure_future(world.part.call("join", body, principal=MALLORY))
        await asyncio.sleep(0)
        asked.cancel()
    assert sum(1 for _ in world.part.groups()) <= GROUPS_PER_COORDINATOR_MAX // 2
    assert await commit(world, "billing", ALICE) == "NONE"


async def test_the_assignments_of_a_group_count_for_its_principal(world: World) -> None:
    who = await stable(world)
    assert who.generation > 0
    world.part._state.shares.room = world.part._state.size_bytes
    joined: list[Any] = []
    world.part.join("g", wish(subscription=b"s" * 400), joined.append)
    world.part.join("g", wish(who.member_id, subscription=b"t" * 400), joined.append)
    await turn()
    assert world.part._state.size_bytes <= world.part._state.shares.room


@pytest.mark.parametrize("text", ["\x00", '"', "ü", "\u2028", "€", "😀"])
async def test_no_text_takes_more_in_a_snapshot_than_is_counted(world: World, text: str) -> None:
    long = text * 250
    assert await commit(world, long, ALICE, metadata=long) == "NONE"
    world.part.hold_offsets(
        long,
        Identity(),
        7,
        0,
        1,
        {world.part.names.key_of("orders", 1): CommittedOffset(offset=1, metadata=long)},  # type: ignore[dict-item]
        ignore,
    )
    await turn()
    assert world.part._state.size_bytes >= len(world.part.snapshot())


async def test_below_its_feature_level_nobody_is_written_down_and_the_bytes_are_those_of_before(world: World) -> None:
    world.log.feature_level = PRINCIPALS_LEVEL - 1
    assert await commit(world, "billing", ALICE) == "NONE"
    assert b"principal" not in world.log.commands[-1][3]
    assert b"principal" not in world.part.snapshot()
    world.log.feature_level = PRINCIPALS_LEVEL
    assert await commit(world, "billing", ALICE) == "NONE"
    assert world.part._state.shares.held_by(ALICE) > 0
    assert await commit(world, "billing", MALLORY) == "NONE"
    assert world.part._state.shares.held_by(MALLORY) == 0


async def test_ends_of_transactions_in_groups_that_are_not_there_take_no_room_of_others(world: World) -> None:
    for number in range(GROUPS_PER_COORDINATOR_MAX):
        world.part.end_transaction(f"g{number}", 7, 0, number=1, is_commit=False, done=ignore)
    await turn()
    assert await commit(world, "billing", ALICE) == "NONE"
