"""What is on this broker's disk, what is on its way there, and the responses that wait for it.

Rule 1: a response that says "I voted" or "I hold this" leaves only after what it says is durable. If it is durable
already, the response leaves at once; otherwise it rides on a storage write, behind all writes before it.
Rule 2: entries count as durable only when term and log epoch of the write are still the current ones. The log may
have been truncated and refilled meanwhile (A, B, A: same index, other entry). Nothing is lost by ignoring such
a write: a new term has a hard state to store and a truncation has entries to store, and that later write
attests the whole log again, because storage works in order.
Source: etcd/raft, storage write order with asynchronous storage.
"""

from __future__ import annotations

from typing import Generic

from georelay.ids import Term
from region.raft.core.messages import AppendResponse, Message, Snapshot
from region.raft.core.raft_log import RaftLog
from region.raft.core.ready import StorageWrite
from region.raft.core.types import E, HardState


class Durability(Generic[E]):
    """Storage side of one node: builds the writes and takes their completions."""

    __slots__ = ("_changed", "_durable_sequence", "_hard_state_sequence", "_held", "_install", "_log", "_sequence")

    def __init__(self, log: RaftLog[E]) -> None:
        self._log = log
        self._held: list[Message[E]] = []
        self._install: Snapshot | None = None  # replaces the stored log with the next write
        self._changed = False  # the hard state differs from the one handed out last
        self._sequence = 0  # of the last write handed out
        self._durable_sequence = 0  # of the last write known to be durable
        self._hard_state_sequence = 0  # of the last write that held a hard state

    @property
    def pending(self) -> bool:
        """Return whether there is a write to hand out."""
        return bool(self._held) or self._changed or self._log.unwritten or self._install is not None

    @property
    def hard_state_durable(self) -> bool:
        """Return whether the current term and vote are on disk."""
        return not self._changed and self._durable_sequence >= self._hard_state_sequence

    def hard_state_changed(self) -> None:
        """Note that term or vote changed."""
        self._changed = True

    def install(self, snapshot: Snapshot) -> None:
        """Start the log anew after `snapshot`, in memory now and on disk with the next write."""
        self._log.reset(snapshot.index, snapshot.snapshot_term)
        self._install = snapshot

    def hold(self, message: Message[E]) -> None:
        """Release `message` after everything that is known now is durable."""
        held = self._held
        if held and type(message) is AppendResponse and not message.rejected:
            last = held[-1]
            if (
                type(last) is AppendResponse
                and not last.rejected
                and last.to == message.to
                and last.term == message.term
                and last.index <= message.index
            ):
                held[-1] = message  # acknowledgements are cumulative
                return
        held.append(message)

    def release(self, message: Message[E], index: int, out: list[Message[E]]) -> None:
        """Send `message`, which promises the hard state and the log up to `index`, as soon as that is durable."""
        if index <= self._log.stable_index and self.hard_state_durable:
            out.append(message)
        else:
            self.hold(message)

    def take_write(self, hard_state: HardState) -> StorageWrite[E] | None:
        """Return the next write, None when storage has nothing to learn and no response waits."""
        if not self.pending:
            return None
        self._sequence += 1
        truncate_from, entries = self._log.take_unwritten()
        changed = self._changed
        if changed:
            self._hard_state_sequence = self._sequence
            self._changed = False
        held, self._held = self._held, []
        install, self._install = self._install, None
        return StorageWrite(
            hard_state=hard_state if changed else None,
            install=install,
            truncate_from=truncate_from,
            entries=entries,
            responses=held,
            term=hard_state.term,
            log_epoch=self._log.log_epoch,
            last_index=self._log.last_index,
            sequence=self._sequence,
        )

    def written(self, write: StorageWrite[E], term: Term) -> bool:
        """Take the completion of a write; return whether it says anything about the log as it is now."""
        if write.sequence > self._durable_sequence:
            self._durable_sequence = write.sequence
        if write.term != term or write.log_epoch != self._log.log_epoch:
            return False
        self._log.made_stable(write.last_index)
        return True
