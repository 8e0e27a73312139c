"""Two regions in one process forget a deletion, and one principal leaves room for others, wherever it asks."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import PolicyViolation, Throttled
from region.controller.topic import TopicSpec

pytestmark = pytest.mark.parametrize("mesh", [{"us": 1, "eu": 1}], indirect=True)
CORE = "region.control"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for what is looked for now and then."""
    monkeypatch.setattr(f"{CORE}.region_duties.LOOK_S", 0.02)
    monkeypatch.setattr(f"{CORE}.leader_duties.LOOK_S", 0.05)
    monkeypatch.setattr(f"{CORE}.forgetting_core.KEPT_S", 0.05)
    monkeypatch.setattr(f"{CORE}.forgetting_core.REMEMBERED_MAX", 0)


async def test_a_deletion_that_both_regions_followed_is_forgotten_and_stays_done(mesh: Any, until: Any) -> None:
    await mesh.start()
    us, eu = mesh.running.values()
    await mesh.again(lambda: us.cluster.create_topic(TopicSpec(name="orders")))
    await mesh.again(lambda: eu.cluster.delete_topic("orders"))
    await mesh.again(lambda: us.cluster.create_topic(TopicSpec(name="newest")))
    states = [broker.core.controller.state for broker in (us, eu)]
    await until(lambda: not any(b"tombstone" in state.to_snapshot() for state in states))
    assert all(state.forgotten_to[0] > 0 for state in states)
    await mesh.again(lambda: eu.cluster.create_topic(TopicSpec(name="orders")))
    await until(lambda: all(state.topic_by_name("orders") is not None for state in states))


async def test_a_principal_is_bounded_in_both_regions_together(
    mesh: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CORE}.definitions_part.TOPICS_MAX", 8)
    await mesh.start()
    us, eu = mesh.running.values()

    def levels() -> bool:
        rows = us.core.controller.state.mesh.regions.values()
        return len(rows) == 2 and all(row.level >= 8 for row in rows)

    await until(levels)

    async def create(number: int) -> bool:
        try:
            asked = (us, eu)[number % 2].cluster
            await asked.create_topic(TopicSpec(name=f"t{number}", partitions=1), by="User:ann")
        except PolicyViolation as error:
            return "User:ann would have" not in str(error)
        return True

    made = [await create(number) for number in range(6)]
    assert made == sorted(made, reverse=True) and 1 <= sum(made) <= 4  # internal topics took of the room
    await eu.cluster.create_topic(TopicSpec(name="bob", partitions=1), by="User:bob")
    await us.cluster.create_topic(TopicSpec(name="admin", partitions=1))
    monkeypatch.setattr(f"{CORE}.pace_core.STREAMS_AT_ONCE", 0.5)
    with pytest.raises(Throttled, match="User:bob creates topics too fast"):
        await eu.cluster.create_topic(TopicSpec(name="more", partitions=1), by="User:bob")
