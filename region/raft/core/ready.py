"""What a RaftNode wants done; the fields of Ready are in the order of the host's duties.

1 `messages` leave at once, in order for each receiver: they promise nothing that is not durable.
2 `write` goes to the group's storage, always behind the writes before it, also when it holds nothing but
  responses. Once durable: `node.written(write)`, then send `write.responses`, then look at ready() again.
3 `committed` is applied in order (it is durable here), then `node.applied_to(hi - 1)`. It is bounded: when `more` is
  true, the next ready() has what follows. Nothing else is due again before the next input.
4 role, term and leader of the node are looked at: they may have changed.
5 `fetches` are read from storage off the loop, then `node.entries_fetched(fetch, entries)`.
6 `snapshot_requests` are answered with `node.snapshot_fetched(request, point)`, each once.
7 `read_states` are served when their index is applied here; `reads_lost` are refused: they may be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

from georelay.ids import BrokerId, Term
from region.raft.core.messages import Message, Snapshot
from region.raft.core.types import E, HardState, Membership


class Fetch(NamedTuple):
    """Entries [lo, hi) wanted for follower `to`: at least one, then up to `bytes_max`. Made in `term`."""

    to: BrokerId
    term: Term
    lo: int
    hi: int
    bytes_max: int


class SnapshotRequest(NamedTuple):
    """The state at the start of the log is wanted for follower `to`. Made in `term`."""

    to: BrokerId
    term: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPoint:
    """What a host has kept of the group after entry `index`; see messages.Snapshot."""

    index: int
    term: Term
    membership: Membership
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read asked as `context` sees everything that was acknowledged before it, once `index` is applied."""

    context: int
    index: int


@dataclass(slots=True, kw_only=True)
class StorageWrite(Generic[E]):
    """One step of the group's storage, in the order of the fields.

    Args:
        hard_state: to store, or None when unchanged.
        install: drop the whole log; it goes on after `install.index`. None: keep it.
        truncate_from: remove this index and all after it, or None.
        entries: to append after that.
        responses: to send after the write, and all before it, are durable; whatever else has happened since.
        last_index: it became durable only if `term` and `log_epoch` are still the current ones: the log may have been
            truncated and refilled while the write was on its way.
        sequence: orders the writes of one process life.
    """

    hard_state: HardState | None
    install: Snapshot | None = None
    truncate_from: int | None
    entries: Sequence[E]
    responses: Sequence[Message[E]]
    term: Term
    log_epoch: int
    last_index: int
    sequence: int


@dataclass(slots=True, kw_only=True)
class Ready(Generic[E]):
    """Everything due at one moment. Ranges are [lo, hi)."""

    messages: Sequence[Message[E]]
    write: StorageWrite[E] | None
    committed: tuple[int, int] | None
    fetches: Sequence[Fetch]
    snapshot_requests: Sequence[SnapshotRequest] = ()
    read_states: Sequence[ReadState] = ()
    reads_lost: Sequence[int] = ()
    more: bool = False
