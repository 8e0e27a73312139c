"""One broker of the region of hosts: the shipping Host, Group, GroupLog and HostedStream over a simulated machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from georelay.errors import DataDirectoryError, StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex, RegionNumber, StreamKey
from region.broker.hosted_groups import HostedGroups
from region.controller.effects import Effect
from region.log.data_directory import DataDirectory
from region.log.errors import LogCorrupt
from region.log.flusher import Flusher
from region.log.group_log import GroupLog
from region.log.scrubber import Scrubber
from region.multiraft.host import Host
from region.multiraft.replicas import ReplicaKeeper
from region.raft.core import InvariantViolated
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream
from region.topics.retention import Retention
from region.topics.retention_core import RetentionLimits
from tests.sim.clockwork import PowerCut, SimClock, SimExecutor, SimLoop
from tests.sim.disk import SimDisk
from tests.sim.flushing import SimFlusher
from tests.sim.host_watch import HostWatch
from tests.sim.network import Network, SimTransport

if TYPE_CHECKING:
    from tests.sim.region_controller import RegionController

DATA_PATH: Final = Path("/sim/data")
REGION: Final = RegionNumber(1)
FEATURE_LEVEL: Final = 2
SCRUB_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Sizes and periods of the brokers of one world; retention_bytes -1: everything is kept."""

    tick_ms: int
    bulk_bytes_per_s: int
    bulk_behind_bytes: int
    retention_bytes: int
    retention_every_ms: int


class Life:
    """One life of a broker process, from its start to its crash or stop."""

    def __init__(
        self,
        *,
        me: BrokerId,
        loop: SimLoop,
        clock: SimClock,
        disk: SimDisk,
        network: Network,
        rng: random.Random,
        brokers: tuple[BrokerId, ...],
        founders: tuple[BrokerId, ...],
        tuning: Tuning,
        groups: dict[GroupId, StreamKey],
        on_opened: Callable[[BrokerId, GroupId, Any], None],
        on_started: Callable[[BrokerId], None],
        on_failed: Callable[[BrokerId, str], None],
        on_group_stopped: Callable[[BrokerId, GroupId, str], None],
        on_refused: Callable[[BrokerId, GroupId, str], None],
        opens: Callable[[GroupId, BrokerId], bool],
        power_cut: Callable[[], None],
        flusher: Callable[..., Flusher] = SimFlusher,
        make_stream: Callable[..., HostedStream] = HostedStream,
        feature_level: int = FEATURE_LEVEL,
    ) -> None:
        self.me = me
        self.loop = loop
        self.clock = clock
        self.disk = disk
        self.streams: dict[GroupId, HostedStream] = {}
        self.host: Host | None = None
        self.watch = HostWatch()
        self.scrubber: Scrubber | None = None
        self.refused: dict[GroupId, str] = {}  # groups whose replica cannot be used, and why
        self.seen: dict[GroupId, Any] = {}  # groups whose recovery the ledger has looked at
        self.hosted: HostedGroups | None = None  # what follows the controller, once there is something to follow
        self._executor = SimExecutor(loop)
        self.serving = False
        self._network = network
        self._rng = rng
        self._brokers = brokers
        self._founders = founders
        self._tuning = tuning
        self._groups = groups
        self._on_opened = on_opened
        self._on_started = on_started
        self._on_failed = on_failed
        self._on_group_stopped = on_group_stopped
        self._on_refused = on_refused
        self._opens = opens
        self._budget = TailBudget()
        self._keeper: ReplicaKeeper | None = None
        self._power_cut = power_cut
        self._main: asyncio.Future[None] | None = None
        self._make_flusher = flusher
        self._make_stream = make_stream
        self._feature_level = feature_level
        self._flusher: Flusher | None = None
        self._directory: DataDirectory | None = None
        self._retention: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Start the process (called in a turn of its loop)."""
        self._main = asyncio.ensure_future(self._run(), loop=self.loop)

    async def _run(self) -> None:
        try:
            await self._start()
        except PowerCut:
            self._power_cut()
        except (DataDirectoryError, StorageFailed, OSError) as error:
            self._on_failed(self.me, f"start: {error}")

    async def _start(self) -> None:
        me, rng, loop = self.me, self._rng, self.loop
        directory = DataDirectory.open(DATA_PATH, mesh_id="sim", broker_id=me, fs=self.disk)
        self._directory = directory
        journal = directory.open_hard_states()
        self._flusher = self._make_flusher(
            journal,
            loop=loop,
            disk=self.disk,
            power_cut=self._power_cut,
            rng=rng,
            post=lambda tokens: loop.call_soon_threadsafe(self._durable, tokens),
            on_failure=lambda error: loop.call_soon_threadsafe(self._storage_failed, str(error)),
            on_log_damaged=lambda log, error: loop.call_soon_threadsafe(self._log_damaged, log, str(error)),
            marks=directory.marks,
            entries=directory.entries,
            sync_all=directory.sync_all,
        )
        self.host = host = Host(
            me=me,
            directory=directory,
            flusher=self._flusher,
            hard_states=journal.load(),
            clock=self.clock,
            rng=rng,
            tick_ms=self._tuning.tick_ms,
            executor=self._executor,
            on_group_stopped=self._group_stopped,
            bulk_bytes_per_s=self._tuning.bulk_bytes_per_s,
            bulk_behind_bytes=self._tuning.bulk_behind_bytes,
            watch_ms=0,
        )
        self.watch.follow(host)
        self._flusher.start()
        transport = SimTransport(
            self._network,
            loop,
            me=me,
            disk=bytes(16),
            peers=[broker for broker in self._brokers if broker != me],
            receiver=host,
            rng=rng,
        )
        await host.start(cast("Any", transport))
        for group_id, key in self._groups.items():
            if not self._opens(group_id, me):
                continue  # it was given up: the controller says when it begins anew
            stream = self._make_stream(
                key=key,
                topic=f"topic-{group_id}",
                group_id=group_id,
                home=REGION,
                region=REGION,
                clock=self.clock,
                budget=self._budget,
                executor=self._executor,
                feature_level=lambda: self._feature_level,
            )
            try:
                group = host.open_group(group_id, self._founders, stream)
            except (DataDirectoryError, InvariantViolated) as error:  # as region.broker.hosted_groups does
                self.refused[group_id] = str(error)
                self._on_refused(me, group_id, str(error))
                continue
            stream.attach(group, group.disk)
            self.streams[group_id] = stream
            self._on_opened(me, group_id, group)
        self.serving = True
        self._on_started(me)
        if self._tuning.retention_bytes >= 0:
            retention = Retention(
                streams=lambda: self.streams.values(),
                limits_of=lambda _: RetentionLimits(retention_bytes=self._tuning.retention_bytes),
                positions_of=lambda _: (),
                clock=self.clock,
                interval_ms=self._tuning.retention_every_ms,
            )
            self._retention = asyncio.ensure_future(retention.run(), loop=loop)

    async def scrub(self) -> None:
        """Read every sealed segment again and again, and have what is damaged repaired."""
        host = self.host
        assert host is not None

        def damaged(group: GroupId, first: int, _: LogCorrupt) -> None:
            self.loop.call_soon_threadsafe(host.repair_segment, group, RaftIndex(first))

        logs = lambda: {group_id: group.disk for group_id, group in host.groups.items()}  # noqa: E731
        scrubber = self.scrubber = Scrubber(logs, on_corrupt=damaged)
        while True:
            pause_s = await self.loop.run_in_executor(self._executor, scrubber.step)
            await asyncio.sleep(min(pause_s, SCRUB_PAUSE_S))

    @property
    def is_sound(self) -> bool:
        """Return whether a whole round of scrubbing found nothing, and nothing waits for its repair."""
        groups = () if self.host is None else self.host.groups.values()
        damaged = any(group.disk.corrupt_segments() or group.disk.damaged_manifests() for group in groups)
        empty = not any(group.disk.sealed_segments() for group in groups)
        return not (damaged or self.refused) and self.scrubber is not None and (empty or self.scrubber.stats.rounds > 1)

    # --- the controller's wishes ----------------------------------------------------------------------

    def follow_controller(self, controller: RegionController) -> bool:
        """Have what cannot be used made anew, as region.broker.core does; return whether there is anything."""
        waiting = [group_id for group_id in self._groups if not self._opens(group_id, self.me)]
        if self.hosted is None and (self.refused or waiting):
            before = self.refused
            hosted = self.hosted = self._host_groups(controller)
            hosted.streams, self.refused = self.streams, hosted.refused
            hosted.informed()
            for group_id, reason in before.items():
                assert self.host is not None
                if group_id in self.host.groups:
                    hosted.group_stopped(group_id, reason)
                else:  # refused when it was opened
                    waiting.append(group_id)
            for group_id in waiting:
                hosted.remove_orphan(group_id)  # or open it: what is done follows from the controller's state
        return self.hosted is not None

    def _host_groups(self, controller: RegionController) -> HostedGroups:
        assert self.host is not None and self._directory is not None
        return HostedGroups(
            me=self.me,
            region=REGION,
            host=self.host,
            directory=self._directory,
            clock=self.clock,
            budget=self._budget,
            executor=self._executor,
            joined=lambda _: None,
            left=lambda _: None,
            failed=lambda reason: self._on_failed(self.me, reason),
            feature_level=lambda: self._feature_level,
            disk_writable=lambda: True,
            placement=controller.placement,
            barrier=_at_once,
            is_registered=lambda: True,
            replica_lost=lambda group_id, generation: controller.replica_lost(self.me, group_id, generation),
        )

    def hear(self, effects: Iterable[Effect]) -> None:
        """Follow what the controller did."""
        if self.hosted is not None:
            for effect in effects:
                self.hosted.note(effect)
            self.hosted.settle()

    def keep_replicas(self, controller: RegionController) -> None:
        """Take a step towards what the controller wants in every group that is led here."""
        if self._keeper is None:
            assert self.host is not None
            self._keeper = ReplicaKeeper(
                self.host, targets=controller.targets, barrier=_at_once, report=controller.report
            )
        self._keeper.look()

    # --- failures -------------------------------------------------------------------------------------

    def _group_stopped(self, group: GroupId, reason: str) -> None:
        self._on_group_stopped(self.me, group, reason)
        if self.hosted is not None:
            self.hosted.group_stopped(group, reason)
        else:
            self.refused[group] = reason

    def _log_damaged(self, damaged: GroupLog, reason: str) -> None:
        """Stop the group whose log could not be written to, as region.broker.core does."""
        assert self.host is not None
        for group in list(self.host.groups.values()):
            if group.disk is damaged:
                self.host.stop_group(group, reason)

    def _durable(self, tokens: list[object]) -> None:
        assert self.host is not None
        self.host.durable(tokens)

    def _storage_failed(self, reason: str) -> None:
        assert self.host is not None
        self.host.halt()
        for stream in self.streams.values():
            stream.close()
        self.serving = False
        self._on_failed(self.me, reason)

    def stop(self, done: Callable[[], None]) -> None:
        """Stop cleanly (called in a turn of its loop); `done` follows."""
        self.serving = False
        self._main = asyncio.ensure_future(self._stop(done), loop=self.loop)

    async def _stop(self, done: Callable[[], None]) -> None:
        assert self.host is not None and self._flusher is not None and self._directory is not None
        if self._retention is not None:
            self._retention.cancel()
            await asyncio.gather(self._retention, return_exceptions=True)
        if self._keeper is not None:
            await self._keeper.stop()
        if self.hosted is not None:
            await self.hosted.cancel()
        for stream in self.streams.values():
            stream.close()
        await self.host.stop()
        await asyncio.to_thread(self._flusher.stop)
        for group in self.host.groups.values():
            group.disk.close()
        self._directory.close()
        done()


async def _at_once() -> None:
    """Every broker knows what the controller has committed."""
