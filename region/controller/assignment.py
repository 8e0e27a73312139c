"""Where the replicas of one group are, and where they shall be.

Rule 1: `voters` and `learners` are what the group's leader reported last; only reports change them.
Rule 2: a broker whose disk was replaced, that was removed, or whose replica cannot be used, is `unsafe` until a report
        made under the newest `generation` shows it in neither: a replica with an old vote and a new, empty log can
        lose what was committed. While it is unsafe it is never in a target, and it hosts nothing.
Rule 3: a founder that once left, or lost its disk, is no founder any more: it opens the group knowing no voters and
        waits to be told. Two blank founders would elect each other.
Rule 4: a member that is not reported but may have been added already counts as a learner, until a report says no.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, BrokerId, GroupId, RegionNumber, StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.controller.topic import TOPIC_ID_BYTES
from region.controller.topology import BROKER_ID_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One group of this region.

    Args:
        founders: its first voters; never change.
        voters, learners: the membership that its leader reported last.
        target: the voters that are wanted; the first one is the preferred leader. Empty: all replicas are lost.
        target_learners: non-voters that are wanted; only the controller's own group has some.
        unsafe: see rule 2.
        generation: controller index of the last change of target or unsafe; a report names the one it was made under.
        pinned: how many replicas an operator asked for by naming the brokers; 0: the region places them.
        seed: founders that were members without a break.
        left_at: by broker, ascending: the index of the newest membership of the group that did not name it.
        reported_index: the highest index of a membership that was reported under this generation.
    """

    group_id: GroupId
    key: StreamKey
    founders: tuple[BrokerId, ...]
    voters: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    seed: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...] = ()
    target_learners: tuple[BrokerId, ...] = ()
    unsafe: frozenset[BrokerId] = frozenset()
    generation: int = 0
    pinned: int = 0
    left_at: tuple[tuple[BrokerId, int], ...] = ()
    reported_index: int = 0

    @classmethod
    def founded(
        cls, group_id: GroupId, key: StreamKey, founders: tuple[BrokerId, ...], *, generation: int
    ) -> Assignment:
        """Return a new group that is where it shall be."""
        return cls(
            group_id=group_id,
            key=key,
            founders=founders,
            voters=founders,
            target=founders,
            seed=founders,
            generation=generation,
        )

    @property
    def members(self) -> frozenset[BrokerId]:
        """Return the brokers that are voters or learners as far as is known."""
        return frozenset(self.voters) | frozenset(self.learners)

    @property
    def wanted(self) -> frozenset[BrokerId]:
        """Return the brokers that shall be voters or learners."""
        return frozenset(self.target) | frozenset(self.target_learners)

    @property
    def concerned(self) -> frozenset[BrokerId]:
        """Return every broker that may hold a replica that counts; nobody else's replica is of any use."""
        return self.members | self.wanted | self.unsafe

    @property
    def is_settled(self) -> bool:
        """Return whether the replicas are where they shall be."""
        return (
            not self.unsafe
            and frozenset(self.voters) == frozenset(self.target)
            and frozenset(self.learners) == frozenset(self.target_learners)
        )

    @property
    def is_growing(self) -> bool:
        """Return whether a broker that does not vote yet shall: its log is being copied."""
        return not frozenset(self.target) <= frozenset(self.voters)

    @property
    def recorded(self) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
        """Return (voters, learners) as known here; a leader that sees others reports them."""
        return self.voters, self.learners

    @property
    def generations(self) -> dict[BrokerId, int]:
        """Return, for every broker concerned, the generation that a report has to name."""
        return dict.fromkeys(sorted(self.concerned), self.generation)

    def hosts(self, broker: BrokerId) -> bool:
        """Return whether that broker keeps a replica open."""
        return broker not in self.unsafe and (
            broker in self.voters or broker in self.target or broker in self.learners or broker in self.target_learners
        )

    def base_for(self, broker: BrokerId) -> tuple[BrokerId, ...]:
        """Return the voters with which that broker opens its replica: none unless it was there from the start."""
        return self.founders if broker in self.seed else ()

    def without(self, broker: BrokerId, *, generation: int) -> Assignment:
        """Return the group after `broker` lost its replica or was removed; itself when it is not concerned."""
        if broker not in self.concerned:
            return self
        learners = self.learners if broker in self.members | self.unsafe else (*self.learners, broker)
        return replace(
            self,
            learners=learners,
            target=tuple(b for b in self.target if b != broker),
            target_learners=tuple(b for b in self.target_learners if b != broker),
            unsafe=self.unsafe | {broker},
            seed=tuple(b for b in self.seed if b != broker),
            generation=generation,
            reported_index=0,
        )

    def can_do_without(self, broker: BrokerId) -> bool:
        """Return whether the other voters, those that are unsafe left out, are a majority that can remove `broker`."""
        rest = [voter for voter in self.voters if voter != broker and voter not in self.unsafe]
        return 2 * len(rest) > len(self.voters)

    def moved(
        self,
        target: tuple[BrokerId, ...],
        *,
        generation: int,
        target_learners: tuple[BrokerId, ...] = (),
        pinned: int = 0,
    ) -> Assignment:
        """Return the group with other wishes; nobody in `unsafe` may be among them."""
        assert not self.unsafe & {*target, *target_learners}, (self, target)
        given_up = self.wanted - {*target, *target_learners} - self.members
        return replace(
            self,
            learners=(*self.learners, *sorted(given_up)),  # it may have been added already: rule 4
            target=target,
            target_learners=target_learners,
            pinned=pinned,
            generation=generation,
            reported_index=0,
        )

    def is_outdated(self, voters: Iterable[BrokerId], learners: Iterable[BrokerId], *, membership_index: int) -> bool:
        """Return whether a report under this generation tells of a membership that was followed by a reported one.

        A replica that began with a manifest knows its membership by the manifest's index, which is higher than that of
        the entry and below that of the next membership: the same members may be told with a lower index.
        """
        same = frozenset(voters) == frozenset(self.voters) and frozenset(learners) == frozenset(self.learners)
        return membership_index < self.reported_index and not same

    def reported(
        self, voters: Iterable[BrokerId], learners: Iterable[BrokerId], *, membership_index: int, index: int
    ) -> tuple[Assignment, tuple[BrokerId, ...]]:
        """Return the group after a report under its generation, and the brokers that may delete their replica."""
        order = {broker: place for place, broker in enumerate(self.target)}
        ranked = sorted(voters, key=lambda broker: (order.get(broker, len(order)), broker))
        now = replace(self, voters=tuple(ranked), learners=tuple(sorted(learners)))
        unsafe = self.unsafe & now.members
        if unsafe == self.unsafe:
            now = replace(now, reported_index=max(membership_index, self.reported_index))
        else:
            now = replace(now, unsafe=unsafe, generation=index, reported_index=0)
        now = replace(now, seed=tuple(broker for broker in self.seed if now.hosts(broker)))
        left_at = dict(self.left_at)
        for broker in self.concerned - now.members:  # a report that comes late must not lower it
            left_at[broker] = max(membership_index, left_at.get(broker, 0))
        now = replace(now, left_at=tuple(sorted(left_at.items())))
        released = tuple(sorted(b for b in self.concerned if b not in now.members and b not in now.wanted))
        return now, released

    def joins_after(self, broker: BrokerId) -> int:
        """Return the index above which a membership has to name that broker before it may vote: see RaftConfig."""
        return -1 if broker in self.seed else dict(self.left_at).get(broker, 0)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "group": self.group_id,
            "key": [self.key.topic_id.hex(), self.key.origin, self.key.partition],
            "founders": list(self.founders),
            "voters": list(self.voters),
            "learners": list(self.learners),
            "target": list(self.target),
            "target_learners": list(self.target_learners),
            "unsafe": sorted(self.unsafe),
            "seed": list(self.seed),
            "generation": self.generation,
            "pinned": self.pinned,
            "left_at": [[broker, index] for broker, index in self.left_at],
            "reported_index": self.reported_index,
        }

    @classmethod
    def from_json(cls, value: object) -> Assignment:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "group")
        assignment = cls(
            group_id=GroupId(fields.integer("group", low=0, high=INT64_MAX)),
            key=_read_key(fields),
            founders=read_brokers(fields, "founders"),
            voters=read_brokers(fields, "voters"),
            learners=read_brokers(fields, "learners"),
            target=read_brokers(fields, "target"),
            target_learners=read_brokers(fields, "target_learners"),
            unsafe=frozenset(read_brokers(fields, "unsafe")),
            seed=read_brokers(fields, "seed"),
            generation=fields.integer("generation", low=0, high=INT64_MAX),
            pinned=fields.integer("pinned", low=0, high=BROKERS_PER_REGION_MAX),
            left_at=_read_left_at(fields),
            reported_index=fields.integer("reported_index", low=0, high=INT64_MAX),
        )
        fields.done()
        if assignment.unsafe & assignment.wanted:
            raise FieldError(f"group {assignment.group_id} wants a replica that is not safe")
        return assignment


def read_brokers(fields: Fields, name: str) -> tuple[BrokerId, ...]:
    """Take a list of distinct broker ids. Raises FieldError."""
    listed = fields.integers(name, count_max=BROKERS_PER_REGION_MAX, low=1001, high=BROKER_ID_MAX)
    if len(set(listed)) != len(listed):
        raise FieldError(f"{name} names a broker twice")
    return tuple(BrokerId(broker) for broker in listed)


def _read_left_at(fields: Fields) -> tuple[tuple[BrokerId, int], ...]:
    rows = []
    for item in fields.items("left_at", count_max=BROKERS_PER_REGION_MAX):
        if not isinstance(item, list) or len(item) != 2:
            raise FieldError("left_at has pairs of a broker and an index")
        pair = Fields({"broker": item[0], "index": item[1]}, "left_at")
        rows.append(
            (
                BrokerId(pair.integer("broker", low=1001, high=BROKER_ID_MAX)),
                pair.integer("index", low=0, high=INT64_MAX),
            )
        )
    if [broker for broker, _ in rows] != sorted({broker for broker, _ in rows}):
        raise FieldError("left_at is not in order")
    return tuple(rows)


def _read_key(fields: Fields) -> StreamKey:
    parts = fields.items("key", count_max=3)
    if len(parts) != 3:
        raise FieldError("a stream key has three parts")
    inner = Fields({"topic_id": parts[0], "origin": parts[1], "partition": parts[2]}, "key")
    return StreamKey(
        inner.blob("topic_id", size_bytes=TOPIC_ID_BYTES),
        RegionNumber(inner.integer("origin", low=0, high=REGION_NUMBER_MAX)),
        inner.integer("partition", low=0, high=PARTITIONS_PER_TOPIC_MAX - 1),
    )
