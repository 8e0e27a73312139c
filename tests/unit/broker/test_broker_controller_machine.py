"""Commands are applied in order from the first entry; whoever waits for one learns its index or that it is unknown."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import Busy, NotLeader, OutcomeUnknown
from georelay.ids import RaftIndex, Term
from region.broker.controller_machine import ControllerMachine
from region.controller.commands import CommandError
from region.controller.state_snapshot import SnapshotError
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, seal_entry
from region.log.errors import LogCorrupt
from region.log.manifest import Manifest
from region.multiraft.machine import InvariantBroken


class Bench:
    """A machine, what it applied, and a log of one."""

    def __init__(self) -> None:
        self.applied: list[tuple[bytes, int]] = []
        self.batches = 0
        self.entries: list[Entry] = []
        self.busy = False
        self.machine = ControllerMachine(
            clock=SystemClock(),
            apply=self.apply,
            applied_batch=self.note_batch,
            led=lambda: None,
            snapshot=lambda: repr(self.applied).encode(),
            restore=self.restore,
        )
        self.machine.proposer = self

    def apply(self, command: bytes, index: RaftIndex) -> None:
        if command == b"unknown":
            raise CommandError("a command of the future")
        self.applied.append((bytes(command), index))

    def restore(self, raw: bytes) -> None:
        if raw == b"unknown":
            raise SnapshotError("a snapshot of the future")
        self.applied = ast.literal_eval(raw.decode())

    def manifest(self) -> Manifest:
        newest = self.entries[-1]
        return Manifest(
            index=newest.index,
            term=newest.term,
            chain=newest.chain,
            stream_part=newest.header().encode(),
            state=self.machine.snapshot(),
        )

    def note_batch(self) -> None:
        self.batches += 1

    def propose(self, drafts: Sequence[EntryDraft]) -> Sequence[Entry]:
        if self.busy:
            raise Busy("too much is uncommitted")
        return [self.append(draft) for draft in drafts]

    def entries_below(self, index: RaftIndex) -> Iterable[Entry]:
        return [entry for entry in self.entries if entry.index < index]

    async def read_index(self) -> RaftIndex:
        return self.entries[-1].index

    def advance_start(self, first_index: RaftIndex) -> None:
        raise AssertionError(f"the controller never trims its log itself, not to {first_index}")

    def seal(self) -> None:
        raise AssertionError("the controller never seals a segment itself")

    def corrupt_found(self, error: LogCorrupt) -> None:
        raise AssertionError(f"the controller reads no cold entries: {error}")

    def append(self, draft: EntryDraft) -> Entry:
        chain = self.entries[-1].chain if self.entries else FIRST_CHAIN
        entry = seal_entry(draft, term=Term(1), index=RaftIndex(len(self.entries) + 1), previous_chain=chain)
        self.entries.append(entry)
        self.machine.appended(entry)
        return entry

    def lead(self) -> None:
        self.append(EntryDraft(header=self.machine.noop_header(), payload=b""))
        self.machine.applied(self.entries)
        self.machine.led(leader=1001, is_leader=True)

    def propose_soon(self, command: bytes) -> asyncio.Task[RaftIndex]:
        return asyncio.ensure_future(self.machine.propose(command))


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.lead()
    return made


async def test_a_command_is_answered_with_its_index_after_it_was_applied(bench: Bench) -> None:
    proposal = bench.propose_soon(b"one")
    await asyncio.sleep(0)
    assert not proposal.done()
    bench.machine.applied(bench.entries[1:])
    assert await proposal == 2
    assert bench.applied == [(b"one", 2)]


async def test_who_does_not_lead_proposes_nothing() -> None:
    bench = Bench()
    with pytest.raises(NotLeader):
        await bench.machine.propose(b"one")
    assert bench.entries == []


async def test_a_refused_proposal_leaves_no_waiter(bench: Bench) -> None:
    bench.busy = True
    with pytest.raises(Busy):
        await bench.machine.propose(b"one")
    bench.busy = False
    proposal = bench.propose_soon(b"two")
    await asyncio.sleep(0)
    bench.machine.applied(bench.entries[1:])
    assert await proposal == 2


@pytest.mark.parametrize("how", ["truncated", "led elsewhere"])
async def test_a_command_that_is_not_committed_by_this_leader_has_an_unknown_outcome(bench: Bench, how: str) -> None:
    proposal = bench.propose_soon(b"one")
    await asyncio.sleep(0)
    if how == "truncated":
        bench.machine.truncated(RaftIndex(2), bench.entries[0])
    else:
        bench.machine.led(leader=1002, is_leader=False)
    with pytest.raises(OutcomeUnknown):
        await proposal


async def test_after_a_truncation_the_log_continues_where_it_ends(bench: Bench) -> None:
    noop = bench.entries[0]
    for command in (b"lost", b"lost too"):
        lost = bench.propose_soon(command)
        await asyncio.sleep(0)
        lost.add_done_callback(lambda task: task.exception())
    del bench.entries[1:]
    bench.machine.truncated(RaftIndex(2), noop)
    proposal = bench.propose_soon(b"kept")
    await asyncio.sleep(0)
    assert bench.entries[1].base_offset == 0
    bench.machine.applied(bench.entries[1:])
    assert (await proposal, bench.applied) == (2, [(b"kept", 2)])


async def test_groups_are_settled_once_per_batch_of_commands(bench: Bench) -> None:
    before = bench.batches
    proposals = [bench.propose_soon(b"%d" % row) for row in range(3)]
    await asyncio.sleep(0)
    bench.machine.applied(bench.entries[1:])
    assert await asyncio.gather(*proposals) == [2, 3, 4]
    assert (bench.batches, [command for command, _ in bench.applied]) == (before + 1, [b"0", b"1", b"2"])


async def test_a_command_of_the_future_stops_the_group_and_answers_nobody(bench: Bench) -> None:
    proposal = bench.propose_soon(b"unknown")
    await asyncio.sleep(0)
    with pytest.raises(InvariantBroken, match="entry 2"):
        bench.machine.applied(bench.entries[1:])
    assert not proposal.done()
    bench.machine.led(leader=-1, is_leader=False)
    with pytest.raises(OutcomeUnknown):
        await proposal


async def test_a_restart_applies_every_command_again_in_order(bench: Bench) -> None:
    proposals = [bench.propose_soon(b"%d" % row) for row in range(3)]
    await asyncio.sleep(0)
    bench.machine.applied(bench.entries[1:])
    await asyncio.gather(*proposals)
    again: Any = Bench()
    for entry in bench.entries:
        again.machine.recovered(entry)
    assert again.applied == []
    again.machine.applied(bench.entries)
    assert again.applied == bench.applied


async def committed(bench: Bench, *commands: bytes) -> None:
    proposals = [bench.propose_soon(command) for command in commands]
    await asyncio.sleep(0)
    bench.machine.applied(bench.entries[-len(commands) :])
    await asyncio.gather(*proposals)


async def test_a_machine_restored_from_a_manifest_goes_on_where_the_log_ended(bench: Bench) -> None:
    await committed(bench, b"one", b"two")
    other = Bench()
    other.machine.restore(bench.manifest())
    assert (other.applied, other.machine.applied_index) == (bench.applied, 3)
    other.machine.led(leader=1001, is_leader=True)
    proposal = other.propose_soon(b"three")
    await asyncio.sleep(0)
    assert other.entries[0].base_offset == 2  # one offset per command before it
    other.machine.led(leader=-1, is_leader=False)
    with pytest.raises(OutcomeUnknown):
        await proposal


async def test_a_log_that_is_truncated_down_to_its_manifest_ends_where_the_manifest_says(bench: Bench) -> None:
    await committed(bench, b"one", b"two")
    other = Bench()
    other.machine.restore(bench.manifest())
    other.machine.appended(bench.entries[1])
    other.machine.truncated(RaftIndex(4), None)
    assert other.machine.noop_header().base_offset == 2


async def test_groups_are_settled_after_a_restore_but_not_in_the_middle_of_it(bench: Bench) -> None:
    await committed(bench, b"one")
    other = Bench()
    other.machine.restore(bench.manifest())
    assert other.batches == 0
    await asyncio.sleep(0)
    assert other.batches == 1


async def test_who_waits_for_a_command_while_a_manifest_comes_has_an_unknown_outcome(bench: Bench) -> None:
    await committed(bench, b"one")
    manifest = bench.manifest()
    proposal = bench.propose_soon(b"two")
    await asyncio.sleep(0)
    bench.machine.restore(manifest)
    with pytest.raises(OutcomeUnknown):
        await proposal


async def test_a_manifest_of_the_future_stops_the_group_and_changes_nothing(bench: Bench) -> None:
    await committed(bench, b"one")
    before = list(bench.applied)
    with pytest.raises(InvariantBroken, match="manifest 2"):
        bench.machine.restore(replace(bench.manifest(), state=b"unknown"))
    assert (bench.applied, bench.machine.applied_index) == (before, 2)


async def test_a_machine_made_without_snapshots_says_so() -> None:
    machine = ControllerMachine(
        clock=SystemClock(), apply=lambda *_: None, applied_batch=lambda: None, led=lambda: None
    )
    with pytest.raises(InvariantBroken, match="without snapshots"):
        machine.snapshot()
