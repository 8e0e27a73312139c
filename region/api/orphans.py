"""Orphan branches as operators see them: values, and what their HTTP room asks of the broker.

An orphan branch is what a region had committed beyond the start of a later home epoch: the mesh goes on with other
records at those offsets. It is listed, exported, published again as new records, or dropped, by whoever may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from georelay.fields import INT64_MAX, Fields, JsonObject
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from region.kafka.ports import EntryLike

EPOCH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchView:
    """One orphan branch in this region.

    Args:
        topic: its local name here. epoch: the home epoch that began and cut the branch off; it names the branch.
        first, following: offsets of the branch, the second one behind it.
        cut_us: append time of the cut, microseconds since 1970.
        epochs: home epochs of the records, with the first offset of each in the branch.
    """

    topic: str
    partition: int
    epoch: int
    first: int
    following: int
    cut_us: int
    epochs: tuple[tuple[int, int], ...]

    def to_json(self) -> JsonObject:
        """Return the JSON form; `records` counts offsets, markers of transactions included."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "epoch": self.epoch,
            "first": self.first,
            "last": self.following - 1,
            "records": self.following - self.first,
            "cut_ms": self.cut_us // 1000,
            "cut_us": self.cut_us,
            "epochs": [list(row) for row in self.epochs],
        }

    @classmethod
    def from_json(cls, value: object) -> BranchView:
        """Read the JSON form of another broker. Raises FieldError."""
        fields = Fields(value, "orphan branch")
        first = fields.integer("first", low=0, high=INT64_MAX)
        return cls(
            topic=fields.text("topic", chars_max=TOPIC_NAME_CHARS_MAX + 32),
            partition=fields.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
            epoch=fields.integer("epoch", low=1, high=EPOCH_MAX),
            first=first,
            following=fields.integer("last", low=first, high=INT64_MAX - 1) + 1,
            cut_us=fields.integer("cut_us", low=0, high=INT64_MAX),
            epochs=tuple(
                (int(row[0]), int(row[1]))
                for row in fields.items("epochs", count_max=1_000)
                if isinstance(row, list) and len(row) == 2
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPiece:
    """Consecutive batches of a branch; `next_offset` is where the next piece begins."""

    entries: Sequence[EntryLike]
    next_offset: int


class OrphanBranches(Protocol):
    """The orphan branches of this region, on whatever broker they are."""

    async def branches(self) -> Sequence[BranchView]:
        """Return those of every partition whose leader is reached, by topic, partition and epoch."""

    async def read(self, topic: str, partition: int, epoch: int, offset: int, max_bytes: int) -> BranchPiece:
        """Return batches of one branch from `offset` on (its first when -1); no entries at its end.

        Raises:
            UnknownTopic; BadRequest: no such branch, or an offset outside; NotLeader, Unavailable: ask again.
        """

    async def drop(self, topic: str, partition: int, epoch: int) -> int:
        """Let the branch that `epoch` cut off, and older ones, be deleted; return how many went.

        Raises:
            UnknownTopic, NotLeader, Unavailable, Busy: nothing was dropped; OutcomeUnknown.
        """
