"""What the mesh asks of this broker, and how this broker asks the mesh: the ports of mesh.replication, implemented.

Rule 1: a forwarded batch is published here or refused; it is never forwarded again.
Rule 2: requests of other brokers are answered by the controller, by mesh control or by coordinators led here, or are
        reads of streams hosted here, deletions of their oldest records, or markers that end transactions in them.
Rule 3: a transactional batch is never forwarded: only its producer's own connection keeps the order that it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from georelay.errors import BadRequest, NotHome, NotLeader, PolicyViolation, Unavailable, UnknownTopic
from georelay.ids import BrokerId, GroupId, Offset, RegionNumber, StreamKey, region_of
from georelay.limits import MIB
from georelay.wire.batch import validate
from mesh.replication.level import REGION_LEVEL, AskedLevel
from mesh.replication.mesh_links import MeshLinks
from mesh.replication.ports import Answer, CommittedLog, Published
from region.api.reading import read_stream
from region.audit.questions import METHOD_PREFIX as AUDIT_METHODS
from region.broker.audit_room import AuditRoom
from region.broker.client_drain import LEADERS_METHOD, serve_leaders
from region.broker.distance_relay import DISTANCES_METHOD, DistanceRelay
from region.broker.entry_frames import decode_frames, encode_frames
from region.broker.local_cluster import LocalCluster
from region.broker.orphan_branches import METHODS as ORPHAN_METHODS
from region.broker.orphan_branches import RegionOrphans
from region.broker.record_deletion import DELETE_METHOD, RecordDeletion
from region.broker.region_directory import BROKERS_METHOD, RegionDirectory
from region.broker.rule_relay import RULES_METHOD, RuleRelay
from region.broker.storing import store
from region.broker.transaction_port import MARKER_METHOD, TransactionPort
from region.control.mesh_control import MeshControl
from region.controller.service import ControllerService
from region.coordination.region_coordinators import CALL_METHOD, RegionCoordinators
from region.geo.resolution import RESOLVE_METHOD, Resolver
from region.homes.agent import METHOD_PREFIX as HOME_METHODS
from region.homes.agent import HomeAgent
from region.kafka.ports import Publish, ReadAnswer
from region.topics.hosted_stream import HostedStream

READ_METHOD: Final = "stream.read"
CONTROL_METHODS: Final = "control."
CONTROLLER_METHODS: Final = ("definitions.", "controller.", "security.")
READ_BYTES_MAX: Final = 4 * MIB
READ_WAIT_MS_MAX: Final = 30_000
REQUEST_TIMEOUT_S: Final = 5.0

JsonObject = Mapping[str, Any]


class MeshPort:
    """Implements Publisher, RequestHandler and StreamDirectory of mesh.replication.ports."""

    def __init__(
        self,
        *,
        controller: ControllerService,
        streams: Mapping[GroupId, HostedStream],
        coordinators: RegionCoordinators | None = None,
    ) -> None:
        self._controller = controller
        self._coordinators = coordinators
        self._streams = streams
        self.cluster: LocalCluster | None = None
        self.control: MeshControl | None = None
        self.homes: HomeAgent | None = None
        self.audit: AuditRoom | None = None
        self.deletion: RecordDeletion | None = None
        self.region_directory: RegionDirectory | None = None
        self.transactions: TransactionPort | None = None
        self.orphans: RegionOrphans | None = None
        self.resolver: Resolver | None = None
        self.distances: DistanceRelay | None = None
        self.rules: RuleRelay | None = None

    def hosted(self, key: StreamKey) -> HostedStream | None:
        """Return the stream when a replica of it is on this broker."""
        assignment = self._controller.state.assignment(key)
        return None if assignment is None else self._streams.get(assignment.group_id)

    def committed_log(self, key: StreamKey) -> CommittedLog | None:
        """Return the stream when it is hosted here and this region is, or was, its home."""
        stream = self.hosted(key)
        return stream if stream is not None and (stream.is_home or stream.was_home) else None

    def leader_of(self, key: StreamKey) -> int:
        """Return the broker of this region that leads the stream, -1 while unknown."""
        return -1 if self.cluster is None else self.cluster.leader_of_key(key)

    def publish_forwarded(
        self,
        key: StreamKey,
        batch: bytes,
        *,
        received_ns: int,
        entry_region: RegionNumber,
        level: AskedLevel = REGION_LEVEL,
    ) -> asyncio.Future[Published]:
        """Publish a batch that another broker received; see mesh.replication.ports.Publisher."""
        header = validate(batch, from_client=True, transactional_ok=True, is_forwarded=True)
        if header.is_transactional:
            raise PolicyViolation("a transactional batch goes to the leader of its partition, it is never forwarded")
        stream = self.hosted(key)
        if stream is None:
            home, topology = self._controller.catalog.home_of(key), self._controller.state.topology
            if home is None:
                raise UnknownTopic(f"stream {key} is unknown here")
            if topology is not None and home != topology.region:
                row = self._controller.state.home_row(key)
                raise NotHome(f"the home of {key} is region {home}", epoch=1 if row is None else row.epoch, home=home)
            raise NotLeader(leader=self.leader_of(key))
        routing = None if self.cluster is None or not stream.is_leader else self.cluster.routing
        return store(stream, Publish(header, batch, received_ns, entry_region, level=level), routing)

    async def handle(self, method: str, body: JsonObject, *, from_broker: BrokerId) -> Answer:
        """Answer one request of another broker."""
        if method.startswith(CONTROLLER_METHODS):
            return Answer(body=await self._controller.handle(method, dict(body)))
        if method.startswith(CONTROL_METHODS) and self.control is not None:
            return Answer(body=await self.control.handle(method, dict(body), from_broker=from_broker))
        if method.startswith(HOME_METHODS) and self.homes is not None:
            return Answer(body=await self.homes.handle(method, body, from_broker=from_broker))
        if method.startswith(AUDIT_METHODS) and self.audit is not None:
            return Answer(body=await self.audit.handle(method, body, from_broker=from_broker))
        if method == READ_METHOD:
            return await self._read(body)
        if method == DELETE_METHOD and self.deletion is not None:
            return Answer(body={"log_start": await self.deletion.serve(body)})
        if method == CALL_METHOD and self._coordinators is not None:
            return Answer(body=await self._coordinators.serve(body, from_broker=from_broker))
        if method == MARKER_METHOD and self.transactions is not None:
            self.transactions.check_sender(body, region_of(from_broker))
            return Answer(body=await self.transactions.serve_marker(body))
        if method == RESOLVE_METHOD and self.resolver is not None:
            return Answer(body=await self.resolver.serve(body))
        if method in ORPHAN_METHODS and self.orphans is not None:
            if region_of(from_broker) != self.orphans.region:
                raise PolicyViolation("orphan branches are of one region: ask a broker there")
            return await self.orphans.serve(method, body)
        if method == BROKERS_METHOD and self.region_directory is not None:
            return Answer(body=self.region_directory.serve(dict(body), region_of(from_broker)))
        if method == DISTANCES_METHOD and self.distances is not None:
            return Answer(body=self.distances.serve(body))
        if method == RULES_METHOD and self.rules is not None:
            return Answer(body=self.rules.serve(body))
        if method == LEADERS_METHOD and self.cluster is not None:
            return Answer(body=serve_leaders(self.cluster, dict(body)))
        raise BadRequest(f"method '{method[:64]}' is unknown")

    async def _read(self, body: JsonObject) -> Answer:
        try:
            key = StreamKey(
                bytes.fromhex(str(body["topic_id"])), RegionNumber(int(body["origin"])), int(body["partition"])
            )
            offset, max_bytes, wait_ms = int(body["offset"]), int(body["max_bytes"]), int(body["wait_ms"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadRequest(f"{READ_METHOD}: {error}") from error
        stream = self.hosted(key)
        if stream is None:
            raise UnknownTopic(f"stream {key} has no replica on this broker")
        answer = await read_stream(
            stream,
            offset,
            max_bytes=min(max(max_bytes, 1), READ_BYTES_MAX),
            wait_ms=min(max(wait_ms, 0), READ_WAIT_MS_MAX),
            read_uncommitted=body.get("read_uncommitted") is True,
        )
        return Answer(
            body={
                "log_start": answer.log_start,
                "high_watermark": answer.high_watermark,
                "next_offset": answer.next_offset,
                "last_stable_offset": answer.last_stable_offset,
                "epoch": answer.epoch,
            },
            attachment=encode_frames(answer.entries),
        )


class RemoteStreamsOverLinks:
    """Implements region.broker.local_cluster.RemoteStreams and the controller's Request over links."""

    def __init__(self, *, region: RegionNumber) -> None:
        self._region = region
        self._joined: MeshLinks | None = None

    def use(self, links: MeshLinks) -> None:
        """Use these links from now on: the links need the controller, and the controller needs them."""
        self._joined = links

    @property
    def _links(self) -> MeshLinks:
        assert self._joined is not None
        return self._joined

    def forward(
        self, key: StreamKey, publish: Publish, *, region: RegionNumber, leader: BrokerId
    ) -> asyncio.Future[Published]:
        """Send one batch to the leader of its home."""
        return self._links.forward(key, publish, region=region, leader=leader)

    async def read(
        self,
        key: StreamKey,
        broker: BrokerId,
        *,
        offset: int,
        max_bytes: int,
        wait_ms: int,
        read_uncommitted: bool = False,
    ) -> ReadAnswer:
        """Read decided records, or all, at another broker of this region."""
        body = {
            "topic_id": key.topic_id.hex(),
            "origin": key.origin,
            "partition": key.partition,
            "offset": offset,
            "max_bytes": max_bytes,
            "wait_ms": wait_ms,
            "read_uncommitted": read_uncommitted,
        }
        answer = await self._links.request(
            self._region, READ_METHOD, body, timeout_s=REQUEST_TIMEOUT_S + wait_ms / 1000, broker=broker
        )
        try:
            return ReadAnswer(
                entries=decode_frames(answer.attachment),
                log_start=Offset(int(answer.body["log_start"])),
                high_watermark=Offset(int(answer.body["high_watermark"])),
                next_offset=int(answer.body.get("next_offset", -1)),  # a broker of before transactions says nothing
                last_stable_offset=int(answer.body.get("last_stable_offset", -1)),
                epoch=int(answer.body.get("epoch", 0)),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Unavailable(f"broker {broker} answered {READ_METHOD} with something else: {error}") from error

    def mirror_lag(self, key: StreamKey) -> tuple[int, float]:
        """Return (the home's high watermark, lag in ms on the home's clock)."""
        return self._links.mirror_lag(key)

    def links(self) -> list[dict[str, Any]]:
        """Return the state of every link."""
        return self._links.links()

    async def request(
        self,
        *,
        region: RegionNumber,
        broker: BrokerId | None,
        method: str,
        body: Mapping[str, Any],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Carry a call to another broker, to any of the region without one."""
        answer = await self._links.request(region, method, dict(body), timeout_s=timeout_s, broker=broker)
        return dict(answer.body)

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Carry a request to another broker of this region."""
        return dict((await self.ask_answer(broker, method, body, timeout_s=timeout_s)).body)

    async def ask_answer(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> Answer:
        """Carry a request to another broker of this region; the answer may have an attachment."""
        return await self._links.request(self._region, method, dict(body), timeout_s=timeout_s, broker=broker)
