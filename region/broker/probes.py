"""Canary records from every region to every region, once per second, through what every record goes through.

Rule 1: the broker that leads its region's own probe stream publishes; in every region the broker that leads the copy
        of an origin's stream watches it, as a long-polling consumer would. No broker is chosen: leadership is.
Rule 2: the topic is small and short-lived: one partition, PROBE_RETENTION_MS.
Rule 3: a probe that is not answered in PUBLISH_TIMEOUT_S was refused, whatever became of it: the destinations say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import structlog

from georelay.clock import Clock
from georelay.errors import CorruptRecordBatch, GeorelayError
from georelay.trace.kinds import TraceKind
from georelay.wire.batch import build_batch
from georelay.wire.records import iterate_records
from mesh.clock.estimate import ClockEstimate
from mesh.tracing.probe_core import NS_PER_S, PROBE_TOPIC, FieldError, Probe, ProbeWatch, refused_rows
from mesh.tracing.recorder import Recorder
from region.controller.topic import Homes, TopicSpec, TopicView
from region.kafka.ports import Cluster, EntryLike, Publish, Published, Stream

PROBE_RETENTION_MS: Final = 600_000
PROBE_RETENTION_BYTES: Final = 16 << 20
PROBE_SEGMENT_BYTES: Final = 1 << 20
PUBLISH_TIMEOUT_S: Final = 5.0
CREATE_AGAIN_TICKS: Final = 10
READ_BYTES: Final = 64 << 10
LOOK_BACK: Final = 10  # probes that the broker before us may not have seen

log = structlog.get_logger()


def probe_topic() -> TopicSpec:
    """Return what the canary topic is."""
    return TopicSpec(
        name=PROBE_TOPIC,
        partitions=1,
        homes=Homes.EVERY,
        retention_ms=PROBE_RETENTION_MS,
        retention_bytes=PROBE_RETENTION_BYTES,
        config=(("segment.bytes", str(PROBE_SEGMENT_BYTES)),),
    )


class _Reader:
    """Follows one origin's probes in this region."""

    def __init__(self, stream: Stream, take: Callable[[EntryLike], None]) -> None:
        self.stream = stream
        self._take = take
        self._offset = max(stream.log_start, stream.last_stable_offset - LOOK_BACK)
        self._handle = stream.add_waiter(self.read)

    def read(self) -> None:
        """Take what is there; what was deleted or memory holds no more is skipped: it is older than any time-out."""
        self._offset = max(self._offset, self.stream.log_start)
        while self._offset < self.stream.last_stable_offset:
            entries = self.stream.read(self._offset, READ_BYTES)  # type: ignore[arg-type]
            if not entries:
                self._offset = self.stream.last_stable_offset
                return
            for entry in entries:
                self._offset = max(self._offset, entry.base_offset + entry.record_count)
                self._take(entry)

    def close(self) -> None:
        """Follow no more."""
        self.stream.remove_waiter(self._handle)


class Prober:
    """Probes of one broker.

    Args:
        regions: names of the regions that hold records, by number.
        ensure_topic: creates the canary topic; raises GeorelayError while the definitions' home is away.
        estimate: region number -> how its clocks stand against ours.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        recorder: Recorder,
        clock: Clock,
        regions: Callable[[], dict[int, str]],
        ensure_topic: Callable[[TopicSpec], Awaitable[TopicView]],
        estimate: Callable[[int], ClockEstimate | None],
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._clock = clock
        self._regions = regions
        self._ensure_topic = ensure_topic
        self._estimate = estimate
        self._readers: dict[int, _Reader] = {}
        self._watches: dict[int, ProbeWatch] = {}
        self._creating: asyncio.Task[None] | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._ticks = 0
        self._last_seq = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Probe and watch from now on."""
        self._schedule()

    async def stop(self) -> None:
        """Stop both."""
        if self._timer is not None:
            self._timer.cancel()
        for reader in self._readers.values():
            reader.close()
        tasks = [*self._publishing, *([] if self._creating is None else [self._creating])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self) -> None:
        """Wake at the beginning of the next second of our clock."""
        pause_s = 1.0 - (self._clock.wall_ns() % NS_PER_S) / NS_PER_S
        self._timer = asyncio.get_running_loop().call_later(max(pause_s, 0.05), self._on_timer)

    def _on_timer(self) -> None:
        self._schedule()
        self.tick()

    def tick(self) -> None:
        """Do what this second needs."""
        self._ticks += 1
        if self._cluster.topic(PROBE_TOPIC) is None:
            if self._ticks % CREATE_AGAIN_TICKS == 1 and self._cluster.ready():
                self._create()
            return
        regions = self._regions()
        self._follow(regions)
        own = self._cluster.stream(PROBE_TOPIC, 0)
        seq = self._clock.wall_ns() // NS_PER_S
        if own is not None and own.is_leader and seq > self._last_seq:
            self._last_seq = seq
            self._publish(seq, regions)
        for origin, watch in self._watches.items():
            for row in watch.tick(self._origin_now_ns(origin)):
                self._recorder.keep(TraceKind.PROBE, row)

    def _create(self) -> None:
        if self._creating is None or self._creating.done():
            self._creating = asyncio.get_running_loop().create_task(self._create_topic(), name="probe-topic")

    async def _create_topic(self) -> None:
        try:
            await self._ensure_topic(probe_topic())
            log.info("probes.topic_created", topic=PROBE_TOPIC)
        except GeorelayError as error:
            log.info("probes.topic_delayed", code=error.code, reason=str(error))

    # --- the origin's side ------------------------------------------------------------------------

    def _publish(self, seq: int, regions: dict[int, str]) -> None:
        sent_ns = self._clock.wall_ns()
        probe = Probe(prober=f"{self._cluster.region}/{self._cluster.broker_id}", seq=seq, sent_ns=sent_ns)
        raw = build_batch([(probe.encode(), None, ())], timestamps_ms=sent_ns // 1_000_000)
        try:
            publish = Publish.built(raw, received_ns=sent_ns, entry_region=self._cluster.region_number, lane=self)
            done = self._cluster.publish(PROBE_TOPIC, 0, publish)
        except GeorelayError:
            self._refused(probe, regions)
            return
        task = asyncio.get_running_loop().create_task(self._await_publish(done, probe, regions))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def _await_publish(self, done: asyncio.Future[Published], probe: Probe, regions: dict[int, str]) -> None:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await asyncio.shield(done)
        except (GeorelayError, TimeoutError):
            self._refused(probe, regions)

    def _refused(self, probe: Probe, regions: dict[int, str]) -> None:
        for row in refused_rows(probe, origin=self._cluster.region, dests=sorted(regions.values())):
            self._recorder.keep(TraceKind.PROBE, row)

    # --- the destination's side -------------------------------------------------------------------

    def _follow(self, regions: dict[int, str]) -> None:
        """Watch the origins whose copies this broker leads, and no others."""
        for origin, name in regions.items():
            stream = self._cluster.stream(f"{name}.{PROBE_TOPIC}", 0)
            reader = self._readers.get(origin)
            if reader is not None and (stream is not reader.stream or not reader.stream.is_leader):
                reader.close()
                del self._readers[origin], self._watches[origin]
                reader = None
            if reader is None and stream is not None and stream.is_leader:
                watch = self._watches[origin] = ProbeWatch(origin=name, dest=self._cluster.region)
                watch.tick(self._origin_now_ns(origin))
                reader = self._readers[origin] = _Reader(stream, self._taker(origin, watch))
                reader.read()

    def _taker(self, origin: int, watch: ProbeWatch) -> Callable[[EntryLike], None]:
        def take(entry: EntryLike) -> None:
            for value in _values(entry):
                try:
                    probe = Probe.decode(value)
                except FieldError as error:
                    log.warning("probes.record_refused", origin=origin, reason=str(error))
                    continue
                row = watch.arrived(
                    probe,
                    published_ns=entry.header().append_us * 1_000,
                    delivered_ns=self._clock.wall_ns(),
                    origin_now_ns=self._origin_now_ns(origin),
                )
                if row is not None:
                    self._recorder.keep(TraceKind.PROBE, row)

        return take

    def _origin_now_ns(self, origin: int) -> int:
        estimate = self._estimate(origin)
        return self._clock.wall_ns() + (0 if estimate is None else estimate.offset_us * 1_000)


def _values(entry: EntryLike) -> Sequence[Any]:
    try:
        return [record.value or b"" for record in iterate_records(entry.payload, validated=True)]
    except CorruptRecordBatch as error:
        log.warning("probes.batch_refused", offset=entry.base_offset, reason=str(error))
        return ()
