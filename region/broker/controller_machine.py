"""The controller's commands as entries of Raft group 0, and its state machine above that group.

Rule 1: a command is one record batch of one record whose value is the command's JSON: every DATA payload in every
log of georelay is a Kafka v2 RecordBatch.
Rule 2: the log goes on where its newest entry, or the manifest below its first one, says that it ends.
Rule 3: whoever waits for a command learns that it was applied here, or that its outcome is unknown; a command that came
with a manifest counts as unknown, because only its effect is known, not its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from georelay.clock import Clock
from georelay.errors import NotLeader, OutcomeUnknown
from georelay.ids import CONTROLLER_GROUP, NO_PRODUCER, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.wire.batch import RecordDraft, build_batch, iterate_records
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import EntryType, StreamHeader, next_digest
from region.controller.commands import CommandError
from region.controller.state_snapshot import SnapshotError
from region.log.entry import Entry, EntryDraft, control_header
from region.log.manifest import Manifest
from region.multiraft.machine import InvariantBroken, Proposer
from region.topics.log_end_core import LogEnd

CONTROLLER_STREAM = StreamKey(bytes(16), RegionNumber(0), 0)


def _without_snapshots() -> bytes:
    raise InvariantBroken("this controller was made without snapshots")


class ControllerMachine:
    """Replays every committed command into `apply`, in order, above the manifest that the log starts from."""

    keeps_whole_log = True
    serves_at_followers = True  # every broker has the mesh as its controller says it is

    def __init__(
        self,
        *,
        clock: Clock,
        apply: Callable[[bytes, RaftIndex], None],
        applied_batch: Callable[[], None],
        led: Callable[[], None],
        recovered: Callable[[RaftIndex, bytes], None] = lambda _index, _command: None,
        undone: Callable[[RaftIndex], None] = lambda _: None,
        snapshot: Callable[[], bytes] = _without_snapshots,
        restore: Callable[[bytes], object] = lambda _: _without_snapshots(),
    ) -> None:
        """Join the group's log to a state.

        Args:
            apply: sees the committed commands, in order; raises CommandError for one it does not know.
            applied_batch: called after each batch of them, and soon after a restore.
            led: called when the leader changed.
            recovered: sees every command found on disk at start, committed or not.
            undone: told from which index on the log was cut, or begun anew.
            snapshot: returns the state after the newest command given to `apply`.
            restore: replaces that state; raises SnapshotError.
        """
        self.group_id = CONTROLLER_GROUP
        self.leader_id = -1
        self.is_leader = False
        self.applied_index = RaftIndex(0)
        self.proposer: Proposer | None = None
        self._clock = clock
        self._apply = apply
        self._applied_batch = applied_batch
        self._led = led
        self._recovered = recovered
        self._undone = undone
        self._snapshot = snapshot
        self._restore = restore
        self._base_end = LogEnd.empty(CONTROLLER_STREAM)  # where a log without entries ends
        self._end = self._base_end
        self._waiting: deque[tuple[RaftIndex, asyncio.Future[RaftIndex]]] = deque()

    async def propose(self, command: bytes) -> RaftIndex:
        """Append one command and wait until it was applied here.

        Raises:
            NotLeader, Busy: not appended. OutcomeUnknown: the leader changed before the commit.
        """
        if not self.is_leader or self.proposer is None:
            raise NotLeader("this broker does not lead the controller group", leader=self.leader_id)
        now_ns = self._clock.wall_ns()
        end = self._end
        payload = build_batch(
            [RecordDraft(command)], timestamps_ms=now_ns // 1_000_000, base_offset=end.next_offset, epoch=0
        )
        header = StreamHeader(
            type=EntryType.DATA,
            entry_region=0,
            record_count=1,
            epoch=end.epoch,
            base_offset=end.next_offset,
            append_us=max(now_ns // 1000, end.append_us),
            received_ns=now_ns,
            max_timestamp_ms=now_ns // 1_000_000,
            producer_id=NO_PRODUCER,
            producer_epoch=-1,
            base_sequence=-1,
            payload_crc=crc32c(payload),
            digest=next_digest(
                end.digest, epoch=end.epoch, first=end.next_offset, last=Offset(end.next_offset), batch=payload
            ),
        )
        entry = self.proposer.propose([EntryDraft(header=header, payload=payload)])[0]
        future: asyncio.Future[RaftIndex] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry.index, future))
        return await future

    def noop_header(self) -> StreamHeader:
        """Return the stream part of a leader's first entry."""
        end = self._end
        return control_header(
            EntryType.NOOP, next_offset=end.next_offset, epoch=end.epoch, append_us=end.append_us, digest=end.digest
        )

    def snapshot(self) -> bytes:
        """Return the state after the newest applied entry."""
        return self._snapshot()

    def restore(self, manifest: Manifest) -> None:
        """Replace state and log end by a manifest's.

        Raises:
            InvariantBroken: the manifest is whole but its state is not one that this version knows.
        """
        self._fail_waiting(RaftIndex(0))
        try:
            self._restore(manifest.state)
        except SnapshotError as error:
            raise InvariantBroken(f"controller manifest {manifest.index}: {error}") from error
        self._base_end = LogEnd.after(StreamHeader.decode(manifest.stream_part))
        self._end = self._base_end
        self.applied_index = manifest.index
        self._undone(RaftIndex(manifest.index + 1))
        # Not now: the host is in the middle of opening or resetting this group.
        asyncio.get_running_loop().call_soon(self._applied_batch)

    def recovered(self, entry: Entry) -> None:
        """Follow one entry found on disk."""
        self.appended(entry)
        if entry.type is EntryType.DATA:
            for record in iterate_records(entry.payload, validated=True):
                self._recovered(entry.index, record.value or b"")

    def appended(self, entry: Entry) -> None:
        """Follow the log end."""
        self._end = LogEnd.after(entry.header())

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        """Forget the entries from `from_index` on."""
        self._end = self._base_end if newest is None else LogEnd.after(newest.header())
        self._undone(from_index)
        self._fail_waiting(from_index)

    def applied(self, entries: Sequence[Entry]) -> None:
        """Apply committed commands."""
        for entry in entries:
            if entry.type is EntryType.DATA:
                for record in iterate_records(entry.payload, validated=True):
                    self._apply_command(record.value or b"", entry.index)
            self.applied_index = entry.index
        self._applied_batch()
        while self._waiting and self._waiting[0][0] <= self.applied_index:
            index, future = self._waiting.popleft()
            if not future.done():
                future.set_result(index)

    def _apply_command(self, command: bytes, index: RaftIndex) -> None:
        try:
            self._apply(command, index)
        except CommandError as error:
            raise InvariantBroken(f"controller entry {index}: {error}") from error

    def applied_until(self, newest: Entry) -> None:
        """Never asked: this machine keeps its whole log."""
        raise AssertionError(f"controller entries up to {newest.index} were evicted")

    def led(self, *, leader: int, is_leader: bool) -> None:
        """Follow the leader of the region's controller group."""
        if self.is_leader and not is_leader:
            self._fail_waiting(RaftIndex(0))
        self.leader_id = leader
        self.is_leader = is_leader
        self._led()

    def _fail_waiting(self, from_index: RaftIndex) -> None:
        while self._waiting and self._waiting[-1][0] >= from_index:
            _, future = self._waiting.pop()
            if not future.done():
                future.set_exception(OutcomeUnknown("the controller's leader changed before the command was committed"))
