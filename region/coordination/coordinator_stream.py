"""The stream of one coordinator: its committed records are commands, applied to the parts of this replica.

Rule 1: every committed entry above the newest manifest is applied, one by one and in order, also after a restart: this
        machine keeps its whole log above the manifest in memory.
Rule 2: a part is `elected` once the first entry of the leader's own term is applied here, so that everything that was
        ever acknowledged is applied too; it is `deposed` before anything else of another leader is seen.
Rule 3: only this room writes here. What a client publishes would be a command.
Rule 4: a mirror of this stream in another region is an ordinary stream: it stores, and interprets nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import Busy, DiskFull, NotLeader, PolicyViolation, TooLarge, Unavailable
from georelay.ids import GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.wire.batch import BatchHeader, RecordDraft, build_batch, iterate_records, validate
from mesh.replication.stream_header import EntryType
from region.coordination.coordinators import COORDINATION_LEVEL, MakePart
from region.coordination.limits import (
    COMMAND_BYTES_MAX,
    PART_SNAPSHOT_BYTES_MAX,
    PENDING_BYTES_MAX,
    SNAPSHOTS_BYTES_MAX,
)
from region.coordination.log import TimerHandle
from region.coordination.part import CommandError, CoordinatorPart, Part
from region.coordination.proposals import Command, Proposals
from region.coordination.stream_container import StreamContainer
from region.kafka.ports import Published
from region.log.entry import Entry
from region.multiraft.machine import InvariantBroken
from region.topics.committed_tail import TailBudget
from region.topics.followed_log import StateAt
from region.topics.hosted_stream import HostedStream
from region.topics.stream import FIRST_LEVEL

log = structlog.get_logger()

MEASURE_AGAIN_NS: Final = 5_000_000_000  # a part that is too large is measured so often, manifests are rare

_PART_KEYS = {bytes([part]): part for part in Part}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainState:
    """The stream's part of a manifest. Implements region.topics.followed_log.StateAt."""

    index: RaftIndex
    state: bytes


class CoordinatorStream(HostedStream):
    """Implements CoordinatorLog above a stream of the internal topic whose home is this region.

    Args:
        parts: makes each part; it is given this stream and must not use it before `restore`, `apply` or `elected`.
    """

    def __init__(
        self,
        *,
        parts: Mapping[Part, MakePart],
        key: StreamKey,
        topic: str,
        group_id: GroupId,
        home: RegionNumber,
        region: RegionNumber,
        clock: Clock,
        budget: TailBudget,
        executor: Executor,
        feature_level: Callable[[], int] = lambda: FIRST_LEVEL,
        disk_writable: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(
            key=key,
            topic=topic,
            group_id=group_id,
            home=home,
            region=region,
            clock=clock,
            budget=budget,
            executor=executor,
            feature_level=feature_level,
            disk_writable=disk_writable,
        )
        self._newest_index = RaftIndex(0)
        self._proposals = Proposals(self._append_commands)
        self._closed = False
        self._too_large: set[Part] = set()  # that were over the limit when they were measured
        self._measured_ns = 0
        self.parts: dict[Part, CoordinatorPart] = {part: make(self) for part, make in sorted(parts.items())}

    # --- what the parts ask -----------------------------------------------------------------------

    def propose(self, part: Part, command: bytes, *, shrinks: bool = False) -> asyncio.Future[RaftIndex]:
        """Append one command with the others of this turn; see CoordinatorLog."""
        if not self.is_leader:
            raise NotLeader("this broker does not lead the coordinator", leader=self.leader_id)
        if len(command) > COMMAND_BYTES_MAX:
            raise TooLarge(f"a command of {len(command)} bytes is over {COMMAND_BYTES_MAX}")
        if self._feature_level() < COORDINATION_LEVEL:
            raise Unavailable("coordinators begin once every broker of this region runs this version")
        if not self._disk_writable():
            raise DiskFull(f"the disk of broker {self.leader_id} is nearly full: nothing is stored until there is room")
        if self._proposals.pending_bytes + len(command) > PENDING_BYTES_MAX:
            raise Busy(f"more than {PENDING_BYTES_MAX} bytes of commands wait for coordinator {self.partition}")
        if not shrinks and self._is_too_large(part):
            text = f"coordinator {self.partition} has no room for more {part.name.lower()}"
            raise Busy(f"{text}: delete some, or let them expire")
        return self._proposals.add(part, bytes(command))

    def now_us(self) -> int:
        """Return this broker's wall clock, never behind the log's newest append time, us since 1970."""
        return max(self._clock.wall_ns() // 1000, self.end.append_us)

    def monotonic_ns(self) -> int:
        """Return this broker's monotonic clock, ns."""
        return self._clock.monotonic_ns()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` after `delay_s`."""
        return asyncio.get_running_loop().call_later(delay_s, callback)

    def _append_commands(self, commands: Sequence[Command]) -> RaftIndex:
        """Append commands as one batch; return its index. Raises what `publish` of a stream raises."""
        now_ns = self._clock.wall_ns()
        raw = build_batch(
            [RecordDraft(command, key=bytes([part])) for part, command in commands],
            timestamps_ms=now_ns // 1_000_000,
        )
        super().publish(validate(raw, from_client=True), raw, received_ns=now_ns, entry_region=self.region)
        return self._newest_index

    # --- what nobody else may ---------------------------------------------------------------------

    def publish(
        self,
        header: BatchHeader,
        raw: bytes | bytearray | memoryview,
        *,
        received_ns: int,
        entry_region: int,
        transactional_id: str | None = None,
    ) -> asyncio.Future[Published]:
        """Refuse: the records of this stream are commands of its own parts."""
        raise PolicyViolation(f"'{self.topic}' is written by brokers only")

    def write_marker(
        self, *, producer_id: int, producer_epoch: int, is_commit: bool, number: int
    ) -> asyncio.Future[Published]:
        """Refuse: there are no transactions here."""
        raise PolicyViolation(f"'{self.topic}' has no transactions")

    async def delete_records(self, before: Offset) -> Offset:
        """Refuse: retention follows the manifests."""
        raise PolicyViolation(f"records of '{self.topic}' are deleted by brokers only")

    # --- following the log ------------------------------------------------------------------------

    @property
    def keeps_whole_log(self) -> bool:
        """Return True: every entry above the manifest is a command that must be applied."""
        return True

    def appended(self, entry: Entry) -> None:
        """Follow one appended entry."""
        super().appended(entry)
        self._newest_index = entry.index

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        """Forget entries; nothing of them was applied."""
        super().truncated(from_index, newest)
        self._newest_index = RaftIndex(from_index - 1)
        self._proposals.truncated(from_index)

    def applied(self, entries: Sequence[Entry]) -> None:
        """Apply committed commands to the parts, then answer who waits for them."""
        super().applied(entries)
        for entry in entries:
            if entry.type is EntryType.DATA:
                self._apply_commands(entry)
        self._proposals.applied(entries[-1].index)

    def _apply_commands(self, entry: Entry) -> None:
        append_us = entry.header().append_us
        for record in iterate_records(entry.payload, validated=True):
            kind = _PART_KEYS.get(record.key or b"")
            part = None if kind is None else self.parts.get(kind)
            if part is None:
                raise InvariantBroken(f"{self.key}: entry {entry.index} is for part {record.key!r}, unknown here")
            try:
                part.apply(record.value or b"", index=entry.index, append_us=append_us)
            except CommandError as error:
                raise InvariantBroken(f"{self.key}: {part.part.name} at entry {entry.index}: {error}") from error

    def applied_until(self, newest: Entry) -> None:
        """Never asked: this machine keeps its whole log above the manifest."""
        raise InvariantBroken(f"{self.key}: commands up to {newest.index} were evicted before they were applied")

    def snapshot(self) -> bytes:
        """Return the state of stream and parts at the applied index.

        Before the first command it is plain: the region may have brokers of before COORDINATION_LEVEL, which host
        this stream as soon as another region has made the topic.
        """
        if not self.applied_end.next_offset:
            return super().snapshot()
        states = {kind: part.snapshot() for kind, part in self.parts.items()}
        self._measure(states)
        return StreamContainer(stream=super().snapshot(), parts=states).encode()

    def restore(self, manifest: StateAt) -> None:
        """Replace stream and parts by the state at `manifest.index`.

        Raises:
            InvariantBroken: not a state of a coordinator, or of a newer version.
        """
        try:
            container = StreamContainer.decode(manifest.state)
            unknown = sorted(part.name for part in container.parts if part not in self.parts)
            if unknown:
                raise ValueError(f"it holds {unknown[0]}, unknown here")
            super().restore(_PlainState(index=manifest.index, state=container.stream))
            if container.is_plain and self.end.next_offset:
                raise ValueError(f"{self.end.next_offset} commands were not applied by an older version")
            for kind, part in self.parts.items():
                part.restore(container.parts.get(kind, b""))
        except ValueError as error:
            raise InvariantBroken(f"{self.key}: the state at index {manifest.index}: {error}") from error
        self._newest_index = manifest.index
        self._proposals.truncated(RaftIndex(0))
        self._measure(container.parts)

    def _is_too_large(self, part: Part) -> bool:
        """Return whether a part may only shrink; where only that is stored, the next manifest may never come."""
        if part in self._too_large and self.monotonic_ns() - self._measured_ns >= MEASURE_AGAIN_NS:
            self._measure({kind: row.snapshot() for kind, row in self.parts.items()})
        return part in self._too_large

    def _measure(self, states: Mapping[Part, bytes]) -> None:
        """Follow which parts are so large that they may only shrink."""
        self._measured_ns = self.monotonic_ns()
        too_large = {part for part, state in states.items() if len(state) > PART_SNAPSHOT_BYTES_MAX}
        if sum(map(len, states.values())) > SNAPSHOTS_BYTES_MAX:
            too_large = set(states)
        for part in too_large - self._too_large:
            log.error("coordinator.state_too_large", stream=str(self.key), part=part.name, bytes=len(states[part]))
        self._too_large = too_large

    # --- leading ----------------------------------------------------------------------------------

    def led(self, *, leader: int, is_leader: bool) -> None:
        """Follow the leader: the parts serve exactly where this broker leads."""
        if self._closed:
            return
        was_leader = self.is_leader
        super().led(leader=leader, is_leader=is_leader)
        if was_leader and not is_leader:
            self._depose()
        elif is_leader and not was_leader:
            log.info("coordinator.elected", partition=self.partition, broker=leader)
            for part in self.parts.values():
                part.elected()

    def _depose(self) -> None:
        log.info("coordinator.deposed", partition=self.partition, leader=self.leader_id)
        self._proposals.deposed(leader=self.leader_id)
        for part in self.parts.values():
            part.deposed()

    def close(self) -> None:
        """Stop serving for good."""
        if self._closed:
            return
        self._closed = True
        was_leader = self.is_leader
        super().close()
        if was_leader:
            self._depose()
        self._proposals.deposed(leader=-1)
        for part in self.parts.values():
            part.close()
