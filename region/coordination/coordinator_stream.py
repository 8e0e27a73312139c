"""The stream of one coordinator: its committed records are commands, applied to the parts of this replica.

Rule 1: every committed entry above the newest manifest is applied, one by one and in order, also after a restart: this
        machine keeps its whole log above the manifest in memory.
Rule 2: a part is `elected` once the first entry of the leader's own term is applied here, so that everything that was
        ever acknowledged is applied too; it is `deposed` before anything else of another leader is seen.
Rule 3: only this room writes here. What a client publishes would be a command.
Rule 4: the mirrors of this stream in other regions apply the same commands and serve nobody: any of them may become
        the home. An EPOCH entry fences the parts (CoordinatorPart.fence), on every replica at the same place.
Rule 5: parts are elected in the home only. In an epoch after the first its leader first writes a checkpoint of what it
        knows, and serves when that is applied. A replica whose state is not exact (its commands were cut off, or it
        never had the first ones) takes the checkpoint's; for the others it is what they have.
Rule 6: an epoch that is sealed ends with the next one's checkpoint: the region that takes over may have joined when the
        first commands were deleted already, and would serve without knowing them. A checkpoint in front of its EPOCH
        entry says that nothing of the epoch before is missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import Busy, DiskFull, GeorelayError, NotLeader, PolicyViolation, TooLarge, Unavailable
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.wire.batch import RecordDraft, build_batch, iterate_records, validate
from mesh.home.home_row import HomeRow
from mesh.replication.stream_header import EntryType
from region.coordination.checkpoint_core import (
    CHECKPOINT_KEY,
    Checkpoint,
    CheckpointReader,
    encode_checkpoint,
)
from region.coordination.coordinators import COORDINATION_LEVEL, MakePart
from region.coordination.limits import (
    COMMAND_BYTES_MAX,
    PART_SNAPSHOT_BYTES_MAX,
    PENDING_BYTES_MAX,
    SEALED_BYTES_MAX,
    SNAPSHOTS_BYTES_MAX,
)
from region.coordination.log import TimerHandle
from region.coordination.part import CommandError, CoordinatorPart, Part
from region.coordination.proposals import Command, Proposals
from region.coordination.stream_container import StreamContainer
from region.kafka.ports import Publish, Published
from region.log.entry import Entry
from region.multiraft.machine import InvariantBroken
from region.topics.committed_tail import TailBudget
from region.topics.followed_log import StateAt
from region.topics.hosted_stream import HostedStream
from region.topics.moving_stream import StreamEnd
from region.topics.stream import FIRST_EPOCH, FIRST_LEVEL, MESH_LEVEL

log = structlog.get_logger()

MEASURE_AGAIN_NS: Final = 5_000_000_000  # a part that is too large is measured so often, manifests are rare
CHECKPOINT_AGAIN_S: Final = 0.25  # after a checkpoint that could not be appended
CLOSING_NS_MAX: Final = 2_000_000_000  # for what was proposed before an epoch is sealed; control asks again
CLOSING_LOOK_S: Final = 0.005

_PART_KEYS = {bytes([part]): part for part in Part}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainState:
    """The stream's part of a manifest. Implements region.topics.followed_log.StateAt."""

    index: RaftIndex
    state: bytes


class CoordinatorStream(HostedStream):
    """Implements CoordinatorLog above a stream of the internal topic: its home's replicas and its mirrors.

    Args:
        home: the region that began the stream; `follow_home` says what became of it.
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
        self.older_regions: Callable[[int], Sequence[str]] = lambda _: ()  # those known to be below a feature level
        self._newest_index = RaftIndex(0)
        self._proposals = Proposals(self._append_commands)
        self._closed = False
        self._is_foreign = home != region  # another region began this stream, wherever it is at home by now
        self.is_elected = False  # the parts serve here
        self.is_exact = True  # the parts are what the commands of the agreed history make
        self.checkpoint_epoch = Epoch(0)  # of the newest checkpoint that is applied here
        self._checkpoint = CheckpointReader()
        self._written_epoch = Epoch(0)  # of the checkpoint that this leader has appended
        self._unwritten: deque[bytes] = deque()  # pieces of that checkpoint
        self._retry: TimerHandle | None = None
        self._commands_end = Offset(0)  # of the commands that the parts have seen
        self._closing = 0  # requests that seal an epoch now: nothing more is proposed in it
        self._too_large: set[Part] = set()  # that were over the limit when they were measured
        self._measured_ns = 0
        self.parts: dict[Part, CoordinatorPart] = {part: make(self) for part, make in sorted(parts.items())}

    # --- what the parts ask -----------------------------------------------------------------------

    def propose(self, part: Part, command: bytes, *, shrinks: bool = False) -> asyncio.Future[RaftIndex]:
        """Append one command with the others of this turn; see CoordinatorLog."""
        if not self.is_elected or self._closing:
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

    @property
    def origin(self) -> RegionNumber:
        """Return the region that began it."""
        return self.key.origin

    @property
    def feature_level(self) -> int:
        """Return what the brokers of this region all understand."""
        return self._feature_level()

    def is_understood(self, level: int) -> bool:
        """Return whether every region of the mesh is known to be at a feature level."""
        return self._feature_level() >= level and not self.older_regions(level)

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
        return self._append_records([RecordDraft(command, key=bytes([part])) for part, command in commands])

    def _append_records(self, drafts: Sequence[RecordDraft]) -> RaftIndex:
        now_ns = self._clock.wall_ns()
        raw = build_batch(drafts, timestamps_ms=now_ns // 1_000_000)
        super().publish(Publish(validate(raw, from_client=True), raw, now_ns, self.region))
        return self._newest_index

    # --- what nobody else may ---------------------------------------------------------------------

    def publish(self, publish: Publish) -> asyncio.Future[Published]:
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
            elif entry.type in (EntryType.EPOCH, EntryType.SKIP):
                self._follow_break(entry)
        self._proposals.applied(entries[-1].index, has_lease=self.lease())
        self._review()

    def _follow_break(self, entry: Entry) -> None:
        """Follow an entry that cuts commands off, leaves them out, or begins an epoch."""
        if entry.base_offset != self._commands_end and self.is_exact:
            self.is_exact = False
            log.warning(
                "coordinator.state_inexact", stream=str(self.key), applied=self._commands_end, log=entry.base_offset
            )
        self._commands_end = entry.base_offset
        self._checkpoint = CheckpointReader()
        self._unwritten.clear()  # of an epoch before this one
        header = entry.header()
        if entry.type is EntryType.EPOCH and header.epoch > FIRST_EPOCH:
            for part in self.parts.values():
                part.fence(
                    append_us=header.append_us, epoch=header.epoch, is_whole=self.checkpoint_epoch >= header.epoch
                )

    def _apply_commands(self, entry: Entry) -> None:
        append_us = entry.header().append_us
        self._commands_end = entry.next_offset
        for record in iterate_records(entry.payload, validated=True):
            if record.key == CHECKPOINT_KEY:
                self._apply_piece(entry, record.value or b"")
                continue
            kind = _PART_KEYS.get(record.key or b"")
            part = None if kind is None else self.parts.get(kind)
            if part is None:
                raise InvariantBroken(f"{self.key}: entry {entry.index} is for part {record.key!r}, unknown here")
            try:
                part.apply(record.value or b"", index=entry.index, append_us=append_us)
            except CommandError as error:
                raise InvariantBroken(f"{self.key}: {part.part.name} at entry {entry.index}: {error}") from error

    def _apply_piece(self, entry: Entry, value: bytes) -> None:
        try:
            checkpoint = self._checkpoint.take(value)
            if checkpoint is None:
                return
            if not self.is_exact:
                for kind, part in self.parts.items():
                    part.restore(checkpoint.parts.get(kind, b""))
                log.info("coordinator.checkpoint_taken", stream=str(self.key), epoch=checkpoint.epoch)
        except ValueError as error:
            raise InvariantBroken(f"{self.key}: checkpoint at entry {entry.index}: {error}") from error
        self.is_exact = True
        self.checkpoint_epoch = max(self.checkpoint_epoch, checkpoint.epoch)

    def applied_until(self, newest: Entry) -> None:
        """Never asked: this machine keeps its whole log above the manifest."""
        raise InvariantBroken(f"{self.key}: commands up to {newest.index} were evicted before they were applied")

    def snapshot(self) -> bytes:
        """Return the state of stream and parts at the applied index.

        Before the first command it is plain: the region may have brokers of before COORDINATION_LEVEL, which host
        this stream as soon as another region has made the topic.
        """
        if not self.applied_end.next_offset or (self._is_foreign and self._feature_level() < MESH_LEVEL):
            return super().snapshot()
        states = {kind: part.snapshot() for kind, part in self.parts.items()}
        self._measure(states)
        return StreamContainer(
            stream=super().snapshot(),
            parts=states,
            is_exact=self.is_exact,
            checkpoint_epoch=self.checkpoint_epoch,
            pieces=self._checkpoint.pieces,
        ).encode()

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
            is_unread = container.is_plain and self.end.next_offset > 0
            if is_unread and not self._is_foreign:
                raise ValueError(f"{self.end.next_offset} commands were not applied by an older version")
            self._checkpoint = CheckpointReader(container.pieces)
            for kind, part in self.parts.items():
                part.restore(container.parts.get(kind, b""))
        except ValueError as error:
            raise InvariantBroken(f"{self.key}: the state at index {manifest.index}: {error}") from error
        self.is_exact = container.is_exact and not is_unread
        self.checkpoint_epoch = container.checkpoint_epoch
        self._commands_end = self.end.next_offset
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

    def serves(self, part: Part) -> bool:
        """Return whether a part answers here and now."""
        return self.is_elected and part in self.parts

    def follow_home(self, row: HomeRow) -> None:
        """Follow control's newest word about the home."""
        super().follow_home(row)
        self._review()

    async def seal(self, *, epoch: Epoch, new_epoch: Epoch, move_id: str) -> StreamEnd:
        """Close an epoch behind a checkpoint (rule 6).

        Raises:
            Busy: commands are still being applied, nothing was sealed; and what the seal of any stream raises.
        """
        is_refused = epoch != self.epoch or new_epoch <= epoch or self._feature_level() < MESH_LEVEL
        if not self.is_elected or self.sealed or is_refused:
            return await super().seal(epoch=epoch, new_epoch=new_epoch, move_id=move_id)
        self._check_fence_epoch(new_epoch)
        self._closing += 1
        try:
            deadline_ns = self.monotonic_ns() + CLOSING_NS_MAX
            while self._proposals.pending_bytes or self.applied_end.next_offset != self.end.next_offset:
                if self.monotonic_ns() > deadline_ns:
                    raise Busy(f"{self.key} is not sealed: commands are still being applied")
                await asyncio.sleep(CLOSING_LOOK_S)
            if self.is_leader and not self.sealed:  # by another request, meanwhile
                self._append_last_checkpoint(new_epoch)  # and SEAL, in the same turn of the loop
            return await super().seal(epoch=epoch, new_epoch=new_epoch, move_id=move_id)
        finally:
            self._closing -= 1
            self._unwritten.clear()

    def led(self, *, leader: int, is_leader: bool) -> None:
        """Follow the leader: the parts serve exactly where this broker leads in the home."""
        if self._closed:
            return
        was_leader = self.is_leader
        super().led(leader=leader, is_leader=is_leader)
        if was_leader != is_leader:
            self._written_epoch = Epoch(0)
            self._unwritten.clear()
        self._review()

    def _review(self) -> None:
        """Elect or depose the parts, as leader, home and epoch say now."""
        if self._closed:
            return
        may_serve = self.is_leader and self.is_home and self.epoch >= self.decided
        if self.is_elected and not may_serve:
            self._depose()
        elif may_serve and not self.is_elected:
            if self.checkpoint_epoch < self.decided:
                self._write_checkpoint()
            else:
                self._elect()

    def _elect(self) -> None:
        self.is_elected = True
        log.info("coordinator.elected", stream=str(self.key), broker=self.leader_id, epoch=self.epoch)
        for part in self.parts.values():
            part.elected()

    def _write_checkpoint(self) -> None:
        """Append the state of all parts, once in this epoch, in as many steps as there is room for.

        Nothing else is in flight before the parts are elected.
        """
        epoch = self.decided
        if self._written_epoch == epoch or self._retry is not None:
            return
        if self.applied_end.next_offset != self.end.next_offset:
            return  # records of an earlier leader of this epoch: they are applied first
        self._unwritten = self._unwritten or self._pieces(epoch)
        try:
            self._append_pieces(epoch)
        except GeorelayError as error:
            log.warning("coordinator.checkpoint_delayed", stream=str(self.key), epoch=epoch, reason=str(error))
            self._retry = self.call_later(CHECKPOINT_AGAIN_S, self._write_again)
            return
        self._written_epoch = epoch

    def _pieces(self, epoch: Epoch) -> deque[bytes]:
        states = {kind: part.snapshot() for kind, part in self.parts.items()}
        return deque(encode_checkpoint(Checkpoint(epoch=epoch, parts=states)))

    def _append_pieces(self, epoch: Epoch) -> None:
        while self._unwritten:
            self._append_records([RecordDraft(self._unwritten[0], key=CHECKPOINT_KEY)])
            self._unwritten.popleft()
        say = log.info if self.is_exact else log.critical  # what it lacks is lost to the groups and queues here
        say("coordinator.checkpoint_written", stream=str(self.key), epoch=epoch, is_exact=self.is_exact)

    def _append_last_checkpoint(self, new_epoch: Epoch) -> None:
        """Append the checkpoint before SEAL, if it can be: a move must not hang on it."""
        try:
            self._unwritten = self._pieces(new_epoch)
            if sum(map(len, self._unwritten)) > SEALED_BYTES_MAX:
                raise Busy("the state is too large to be brought to another region while nobody serves it")
            self._append_pieces(new_epoch)
        except GeorelayError as error:  # the disk may be full, too
            log.warning("coordinator.sealed_without_checkpoint", stream=str(self.key), reason=str(error))

    def _write_again(self) -> None:
        self._retry = None
        self._review()

    def _depose(self) -> None:
        self.is_elected = False
        log.info("coordinator.deposed", stream=str(self.key), leader=self.leader_id, home=self.home)
        self._proposals.deposed(leader=self.leader_id if self.is_home else -1)
        for part in self.parts.values():
            part.deposed()

    def close(self) -> None:
        """Stop serving for good."""
        if self._closed:
            return
        self._closed = True
        super().close()
        if self._retry is not None:
            self._retry.cancel()
        if self.is_elected:
            self._depose()
        self._proposals.deposed(leader=-1)
        for part in self.parts.values():
            part.close()
