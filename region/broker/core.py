"""What makes a broker one, without the listeners that clients use: log, Raft groups, controller, streams, links.

The same composition runs in a broker process and in the simulator: time, randomness, files, threads and connections
come from outside.

Start order: data directory, log, Raft groups, links. Stop order is the reverse: nobody is answered by a part that is
already gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import BadRequest, DataDirectoryError, GeorelayError, StorageFailed, Unavailable
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RaftIndex, RegionNumber
from mesh.listening.addresses_core import Source
from mesh.listening.listeners import Listeners
from mesh.replication.mesh_links import BrokerAddress, MeshLinks
from region.broker.audit_room import AuditRoom
from region.broker.client_drain import DrainAgent
from region.broker.commit_names import CommitNames
from region.broker.commit_recorder import CommitRecorder
from region.broker.controller_machine import ControllerMachine
from region.broker.core_parts import identity_of, link_addresses, make_controller, make_transport, mesh_secret
from region.broker.entrance import NEVER_JOINED, Entrance
from region.broker.geo_wiring import region_geo
from region.broker.group_coordinators import coordinator_origins, has_left, kafka_address, register_groups
from region.broker.homes_room import HomesRoom
from region.broker.hosted_groups import HostedGroups
from region.broker.housekeeping import Housekeeping
from region.broker.local_cluster import LocalCluster
from region.broker.mesh_port import MeshPort, RemoteStreamsOverLinks
from region.broker.mesh_wiring import RegionGrowth, configured_topology, judge_peers, link_settings, make_control
from region.broker.operations import Operations
from region.broker.orphan_branches import RegionOrphans
from region.broker.queue_coordinators import QueueRoom
from region.broker.record_deletion import RecordDeletion
from region.broker.recovered_disks import RecoveredDisks
from region.broker.region_directory import RegionDirectory
from region.broker.transaction_coordinators import register_transactions
from region.config import BrokerConfig, split_address
from region.controller.assignment import Assignment
from region.controller.command_kinds import JOURNAL_LEVEL
from region.controller.topic import TopicDefinition
from region.coordination.region_coordinators import RegionCoordinators
from region.geo.resolution import Resolver
from region.log.data_directory import DataDirectory
from region.log.disk_space import DiskLevel, DiskSpace
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem
from region.log.flusher import Flusher
from region.log.group_log import GroupLog
from region.multiraft.group import Group
from region.multiraft.host import Host
from region.multiraft.peer_links import PeerLinks
from region.multiraft.peers import PeerTransport
from region.multiraft.transport import Transport
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream
from region.topics.stream import FIRST_LEVEL, Stream

log = structlog.get_logger()

BARRIER_AGAIN_S: Final = 0.1


class BrokerCore:
    """One broker without its edge.

    Args:
        recorder: notes commits for the SLA report.
        executor: where files are read without holding up the event loop.
        listeners: TLS of peers and links; None: plain text.
        make_flusher, make_transport, make_links: the classes that do I/O; others only in the simulator.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        rng: random.Random,
        file_system: FileSystem,
        executor: Executor,
        recorder: CommitRecorder,
        listeners: Listeners | None = None,
        make_flusher: Callable[..., Flusher] = Flusher,
        make_transport: Callable[..., Transport] = PeerTransport,
        make_links: Callable[..., MeshLinks] = MeshLinks,
    ) -> None:
        self.config = config
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.budget = TailBudget()
        self._clock = clock
        self._rng = rng
        self._names = CommitNames(me=config.broker_id, recorder=recorder, clock=clock)
        self._make_transport = make_transport
        self._make_flusher = make_flusher
        self._executor = executor
        self._listeners = listeners
        self._secret = mesh_secret(config)
        self._joining: asyncio.Task[None] | None = None
        self._recovered_disks = RecoveredDisks()
        self._topology = configured_topology(config)
        self.directory = DataDirectory.open(
            Path(config.data_dir), mesh_id=config.mesh_id, broker_id=config.broker_id, fs=file_system
        )
        self.directory.entries.is_wanted = lambda: self.controller.feature_level >= JOURNAL_LEVEL
        self.disk_space = DiskSpace(file_system, self.directory.path, reserve_bytes=config.disk_reserve_bytes)
        self._journal = self.directory.open_hard_states()
        loop = asyncio.get_running_loop()
        self.flusher = make_flusher(
            self._journal,
            post=lambda tokens: self._post(loop, tokens),
            on_failure=lambda error: self._post_failure(loop, error),
            marks=self.directory.marks,
            entries=self.directory.entries,
            sync_all=self.directory.sync_all,
            disk_space=self.disk_space,
            on_log_damaged=lambda damaged, error: self._post_damage(loop, damaged, error),
        )
        self.host = Host(
            me=config.broker_id,
            directory=self.directory,
            flusher=self.flusher,
            hard_states=self._journal.load(),
            clock=clock,
            rng=rng,
            tick_ms=config.tick_ms,
            executor=executor,
            on_group_stopped=self._group_stopped,
            admits_entries=lambda: self.disk_space.level is not DiskLevel.FULL,
            bulk_bytes_per_s=config.bulk_bytes_per_s,
        )
        self.geo = region_geo(lambda: self.controller.state, self._clock)
        self.groups = HostedGroups(
            me=config.broker_id,
            region=config.region_number,
            host=self.host,
            directory=self.directory,
            clock=clock,
            budget=self.budget,
            executor=executor,
            joined=self._stream_joined,
            left=self._stream_left,
            failed=self._fail,
            feature_level=lambda: self.controller.feature_level,
            disk_writable=lambda: self.disk_space.writable,
            placement=self._placement,
            barrier=lambda: self.controller.barrier(),
            is_registered=self._is_registered,
            replica_lost=lambda group, generation: self.controller.replica_lost(group, generation),
            make_coordinator=lambda **arguments: self.coordinators.make_stream(**arguments),
            home_row=lambda key: self.controller.state.home_row(key),
        )
        self.machine = ControllerMachine(
            clock=clock,
            apply=self._apply_command,
            applied_batch=self._commands_applied,
            led=lambda: self.controller.wake(),
            recovered=self._recovered_disks.note,
            undone=self._recovered_disks.truncated,
            snapshot=lambda: self.controller.snapshot(),
            restore=self._restore_controller,
        )
        self._join_mesh(make_links)
        self.entrance = Entrance(
            me=config.broker_id,
            region=config.region_number,
            directory=self.directory,
            configured=self._topology.own.brokers,
            has_log=CONTROLLER_GROUP in self.directory.group_ids(),
            is_formed=lambda: self.controller.state.topology is not None,
            request=self._remote.request,
        )
        self.controller.answer_founding = self.entrance.answer
        self.housekeeping = Housekeeping(
            host=self.host,
            controller=self.controller,
            streams=self.streams,
            disk_space=self.disk_space,
            clock=clock,
            executor=executor,
            group_folders=self.directory.group_ids,
            remove_orphan=self.groups.remove_orphan,
            mirror_positions=self.links.mirror_positions,
            failed=self._fail,
        )

    @property
    def streams(self) -> dict[GroupId, HostedStream]:
        """Return the streams hosted here, by group."""
        return self.groups.streams

    # --- making the parts ------------------------------------------------------------------------

    def _join_mesh(self, make_links: Callable[..., MeshLinks]) -> None:
        config = self.config
        self._remote = RemoteStreamsOverLinks(region=config.region_number)
        self.controller = make_controller(
            config,
            topology=self._topology,
            disk_id=self.directory.disk_id,
            host=self.host,
            machine=self.machine,
            remote=self._remote,
            read_index=self._read_controller_index,
            founding_disks=lambda: self.entrance.disks,
            peers_learned=lambda addresses: self._learn_peers(addresses, Source.REGION),
        )
        self.coordinators = RegionCoordinators(
            me=config.broker_id,
            region=config.region_number,
            feature_level=lambda: self.controller.feature_level,
            find_topic=self.controller.catalog.topic,
            assignment_of=self.controller.state.assignment,
            ensure_topic=self.controller.ensure_internal_topic,
            streams=self.streams,
            leader=self.host.leaders.leader,
            ask=self._remote.ask,
            rng=self._rng,
            home_row=lambda key: self.controller.state.home_row(key),
            origins=lambda: coordinator_origins(self.controller.state.topology),
            ask_region=self._remote.request,
            has_left=lambda region: has_left(self.controller.state.topology, region),
            address_of=lambda broker: kafka_address(self.controller.state.brokers.get(broker)),
            older_regions=lambda level: self.controller.state.older_regions(level),
        )
        self._near = PeerLinks(self.host.quiet_ns)
        port = self.port = MeshPort(controller=self.controller, streams=self.streams, coordinators=self.coordinators)
        self.links = make_links(
            identity=identity_of(config, self._secret),
            brokers=link_addresses(config),
            directory=port,
            publisher=port,
            requests=port,
            clock=self._clock,
            settings=link_settings(config),
            parts=None if self._listeners is None else self._listeners["link"],
            near=self._near,
        )
        judge_peers(self.links, self.controller, self._topology)
        self._remote.use(self.links)
        self.control = port.control = make_control(
            config,
            directory=self.directory,
            controller=self.controller,
            links=self.links,
            clock=self._clock,
            rng=self._rng,
            executor=self._executor,
            make_flusher=self._make_flusher,
            failed=self._fail,
        )
        self.homes = HomesRoom(
            me=config.broker_id,
            control=self.control,
            controller=self.controller,
            links=self.links,
            groups=self.groups,
            hosted=port.hosted,
            leader_of=port.leader_of,
            is_led=lambda: self.machine.leader_id > 0,
            clock=self._clock,
            rng=self._rng,
        )
        port.homes = self.homes.agent
        self.audit = port.audit = AuditRoom(
            config.broker_id, self.controller, self.links, self._clock, logs=port, alive=self._other_brokers
        )
        self.directory_of_regions = RegionDirectory(
            own=config.region_number,
            others=[RegionNumber(region.number) for region in config.regions if region.number != config.region_number],
            registrations=lambda: self.controller.state.brokers,
            request=self._remote.request,
            learned=partial(self.links.know_brokers, source=Source.REGION),
            is_linked=self.links.is_linked,
        )
        port.region_directory = self.directory_of_regions
        self._growth = RegionGrowth(controller=self.controller, links=self.links, directory=self.directory_of_regions)
        port.deletion = RecordDeletion(
            region=config.region_number,
            hosted=port.hosted,
            home_of=self.controller.catalog.home_of,
            leader_of=port.leader_of,
            ask=self._remote.request,
        )
        port.resolver = Resolver(
            region=config.region_number,
            hosted=port.hosted,
            home_of=self.controller.catalog.home_of,
            leader_of=port.leader_of,
            ask=self._remote.request,
        )
        self.cluster = LocalCluster(
            config=config,
            host=self.host,
            controller=self.controller,
            streams=self.streams,
            remote=self._remote,
            topology=self._topology,
            controller_leader=lambda: self.machine.leader_id,
            is_informed=lambda: self.groups.is_informed,
            operations=Operations(controller=self.controller, host=self.host),
            deletion=port.deletion,
            epochs_begun=lambda: self.groups.epochs_begun,
        )
        port.cluster = self.cluster
        self.drain = DrainAgent(
            self.cluster,
            topology=lambda: self.controller.state.topology or self._topology,
            request=self._remote.request,
        )
        self.orphans = port.orphans = RegionOrphans(
            me=config.broker_id,
            streams=self.streams.values,
            key_of=self.controller.catalog.stream_key,
            hosted=port.hosted,
            leader_of=port.leader_of,
            others=self._other_brokers,
            ask=self._remote.ask_answer,
        )
        self.cluster.resolver = port.resolver
        self._transactions = port.transactions = register_transactions(
            config, coordinators=self.coordinators, controller=self.controller, port=port, remote=self._remote
        )
        self.group_counters = register_groups(self.coordinators, self.controller, config, rng=self._rng)
        self.queues = QueueRoom(
            cluster=self.cluster,
            coordinators=self.coordinators,
            controller=self.controller,
            streams=self.streams.values,
            clock=self._clock,
        )

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover what is here and begin to join the region.

        Raises:
            OSError: an address is taken. GeorelayError: data directory or configuration.
        """
        config = self.config
        self.flusher.start()
        transport = make_transport(
            config,
            self._make_transport,
            disk_id=self.directory.disk_id,
            host=self.host,
            rng=self._rng,
            registered_disk=self._registered_disk,
            listeners=self._listeners,
            secret=self._secret,
            links=self._near,
        )
        await self.host.start(transport)
        if self.entrance.is_settled:
            await self._open_controller()
        await self.links.start(config.listen.link)
        await self.control.start()
        self.homes.start()
        self._controller_task = asyncio.create_task(self._run_controller(), name="controller")
        self._directory_task = asyncio.create_task(self.directory_of_regions.run(), name="region-directory")
        self.housekeeping.start()
        self.queues.routing.start()

    async def _open_controller(self) -> None:
        group = await self.host.open_group_async(
            CONTROLLER_GROUP, self.entrance.founders, self.machine, joins_after=self.entrance.joins_after
        )
        self.machine.proposer = group
        assert self.host.transport is not None
        self.host.transport.check_disks()  # who was quicker than the recovery of our log

    async def stop(self) -> None:
        """Stop serving, then storing."""
        await self.housekeeping.stop()
        await self.queues.routing.close()
        tasks = [task for task in (self._controller_task, self._directory_task, self._joining) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.coordinators.close()
        await self.controller.close()
        await self.homes.stop()
        await self.control.stop()
        await self.links.stop()
        await self.groups.cancel()
        self.groups.close()
        await self.host.stop()
        await asyncio.to_thread(self.flusher.stop)

    def close_files(self) -> None:
        """Close logs, journal and data directory, after `stop` and after the executor's last read."""
        for group in self.host.groups.values():
            group.disk.close()
        self._journal.close()
        self.directory.close()

    async def _run_controller(self) -> None:
        try:
            if not self.entrance.is_settled:
                await self.entrance.settle()
                await self._open_controller()
            await asyncio.gather(self.controller.run(), self._open_groups())
        except GeorelayError as error:
            self._fail(str(error))
        except Exception as error:  # a broker without its controller must not look alive
            log.exception("controller.failed")
            self._fail(f"the controller failed: {error!r}")

    async def _open_groups(self) -> None:
        """Let groups be opened once the controller's state is not older than this start."""
        while True:
            try:
                await self.controller.barrier()
                break
            except BadRequest:  # its leader is of the first version: there no group ever moves
                if self.controller.feature_level == FIRST_LEVEL:
                    break
                await asyncio.sleep(BARRIER_AGAIN_S)
            except GeorelayError as error:
                log.debug("controller.not_reached", reason=str(error))
                await asyncio.sleep(BARRIER_AGAIN_S)
        self.groups.informed()

    async def _read_controller_index(self) -> RaftIndex:
        group = self.host.groups.get(CONTROLLER_GROUP)
        if group is None:
            raise Unavailable("this broker has not joined its region yet")
        return await group.read_index()

    # --- failures --------------------------------------------------------------------------------

    def _post(self, loop: asyncio.AbstractEventLoop, tokens: list[object]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.host.durable, tokens)

    def _post_failure(self, loop: asyncio.AbstractEventLoop, error: StorageFailed) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._storage_failed, str(error))

    def _post_damage(self, loop: asyncio.AbstractEventLoop, damaged: GroupLog, error: LogCorrupt) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._log_damaged, damaged, str(error))

    def _log_damaged(self, damaged: GroupLog, reason: str) -> None:
        """Stop the one group whose log could not be written to, before anybody takes its writes for durable."""
        for group in list(self.host.groups.values()):
            if group.disk is damaged:
                self.host.stop_group(group, reason)

    def _storage_failed(self, reason: str) -> None:
        """Promise nothing any more: what waits for a commit here has an unknown outcome, and the process ends."""
        self.host.halt()
        self.groups.close()
        self.machine.led(leader=-1, is_leader=False)
        self._fail(reason)

    def _group_stopped(self, group: GroupId, reason: str) -> None:
        self.groups.group_stopped(group, reason)
        if group == CONTROLLER_GROUP:
            self.machine.led(leader=-1, is_leader=False)
            self._fail(f"the controller group stopped: {reason}")

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    # --- the controller's log --------------------------------------------------------------------

    def _registered_disk(self, broker: BrokerId) -> str | None:
        known = self._recovered_disks.disk_of(
            broker, applied=self.controller.state.disk_of(broker), applied_index=self.machine.applied_index
        )
        return dict(self.entrance.disks).get(broker) if known is None else known

    def _apply_command(self, command: bytes, index: RaftIndex) -> None:
        for effect in self.controller.apply(command, index):
            self.groups.note(effect)

    def _restore_controller(self, raw: bytes) -> None:
        for effect in self.controller.restore(raw):
            self.groups.note(effect)

    def _commands_applied(self) -> None:
        self._learn_peers(self.controller.state.peer_addresses(), Source.REGION)
        self.links.know_brokers(
            self.config.region_number,
            [
                BrokerAddress(broker_id=row.broker, address=row.link)
                for row in self.controller.state.brokers.values()
                if row.link
            ],
            Source.REGION,
        )
        self._follow_trust()
        self._growth.follow()
        if self.host.transport is not None:
            self.host.transport.check_disks()
        self.groups.settle()

    def _placement(self, group_id: GroupId) -> tuple[Assignment, TopicDefinition] | None:
        state = self.controller.state
        assignment = state.group(group_id)
        if assignment is None or not self._is_registered():
            return None
        topic = state.topic_by_id(assignment.key.topic_id)
        return None if topic is None else (assignment, topic)

    def _is_registered(self) -> bool:
        return self.controller.state.disk_of(self.config.broker_id) == self.directory.disk_id

    def _follow_trust(self) -> None:
        """Follow whose disks were replaced: before they are admitted by `check_disks`, they are distrusted."""
        state = self.controller.state
        for group_id, group in self.host.groups.items():
            assignment = state.control if group_id == CONTROLLER_GROUP else state.group(group_id)
            if assignment is not None:
                group.distrust(assignment.unsafe)
        self._follow_joining()

    def _follow_joining(self) -> None:
        """Let this broker vote in the controller's group once that has taken it in with this disk, and say so on disk.

        The log that is applied here names it with the disk that was lost before it names it with this one. Until it is
        written down this replica is not counted (see RaftConfig.joins_after), so it cannot be missed after a crash.
        """
        control = self.host.groups.get(CONTROLLER_GROUP)
        if control is None or control.node.joins_after != NEVER_JOINED or self._joining is not None:
            return
        state, me = self.controller.state, self.config.broker_id
        if state.control is None or state.disk_of(me) != self.directory.disk_id or me in state.control.unsafe:
            return
        above = state.control.joins_after(me)
        if control.node.named_above(above):
            self._joining = asyncio.get_running_loop().create_task(self._join(control, above), name="joining")

    async def _join(self, control: Group, above: int) -> None:
        try:
            await self.entrance.note_joined(above)
        except DataDirectoryError as error:
            self._fail(str(error))
            return
        control.node.joins_after = above
        log.info("region.joined", broker=self.config.broker_id, above=above)

    def learn_peers(self, addresses: Mapping[BrokerId, str]) -> None:
        """Learn from gossip where brokers of this region may be reached; a removed one is not dialled."""
        disk_of = self.controller.state.disk_of
        known = {broker: address for broker, address in addresses.items() if disk_of(broker) != ""}
        self._learn_peers(known, Source.GOSSIP)

    def _learn_peers(self, addresses: Mapping[BrokerId, str], source: Source) -> None:
        """Follow where the brokers of this region are; the configuration only had the first ones."""
        for broker, address in addresses.items():
            if broker != self.config.broker_id:
                self.host.add_peer(broker, split_address(address), source)
        if self.host.transport is not None:
            removed = [b for b in self.host.transport.peers if self.controller.state.disk_of(b) == ""]
            for broker in removed:
                self.host.remove_peer(broker)

    # --- streams ---------------------------------------------------------------------------------

    def _stream_joined(self, stream: HostedStream) -> None:
        stream.on_committed = self._names.committed
        stream.on_leadership = self._leadership_changed
        stream.lanes.verifier = self._transactions
        stream.geo = self.geo.attach(stream)

    def _stream_left(self, stream: HostedStream) -> None:
        self.links.mirror_stopped(stream.key)
        self._names.left(stream)
        if stream.geo is not None:
            stream.geo.close()

    def _leadership_changed(self, stream: Stream) -> None:
        assert isinstance(stream, HostedStream)
        self._names.leadership(stream)
        if stream.is_leader and stream.is_mirroring:
            self.links.mirror_started(stream)
        else:
            self.links.mirror_stopped(stream.key)

    def _other_brokers(self) -> list[BrokerId]:
        """Return the other brokers of this region that are heard."""
        known = self.controller.state.brokers
        return [row for row in known if row != self.config.broker_id and self.host.is_alive(row)]
