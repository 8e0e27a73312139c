"""The composition root of a broker: the only place where its parts are made and joined.

Start order: data directory, log, Raft groups, links, then the listeners that clients use. Stop order is the
reverse: nobody is answered by a part that is already gone.
"""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from georelay.clock import Clock, SystemClock
from georelay.credentials import Credentials
from georelay.errors import DataDirectoryError, GeorelayError, StorageFailed
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RaftIndex, RegionNumber, broker_id
from mesh.replication.mesh_links import BrokerAddress, MeshIdentity, MeshLinks
from mesh.replication.settings import LinkSettings
from mesh.tracing.recorder import Recorder, TraceSettings
from region.broker.controller_machine import ControllerMachine
from region.broker.edge import Edge
from region.broker.link_metrics import LinkCollector
from region.broker.local_cluster import LocalCluster
from region.broker.mesh_port import MeshPort, RemoteStreamsOverLinks
from region.broker.storage_metrics import StorageCollector
from region.config import BrokerConfig, split_address
from region.controller.commands import CommandError, RegisterBroker, decode
from region.controller.registration import BrokerRegistration
from region.controller.routing import ControllerSettings
from region.controller.service import ControllerService
from region.controller.state_core import GroupAssigned, GroupDropped
from region.controller.topic import Homes
from region.controller.topology import RegionInfo, Topology
from region.log.data_directory import DataDirectory
from region.log.entry import Entry
from region.log.filesystem import FileSystem, OsFileSystem
from region.log.flusher import Flusher
from region.multiraft.host import Host
from region.multiraft.peers import PeerTransport
from region.raft.core import InvariantViolated
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream
from region.topics.stream import Stream

log = structlog.get_logger()

GC_THRESHOLDS: Final = (20_000, 20, 50)
COLD_READERS: Final = 2  # threads; a third would only wait for the same disk


class Broker:
    """One broker process."""

    def __init__(
        self, config: BrokerConfig, *, clock: Clock | None = None, file_system: FileSystem | None = None
    ) -> None:
        self.config = config
        self.streams: dict[GroupId, HostedStream] = {}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._clock = clock or SystemClock()
        self._rng = random.Random()
        self._budget = TailBudget()
        self._executor = ThreadPoolExecutor(COLD_READERS, thread_name_prefix="cold-read")
        self._effects: dict[GroupId, GroupAssigned | GroupDropped] = {}
        self._recovered_disks: dict[BrokerId, str] = {}  # by broker: the first disk that our log names
        self._removals: set[asyncio.Task[None]] = set()
        self._numbers = config.region_numbers()
        self._region_names = {number: name for name, number in self._numbers.items()}
        self._directory = DataDirectory.open(
            Path(config.data_dir), mesh_id=config.mesh_id, broker_id=config.broker_id, fs=file_system or OsFileSystem()
        )
        self._journal = self._directory.open_hard_states()
        loop = asyncio.get_running_loop()
        self._flusher = Flusher(
            self._journal,
            post=lambda tokens: self._post(loop, tokens),
            on_failure=lambda error: self._post_failure(loop, error),
        )
        self._host = Host(
            me=config.broker_id,
            directory=self._directory,
            flusher=self._flusher,
            hard_states=self._journal.load(),
            clock=self._clock,
            rng=self._rng,
            tick_ms=config.tick_ms,
            executor=self._executor,
            on_group_stopped=self._group_stopped,
        )
        self._machine = ControllerMachine(
            clock=self._clock,
            apply=self._apply_command,
            applied_batch=self._settle_groups,
            led=lambda: self._controller.wake(),
            recovered=self._note_recovered,
        )
        self._topology = _topology(config)
        self._credentials = Credentials.load(config.users_file or None)
        self._recorder = Recorder(
            region=config.region,
            broker=config.broker_id,
            boot_id=uuid.uuid4().hex[:12],
            region_name=self._region_name,
            settings=TraceSettings(
                directory=Path(config.trace_dir) if config.trace_dir else None,
                roll_period_s=config.trace_roll_ms / 1000,
                clock_error_us=config.clock_error_us if config.clock_error_us >= 0 else None,
            ),
            clock_ns=self._clock.wall_ns,
        )
        self._join_mesh()
        self._edge = Edge(
            listen=config.listen,
            cluster=self.cluster,
            credentials=self._credentials,
            recorder=self._recorder,
            clock=self._clock,
            region_name=self._region_name,
        )
        self._edge.metrics.registry.register(
            StorageCollector(flusher=self._flusher, host=self._host, budget=self._budget, recorder=self._recorder)
        )
        self._edge.metrics.registry.register(
            LinkCollector(sessions=self._links.snapshot, region_name=self._region_name)
        )

    # --- making the parts ------------------------------------------------------------------------

    def _join_mesh(self) -> None:
        config = self.config
        kafka_host, kafka_port = split_address(config.listen.kafka)
        self._remote = RemoteStreamsOverLinks(region=config.region_number)
        self._controller = ControllerService(
            topology=self._topology,
            registration=BrokerRegistration(
                broker=config.broker_id,
                disk_uuid=self._directory.disk_id,
                kafka_host=kafka_host,
                kafka_port=kafka_port,
                grpc=config.listen.grpc,
                link=config.listen.link,
                admin=config.listen.admin,
            ),
            propose=self._machine.propose,
            request=self._remote.request,
            is_leader=lambda: self._machine.is_leader,
            leader_id=lambda: self._host.leaders.leader(CONTROLLER_GROUP),
            settings=ControllerSettings(auto_create=config.auto_create_topics),
        )
        port = MeshPort(controller=self._controller, streams=self.streams)
        self._links = MeshLinks(
            identity=MeshIdentity(
                mesh_id=config.mesh_id,
                region=config.region,
                region_number=config.region_number,
                broker_id=config.broker_id,
            ),
            brokers={
                RegionNumber(region.number): [
                    BrokerAddress(broker_id=broker_id(RegionNumber(region.number), row.number), address=row.link)
                    for row in region.brokers
                ]
                for region in config.regions
            },
            directory=port,
            publisher=port,
            requests=port,
            clock=self._clock,
            settings=LinkSettings(forward_timeout_ms=config.forward_timeout_ms),
        )
        self._remote.use(self._links)
        self.cluster = LocalCluster(
            config=config,
            host=self._host,
            controller=self._controller,
            streams=self.streams,
            remote=self._remote,
            topology=self._topology,
            controller_leader=lambda: self._machine.leader_id,
        )
        port.cluster = self.cluster

    def _region_name(self, number: int) -> str:
        return self._region_names.get(RegionNumber(number), f"region-{number}")

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, join the region and serve.

        Raises:
            OSError: an address is taken. GeorelayError: data directory or configuration.
        """
        config = self.config
        self._flusher.start()
        self._recorder.start()
        transport = PeerTransport(
            me=config.broker_id,
            mesh_id=config.mesh_id,
            disk=uuid.UUID(self._directory.disk_id).bytes,
            listen=split_address(config.listen.peers),
            peers={
                broker_id(config.region_number, row.number): split_address(row.peers)
                for row in config.own_region.brokers
                if row.number != config.broker
            },
            receiver=self._host,
            rng=self._rng,
            registered_disk=self._registered_disk,
        )
        await self._host.start(transport)
        voters = tuple(broker_id(config.region_number, row.number) for row in config.own_region.brokers)
        self._machine.proposer = self._host.open_group(CONTROLLER_GROUP, voters, self._machine)
        transport.check_disks()  # who was quicker than the recovery of our log
        await self._links.start(config.listen.link)
        self._controller_task = asyncio.create_task(self._run_controller(), name="controller")
        await self._edge.start()
        # What start-up made lives for ever: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # Records are freed by reference counts; cycles are rare, and looking for them every 700 objects is not free.
        gc.set_threshold(*GC_THRESHOLDS)
        log.info("broker.started", region=config.region, broker=config.broker_id, kafka=config.listen.kafka)

    async def stop(self) -> None:
        """Stop serving, then storing."""
        await self._edge.stop()
        self._controller_task.cancel()
        await asyncio.gather(self._controller_task, return_exceptions=True)
        await self._controller.close()
        await self._links.stop()
        for stream in self.streams.values():
            stream.close()
        await self._host.stop()
        for task in self._removals:
            task.cancel()
        await asyncio.gather(*self._removals, return_exceptions=True)
        await asyncio.to_thread(self._flusher.stop)
        await self._recorder.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        for group in self._host.groups.values():
            group.disk.close()
        self._journal.close()
        self._directory.close()
        log.info("broker.stopped", broker=self.config.broker_id)

    async def _run_controller(self) -> None:
        try:
            await self._controller.run()
        except GeorelayError as error:
            self._fail(str(error))
        except Exception as error:  # a broker without its controller must not look alive
            log.exception("controller.failed")
            self._fail(f"the controller failed: {error!r}")

    # --- failures --------------------------------------------------------------------------------

    def _post(self, loop: asyncio.AbstractEventLoop, tokens: list[object]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._host.durable, tokens)

    def _post_failure(self, loop: asyncio.AbstractEventLoop, error: StorageFailed) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._storage_failed, str(error))

    def _storage_failed(self, reason: str) -> None:
        """Promise nothing any more: what waits for a commit here has an unknown outcome, and the process ends."""
        self._host.halt()
        for stream in self.streams.values():
            stream.close()
        self._machine.led(leader=-1, is_leader=False)
        self._fail(reason)

    def _group_stopped(self, group: GroupId, reason: str) -> None:
        stream = self.streams.get(group)
        if stream is not None:
            self._links.mirror_stopped(stream.key)
            stream.close()
        if group == CONTROLLER_GROUP:
            self._machine.led(leader=-1, is_leader=False)
            self._fail(f"the controller group stopped: {reason}")

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    # --- groups come and go ----------------------------------------------------------------------

    def _note_recovered(self, command: bytes) -> None:
        """Remember whose disk is which before anything is committed again: votes count from the first moment."""
        try:
            decoded = decode(command)
        except CommandError:
            return  # `apply` stops the group, if it is committed
        if isinstance(decoded, RegisterBroker):
            registration = decoded.registration
            self._recovered_disks.setdefault(registration.broker, registration.disk_uuid)

    def _registered_disk(self, broker: BrokerId) -> str | None:
        registration = self._controller.state.brokers.get(broker)
        return self._recovered_disks.get(broker) if registration is None else registration.disk_uuid

    def _apply_command(self, command: bytes, index: RaftIndex) -> None:
        for effect in self._controller.apply(command, index):
            if isinstance(effect, GroupAssigned | GroupDropped):
                self._effects[effect.group_id] = effect

    def _settle_groups(self) -> None:
        if self._host.transport is not None:
            self._host.transport.check_disks()
        effects, self._effects = self._effects, {}
        for effect in effects.values():
            if isinstance(effect, GroupDropped):
                self._drop_group(effect.group_id)
            elif self.config.broker_id in effect.voters and effect.group_id not in self.streams:
                self._open_group(effect)

    def _open_group(self, assigned: GroupAssigned) -> None:
        topic = assigned.topic
        stream = HostedStream(
            key=assigned.key,
            topic=topic.name,
            group_id=assigned.group_id,
            home=topic.home if topic.homes is Homes.ONE else assigned.key.origin,
            region=self.config.region_number,
            clock=self._clock,
            budget=self._budget,
            executor=self._executor,
        )
        stream.on_committed = self._committed
        stream.on_leadership = self._leadership_changed
        try:
            group = self._host.open_group(assigned.group_id, assigned.voters, stream)
        except (DataDirectoryError, InvariantViolated) as error:
            # This replica is damaged: the others serve, and the rest of this broker does.
            log.critical("group.refused", group=assigned.group_id, stream=str(assigned.key), reason=str(error))
            return
        stream.attach(group, group.disk)
        self.streams[assigned.group_id] = stream

    def _drop_group(self, group_id: GroupId) -> None:
        stream = self.streams.pop(group_id, None)
        closed = self._host.close_group(group_id)
        if stream is not None:
            self._links.mirror_stopped(stream.key)
            stream.close()
        removal = asyncio.create_task(self._remove_files(group_id, closed), name=f"remove-group-{group_id}")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove_files(self, group_id: GroupId, closed: asyncio.Future[None]) -> None:
        await closed  # a write on its way into a folder that is gone would look like a failed disk
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._directory.remove_group, group_id)
        except DataDirectoryError as error:
            self._fail(str(error))

    def _leadership_changed(self, stream: Stream) -> None:
        if stream.is_home:
            return
        assert isinstance(stream, HostedStream)
        if stream.is_leader:
            self._links.mirror_started(stream)
        else:
            self._links.mirror_stopped(stream.key)

    def _committed(self, stream: Stream, entries: Sequence[Entry]) -> None:
        if not stream.is_leader:
            return
        owning = [entry for entry in entries if entry.record_count]
        if not owning:
            return
        note = self._recorder.committed if stream.is_home else self._recorder.replicated
        note(
            topic=stream.topic,
            origin=stream.key.origin,
            partition=stream.partition,
            epoch=stream.epoch,
            from_offset=owning[0].base_offset,
            to_offset=owning[-1].next_offset,
            now_ns=self._clock.wall_ns(),
        )


def _topology(config: BrokerConfig) -> Topology:
    numbers = config.region_numbers()
    return Topology(
        mesh_id=config.mesh_id,
        region=config.region_number,
        definitions_home=numbers[config.definitions_home],
        regions=tuple(
            RegionInfo(
                number=RegionNumber(region.number),
                name=region.name,
                brokers=tuple(broker_id(RegionNumber(region.number), row.number) for row in region.brokers),
            )
            for region in config.regions
        ),
    )
