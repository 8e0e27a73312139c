"""Orphan branches are listed, read and dropped at the leader of their partition, whichever broker is asked."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import BadRequest, NotLeader, OutcomeUnknown, Unavailable, UnknownTopic
from georelay.ids import BrokerId
from mesh.replication.ports import Answer
from region.broker.entry_frames import decode_frames, encode_frames
from region.broker.orphan_branches import DROP_METHOD, LIST_METHOD, READ_METHOD, RegionOrphans

_BENCHES = Path(__file__).parents[1] / "topics" / "conftest.py"
HERE, THERE = BrokerId(1001), BrokerId(1002)


def benches() -> Any:
    spec = importlib.util.spec_from_file_location("topics_benches_orphans", _BENCHES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TwoBrokers:
    """One stream, led by the first broker of a region; the second knows whom to ask."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.stream = bench.stream
        self.asked: list[str] = []
        self.garbled = False
        self.first = self._make(HERE, streams=[self.stream], others=[])
        self.second = self._make(THERE, streams=[], others=[HERE])

    def _make(self, me: BrokerId, *, streams: list[Any], others: list[BrokerId]) -> RegionOrphans:
        return RegionOrphans(
            me=me,
            streams=lambda: streams,
            key_of=lambda topic, partition: self.stream.key if (topic, partition) == ("orders", 0) else None,
            hosted=lambda key: self.stream if streams else None,
            leader_of=lambda key: HERE if self.stream.is_leader else -1,
            others=lambda: others,
            ask=self._ask,
        )

    async def _ask(self, broker: BrokerId, method: str, body: Any, *, timeout_s: float) -> Answer:
        assert (broker, timeout_s) == (HERE, 5.0)
        self.asked.append(method)
        return Answer({"next_offset": "x"}) if self.garbled else await self.first.serve(method, body)


@pytest.fixture
async def brokers(tmp_path: Path) -> Any:
    executor = ThreadPoolExecutor(1)
    bench = benches().MovingBench(tmp_path, executor).ready()
    for number in range(4):
        bench.publish(b"%d" % number)
    bench.store()
    bench.stream.follow_home(bench.row(2, 2, 2))
    await bench.until(lambda: bench.stream.epoch == 2)
    yield TwoBrokers(bench)
    bench.close()
    executor.shutdown()


def both(brokers: TwoBrokers) -> Iterator[RegionOrphans]:
    yield from (brokers.first, brokers.second)


async def test_every_broker_lists_and_reads_the_branch(brokers: Any) -> None:
    for asked in both(brokers):
        (row,) = await asked.branches()
        assert (row.topic, row.partition, row.epoch, row.first, row.following) == ("orders", 0, 2, 2, 4)
        piece = await asked.read("orders", 0, 2, -1, 1)
        assert ([entry.base_offset for entry in piece.entries], piece.next_offset) == ([2], 3)
        piece = await asked.read("orders", 0, 2, 3, 1 << 20)
        assert ([entry.base_offset for entry in piece.entries], piece.next_offset) == ([3], 4)
        piece = await asked.read("orders", 0, 2, 4, 1 << 20)
        assert (list(piece.entries), piece.next_offset) == ([], 4)
    assert brokers.asked == [LIST_METHOD, READ_METHOD, READ_METHOD, READ_METHOD]


async def test_a_branch_is_dropped_by_the_leader(brokers: Any) -> None:
    dropping = asyncio.ensure_future(brokers.second.drop("orders", 0, 2))
    await brokers.bench.until(dropping.done)
    assert dropping.result() == 1
    assert brokers.asked == [DROP_METHOD]
    assert await brokers.first.branches() == []


async def test_what_is_not_there_is_refused(brokers: Any) -> None:
    for asked in both(brokers):
        with pytest.raises(UnknownTopic):
            await asked.read("others", 0, 2, -1, 1)
        with pytest.raises(BadRequest, match="no branch"):
            await asked.read("orders", 0, 3, -1, 1)
        with pytest.raises(BadRequest, match="not in"):
            await asked.read("orders", 0, 2, 5, 1)
    brokers.bench.log.step_down()
    with pytest.raises(NotLeader):
        await brokers.second.read("orders", 0, 2, -1, 1)


async def test_an_answer_that_is_none_is_no_end_of_the_branch(brokers: Any) -> None:
    brokers.garbled = True
    assert await brokers.second.branches() == []
    with pytest.raises(Unavailable):
        await brokers.second.read("orders", 0, 2, -1, 1)
    with pytest.raises(OutcomeUnknown):
        await brokers.second.drop("orders", 0, 2)


@pytest.mark.parametrize("body", [{}, {"topic": "orders", "partition": 0, "epoch": 0}, {"topic": 1}])
async def test_a_question_that_is_none_is_refused(brokers: Any, body: Any) -> None:
    with pytest.raises(BadRequest):
        await brokers.first.serve(DROP_METHOD, body)


async def test_entries_travel_whole_or_not_at_all(brokers: Any) -> None:
    raw = encode_frames(brokers.bench.log.entries)
    assert [entry.frame for entry in decode_frames(raw)] == [bytes(row.frame) for row in brokers.bench.log.entries]
    for wrong in (raw[:-1], raw[:2], raw + b"\0", raw[:40] + b"x" + raw[41:]):
        with pytest.raises(ValueError, match=r"."):
            decode_frames(wrong)
