"""Every committed record is named in the ledger: also those that a killed broker had stored and not applied."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import Homes, TopicSpec

Made = Callable[[Path], Broker]


@pytest.fixture
def made(make_config: Callable[[], dict[str, Any]]) -> Made:
    """Make a broker with data and traces in a directory."""

    def make(directory: Path) -> Broker:
        own = {"data_dir": str(directory / "data"), "trace_dir": str(directory / "traces"), "probes": False}
        return Broker(BrokerConfig.model_validate(make_config() | own))

    return make


def publish(broker: Broker, count: int) -> asyncio.Future[Any]:
    raw = bytearray(build_batch([RecordDraft(b"v")] * count, timestamps_ms=1))
    published = broker.cluster.publish("orders", 0, Publish.built(raw, received_ns=1, entry_region=1, lane="test"))
    assert isinstance(published, asyncio.Future)
    return published


async def create(broker: Broker, until: Any) -> Any:
    await until(broker.cluster.ready)
    await broker.cluster.create_topic(TopicSpec(name="orders", homes=Homes.ONE, home="us"))
    return await until(lambda: (stream := broker.cluster.stream("orders", 0)) and stream.is_leader and stream)


async def stored_only(broker: Broker, until: Any, monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    """Publish batches that come to disk while the broker does not hear of it."""
    heard: list[object] = []
    monkeypatch.setattr(broker.core.host, "durable", heard.extend)
    for count in counts:
        publish(broker, count)
    await until(lambda: heard)


async def led_and_stopped(broker: Broker, until: Any) -> None:
    await broker.start()
    await until(lambda: (stream := broker.cluster.stream("orders", 0)) and stream.is_leader)
    await broker.stop()


def commits(directory: Path) -> list[dict[str, Any]]:
    rows = [
        row
        for path in (directory / "traces").glob("date=*/hour=*/region=*/ledger-*.parquet")
        for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    return sorted((row for row in rows if row["kind"] == "commit"), key=lambda row: int(row["from_offset"]))


def offsets(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["from_offset"], row["to_offset"]) for row in rows]


async def test_what_was_stored_and_not_applied_when_a_broker_was_killed_is_named_by_its_next_run(
    tmp_path: Path, made: Made, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = made(tmp_path / "before")
    await broker.start()
    stream = await create(broker, until)
    with monkeypatch.context() as deaf:
        await stored_only(broker, until, deaf, 2, 3)
        assert (stream.high_watermark, stream.next_offset) == (0, 5)
        append_us = stream.end.append_us
        shutil.copytree(tmp_path / "before", tmp_path / "after", symlinks=True)  # what a kill leaves
    await led_and_stopped(made(tmp_path / "after"), until)
    await broker.stop()
    (late,) = commits(tmp_path / "after")
    assert (late["from_offset"], late["to_offset"], late["region"], late["epoch"]) == (0, 5, "us", 1)
    assert late["first_ns"] <= append_us * 1_000 == late["last_ns"]


async def test_a_broker_that_was_stopped_names_nothing_again(tmp_path: Path, made: Made, until: Any) -> None:
    broker = made(tmp_path)
    await broker.start()
    await create(broker, until)
    await publish(broker, 3)
    await broker.stop()
    await led_and_stopped(made(tmp_path), until)
    assert offsets(commits(tmp_path)) == [(0, 3)]


async def test_what_was_named_before_a_kill_is_named_in_the_same_second_again(
    tmp_path: Path, made: Made, until: Any
) -> None:
    broker = made(tmp_path / "before")
    await broker.start()
    stream = await create(broker, until)
    await publish(broker, 3)
    append_us = stream.end.append_us
    shutil.copytree(tmp_path / "before", tmp_path / "after", symlinks=True)
    await led_and_stopped(made(tmp_path / "after"), until)
    await broker.stop()
    found = commits(tmp_path / "after")
    assert offsets(found) == [(0, 3), (0, 3)]
    assert append_us * 1_000 in [row["first_ns"] for row in found]
