"""A group's member behind the native API, against the group coordinator in memory: rebalances, silence, fencing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import georelay
from georelay import Place, Start
from georelay.errors import BadRequest, Fenced, GeorelayError
from georelay.wire.api import ErrorCode
from georelay.wire.consumer_protocol import decode_assignment, encode_assignment
from region.api.streams import group_member
from region.api.streams.group_member import GroupMember, MemberSettings
from region.coordination.part import Part

pytestmark = pytest.mark.timeout(40)


class Coordinator:
    """Answers a member as the group's coordinator would; tests say with which codes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.codes: dict[str, list[int]] = {}
        self.errors: dict[str, list[GeorelayError]] = {}
        self.generation = 0
        self.offsets: dict[tuple[str, int], int] = {}
        self.assigned: Mapping[str, list[int]] | None = None  # by another leader; None: this member leads

    def count(self, operation: str) -> int:
        return sum(name == operation for name, _ in self.calls)

    async def call(self, part: Part, key: str, operation: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert (part, key, body["group"]) == (Part.GROUPS, "workers", "workers")
        self.calls.append((operation, body))
        await asyncio.sleep(0)
        if self.errors.get(operation):
            raise self.errors[operation].pop(0)
        codes = self.codes.get(operation)
        answer: dict[str, Any] = {"error_code": codes.pop(0) if codes else 0}
        return answer | getattr(self, f"_{operation}", lambda _: {})(body)

    def _join(self, body: dict[str, Any]) -> dict[str, Any]:
        self.generation += 1
        member_id = body["member_id"] or f"member-{self.generation}"
        me = {"member_id": member_id, "instance_id": None, "metadata": body["protocols"][0]["metadata"]}
        leader = member_id if self.assigned is None else "other"
        return {
            "generation": self.generation,
            "member_id": member_id,
            "leader": leader,
            "protocol": "range",
            "members": [me],
        }

    def _sync(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.assigned is not None:
            return {"assignment": base64.b64encode(encode_assignment(self.assigned)).decode()}
        return {"assignment": body["assignments"][0]["assignment"]}

    def _fetch_offsets(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = [
            {"topic": row["topic"], "partition": partition, "offset": self.offsets.get((row["topic"], partition), -1)}
            for row in body["topics"]
            for partition in row["partitions"]
        ]
        return {"partitions": [{**row, "leader_epoch": -1, "metadata": "", "error_code": 0} for row in rows]}

    def _commit(self, body: dict[str, Any]) -> dict[str, Any]:
        for row in body["offsets"]:
            self.offsets[row["topic"], row["partition"]] = row["offset"]
        rows = [{"topic": row["topic"], "partition": row["partition"], "error_code": 0} for row in body["offsets"]]
        return {"partitions": rows}


class Listener:
    """Notes what a member tells its subscription."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.release = asyncio.Event()
        self.release.set()

    async def assigned(self, generation: int, member_id: str, partitions: Mapping[str, tuple[int, ...]]) -> None:
        self.told.append(("assigned", generation, dict(partitions)))

    async def revoked(self, generation: int, *, is_lost: bool) -> None:
        self.told.append(("revoked", generation, is_lost))
        await self.release.wait()


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def listener() -> Listener:
    return Listener()


def new_member(coordinator: Coordinator, listener: Listener, **changes: Any) -> GroupMember:
    alive: Callable[[], bool] = changes.pop("is_alive", lambda: True)
    counts = changes.pop("counts", {"orders": 3})
    settings = MemberSettings(group="workers", topics=("orders",), session_timeout_ms=30, **changes)
    return GroupMember(
        settings,
        coordinators=coordinator,  # type: ignore[arg-type]
        listener=listener,
        partitions_of=lambda topic: counts.get(topic, 0),
        is_alive=alive,
        principal="User:ann",
    )


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not ready():
            await asyncio.sleep(0.002)


async def test_the_leader_shares_the_partitions_out(coordinator: Coordinator, listener: Listener) -> None:
    task = asyncio.ensure_future(new_member(coordinator, listener).run())
    await until(lambda: bool(listener.told))
    assert listener.told == [("assigned", 1, {"orders": (0, 1, 2)})]
    (_, sync) = next(call for call in coordinator.calls if call[0] == "sync")
    assert decode_assignment(base64.b64decode(sync["assignments"][0]["assignment"])) == {"orders": (0, 1, 2)}
    task.cancel()


async def test_a_member_that_does_not_lead_takes_what_it_is_given(coordinator: Coordinator, listener: Listener) -> None:
    coordinator.assigned = {"orders": [1]}
    task = asyncio.ensure_future(new_member(coordinator, listener).run())
    await until(lambda: bool(listener.told))
    assert listener.told == [("assigned", 1, {"orders": (1,)})]
    assert next(body for name, body in coordinator.calls if name == "sync")["assignments"] == []
    task.cancel()


async def test_a_rebalance_waits_for_the_release_and_heartbeats_go_on_meanwhile(
    coordinator: Coordinator, listener: Listener
) -> None:
    coordinator.codes["heartbeat"] = [0, ErrorCode.REBALANCE_IN_PROGRESS]
    listener.release.clear()
    task = asyncio.ensure_future(new_member(coordinator, listener).run())
    await until(lambda: ("revoked", 1, False) in listener.told)
    heartbeats = coordinator.count("heartbeat")
    await until(lambda: coordinator.count("heartbeat") >= heartbeats + 2)
    assert coordinator.count("join") == 1
    listener.release.set()
    await until(lambda: len(listener.told) == 3)
    assert listener.told[-1][:2] == ("assigned", 2)
    assert coordinator.calls[-1][1].get("member_id", "member-1") == "member-1"
    task.cancel()


async def test_a_member_that_was_put_out_joins_as_a_new_one(coordinator: Coordinator, listener: Listener) -> None:
    coordinator.codes["heartbeat"] = [ErrorCode.UNKNOWN_MEMBER_ID]
    task = asyncio.ensure_future(new_member(coordinator, listener).run())
    await until(lambda: len(listener.told) >= 3)
    assert listener.told[1] == ("revoked", 1, True)
    joins = [body["member_id"] for name, body in coordinator.calls if name == "join"]
    assert joins == ["", ""]
    task.cancel()


async def test_more_partitions_make_the_leader_join_again(coordinator: Coordinator, listener: Listener) -> None:
    counts = {"orders": 1}
    task = asyncio.ensure_future(new_member(coordinator, listener, counts=counts).run())
    await until(lambda: bool(listener.told))
    counts["orders"] = 2
    await until(lambda: len(listener.told) >= 3)
    assert listener.told[-1] == ("assigned", 2, {"orders": (0, 1)})
    task.cancel()


async def test_no_heartbeat_is_sent_for_a_client_that_is_silent(coordinator: Coordinator, listener: Listener) -> None:
    member = new_member(coordinator, listener, is_alive=lambda: False)
    with pytest.raises(Fenced, match="nothing was heard"):
        await member.run()
    assert coordinator.count("heartbeat") == 0


async def test_what_passes_by_itself_is_asked_again(
    coordinator: Coordinator, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "RETRY_S", 0.0)
    coordinator.errors["join"] = [georelay.errors.Unavailable("no leader"), georelay.errors.OutcomeUnknown("lost")]
    coordinator.codes["join"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    coordinator.errors["heartbeat"] = [georelay.errors.Unavailable("for a moment")]
    task = asyncio.ensure_future(new_member(coordinator, listener).run())
    await until(lambda: coordinator.count("heartbeat") >= 2)
    assert [told[0] for told in listener.told] == ["assigned"]
    task.cancel()


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_AUTHORIZATION_FAILED])
async def test_a_refused_join_ends_the_membership(coordinator: Coordinator, listener: Listener, code: int) -> None:
    coordinator.codes["join"] = [code]
    with pytest.raises(BadRequest, match=ErrorCode(code).name):
        await new_member(coordinator, listener).run()


async def test_a_dynamic_member_leaves_and_a_static_one_stays(coordinator: Coordinator, listener: Listener) -> None:
    for instance_id, leaves in (("", 1), ("till-1", 0)):
        coordinator.calls.clear()
        member = new_member(coordinator, listener, instance_id=instance_id)
        task = asyncio.ensure_future(member.run())
        await until(lambda: coordinator.count("sync") == 1)
        task.cancel()
        await member.leave()
        assert coordinator.count("leave") == leaves


# --- the whole way: SDK, call, member ---------------------------------------------------------------


async def start_with(broker: Any, coordinator: Coordinator) -> None:
    await broker.stop()
    broker.coordinators = coordinator
    await broker.start()


async def test_a_group_goes_on_from_what_was_committed(broker: Any, cluster: Any, coordinator: Coordinator) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a", b"b", b"c")
    await start_with(broker, coordinator)
    async with georelay.connect(broker.address) as mesh:
        async with mesh.consumer(["orders"], group="workers", start=Start.EARLIEST) as consumer:
            assert (await anext(consumer)).value == b"a"
            assert (await anext(consumer)).value == b"b"
            await consumer.commit()
        assert coordinator.offsets == {("orders", 0): 2}
        assert coordinator.count("leave") == 1
        async with mesh.consumer(["orders"], group="workers", start=Start.EARLIEST) as consumer:
            assert (await anext(consumer)).value == b"c"


async def test_partitions_are_released_between_two_records_and_automatic_commits_come_before(
    broker: Any, cluster: Any, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "HEARTBEAT_S_MAX", 0.02)
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a", b"b")
    await start_with(broker, coordinator)
    told: list[Any] = []
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(
            ["orders"],
            group="workers",
            start=Start.EARLIEST,
            auto_commit_s=3600,
            on_assigned=lambda places: told.append(("assigned", places)),
            on_revoked=lambda places: told.append(("revoked", places)),
        ) as consumer,
    ):
        assert (await anext(consumer)).value == b"a"
        coordinator.codes["heartbeat"] = [ErrorCode.REBALANCE_IN_PROGRESS]
        await until(lambda: not coordinator.codes["heartbeat"])
        await asyncio.sleep(0.1)
        assert [what for what, _ in told] == ["assigned"]  # a is still being worked on
        assert coordinator.count("join") == 1
        assert (await anext(consumer)).value == b"b"
        place = [Place("orders", 0)]
        assert told == [("assigned", place), ("revoked", place), ("assigned", place)]
        assert coordinator.offsets == {("orders", 0): 1}
        commit = next(body for name, body in coordinator.calls if name == "commit")
        assert commit["generation"] == 1


async def test_a_commit_of_an_old_generation_is_refused(broker: Any, cluster: Any, coordinator: Coordinator) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a")
    await start_with(broker, coordinator)
    coordinator.codes["commit"] = [ErrorCode.ILLEGAL_GENERATION]
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], group="workers", start=Start.EARLIEST) as consumer,
    ):
        await anext(consumer)
        with pytest.raises(Fenced, match="ILLEGAL_GENERATION"):
            await consumer.commit()


async def test_a_member_keeps_its_id_when_its_broker_goes(broker: Any, cluster: Any, coordinator: Coordinator) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a")
    await start_with(broker, coordinator)
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], group="workers", start=Start.EARLIEST) as consumer,
    ):
        await anext(consumer)
        await consumer.commit()
        await broker.stop()
        await broker.start()
        cluster.stream("orders", 0).add(b"b")  # not before: it might have been delivered already
        assert (await anext(consumer)).value == b"b"
    joins = [body["member_id"] for name, body in coordinator.calls if name == "join"]
    assert joins == ["", "member-1"]
