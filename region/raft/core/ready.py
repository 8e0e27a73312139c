"""What a RaftNode wants done; the fields of Ready are in the order of the host's duties.

1 `messages` leave at once, in order for each receiver: they promise nothing that is not durable.
2 `write` goes to the group's storage, always behind the writes before it, also when it holds nothing but
  responses. Once durable: `node.written(write.tag)`, then send `write.responses`, then look at ready() again.
3 `committed` is applied in order (it is durable here), then `node.applied_to(hi - 1)`.
4 `soft` is for whoever shows or follows the leadership.
5 `fetches` are read from storage off the loop, then `node.entries_fetched(fetch, entries)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

from georelay.ids import BrokerId, Term
from region.raft.core.messages import Message
from region.raft.core.types import E, HardState, SoftState, StableTag


class Fetch(NamedTuple):
    """Entries [lo, hi) wanted for follower `to`: at least one, then up to `bytes_max`. Made in `term`."""

    to: BrokerId
    term: Term
    lo: int
    hi: int
    bytes_max: int


@dataclass(slots=True, kw_only=True)
class StorageWrite(Generic[E]):
    """One step of the group's storage, in the order of the fields.

    Args:
        hard_state: to store, or None when unchanged.
        truncate_from: remove this index and all after it, or None.
        entries: to append after that.
        tag: for `written`.
        responses: to send after the write, and all before it, are durable; whatever else has happened since.
        must_sync: False when there is nothing to store and only the order counts.
    """

    hard_state: HardState | None
    truncate_from: int | None
    entries: Sequence[E]
    tag: StableTag
    responses: Sequence[Message[E]]
    must_sync: bool


@dataclass(slots=True, kw_only=True)
class Ready(Generic[E]):
    """Everything due at one moment. Ranges are [lo, hi)."""

    messages: Sequence[Message[E]]
    write: StorageWrite[E] | None
    committed: tuple[int, int] | None
    soft: SoftState | None
    fetches: Sequence[Fetch]
