"""A group of Raft nodes in one process: a network that a test plays by hand, and disks that lose what was not synced.

Nothing here sleeps: time passes by `tick`, messages move by `deliver`, writes become durable by `flush`.
After every step the safety rules of Raft are checked on all members.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from georelay.ids import BrokerId, RaftIndex, Term
from region.raft.core import (
    PENDING,
    Append,
    AppendResponse,
    HardState,
    LastId,
    Membership,
    Message,
    RaftConfig,
    RaftLog,
    RaftNode,
    ReadState,
    Ready,
    Role,
    SnapshotPoint,
    SnapshotRequest,
    StorageWrite,
    VoteResponse,
)


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of the tests: `data` tells two entries apart, `members` makes it change the membership."""

    term: Term
    index: int
    data: str = ""
    size: int = 100
    members: Membership | None = None

    @property
    def is_conf(self) -> bool:
        return self.members is not None

    def __repr__(self) -> str:
        return f"{self.index}@{self.term}{':' + self.data if self.data else ''}"


Mail = Message[Item]


@dataclass
class Disk:
    """What survives a crash: the entries follow the snapshot, if there is one."""

    hard_state: HardState = field(default_factory=HardState)
    entries: list[Item] = field(default_factory=list)
    snapshot: SnapshotPoint | None = None
    lost: LastId | None = None

    @property
    def start(self) -> int:
        """Index of the snapshot."""
        return 0 if self.snapshot is None else self.snapshot.index

    @property
    def last(self) -> int:
        return self.start + len(self.entries)

    def range(self, lo: int, hi: int) -> list[Item]:
        assert lo > self.start, (lo, self.start)
        return self.entries[lo - self.start - 1 : hi - self.start - 1]

    def holds(self, item: Item) -> bool:
        """Whether the item, or a state that includes it, is durable."""
        return item.index <= self.start or item in self.range(item.index, item.index + 1)

    def store(self, write: StorageWrite[Item]) -> None:
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.install is not None:
            found = write.install
            self.snapshot = SnapshotPoint(
                index=found.index, term=found.snapshot_term, membership=found.membership, data=found.data
            )
            self.entries.clear()
        if write.truncate_from is not None:
            del self.entries[write.truncate_from - self.start - 1 :]
        for entry in write.entries:
            assert entry.index == self.last + 1, (entry, self.entries)
            self.entries.append(entry)

    def compact(self, point: SnapshotPoint) -> None:
        self.entries = self.range(point.index + 1, self.last + 1)
        self.snapshot = point

    def cut(self, index: int) -> None:
        """Lose everything after `index`, knowing where the log ended."""
        last = self.entries[-1]
        self.lost = max(LastId(last.term, last.index), self.lost or LastId(last.term, last.index))
        del self.entries[index - self.start :]

    def applied(self) -> list[Item]:
        """What the machine restores at a start."""
        return [] if self.snapshot is None else list(pickle.loads(self.snapshot.data))

    def memberships(self) -> list[tuple[int, Membership]]:
        first = [] if self.snapshot is None else [(self.start, self.snapshot.membership)]
        return first + [(entry.index, entry.members) for entry in self.entries if entry.members is not None]

    def term_runs(self) -> list[tuple[int, Term]]:
        runs: list[tuple[int, Term]] = [] if self.snapshot is None else [(self.start, self.snapshot.term)]
        for entry in self.entries:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        return runs


class Member:
    """One broker: a node, its disk, and the writes on their way there."""

    def __init__(self, config: RaftConfig, seed: int, disk: Disk) -> None:
        self.config = config
        self.disk = disk
        self.seed = seed
        self.pending: list[StorageWrite[Item]] = []
        self.applied: list[Item] = disk.applied()
        self.node = self._new_node()

    def _new_node(self) -> RaftNode[Item]:
        disk = self.disk
        log = RaftLog(
            first_index=disk.start + 1, term_runs=disk.term_runs(), last_index=disk.last, tail=disk.entries[-3:]
        )
        return RaftNode(
            self.config,
            log,
            disk.hard_state,
            random.Random(self.seed),
            make_noop,
            applied_index=disk.start,
            make_conf=make_conf,
            membership_of=membership_of,
            memberships=disk.memberships(),
            lost=disk.lost,
        )

    def restart(self) -> None:
        self.pending.clear()
        self.applied = self.disk.applied()
        self.seed += 1000
        self.node = self._new_node()

    def all_entries(self) -> list[Item]:
        """The log as the node sees it: evicted entries from the disk, the rest from memory."""
        log = self.node.log
        kept = log.entries(log.tail_first, log.last_index + 1, 10**9) if log.tail_first <= log.last_index else []
        assert kept is not PENDING
        cold = self.disk.range(log.first_index, log.tail_first) if log.first_index < log.tail_first else []
        return cold + list(kept)


def make_noop(term: Term, index: RaftIndex) -> Item:
    return Item(term, index)


def make_conf(term: Term, index: RaftIndex, membership: Membership) -> Item:
    return Item(term, index, members=membership)


def membership_of(item: Item) -> Membership:
    if item.members is None:
        raise ValueError("no membership")
    return item.members


class Cluster:
    """Members 1..n. `eager` disks sync as soon as a test delivers messages."""

    def __init__(
        self,
        voters: int | Iterable[int] = 3,
        *,
        learners: Iterable[int] = (),
        outgoing: Iterable[int] = (),
        disks: dict[int, Disk] | None = None,
        seed: int = 1,
        **settings: Any,
    ) -> None:
        ids = tuple(BrokerId(i) for i in (range(1, voters + 1) if isinstance(voters, int) else voters))
        other = tuple(BrokerId(i) for i in learners)
        old = tuple(BrokerId(i) for i in outgoing)
        self.network: list[Mail] = []
        self.cut: set[tuple[int, int]] = set()
        self.lost: Callable[[Mail], bool] = lambda message: False
        self.sent: list[Mail] = []  # everything ever sent, lost or not
        self.down: set[int] = set()
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.committed: dict[int, Item] = {}
        self.hold_disks: set[int] = set()  # these sync only when told to
        self.forging = False  # a test makes up acknowledgements: commits without a quorum are its own doing
        self.read_states: dict[int, list[ReadState]] = {}
        self.reads_lost: dict[int, list[int]] = {}
        self.snapshot_requests: list[tuple[int, SnapshotRequest]] = []  # not answered, when held
        self.hold_snapshots = False
        self.settings = settings
        self.members: dict[int, Member] = {}
        self.seed = seed
        for member in dict.fromkeys((*ids, *old, *other)):
            config = RaftConfig(id=member, voters=ids, learners=other, outgoing=old, **settings)
            self.members[member] = Member(config, seed * 100 + member, (disks or {}).get(member, Disk()))
        self.pump()

    def join(self, *members: int, joins_after: int = -1) -> None:
        """Add brokers that know nothing of their group; their disks are empty."""
        for member in members:
            config = RaftConfig(id=BrokerId(member), voters=(), joins_after=joins_after, **self.settings)
            self.members[member] = Member(config, self.seed * 100 + member, Disk())

    # Looking

    def node(self, member: int) -> RaftNode[Item]:
        return self.members[member].node

    @property
    def leader(self) -> RaftNode[Item]:
        """The leader of the newest term."""
        return max(
            (m.node for i, m in self.members.items() if m.node.is_leader and i not in self.down), key=lambda n: n.term
        )

    def roles(self) -> dict[int, str]:
        return {i: m.node.role.value for i, m in self.members.items()}

    def data(self, member: int) -> list[str]:
        return [item.data for item in self.members[member].applied if item.data]

    def mail(self, kind: type, **fields: object) -> list[Any]:
        """Messages in the network, of a kind and with these fields."""
        return [m for m in self.network if isinstance(m, kind) and all(getattr(m, k) == v for k, v in fields.items())]

    # Moving

    def pump(self) -> None:
        """Do what every node wants done, but let no write become durable and no message arrive."""
        for member in self.members:
            while member not in self.down and self.node(member).has_ready():
                self._handle(member, self.node(member).ready())
        self.check()

    def _handle(self, member: int, ready: Ready[Item]) -> None:
        box = self.members[member]
        self._send(ready.messages)
        if ready.write is not None:
            box.pending.append(ready.write)
            if ready.write.install is not None:
                box.applied = list(pickle.loads(ready.write.install.data))
                assert len(box.applied) == ready.write.install.index == box.node.applied_index
        if ready.committed is not None:
            lo, hi = ready.committed
            assert lo == len(box.applied) + 1, (lo, box.applied)
            box.applied.extend(box.disk.range(lo, hi))
            assert len(box.applied) == hi - 1, "something was handed out that is not durable"
            box.node.applied_to(hi - 1)
        for fetch in ready.fetches:
            found = box.disk.range(fetch.lo, fetch.hi) if fetch.lo > box.disk.start else []
            box.node.entries_fetched(fetch, found[: max(1, fetch.bytes_max // 100)])
        for request in ready.snapshot_requests:
            self.snapshot_requests.append((member, request))
        if not self.hold_snapshots:
            self.answer_snapshots()
        self.read_states.setdefault(member, []).extend(ready.read_states)
        self.reads_lost.setdefault(member, []).extend(ready.reads_lost)

    def answer_snapshots(self) -> None:
        requests, self.snapshot_requests = self.snapshot_requests, []
        for member, request in requests:
            if member not in self.down:
                self.node(member).snapshot_fetched(request, self.members[member].disk.snapshot)

    def _send(self, messages: Iterable[Mail]) -> None:
        for message in messages:
            assert message.term, f"no peer takes a message of term 0: {message}"
            self.sent.append(message)
            if not self.lost(message):
                self.network.append(message)

    def flush(self, member: int, count: int = 10**6) -> None:
        """Let the oldest writes of a member become durable."""
        box = self.members[member]
        while box.pending and count:
            count -= 1
            write = box.pending.pop(0)
            box.disk.store(write)
            if write.hard_state is not None and write.hard_state.vote:
                state = write.hard_state
                assert self.votes.setdefault((member, state.term), state.vote) == state.vote, "voted twice in a term"
            box.node.written(write)
            for message in write.responses:
                self._check_promise(box, message)
            self._send(write.responses)
            self.pump()

    def deliver_one(self, position: int = 0) -> Mail:
        message = self.network.pop(position)
        if message.to not in self.down and (message.from_, message.to) not in self.cut:
            self.node(message.to).step(message)
        self.pump()
        return message

    def settle(self, rounds: int = 2000) -> None:
        """Deliver and sync until nothing moves."""
        self.pump()
        for _ in range(rounds):
            busy = bool(self.network)
            if self.network:
                self.deliver_one()
            for member in self.members:
                if member not in self.hold_disks and member not in self.down and self.members[member].pending:
                    busy = True
                    self.flush(member)
            if not busy:
                return
        raise AssertionError(f"{len(self.network)} messages keep coming: {self.network[:5]}")

    def tick(self, n: int = 1, *members: int) -> None:
        for member in members or self.members:
            if member not in self.down:
                for _ in range(n):
                    self.node(member).tick()
        self.pump()

    def elect(self, member: int = 1) -> RaftNode[Item]:
        """Let `member` win an election whatever the others hear."""
        for other in self.members:
            if other != member:
                self.node(other).forget_leader(self.node(other).leader_id)
        self.node(member).campaign()
        self.settle()
        assert self.node(member).role is Role.LEADER, self.roles()
        return self.node(member)

    def propose(self, *data: str, at: int | None = None, size: int = 100) -> None:
        """Propose at the leader; nothing is sent before `pump` or `settle`."""
        node = self.leader if at is None else self.node(at)
        start = node.last_index + 1
        node.propose([Item(node.term, start + i, text, size) for i, text in enumerate(data)])

    def isolate(self, member: int) -> None:
        for other in self.members:
            self.cut |= {(member, other), (other, member)}

    def heal(self) -> None:
        self.cut.clear()

    def change(self, voters: Iterable[int], learners: Iterable[int] = (), *, at: int | None = None) -> int:
        node = self.leader if at is None else self.node(at)
        return node.propose_membership(voters=tuple(map(BrokerId, voters)), learners=tuple(map(BrokerId, learners)))

    def point(self, member: int, index: int) -> SnapshotPoint:
        """The state of a member after `index`, which it has applied and still holds."""
        box = self.members[member]
        term = box.node.log.term(index)
        assert term is not None and index <= len(box.applied)
        return SnapshotPoint(
            index=index,
            term=term,
            membership=box.node.membership_at(index),
            data=pickle.dumps(box.applied[:index]),
        )

    def compact(self, member: int, first_index: int) -> None:
        """Drop the entries of a member below `first_index`."""
        box = self.members[member]
        box.disk.compact(self.point(member, first_index - 1))
        box.node.advance_start(first_index)

    def bulk(self, from_: int, to: int, last_index: int) -> None:
        """Ship committed entries in storage, as whole segments are."""
        source, box = self.members[from_], self.members[to]
        assert last_index <= source.node.commit_index
        box.node.observe_term(source.node.term)
        self.pump()
        self.flush(to)
        first = box.node.last_index + 1
        assert box.node.can_adopt(first, source.node.term)
        found = source.disk.range(first, last_index + 1)
        runs: list[tuple[int, Term]] = []
        for entry in found:
            if not runs or runs[-1][1] != entry.term:
                runs.append((entry.index, entry.term))
        box.disk.entries += found
        box.applied = source.applied[:last_index]
        memberships = [(entry.index, entry.members) for entry in found if entry.members is not None]
        box.node.adopt(last_index, runs, memberships, term=source.node.term)
        self.pump()

    def crash(self, member: int) -> None:
        """Lose everything that is not durable."""
        self.down.add(member)
        self.members[member].pending.clear()

    def restart(self, member: int) -> None:
        self.down.discard(member)
        self.members[member].restart()
        self.pump()

    def drop_mail(self) -> None:
        self.network.clear()

    # Safety

    def _check_promise(self, box: Member, message: Mail) -> None:
        """What a released response says is durable."""
        state = box.disk.hard_state
        assert state.term >= message.term, (state, message)
        if state.term != message.term:
            return
        if isinstance(message, VoteResponse) and message.granted and not message.pre:
            assert state.vote == message.to, (state, message)
        if isinstance(message, AppendResponse) and not message.rejected:
            assert box.disk.last >= message.index, (message, box.disk.entries)

    def check(self) -> None:
        for member, box in self.members.items():
            node = box.node
            if member in self.down:
                continue
            assert node.log.stable_index <= box.disk.last
            assert node.applied_index <= min(node.commit_index, max(node.log.stable_index, node.log.first_index - 1))
            if node.is_leader:
                assert self.leaders.setdefault(node.term, member) == member, f"two leaders in term {node.term}"
                self._check_leader(box)
            for item in box.applied:
                assert self.committed.setdefault(item.index, item) == item, "two entries committed at one index"
        self._check_log_matching()

    def _check_leader(self, box: Member) -> None:
        node = box.node
        entries = {entry.index: entry for entry in box.all_entries()}
        if node.term == max(self.leaders):
            for index, item in self.committed.items():
                known = entries.get(index) or box.applied[index - 1]
                assert known == item, f"leader of term {node.term} lacks {item}"
        commit = node.commit_index
        if not self.forging and commit in entries and entries[commit].term == node.term:
            counted = [node.membership_at(commit)]
            if not entries[commit].is_conf:
                counted.append(node.membership)  # appended later, and counted by since
            assert any(self._is_held(entries[commit], members, node.term) for members in counted), (
                f"{entries[commit]} is committed by {counted} on {self._holders(entries[commit])} only"
            )

    def _holders(self, item: Item) -> list[int]:
        return [member for member, box in self.members.items() if box.disk.holds(item)]

    def _is_held(self, item: Item, members: Membership, term: int) -> bool:
        """Whether majorities hold it; who lost it is no proof that it never held it."""
        holders = self._holders(item)
        newer = any(box.disk.hard_state.term > term or box.disk.lost for box in self.members.values())
        return newer or all(
            2 * sum(voter in holders for voter in voters) > len(voters)
            for voters in (members.voters, members.outgoing)
            if voters
        )

    def _check_log_matching(self) -> None:
        logs = [
            {entry.index: entry for entry in box.all_entries()}
            for member, box in self.members.items()
            if member not in self.down
        ]
        for position, one in enumerate(logs):
            for other in logs[position + 1 :]:
                both = sorted(one.keys() & other.keys())
                same = [i for i in both if one[i].term == other[i].term]
                if same:
                    assert all(one[i] == other[i] for i in both if i <= same[-1]), (one, other)


@pytest.fixture
def cluster() -> Cluster:
    """Three voters, nobody leads yet."""
    return Cluster()


@pytest.fixture
def led() -> Cluster:
    """Three voters led by 1, the noop of term 1 committed everywhere."""
    made = Cluster()
    made.elect(1)
    return made


@pytest.fixture
def cluster_class() -> type[Cluster]:
    return Cluster


@pytest.fixture
def item() -> type[Item]:
    return Item


@pytest.fixture
def disk_class() -> type[Disk]:
    return Disk


def disk_of(*terms: int, term: int | None = None, vote: int = 0) -> Disk:
    """A disk whose entry i has the i-th of `terms`; the hard state has the last of them unless told otherwise."""
    newest = max(terms, default=0) if term is None else term
    entries = [Item(Term(t), i, f"{i}@{t}") for i, t in enumerate(terms, 1)]
    return Disk(HardState(Term(newest), BrokerId(vote)), entries)


@pytest.fixture
def stored() -> Callable[..., Disk]:
    return disk_of


__all__ = ["Append", "Cluster", "Disk", "Item", "Member"]
