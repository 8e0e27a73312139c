"""A data directory of every format that was ever released opens, and nothing in it is lost.

tests/golden/upgrade/format1 was written by the first version: one broker, a topic of two partitions with 20 idempotent
batches of 3 records each, several sealed segments. It is never written anew.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import BadRequest, OutOfOrderSequence, UnknownProducer
from georelay.ids import Offset
from georelay.wire.batch import RecordDraft, build_batch, iterate_records
from mesh.replication.publish import Publish
from region.app import Broker
from region.broker import core_parts
from region.config import BrokerConfig
from region.controller.command_kinds import JOURNAL_LEVEL
from region.log.data_directory import DIRECTORY_FORMAT

WRITTEN_NS = 1_795_278_600 * 1_000_000_000  # 2026-11-21 16:30 UTC, when the golden directory was made
HOUR_NS = 3_600 * 1_000_000_000


class AnHourLater(SystemClock):
    """The clock of a broker that is upgraded an hour after it was stopped: its producers are not forgotten yet."""

    def __init__(self) -> None:
        self._shift_ns = WRITTEN_NS + HOUR_NS - super().wall_ns()

    def wall_ns(self) -> int:
        return super().wall_ns() + self._shift_ns


GOLDEN = Path(__file__).parents[2] / "golden" / "upgrade" / "format1"


def publish(broker: Any, partition: int, *, producer: int, sequence: int) -> Any:
    raw = build_batch(
        [RecordDraft(b"new %d" % number) for number in range(3)],
        timestamps_ms=1_800_000_000_000,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return send(broker, partition, raw)


def send(broker: Any, partition: int, raw: bytes) -> Any:
    return broker.cluster.publish("orders", partition, Publish.built(raw, received_ns=1, entry_region=1, lane="test"))


async def read_values(stream: Any) -> list[bytes]:
    values: list[bytes] = []
    offset = Offset(0)
    while offset < stream.high_watermark:
        for entry in await stream.read_cold(offset, 1 << 20):
            values += [record.value or b"" for record in iterate_records(entry.payload, validated=True)]
            offset = entry.next_offset
    return values


@pytest.fixture
async def upgraded(tmp_path: Path, make_config: Callable[[], dict[str, Any]], until: Any) -> Any:
    shutil.copytree(GOLDEN / "data", tmp_path / "data")
    broker = Broker(BrokerConfig.model_validate(make_config()), clock=AnHourLater())
    await broker.start()
    await until(broker.cluster.ready)
    yield broker
    await broker.stop()


@pytest.mark.parametrize("partition", [0, 1])
async def test_every_record_of_format_1_is_there_and_the_digest_chain_goes_on(
    upgraded: Any, until: Any, partition: int
) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())["streams"][partition]
    stream = await until(lambda: (s := upgraded.cluster.stream("orders", partition)) and s.is_leader and s)
    assert stream.high_watermark == expected["high_watermark"]
    assert stream.end.digest.hex() == expected["digest"]
    assert await read_values(stream) == [b"value %d-%d-%d" % (partition, i, k) for i in range(20) for k in range(3)]


@pytest.mark.parametrize("partition", [0, 1])
async def test_producers_of_format_1_go_on_where_they_were(upgraded: Any, until: Any, partition: int) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())["streams"][partition]
    await until(lambda: (s := upgraded.cluster.stream("orders", partition)) and s.is_leader)
    producer = expected["producer"]
    (newest,) = await upgraded.cluster.stream("orders", partition).read_cold(Offset(57), 1)
    duplicate = await send(upgraded, partition, bytes(newest.payload))
    assert duplicate.base_offset == 57
    with pytest.raises(OutOfOrderSequence):
        publish(upgraded, partition, producer=producer, sequence=63)
    assert (await publish(upgraded, partition, producer=producer, sequence=60)).base_offset == 60
    assert await upgraded.core.controller.allocate_producer_id() > producer
    with pytest.raises(UnknownProducer):
        publish(upgraded, partition, producer=producer, sequence=57)  # other records under the same numbers


async def test_the_directory_has_the_new_format_afterwards_and_opens_again(
    tmp_path: Path, make_config: Callable[[], dict[str, Any]], upgraded: Any, until: Any
) -> None:
    await upgraded.stop()
    assert json.loads((tmp_path / "data" / "FORMAT").read_text())["format"] == DIRECTORY_FORMAT
    again = Broker(BrokerConfig.model_validate(make_config()))
    await again.start()
    try:
        stream = await until(lambda: (s := again.cluster.stream("orders", 1)) and s.is_leader and s)
        assert stream.high_watermark == 60
    finally:
        await again.stop()


@pytest.mark.parametrize(("level", "directory_format"), [(JOURNAL_LEVEL - 1, 2), (JOURNAL_LEVEL, 3)])
async def test_the_way_back_to_an_older_version_is_open_until_no_broker_of_the_region_has_it(
    level: int,
    directory_format: int,
    tmp_path: Path,
    make_config: Callable[[], dict[str, Any]],
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older version refuses format 3: the newer one might have been killed, and only that knows its journal."""
    monkeypatch.setattr(core_parts, "FEATURE_LEVEL_MAX", level)
    broker = Broker(BrokerConfig.model_validate(make_config()))
    await broker.start()
    try:
        await until(broker.cluster.ready)
        await until(lambda: broker.core.controller.feature_level == level)
        await broker.core.controller.allocate_producer_id()  # a small write
        assert json.loads((tmp_path / "data" / "FORMAT").read_text())["format"] == directory_format
    finally:
        await broker.stop()


async def test_groups_are_opened_under_a_controller_leader_of_the_first_version(
    broker: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a leader knows no barriers; while it leads, the region is at level 1, where no group ever moves."""

    async def unknown() -> None:
        raise BadRequest("method 'controller.barrier' is unknown")

    level = 2
    monkeypatch.setattr(broker.core.controller, "barrier", unknown)
    monkeypatch.setattr(type(broker.core.controller), "feature_level", property(lambda _: level))
    informed = asyncio.Event()
    monkeypatch.setattr(broker.core.groups, "informed", informed.set)
    opening = asyncio.create_task(broker.core._open_groups())
    await asyncio.sleep(0)
    assert not informed.is_set()
    level = 1
    await until(informed.is_set)
    await opening
