"""A queue through the native API, against the queue's coordinator in memory: leases, settlements, losses."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

import georelay
import georelay.sync
from georelay.errors import LeaseExpired, OutcomeUnknown, UnknownQueue
from region.coordination.part import Part

pytestmark = pytest.mark.timeout(40)


class Queue:
    """Answers as the coordinator of one queue would."""

    def __init__(self, *values: bytes) -> None:
        self.ready = [(f"lease-{number}", number, value) for number, value in enumerate(values)]
        self.out: dict[str, tuple[str, int, bytes]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.expired: set[str] = set()
        self.unknown = False

    def asked(self, operation: str) -> list[dict[str, Any]]:
        return [body for name, body in self.calls if name == operation]

    async def call(self, part: Part, key: str, operation: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert (part, key, body["queue"]) == (Part.QUEUES, "jobs", "jobs")
        if self.unknown:
            raise UnknownQueue("queue 'jobs' does not exist")
        self.calls.append((operation, body))
        if operation == "receive":
            return await self._receive(body)
        if operation == "release":
            self.ready = sorted([*self.ready, *self.out.values()], key=lambda row: row[1])
            self.out.clear()
            return {"released": 0}
        codes = {lease: "LEASE_EXPIRED" if lease in self.expired else "OK" for lease in body["leases"]}
        if operation != "extend":
            for lease in body["leases"]:
                self.out.pop(lease, None)
        return {"results": [{"lease": lease, "code": code} for lease, code in codes.items()]}

    async def _receive(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self.ready:
            await asyncio.sleep(0.02)
            return {"records": [], "visibility_timeout_ms": 30_000}
        rows, self.ready = self.ready[: body["max"]], self.ready[body["max"] :]
        self.out.update({row[0]: row for row in rows})
        return {"records": [_record(*row) for row in rows], "visibility_timeout_ms": 30_000}


def _record(lease: str, offset: int, value: bytes) -> dict[str, Any]:
    return {
        "lease": lease,
        "partition": 0,
        "offset": offset,
        "timestamp_ms": 5,
        "key": None,
        "value": base64.b64encode(value).decode(),
        "headers": [["h", None]],
        "deliveries": 1,
        "leased_until_ms": int(time.time() * 1000) + 30_000,
    }


async def serve(broker: Any, queue: Queue) -> None:
    await broker.stop()
    broker.coordinators = queue
    await broker.start()


async def test_records_are_leased_and_settled_one_by_one(broker: Any) -> None:
    queue = Queue(b"a", b"b", b"c", b"d")
    await serve(broker, queue)
    async with georelay.connect(broker.address) as mesh, mesh.queue("jobs", name="till") as jobs:
        first, second, third, fourth = [await anext(jobs) for _ in range(4)]
        assert (first.value, first.key, first.headers, first.deliveries) == (b"a", None, (("h", None),), 1)
        await first.acknowledge()
        await second.reject(delay_s=2)
        await third.dead_letter("broken")
        await fourth.extend(60)
    consumer = queue.asked("receive")[0]["consumer"]
    assert consumer.startswith("till-")
    assert queue.asked("acknowledge") == [{"queue": "jobs", "consumer": consumer, "leases": ["lease-0"]}]
    rejected, dead = queue.asked("reject")
    assert (rejected["leases"], rejected["then"], rejected["delay_ms"]) == (["lease-1"], "requeue", 2_000)
    assert (dead["leases"], dead["then"], dead["reason"]) == (["lease-2"], "dead_letter", "broken")
    assert queue.asked("extend")[0]["visibility_timeout_ms"] == 60_000
    assert len(queue.asked("release")) == 1
    assert [row[2] for row in queue.ready] == [b"d"]  # what was out was handed back


async def test_no_more_than_the_prefetch_is_out(broker: Any) -> None:
    queue = Queue(*(b"%d" % number for number in range(5)))
    await serve(broker, queue)
    async with georelay.connect(broker.address) as mesh, mesh.queue("jobs", prefetch=2) as jobs:
        first = await anext(jobs)
        await anext(jobs)
        waiting = asyncio.ensure_future(anext(jobs))
        done, _ = await asyncio.wait((waiting,), timeout=0.1)
        assert not done
        assert len(queue.out) == 2
        await first.acknowledge()
        assert (await waiting).value == b"2"


async def test_settling_too_late_says_so(broker: Any) -> None:
    queue = Queue(b"a")
    queue.expired.add("lease-0")
    await serve(broker, queue)
    async with georelay.connect(broker.address) as mesh, mesh.queue("jobs") as jobs:
        job = await anext(jobs)
        with pytest.raises(LeaseExpired):
            await job.acknowledge()


async def test_what_was_out_comes_again_after_the_broker_was_gone(broker: Any) -> None:
    queue = Queue(b"a")
    await serve(broker, queue)
    async with georelay.connect(broker.address) as mesh, mesh.queue("jobs") as jobs:
        lost = await anext(jobs)
        await broker.stop()
        await broker.start()
        again = await anext(jobs)
        assert again.value == b"a"
        with pytest.raises(OutcomeUnknown):
            await lost.acknowledge()
        await again.acknowledge()
    assert queue.ready == []


async def test_a_queue_that_does_not_exist_is_an_error(broker: Any) -> None:
    queue = Queue()
    queue.unknown = True
    await serve(broker, queue)
    async with georelay.connect(broker.address) as mesh, mesh.queue("jobs") as jobs:
        with pytest.raises(UnknownQueue):
            await anext(jobs)


async def test_a_queue_is_worked_through_without_asyncio(broker: Any) -> None:
    broker.coordinators = queue = Queue(b"a", b"b")
    await broker.stop()
    await broker.start()

    def work() -> list[bytes | None]:
        with georelay.sync.connect(f"grpc://{broker.address}") as mesh, mesh.queue("jobs", prefetch=10) as jobs:
            first, second = next(jobs), next(jobs)
            first.acknowledge()
            second.reject()
            return [first.value, second.value]

    assert await asyncio.to_thread(work) == [b"a", b"b"]
    assert [body["leases"] for body in queue.asked("acknowledge")] == [["lease-0"]]
    assert [body["leases"] for body in queue.asked("reject")] == [["lease-1"]]
