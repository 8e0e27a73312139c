"""One random bit of every kind of file of one replica: found, repaired or refused, and never shown to anybody.

Three real brokers of one region. One of them is stopped, one bit of one of its files is flipped, and it is started
again; segments are also damaged under a broker that runs. Meanwhile everything is read from every broker, over and
over, by Kafka and by HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
from structlog.testing import capture_logs

from georelay.client.broker_connection import BrokerConnection
from georelay.errors import DataDirectoryError, GeorelayError
from georelay.ids import CONTROLLER_GROUP, GroupId
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.batch import iterate_records, split_batches
from georelay.wire.requests import FetchPartition, FetchRequest, FetchTopic
from loadtest.history.operation import Operation
from loadtest.load.engine_values import name_of
from region.app import Broker
from region.controller.topic import TopicSpec
from region.log.filesystem import OsFileSystem
from region.log.index import IndexFile
from region.log.manifest import Manifest
from region.log.segment_reader import read_group
from tests.tiers import first

if TYPE_CHECKING:
    from region.config import BrokerConfig
    from tests.e2e.conftest import RegionBed

TOPIC: Final = "orders"
BROKERS: Final = 3
BATCHES: Final = 260  # of about 220 bytes: three sealed segments of 16 KiB, and an open one
WHOLE_SECONDS_MAX: Final = 60
FETCH_VERSION: Final = 12
READ_AGAIN_S: Final = 0.1  # six readers beside three brokers in one process
COLD_TAIL_BYTES: Final = 2_000  # what is older is read from disk
# A broker that has just started knows neither the topic nor what the others have.
BEHIND: Final = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE}
RETRIABLE: Final = {0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, *BEHIND}
RETRIABLE_STATUS: Final = (200, 404, 409, 416, 503)
Events = Sequence[MutableMapping[str, Any]]


class WoundedRegion:
    """Three brokers in this process; each can be stopped, wounded and started again."""

    def __init__(self, bed: RegionBed, rng: random.Random) -> None:
        self.bed = bed
        self.rng = rng
        self.sends: list[Operation] = []
        self.wrong: list[str] = []  # what a reader was shown and should not have been
        self.reads: dict[str, int] = {"kafka": 0, "http": 0}
        self.running: list[bool] = []

    # -- life -------------------------------------------------------------------------------------

    def config(self, number: int) -> BrokerConfig:
        return self.bed.config(number)

    def directory(self, number: int) -> Path:
        return Path(self.config(number).data_dir)

    async def stop(self, number: int) -> None:
        self.running[number] = False
        await self.bed.brokers[number].stop()

    async def start(self, number: int) -> None:
        broker = Broker(self.config(number), file_system=OsFileSystem())
        await broker.start()
        if number == len(self.running):  # for the first time
            self.bed.brokers.append(broker)
            self.running.append(True)
        self.bed.brokers[number] = broker
        self.running[number] = True

    async def stop_all(self) -> None:
        for number, runs in enumerate(self.running):
            if runs:
                await self.stop(number)

    # -- what is there ----------------------------------------------------------------------------

    async def group_id(self) -> GroupId:
        leader = await self.bed.leader()
        stream = leader.cluster.stream(TOPIC, 0)
        assert stream is not None
        return stream.group_id

    async def leader_number(self) -> int:
        return self.bed.brokers.index(await self.bed.leader())

    async def follower_number(self) -> int:
        leader = await self.leader_number()
        return self.rng.choice([number for number in range(len(self.running)) if number != leader])

    def is_whole(self) -> bool:
        """Return whether every broker has every group, undamaged, with the same end."""
        for group_id in (CONTROLLER_GROUP, self._stream_group):
            groups = [broker.core.host.groups.get(group_id) for broker in self.bed.brokers]
            ends = set()
            for group in groups:
                if group is None or group.stopped or group.node.repairing or group.disk.corrupt_segments():
                    return False
                ends.add((group.disk.durable_index, group.node.commit_index))
            if len(ends) != 1 or not any(group is not None and group.node.is_leader for group in groups):
                return False
        return not any(broker.core.groups.refused for broker in self.bed.brokers)

    async def until_whole(self) -> None:
        self._stream_group = await self.group_id()
        try:
            async with asyncio.timeout(WHOLE_SECONDS_MAX):
                while not (all(self.running) and self.is_whole()):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not whole: {self._state()}") from None

    def _state(self) -> list[str]:
        rows = []
        for broker in self.bed.brokers:
            rows += [f"{broker.config.broker_id} refused {text}" for text in broker.core.groups.refused.values()]
            for group in broker.core.host.groups.values():
                disk, node = group.disk, group.node
                rows.append(
                    f"{group.me}/{group.group_id}: stopped={group.stopped} repairing={node.repairing} {node.role.name} "
                    f"corrupt={disk.corrupt_segments()} end={disk.durable_index} commit={node.commit_index}"
                )
        return rows

    async def publish(self, name: str, count: int) -> None:
        await self.bed.publish(name, range(count), self.sends)

    # -- damage -----------------------------------------------------------------------------------

    def flip(self, path: Path, *, low: int = 0, high: int | None = None) -> None:
        """Flip one random bit of the bytes [low, high) of a file, as a disk does: in place."""
        raw = path.read_bytes()
        position = self.rng.randrange(low, len(raw.rstrip(b"\0")) if high is None else high)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([raw[position] ^ (1 << self.rng.randrange(8))]))

    # -- reading ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def being_read(self) -> AsyncIterator[None]:
        """Read from every broker, from random offsets, until the end of the block; whatever is wrong is in `wrong`."""
        readers = [
            asyncio.create_task(read(number))
            for number in range(len(self.running))
            for read in (self._read_by_kafka, self._read_by_http)
        ]
        try:
            yield
        finally:
            for reader in readers:
                reader.cancel()
            for outcome in await asyncio.gather(*readers, return_exceptions=True):
                assert isinstance(outcome, asyncio.CancelledError), outcome
        assert self.wrong == []

    def _known(self) -> dict[int, str]:
        return {send.offset: str(send.value) for send in self.sends if send.offset is not None}

    def _check(self, how: str, records: Sequence[tuple[int, bytes]]) -> None:
        known = self._known()
        self.reads[how] += len(records)
        self.wrong += [
            f"{how}: offset {at}" for at, value in records if known.get(at, name_of(value)) != name_of(value)
        ]

    def _somewhere(self) -> int:
        return self.rng.randrange(max(1, len(self.sends)))

    async def _read_by_kafka(self, number: int) -> None:
        host, _, port = self.config(number).listen.kafka.rpartition(":")
        while True:
            await asyncio.sleep(READ_AGAIN_S)
            with contextlib.suppress(OSError):  # that broker is down: nothing is shown
                connection = await BrokerConnection.dial(host, int(port))
                try:
                    while True:
                        await self._fetch(connection)
                        await asyncio.sleep(READ_AGAIN_S)
                finally:
                    connection.close()

    async def _fetch(self, connection: BrokerConnection) -> None:
        wanted = FetchPartition(partition=0, fetch_offset=self._somewhere(), partition_max_bytes=8_000)
        request = FetchRequest(max_wait_ms=0, max_bytes=8_000, topics=(FetchTopic(topic=TOPIC, partitions=(wanted,)),))
        answer = await connection.request(ApiKey.FETCH, FETCH_VERSION, request)
        row = answer.responses[0].partitions[0]
        if row.error_code not in RETRIABLE:
            self.wrong.append(f"kafka: error {row.error_code}")
        raw = b"".join(row.records or ())
        batches = split_batches(raw, partial_tail=True)
        self._check("kafka", [(r.offset, r.value or b"") for batch in batches for r in iterate_records(batch)])

    async def _read_by_http(self, number: int) -> None:
        url = f"http://{self.config(number).listen.admin}/v1/topics/{TOPIC}/records"
        async with aiohttp.ClientSession() as http:
            while True:
                await asyncio.sleep(READ_AGAIN_S)
                query = {"offset": str(self._somewhere()), "max": "40"}
                with contextlib.suppress(aiohttp.ClientError):  # that broker is down: nothing is shown
                    async with http.get(url, params=query) as answer:
                        body = await answer.json(content_type=None)
                        if answer.status not in RETRIABLE_STATUS:
                            self.wrong.append(f"http: {answer.status} {body}")
                        rows = body.get("records", ())
                        self._check("http", [(row["offset"], row["value"].encode()) for row in rows])

    # -- the verdict ------------------------------------------------------------------------------

    async def assert_nothing_lost(self) -> None:
        """Compare what the region shows, and what each replica has on disk, with what was acknowledged."""
        verdict = await self.bed.judged(self.sends)
        assert verdict.is_valid, verdict.describe()
        await self.stop_all()
        for group_id in (CONTROLLER_GROUP, self._stream_group):
            logs = [
                [entry.frame for entry in read_group(self.directory(number) / "groups" / str(group_id))]
                for number in range(len(self.running))
            ]
            common = min(map(len, logs))  # who stopped last may have led alone, and noted that
            assert common >= max(map(len, logs)) - 3
            assert logs[0][:common] == logs[1][:common] == logs[2][:common]
        for number in range(len(self.running)):
            home = self.directory(number) / "groups"
            assert list(home.rglob("*.damaged")) == []
            for path in home.rglob("*.manifest"):
                Manifest.decode(path.read_bytes())
            for path in home.rglob("*.index"):
                IndexFile.decode(path.read_bytes(), interval_bytes=4096)


@asynccontextmanager
async def wounded_region(bed: RegionBed, seed: int) -> AsyncIterator[WoundedRegion]:
    """A region with a topic of several segments; all its brokers run."""
    region = WoundedRegion(bed, random.Random(seed))
    try:
        for number in range(BROKERS):
            await region.start(number)
        async with asyncio.timeout(WHOLE_SECONDS_MAX):
            while not all(broker.cluster.ready() for broker in bed.brokers):
                await asyncio.sleep(0.02)
            spec = TopicSpec(name=TOPIC, partitions=1).with_settings({"segment.bytes": str(16 * 1024)})
            while True:
                with contextlib.suppress(GeorelayError):  # a new region changes its leaders
                    await bed.brokers[0].cluster.create_topic(spec)
                    break
                await asyncio.sleep(0.1)
        async with asyncio.timeout(WHOLE_SECONDS_MAX):
            await bed.leader()
        await region.publish("before", BATCHES)
        await region.until_whole()
        yield region
    finally:
        await region.stop_all()


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrub without rest, and read what is not quite new from disk."""
    monkeypatch.setattr("region.log.scrubber.IDLE_SECONDS", 0.1)
    monkeypatch.setattr("region.topics.committed_tail.TAIL_BYTES_MAX", COLD_TAIL_BYTES)
    monkeypatch.setattr("region.multiraft.repair.REPAIR_AGAIN_MS", 100)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WHOLE_SECONDS_MAX):
        while not condition():
            await asyncio.sleep(0.02)


def names_of(events: Events) -> set[str]:
    return {str(event["event"]) for event in events}


def files_of(directory: Path, group_id: int, suffix: str) -> list[Path]:
    return sorted((directory / "groups" / str(group_id)).glob(f"*{suffix}"))


Choice = Callable[[Path, int], Path]
REPAIRED: Final[Mapping[str, tuple[Choice, set[str]]]] = {
    "flushed-marks": (lambda home, _: home / "flushed-marks", set()),
    "controller .log": (lambda home, _: files_of(home, 0, ".log")[-1], {"log.tail_lost"}),
    "controller .manifest": (lambda home, _: files_of(home, 0, ".manifest")[-1], {"manifest.damaged"}),
    "controller .index": (lambda home, _: files_of(home, 0, ".index")[-1], {"log.index_refused"}),
    "sealed .log, first": (lambda home, group: files_of(home, group, ".log")[0], {"segment.repaired"}),
    "sealed .log, last": (lambda home, group: files_of(home, group, ".log")[-2], {"segment.repaired"}),
    "active .log": (lambda home, group: files_of(home, group, ".log")[-1], {"log.tail_lost"}),
    "sealed .index": (lambda home, group: files_of(home, group, ".index")[0], {"log.index_refused"}),
    "active .index": (lambda home, group: files_of(home, group, ".index")[-1], {"log.index_refused"}),
    "newest .manifest": (lambda home, group: files_of(home, group, ".manifest")[-1], {"manifest.damaged"}),
    "older .manifest": (lambda home, group: files_of(home, group, ".manifest")[0], {"manifest.repaired"}),
}


COMMON: Final = ("flushed-marks", "sealed .log, first", "active .log", "newest .manifest")  # one of each kind of file


@pytest.mark.parametrize("leads", [pytest.param(False, marks=pytest.mark.slow), True], ids=["follower", "leader"])
@pytest.mark.parametrize("kinds", first(1, [COMMON, sorted(REPAIRED.keys() - set(COMMON))]), ids=["common", "other"])
async def test_flipped_bits_found_at_the_next_start_are_repaired(
    region_bed: RegionBed, kinds: Sequence[str], leads: bool
) -> None:
    async with wounded_region(region_bed, seed=len(kinds) + leads) as region:
        for kind in kinds:  # each at a region that is whole again
            region.reads = dict.fromkeys(region.reads, 0)
            events = await _repaired_at_the_next_start(region, kind, leads)
            assert REPAIRED[kind][1] <= names_of(events), (kind, names_of(events))
            assert min(region.reads.values()) > 0, kind
        await region.assert_nothing_lost()


async def _repaired_at_the_next_start(region: WoundedRegion, kind: str, leads: bool) -> Events:
    """Flip a bit of a broker that is stopped, start it, wait until all is whole; return what it logged."""
    choose, expected = REPAIRED[kind]
    wounded = await (region.leader_number() if leads else region.follower_number())
    group_id = await region.group_id()
    async with region.being_read():
        await region.stop(wounded)
        path = choose(region.directory(wounded), group_id)
        before = path.read_bytes()
        region.flip(path)
        await region.publish(f"meanwhile {kind}", 40)
        with capture_logs() as events:
            await region.start(wounded)
            await region.publish(f"after {kind}", 40)
            await region.until_whole()
            if kind.startswith("sealed"):
                await until(lambda: path.read_bytes() == before)
            # an older manifest is another replica's now, made at another time; and what is mended is told after it
            await until(lambda: expected <= names_of(events))
            await until(lambda: min(region.reads.values()) > 0)
    return events


@pytest.mark.parametrize("leads", [pytest.param(False, marks=pytest.mark.slow), True], ids=["follower", "leader"])
@pytest.mark.parametrize(("kind", "at"), first(1, [("sealed", 1), ("active", -1)]))
async def test_a_bit_of_a_segment_flipped_under_a_running_broker_is_found_and_fetched_again(
    region_bed: RegionBed, kind: str, at: int, leads: bool
) -> None:
    async with wounded_region(region_bed, seed=sum(kind.encode()) + leads) as region:
        wounded = await (region.leader_number() if leads else region.follower_number())
        path = files_of(region.directory(wounded), await region.group_id(), ".log")[at]
        before = path.read_bytes().rstrip(b"\0")
        with capture_logs() as events:
            region.flip(path, high=len(before) // 2)
            async with region.being_read():
                await region.publish("meanwhile", 40)
                await until(lambda: path.read_bytes().startswith(before))
                await region.until_whole()
        assert "segment.repaired" in names_of(events)
        await region.assert_nothing_lost()


REFUSED: Final[Mapping[str, str]] = {"FORMAT": "FORMAT", "founding.json": "founding.json", "hard-state": "hard-state"}


@pytest.mark.parametrize("kind", first(1, REFUSED))
async def test_a_flipped_bit_that_makes_promises_doubtful_is_refused_in_one_line_and_an_empty_disk_joins_anew(
    region_bed: RegionBed, kind: str
) -> None:
    async with wounded_region(region_bed, seed=sum(kind.encode())) as region:
        wounded = await region.follower_number()
        async with region.being_read():
            await region.stop(wounded)
            region.flip(region.directory(wounded) / kind)
            with pytest.raises(DataDirectoryError) as refusal:
                await region.start(wounded)
            assert "\n" not in str(refusal.value)
            assert kind in str(refusal.value) or "data directory" in str(refusal.value)
            await region.publish("meanwhile", 40)
            shutil.rmtree(region.directory(wounded))
            await region.start(wounded)
            await region.until_whole()
        await region.assert_nothing_lost()
