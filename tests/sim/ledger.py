"""The rules of the replicated log, checked against everything that was ever seen of one group.

The ledger is the only party that knows all replicas. It is told after every event what changed at one replica and
compares that with what any replica showed before. Each rule raises a Violation with the name given here:

    one-leader            at most one leader per term
    leader-append-only    a leader never cuts its own log
    log-matching          same (index, term): same chain, so the same bytes up to there
    leader-completeness   a leader holds everything committed in earlier terms
    committed-changed     what is committed never changes
    commit-of-old-term    a leader moves its commit index onto entries of its own term only
    commit-not-durable    committed is on the disks of a quorum, or was when the word of it left
    stable-not-durable    what a replica counts as stable, or acknowledges, is on its disk
    applied-not-stable    nothing is applied before it is stable there
    went-back             term, commit index and log start never go back in one life; term not even over a restart
    forgot                a restarted replica still has what it counted as stable, and its votes
    one-vote              one vote per term, over crashes too
    progress              match < next
    match-not-true        what a leader believes that a follower holds, it holds durably
    dense-offsets         offsets of the committed log are consecutive
    duplicate             one (producer, sequence) is committed once
    mirror-differs        a mirror commits what its home committed, at the same offset
    lost-write            what was acknowledged is committed at the offset told
    wrong-read            a reader gets the committed entry, or nothing
    too-new-entry         no entry that a broker of an older version cannot read
    stale-end             a confirmed end is not behind what was acknowledged before it was asked for
    states-differ         log start, producers, epochs: equal at equal applied index
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from georelay.ids import BrokerId, GroupId
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import EntryType
from region.log.entry import ENTRY_HEADER_BYTES, LOCAL_PART, MAGIC, Entry
from region.raft.core import PENDING, Role
from tests.sim.disk import Folder, Inode, SimDisk
from tests.sim.durable_journal import DurableJournal
from tests.sim.violation import Violation

_APPEND_RESPONSE: Final = 4
_VOTE_RESPONSE: Final = 2
_VOTE_REQUEST: Final = 1
_SNAPSHOT: Final = 8
_SINCE_LEVEL_2: Final = (EntryType.CONF, EntryType.START)
_UNBOUNDED: Final = 1 << 62
Row = tuple[int, int, int]  # index, term, chain
Batch = tuple[EntryType, int, int, tuple[int, int, int] | None]  # type, base and next offset, producer's key
Mark = Callable[[str], None]


def _batch_of(entry: Entry) -> Batch:
    key = None
    if entry.type is EntryType.DATA:
        header = entry.header()
        key = (header.producer_id, header.producer_epoch, header.base_sequence)
    return entry.type, entry.base_offset, entry.next_offset, key


class DurableLog:
    """What the platters hold of one group, read without the shipping code."""

    __slots__ = ("_disk", "_firsts", "_folder", "_folder_version", "_journal", "_names_version", "_parsed", "_path")

    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk = disk
        self._journal = DurableJournal.of(disk)
        self._path = path
        self._folder: Folder | None = None
        self._folder_version = -1
        self._names_version = -1
        self._firsts: list[int] = []
        self._parsed: dict[Inode, tuple[int, int, list[Row]]] = {}  # version, bytes parsed, rows

    @property
    def damaged(self) -> bool:
        """Return whether a fault has changed durable bytes: then this says nothing."""
        return self._disk.damaged

    def entry(self, index: int) -> Row | None:
        """Return the durable entry with this index."""
        folder = self._look()
        firsts = self._firsts
        at = bisect_right(firsts, index) - 1
        if folder is None or at < 0:
            return None
        journaled = self._journal.entries(int(self._path.name)).get(index)
        if journaled is not None:
            _, _, _, _, _, term, _, chain, _ = LOCAL_PART.unpack_from(journaled)
            return index, term, chain
        first = firsts[at]
        inode = folder.durable[f"{first:020d}.log"]
        assert isinstance(inode, Inode)
        rows = self._rows(inode)
        row = index - first
        return rows[row] if row < len(rows) else None

    def first_index(self) -> int:
        """Return the first index that any durable segment holds, 0 without one."""
        self._look()
        return self._firsts[0] if self._firsts else 0

    def _look(self) -> Folder | None:
        if self._names_version == self._disk.names_version:
            return self._folder
        self._names_version = self._disk.names_version
        folder = self._disk.find(self._path, durable=True)
        if not isinstance(folder, Folder):
            self._folder, self._folder_version, self._firsts = None, -1, []
            return None
        if folder is not self._folder or folder.version != self._folder_version:
            self._folder, self._folder_version = folder, folder.version
            self._firsts = sorted(int(name[:-4]) for name in folder.durable if name.endswith(".log"))
        return folder

    def _rows(self, inode: Inode) -> list[Row]:
        known = self._parsed.get(inode)
        if known is not None and known[0] == inode.version:
            return known[2]
        position, rows = 0, list[Row]()
        if known is not None and known[1] <= inode.stable_to:
            position, rows = known[1], known[2]
        durable = inode.durable
        while position + ENTRY_HEADER_BYTES <= len(durable):
            magic, _, _, payload_bytes, _, term, index, chain, _ = LOCAL_PART.unpack_from(durable, position)
            end = position + ENTRY_HEADER_BYTES + payload_bytes
            if magic != MAGIC or end > len(durable):
                break
            rows.append((index, term, chain))
            position = end
        inode.stable_to = max(inode.stable_to, len(durable))
        self._parsed[inode] = (inode.version, position, rows)
        return rows


class ReplicaView:
    """What was last seen of one replica, in one life of its broker."""

    __slots__ = (
        "applied",
        "commit",
        "disk",
        "epoch",
        "excused",
        "first",
        "last",
        "led_term",
        "level",
        "matches",
        "signature",
        "stable",
        "term",
    )

    def __init__(self, disk: DurableLog) -> None:
        self.disk = disk
        self.signature: tuple[Any, ...] = ()
        self.term = 0
        self.last = 0
        self.first = 1
        self.epoch = 0
        self.commit = 0
        self.stable = 0
        self.applied = 0
        self.led_term = -1
        self.level = 2  # the feature level that its broker knows
        self.matches: dict[BrokerId, int] = {}  # of its followers, while it leads
        # Whose disk was replaced, and what it held: this leader need not know it yet, and counts what it heard before.
        self.excused: dict[BrokerId, Row | None] = {}


class GroupLedger:
    """Everything ever seen of one group of one region."""

    def __init__(
        self, group_id: GroupId, *, mark: Mark, note: Callable[..., None], streams: bool = True, name: str = ""
    ) -> None:
        self.group_id = group_id
        self.home: Callable[[], GroupLedger | None] | None = None  # of a mirror: its home's ledger
        self._name = name
        self.leaders: dict[int, BrokerId] = {}
        self.committed: list[tuple[int, int, int]] = []  # (term, chain, term of the first who committed it)
        self.next_offset = 0
        self.views: dict[BrokerId, ReplicaView] = {}
        self.batches: dict[tuple[int, int, int], int] = {}  # (producer, epoch, sequence) -> base offset
        self.offsets: dict[int, tuple[int, int, int]] = {}  # base offset -> that
        self._streams = streams
        self._mark = mark
        self._note = note
        self._chains: dict[tuple[int, int], int] = {}  # by (index, term)
        self._frames: dict[tuple[int, int], int] = {}  # CRC of the whole entry
        self._batches: dict[tuple[int, int], Batch] = {}
        self._votes: dict[tuple[BrokerId, int], BrokerId] = {}
        self._promised: dict[BrokerId, int] = {}  # highest term of a vote or acknowledgement that left
        self._membership: Any = None  # newest committed one
        self._membership_index = 0
        self._claims: dict[BrokerId, Row] = {}  # newest stable entry per replica, kept over restarts
        self._tables: dict[int, int] = {}
        self.acknowledged_end = 0  # offset behind everything that producers were told is stored

    def _broken(self, rule: str, detail: str) -> Violation:
        return Violation(rule, f"group {self._name}{self.group_id}: {detail}")

    # --- lives ----------------------------------------------------------------------------------------

    def opened(self, broker: BrokerId, group: Any, disk: DurableLog, *, trusted: bool) -> None:
        """A replica was recovered. `trusted`: no fault has damaged its durable bytes."""
        node = group.node
        view = self.views[broker] = ReplicaView(disk)
        log = node.log
        view.first = log.first_index
        view.last = min(log.first_index, log.tail_first) - 1
        view.commit = node.commit_index
        view.term = node.term
        claim = self._claims.get(broker)
        if trusted:
            if node.term < self._promised.get(broker, 0):
                raise self._broken(
                    "forgot", f"broker {broker} promised in term {self._promised[broker]}, is in {node.term}"
                )
            voted = self._votes.get((broker, node.term))
            if voted is not None and node.vote != voted:
                raise self._broken(
                    "forgot", f"broker {broker} voted for {voted} in term {node.term}, remembers {node.vote}"
                )
            is_voter = self._membership is None or self._membership.votes(broker)
            if claim is not None and claim[0] >= log.first_index and is_voter:
                known = self._chains.get((claim[0], claim[1]))
                if log.term(claim[0]) != claim[1] or known != claim[2]:
                    raise self._broken(
                        "forgot", f"broker {broker} counted {claim} as stable, its log ends at {log.last_index}"
                    )
        if len(group.disk.sealed_segments()) > 1:
            self._mark("log.recovered_several_segments")
        self.check(broker, group)

    def lost_disk(self, broker: BrokerId) -> None:
        """A broker comes back as a new replica: nothing it promised binds the new one."""
        self.lost_replica(broker)
        self._promised.pop(broker, None)
        for key in [key for key in self._votes if key[0] == broker]:
            del self._votes[key]

    def lost_replica(self, broker: BrokerId) -> None:
        """A broker's log is given up: what it held counts no more, its term and votes bind it still."""
        held = self._claims.pop(broker, None)
        self.views.pop(broker, None)
        for view in self.views.values():
            view.excused[broker] = held

    # --- after every event ----------------------------------------------------------------------------

    def check(self, broker: BrokerId, group: Any) -> None:
        """Look at one replica; cheap when nothing changed."""
        node = group.node
        log = node.log
        view = self.views[broker]
        signature = (
            node.term,
            node.role,
            log.last_index,
            log.log_epoch,
            node.commit_index,
            log.stable_index,
            node.applied_index,
            log.first_index,
        )
        if signature == view.signature:
            return
        view.signature = signature
        self._check_term(broker, node, view)
        if log.first_index != view.first:
            self._log_start_moved(broker, node, view)
        if log.log_epoch != view.epoch:
            self._cut(broker, node, view)
        if log.last_index > view.last:
            self._grew(node, view)
        view.last = log.last_index
        if node.role is Role.LEADER and view.led_term != node.term:
            self._elected(broker, node, view)
        if log.stable_index != view.stable:
            self._stable_moved(broker, node, view)
        if node.commit_index != view.commit:
            self._commit_moved(broker, group, node, view)
        if node.applied_index > log.stable_index and node.applied_index >= log.first_index:
            raise self._broken(
                "applied-not-stable", f"broker {broker} applied {node.applied_index}, stable is {log.stable_index}"
            )
        leadership = node._leadership
        if leadership is not None:
            for peer, progress in leadership.peers.items():
                if peer in view.excused:
                    # The disk is gone; its leader has to be told, and then to take back what it believes.
                    if progress.match and not progress.repairing:
                        continue
                    del view.excused[peer]
                if progress.match > view.matches.get(peer, 0):
                    self._match_moved(broker, node, peer, progress.match)
                view.matches[peer] = progress.match
                if progress.match >= progress.next:
                    raise self._broken(
                        "progress", f"{broker} has {peer} at match {progress.match}, next {progress.next}"
                    )

    def _match_moved(self, broker: BrokerId, node: Any, peer: BrokerId, match: int) -> None:
        """A leader believes that `peer` holds its log up to `match`."""
        other = self.views.get(peer)
        if other is None or other.disk.damaged or other.term > node.term or match < node.log.first_index:
            return  # who has moved on to a newer term may have lost it since
        term = node.log.term(match)
        found = other.disk.entry(match)
        if found is None and match < other.disk.first_index():
            return
        if found != (match, term, self._chains.get((match, term))):
            raise self._broken("match-not-true", f"broker {broker} believes that {peer} holds {match}: it has {found}")

    def _check_term(self, broker: BrokerId, node: Any, view: ReplicaView) -> None:
        if node.term < view.term:
            raise self._broken("went-back", f"broker {broker}: term {view.term} -> {node.term}")
        if view.led_term == view.term and node.role is not Role.LEADER and view.led_term >= 0:
            self._mark("raft.quorum_lost" if node.term == view.term else "raft.deposed")
            view.led_term = -1
        view.term = node.term

    def _log_start_moved(self, broker: BrokerId, node: Any, view: ReplicaView) -> None:
        first = node.log.first_index
        if first < view.first:
            raise self._broken("went-back", f"broker {broker}: log start {view.first} -> {first}")
        if first > len(self.committed) + 1:
            raise self._broken("went-back", f"broker {broker} dropped up to {first - 1}, which is not committed")
        if first > 1 and node.log.term(first - 1) not in (None, self.committed[first - 2][0]):
            raise self._broken("committed-changed", f"broker {broker} starts after another entry {first - 1}")
        view.first = first
        view.last = max(view.last, first - 1)
        self._mark("log.start_moved")

    def _cut(self, broker: BrokerId, node: Any, view: ReplicaView) -> None:
        view.epoch = node.log.log_epoch
        if view.led_term == node.term and node.role is Role.LEADER:
            raise self._broken("leader-append-only", f"broker {broker} cut its log in term {node.term}")
        self._mark("raft.log_truncated")
        view.last = min(view.last, max(view.commit, node.log.tail_first - 1))
        view.stable = -1  # looked at again: the entry may be another one now

    def _grew(self, node: Any, view: ReplicaView) -> None:
        log = node.log
        lo = max(view.last + 1, log.tail_first)
        if lo > log.last_index:
            return
        entries = log.entries(lo, log.last_index + 1, _UNBOUNDED)
        assert entries is not PENDING
        chains = self._chains
        for entry in entries:
            key = (entry.index, entry.term)
            known = chains.get(key)
            if known is None:
                chains[key] = entry.chain
                self._frames[key] = crc32c(entry.frame)
                if self._streams:
                    self._batches[key] = _batch_of(entry)
                if view.level < 2 and entry.type in _SINCE_LEVEL_2:
                    raise self._broken("too-new-entry", f"entry {entry.index} is a {entry.type.name}")
            elif known != entry.chain:
                raise self._broken("log-matching", f"two entries {entry.index} of term {entry.term} differ")

    def _elected(self, broker: BrokerId, node: Any, view: ReplicaView) -> None:
        term = node.term
        other = self.leaders.setdefault(term, broker)
        if other != broker:
            raise self._broken("one-leader", f"{other} and {broker} lead term {term}")
        self._voted(broker, term, broker)
        view.matches = {}
        view.led_term = term
        self._mark("raft.leader_changed")
        self._note("leads", broker, self.group_id, f"term {term}, log ends at {node.log.last_index}")
        index = len(self.committed)
        while index and self.committed[index - 1][2] >= term:
            index -= 1
        if index < node.log.first_index:
            return
        term_there, chain, _ = self.committed[index - 1]
        if node.log.term(index) != term_there or self._chains.get((index, term_there)) != chain:
            raise self._broken(
                "leader-completeness",
                f"broker {broker} leads term {term} without committed entry {index} of term {term_there}",
            )

    def _stable_moved(self, broker: BrokerId, node: Any, view: ReplicaView) -> None:
        stable = node.log.stable_index
        if view.disk.damaged:
            self._claims.pop(broker, None)
        elif stable > view.stable and stable >= node.log.first_index:
            term = node.log.term(stable)
            row = (stable, term, self._chains.get((stable, term), -1))
            if view.disk.entry(stable) != row:
                raise self._broken(
                    "stable-not-durable", f"broker {broker} counts {row}, its disk has {view.disk.entry(stable)}"
                )
            self._claims[broker] = row
        elif stable < view.stable and stable >= node.log.first_index:
            term = node.log.term(stable)
            self._claims[broker] = (stable, term, self._chains.get((stable, term), -1))
        elif stable < node.log.first_index:
            self._claims.pop(broker, None)
        view.stable = stable

    def _commit_moved(self, broker: BrokerId, group: Any, node: Any, view: ReplicaView) -> None:
        log, commit, known_before = node.log, node.commit_index, len(self.committed)
        if commit < view.commit:
            raise self._broken("went-back", f"broker {broker}: commit {view.commit} -> {commit}")
        committed, chains = self.committed, self._chains
        for index in range(max(view.commit + 1, log.first_index), commit + 1):
            term = log.term(index)
            chain = chains.get((index, term))
            if index <= len(committed):
                known = committed[index - 1]
                if known[0] != term or (chain is not None and known[1] != chain):
                    raise self._broken(
                        "committed-changed",
                        f"index {index} was committed as {known[:2]}, broker {broker} commits {(term, chain)}",
                    )
                continue
            if index != len(committed) + 1 or chain is None:
                raise self._broken("committed-changed", f"broker {broker} commits {index}, {len(committed)} are known")
            committed.append((term, chain, node.term))
            self._first_commit(index, term)
        if node.role is Role.LEADER and view.commit < commit and log.term(commit) != node.term:
            raise self._broken(
                "commit-of-old-term", f"broker {broker} leads term {node.term}, commits {commit} of {log.term(commit)}"
            )
        if node.membership_index <= commit and node.membership_index >= self._membership_index:
            self._membership, self._membership_index = node.membership, node.membership_index
        if len(committed) > known_before:
            self._check_quorum(broker, node, view, commit)
        view.commit = commit

    def _first_commit(self, index: int, term: int) -> None:
        if not self._streams:
            return
        kind, base, following, key = self._batches[index, term]
        if kind is EntryType.EPOCH:
            self.next_offset = base
            return
        if kind is not EntryType.DATA:
            self.next_offset = max(self.next_offset, following)
            return
        if base != self.next_offset:
            raise self._broken("dense-offsets", f"entry {index} begins at offset {base}, {self.next_offset} is next")
        self.next_offset = following
        if key is not None:
            if key[0] >= 0 and self.batches.setdefault(key, base) != base:
                raise self._broken("duplicate", f"{key} is committed at {self.batches[key]} and at {base}")
            self.offsets[base] = key
            home = self.home() if self.home is not None else None
            if home is not None and home.offsets.get(base) != key:
                raise self._broken("mirror-differs", f"offset {base} is {key}, the home has {home.offsets.get(base)}")

    def _check_quorum(self, broker: BrokerId, node: Any, view: ReplicaView, index: int) -> None:
        term, chain, _ = self.committed[index - 1]
        membership = node.membership
        for half in (membership.voters, membership.outgoing):
            if not half:
                continue
            holders = [
                voter for voter in half if self._has(voter, (index, term, chain)) or self._had(voter, view, node, index)
            ]
            if 2 * len(holders) <= len(half):
                raise self._broken(
                    "commit-not-durable", f"broker {broker} commits {index}; of {half} only {holders} have it on disk"
                )

    def _has(self, voter: BrokerId, row: Row) -> bool:
        view = self.views.get(voter)
        if view is None:
            return False
        if view.disk.damaged:
            return True  # a replica that lost entries says so by itself
        found = view.disk.entry(row[0])
        return found == row or (found is None and row[0] < view.disk.first_index())

    def _had(self, voter: BrokerId, view: ReplicaView, node: Any, index: int) -> bool:
        """Return whether a voter held an entry of this leader's log when its disk was lost: its word may come later."""
        held = view.excused.get(voter)
        return held is not None and held[0] >= index and node.log.term(held[0]) == held[1]

    # --- messages -------------------------------------------------------------------------------------

    def sent(self, source: BrokerId, target: BrokerId, body: bytes) -> None:
        """Look at one Raft frame that leaves `source`: what it promises must be true already."""
        kind = body[0]
        if kind == _VOTE_RESPONSE:
            flags = body[21]
            if flags == 2:
                term = int.from_bytes(body[13:21], "big")
                self._voted(source, term, target)
                self._promised[source] = max(self._promised.get(source, 0), term)
            elif not flags & 2:
                self._mark("raft.pre_vote_refused" if flags & 1 else "raft.vote_refused")
        elif kind == _APPEND_RESPONSE:
            if body[45] & 1:
                self._mark("raft.append_rejected")
                return
            term = int.from_bytes(body[13:21], "big")
            index = int.from_bytes(body[21:29], "big")
            self._promised[source] = max(self._promised.get(source, 0), term)
            view = self.views.get(source)
            if view is None or view.disk.damaged or term < view.term:
                return  # in an earlier term it was true: what was cut since, the leader of a later term has replaced
            if index and index >= view.first and view.disk.entry(index) is None:
                first = view.disk.first_index()
                if not first or index >= first:
                    raise self._broken("stable-not-durable", f"broker {source} acknowledges {index}, not on its disk")
        elif kind == _VOTE_REQUEST and body[37] & 2:
            self._mark("raft.forced_vote")
        elif kind == _SNAPSHOT:
            self._mark("raft.snapshot_sent")

    def _voted(self, voter: BrokerId, term: int, candidate: BrokerId) -> None:
        if self._votes.setdefault((voter, term), candidate) != candidate:
            raise self._broken(
                "one-vote", f"broker {voter} voted for {self._votes[voter, term]} and {candidate} in term {term}"
            )

    # --- clients --------------------------------------------------------------------------------------

    def acknowledged(self, key: tuple[int, int, int], base_offset: int) -> None:
        """A producer was told that its batch is stored at `base_offset`."""
        if self.batches.get(key) != base_offset:
            raise self._broken(
                "lost-write", f"{key} was acknowledged at {base_offset}, committed at {self.batches.get(key)}"
            )

    def answered(self, base_offset: int, records: int) -> None:
        """A producer has heard that so many records are stored from `base_offset` on."""
        self.acknowledged_end = max(self.acknowledged_end, base_offset + records)

    def confirmed_end(self, broker: BrokerId, end: int, asked_when: int) -> None:
        """A client was told that the log ends at `end`; when it asked, `asked_when` was acknowledged."""
        self._mark("stream.end_confirmed")
        if end < asked_when:
            raise self._broken(
                "stale-end", f"broker {broker} says that it ends at {end}, {asked_when} was acknowledged"
            )

    def read(self, broker: BrokerId, entries: Sequence[Entry]) -> None:
        """A reader got these entries."""
        for entry in entries:
            known = self.committed[entry.index - 1] if entry.index <= len(self.committed) else None
            if (
                known is None
                or (known[0], known[1]) != (entry.term, entry.chain)
                or self._frames[entry.index, entry.term] != crc32c(entry.frame)
            ):
                raise self._broken("wrong-read", f"broker {broker} serves {entry}, committed is {known}")

    def state(self, broker: BrokerId, index: int, state: int) -> None:
        """Compare a replica's applied state (as a hash) with the others' at the same index."""
        if self._tables.setdefault(index, state) != state:
            raise self._broken("states-differ", f"broker {broker} differs at index {index}")


def frames_of(raw: bytes | bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield (index, frame) of every entry in a segment's bytes, up to the first thing that is none."""
    position = 0
    while position + ENTRY_HEADER_BYTES <= len(raw):
        magic, _, _, payload_bytes, _, _, index, _, _ = LOCAL_PART.unpack_from(raw, position)
        end = position + ENTRY_HEADER_BYTES + payload_bytes
        if magic != MAGIC or end > len(raw):
            return
        yield index, bytes(raw[position:end])
        position = end
