"""Markers find the leaders of partitions, questions the coordinators; what is another region's is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import BadRequest, NotLeader, PolicyViolation, Unavailable, UnknownTopic
from georelay.ids import BrokerId, RaftIndex, RegionNumber, StreamKey
from region.broker.transaction_port import MARKER_METHOD, TransactionPort
from region.coordination.coordinators import INTERNAL_TOPIC
from region.coordination.in_memory import InMemoryCoordinators
from region.coordination.part import Part
from region.transactions.transaction_core import TransactionEnd

HERE, ELSEWHERE = StreamKey(b"h" * 16, RegionNumber(0), 0), StreamKey(b"e" * 16, RegionNumber(0), 0)
END = TransactionEnd(producer_id=7, producer_epoch=1, is_commit=True, number=3)


class Catalog:
    """Topic "here" is this region's, "elsewhere" region 2's, "us.mirror" is a mirror's name."""

    def __init__(self) -> None:
        self.views = {
            "here": SimpleNamespace(is_mirror_name=False, internal=False),
            "elsewhere": SimpleNamespace(is_mirror_name=False, internal=False),
            "us.mirror": SimpleNamespace(is_mirror_name=True, internal=False),
            "__inside": SimpleNamespace(is_mirror_name=False, internal=True),
            INTERNAL_TOPIC: SimpleNamespace(topic_id=b"c" * 16, partitions=2, is_mirror_name=False, internal=True),
        }
        self.homes = {HERE: 1, ELSEWHERE: 2}

    def topic(self, name: str) -> Any:
        return self.views.get(name)

    def stream_key(self, name: str, partition: int) -> StreamKey | None:
        if name not in self.views or partition:
            return None
        return ELSEWHERE if name == "elsewhere" else HERE

    def home_of(self, key: StreamKey) -> int | None:
        return self.homes.get(key, key.origin if key.topic_id == b"c" * 16 else None)

    def topic_by_id(self, topic_id: bytes) -> Any:
        return SimpleNamespace(name="here") if topic_id == HERE.topic_id else None


class Stream:
    def __init__(self) -> None:
        self.marked: list[dict[str, Any]] = []

    async def write_marker(self, **wanted: Any) -> None:
        self.marked.append(wanted)


class Answering:
    """A part that answers with what the test says."""

    def __init__(self, part: Part, answer: dict[str, Any]) -> None:
        self.part, self.answer = part, answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def call(self, operation: str, body: dict[str, Any], *, principal: str) -> dict[str, Any]:
        self.asked.append((operation, body))
        return self.answer

    def elected(self) -> None:
        return None

    def deposed(self) -> None:
        return None

    def close(self) -> None:
        return None

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        return None

    def snapshot(self) -> bytes:
        return b""

    def restore(self, raw: bytes) -> None:
        return None

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        del append_us

    def claim(self, name: str) -> int:
        del name
        return 0


class Bench:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.stream = Stream()
        self.leader = 1001
        self.hosted = True
        self.sent: list[tuple[int, str, dict[str, Any]]] = []
        self.barriers = 0
        self.coordinators = InMemoryCoordinators()
        self.port = TransactionPort(
            me=BrokerId(1001),
            region=RegionNumber(1),
            catalog=self.catalog,  # type: ignore[arg-type]
            coordinators=self.coordinators,
            hosted=lambda _: self.stream if self.hosted else None,  # type: ignore[arg-type, return-value]
            leader_of=lambda _: self.leader,
            barrier=self.barrier,
            allocate=self.allocate,
            ask=self.ask,
        )

    async def barrier(self) -> None:
        self.barriers += 1

    async def allocate(self) -> int:
        return 5

    async def ask(self, broker: BrokerId, method: str, body: Any, *, timeout_s: float) -> dict[str, Any]:
        self.sent.append((broker, method, dict(body)))
        return {}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_partition_of_this_region_is_resolved(bench: Bench) -> None:
    assert bench.port.resolve("here", 0) == HERE


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [
        ("elsewhere", 0, PolicyViolation),
        ("us.mirror", 0, PolicyViolation),
        ("__inside", 0, PolicyViolation),
        ("here", 9, UnknownTopic),
        ("none", 0, UnknownTopic),
    ],
)
def test_what_no_transaction_of_this_region_can_hold_is_refused(
    bench: Bench, topic: str, partition: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        bench.port.resolve(topic, partition)


async def test_a_marker_for_a_partition_led_here_is_written_here(bench: Bench) -> None:
    await bench.port.end_partition(HERE, END)
    assert bench.stream.marked == [{"producer_id": 7, "producer_epoch": 1, "is_commit": True, "number": 3}]
    assert bench.sent == []


async def test_a_marker_goes_to_the_leader_and_means_the_same_there(bench: Bench) -> None:
    bench.leader = 1002
    await bench.port.end_partition(HERE, END)
    ((broker, method, body),) = bench.sent
    assert (broker, method) == (1002, MARKER_METHOD)
    bench.leader = 1001
    await bench.port.serve_marker(body)
    assert bench.stream.marked == [{"producer_id": 7, "producer_epoch": 1, "is_commit": True, "number": 3}]


@pytest.mark.parametrize("broken", ["number", "topic_id", "is_commit"])
async def test_what_is_no_marker_is_refused(bench: Bench, broken: str) -> None:
    bench.leader = 1002
    await bench.port.end_partition(HERE, END)
    body = bench.sent[0][2]
    for wrong in ({**body, broken: None}, {name: value for name, value in body.items() if name != broken}):
        with pytest.raises(BadRequest):
            await bench.port.serve_marker(wrong)
    assert bench.stream.marked == []


async def test_without_a_leader_or_a_replica_the_coordinator_is_told_to_try_again(bench: Bench) -> None:
    bench.leader = -1
    with pytest.raises(NotLeader):
        await bench.port.end_partition(HERE, END)
    bench.leader, bench.hosted = 1001, False
    with pytest.raises(NotLeader):
        await bench.port.end_partition(HERE, END)


async def test_a_topic_counts_as_deleted_only_after_asking_the_controller(bench: Bench) -> None:
    assert not await bench.port.is_gone(HERE)
    assert bench.barriers == 0
    unknown = StreamKey(b"u" * 16, RegionNumber(0), 0)
    assert await bench.port.is_gone(unknown)
    assert bench.barriers == 1


async def test_a_group_hears_the_end_with_its_number(bench: Bench) -> None:
    groups = Answering(Part.GROUPS, {"error_code": 0})
    bench.coordinators.register(Part.GROUPS, lambda _: groups)
    await bench.port.end_group("g", END)
    ((operation, body),) = groups.asked
    assert (operation, body["group"], body["number"], body["is_commit"]) == ("txn_end", "g", 3, True)
    groups.answer = {"error_code": 15, "error": "COORDINATOR_NOT_AVAILABLE"}
    with pytest.raises(Unavailable):
        await bench.port.end_group("g", END)


async def test_a_first_batch_is_confirmed_by_the_number_of_the_open_transaction(bench: Bench) -> None:
    coordinator = Answering(Part.TRANSACTIONS, {"number": 4})
    bench.coordinators.register(Part.TRANSACTIONS, lambda _: coordinator)
    assert await bench.port(HERE, transactional_id="t", producer_id=7, producer_epoch=1) == 4
    ((operation, body),) = coordinator.asked
    assert (operation, body["topic_id"], body["producer_epoch"]) == ("verify", HERE.topic_id.hex(), 1)
    coordinator.answer = {}
    with pytest.raises(Unavailable):
        await bench.port(HERE, transactional_id="t", producer_id=7, producer_epoch=1)


def test_markers_of_another_region_are_taken_for_its_own_producers_and_for_those_it_took_over(bench: Bench) -> None:
    of_two, of_three = {"producer_id": 2 << 48}, {"producer_id": 3 << 48}
    bench.port.check_sender(of_two, RegionNumber(2))
    with pytest.raises(PolicyViolation):
        bench.port.check_sender(of_three, RegionNumber(2))
    bench.catalog.homes[StreamKey(b"c" * 16, RegionNumber(3), 1)] = 2
    bench.port.check_sender(of_three, RegionNumber(2))
    with pytest.raises(PolicyViolation):
        bench.port.check_sender(of_three, RegionNumber(4))
    with pytest.raises(PolicyViolation):
        bench.port.check_sender({"producer_id": "3"}, RegionNumber(2))


def test_markers_of_a_region_that_lost_all_its_coordinators_are_refused(bench: Bench) -> None:
    view = bench.catalog.topic(INTERNAL_TOPIC)
    assert view is not None
    for partition in range(view.partitions):
        bench.port.check_sender({"producer_id": 2 << 48}, RegionNumber(2))
        bench.catalog.homes[StreamKey(view.topic_id, RegionNumber(2), partition)] = 3
    with pytest.raises(PolicyViolation):
        bench.port.check_sender({"producer_id": 2 << 48}, RegionNumber(2))
    bench.port.check_sender({"producer_id": 2 << 48}, RegionNumber(3))
