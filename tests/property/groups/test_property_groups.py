"""Members that join, crash, come back and leave, a log that stalls, coordinators that die: what must hold all the same.

1 no partition has two members in one generation
2 a commit of a generation lands only while no newer one was assigned
3 every request is answered once; every member is assigned at most once in a generation
4 a committed offset is never lost, and never goes back but by a commit
5 a replica that follows the commands has the leader's state
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from georelay.ids import RegionNumber, StreamKey
from georelay.wire.api import ErrorCode
from region.coordination.in_memory import InMemoryCoordinatorLog
from region.groups.offsets_core import CommittedOffset
from region.groups.part import GroupsPart
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames
from region.groups.values import Identity, JoinWish, SyncWish

PARTITIONS = 12
CLIENTS = 5
GROUP = "g"
KEY = StreamKey(bytes(16), RegionNumber(0), 0)
REJOIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


Era = tuple[int, int]  # life of the group, generation


class Request:
    """One request: how often it was answered, and with what."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)


class Client:
    """A consumer as the clients of this world are: it does what the last answer says."""

    def __init__(self, number: int, *, is_static: bool) -> None:
        self.instance_id = f"i{number}" if is_static else None
        self.forget()

    def forget(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.assigned: frozenset[int] | None = None
        self.members: list[str] = []
        self.waits_for: Request | None = None
        self.is_syncing = False
        self.subscription = b"t"
        self.life = 0  # of the group, when the request that waits was made


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.log = InMemoryCoordinatorLog()
        self.ids = itertools.count(1)
        self.offsets = itertools.count(1)
        self.clients: list[Client] = []
        self.requests: list[Request] = []
        self.past: list[tuple[Era, Identity]] = []  # of members of generations that they were assigned in
        self.owners: dict[Era, dict[int, str]] = {}  # generation -> partition -> member
        self.given: dict[tuple[Era, str], frozenset[int]] = {}  # (generation, member) -> what it was assigned
        self.newest_assigned: Era = (0, 0)
        self.acknowledged = 0
        self.violations: list[tuple[Era, Era]] = []  # a callback's own exception would only be logged
        self.held = False
        self.part = self.make(self.log)
        self.log.add(self.part)
        self.log.elect()

    def make(self, log: Any) -> GroupsPart:
        names = TopicNames(topic=lambda _: None, topics=list, version=lambda: 0, is_deleted=lambda _: False)
        part_settings = GroupSettings(initial_rebalance_delay_ms=100)
        return GroupsPart(log, names=names, settings=part_settings, new_id=lambda: "")

    def teardown(self) -> None:
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    @initialize(statics=st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS))
    def begin(self, statics: list[bool]) -> None:
        self.clients = [Client(number, is_static=is_static) for number, is_static in enumerate(statics)]

    @property
    def life(self) -> int:
        """Return how often the group was forgotten: empty and without offsets it begins anew, with generation 1."""
        return sum(b'"kind":"drop"' in command for _, _, _, command in self.log.commands)

    # --- what clients do ---------------------------------------------------------------------------

    @rule(number=st.integers(0, CLIENTS - 1))
    def step(self, number: int) -> None:
        """Let one client do its next step."""
        self.run(self._step(self.clients[number]))

    @rule(count=st.integers(1, CLIENTS), rounds=st.integers(4, 9))
    def work(self, count: int, rounds: int) -> None:
        """Let some clients go on for a while, so that generations come to be."""
        for _ in range(rounds):
            for client in self.clients[:count]:
                self.run(self._step(client))
            self.advance(0.2)

    async def _step(self, client: Client) -> None:
        if client.waits_for is not None:
            if not client.waits_for.answers:
                return
            request, client.waits_for = client.waits_for, None
            (self._synced if client.is_syncing else self._joined)(client, request.answers[0])
        elif client.assigned is not None:
            self._heartbeat(client)
        else:
            self._join(client)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _request(self, client: Client, *, is_syncing: bool) -> Request:
        client.waits_for = Request()
        client.life = self.life
        client.is_syncing = is_syncing
        self.requests.append(client.waits_for)
        return client.waits_for

    def _join(self, client: Client) -> None:
        wish = JoinWish(
            member_id=client.member_id if client.instance_id is None else "",
            new_member_id=f"m{next(self.ids)}",
            instance_id=client.instance_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=(("range", client.subscription),),
            needs_known_id=client.instance_id is None,
        )
        self.part.join(GROUP, wish, self._request(client, is_syncing=False))

    def _joined(self, client: Client, answer: Any) -> None:
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
            self._join(client)
            return
        if answer.error is not ErrorCode.NONE:
            if answer.error not in REJOIN:
                client.forget()
            return
        client.member_id, client.generation = answer.member_id, answer.generation
        client.members = [row.member_id for row in answer.members]
        assignments = {
            member: bytes(range(place, PARTITIONS, len(client.members)))
            for place, member in enumerate(client.members)
            if answer.leader == answer.member_id and not answer.skip_assignment
        }
        wish = SyncWish(
            member_id=client.member_id,
            generation=client.generation,
            instance_id=client.instance_id,
            assignments=assignments,
        )
        self.part.sync(GROUP, wish, self._request(client, is_syncing=True))

    def _synced(self, client: Client, answer: Any) -> None:
        if answer.error is not ErrorCode.NONE:
            if answer.error not in REJOIN:
                client.forget()
            return
        client.assigned = frozenset(answer.assignment)
        era = (client.life, client.generation)
        self.newest_assigned = max(self.newest_assigned, era)
        self.past.append((era, self._identity(client)))
        known = self.given.setdefault((era, client.member_id), client.assigned)
        assert known == client.assigned, "two assignments for one member of one generation"
        owners = self.owners.setdefault(era, {})
        for partition in client.assigned:
            owner = owners.setdefault(partition, client.instance_id or client.member_id)
            assert owner == (client.instance_id or client.member_id), (era, partition, owner)

    def _identity(self, client: Client) -> Identity:
        return Identity(member_id=client.member_id, generation=client.generation, instance_id=client.instance_id)

    def _heartbeat(self, client: Client) -> None:
        code = self.part.heartbeat(GROUP, self._identity(client))
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            client.assigned = None
        elif code is not ErrorCode.NONE and code not in REJOIN:
            client.forget()

    @rule(number=st.integers(0, CLIENTS - 1))
    def crash(self, number: int) -> None:
        """Let a client forget everything; its member stays until its session ends."""
        self.clients[number].forget()

    @rule(number=st.integers(0, CLIENTS - 1))
    def resubscribe(self, number: int) -> None:
        client = self.clients[number]
        if client.waits_for is None:
            client.subscription = b"u" if client.subscription == b"t" else b"t"
            client.assigned = None

    @rule(number=st.integers(0, CLIENTS - 1))
    def leave(self, number: int) -> None:
        async def leave(client: Client) -> None:
            self.part.leave(GROUP, [self._identity(client)])
            client.forget()

        self.run(leave(self.clients[number]))

    # --- commits -----------------------------------------------------------------------------------

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Let a member of any generation that ever was commit."""
        era, who = data.draw(st.sampled_from(self.past))
        offset = next(self.offsets)
        request = Request()
        self.requests.append(request)

        async def commit() -> None:
            newest = self.newest_assigned
            was_leading = self.log.is_leader

            def done(codes: Any) -> None:
                request(codes)
                if codes[KEY] is ErrorCode.NONE:
                    self.acknowledged = offset
                    if not was_leading or era < newest:
                        self.violations.append((era, newest))

            self.part.commit(GROUP, who, {KEY: CommittedOffset(offset=offset)}, done)
            await asyncio.sleep(0)

        self.run(commit())

    # --- what happens to the coordinator -----------------------------------------------------------

    @rule(seconds=st.sampled_from([3.0, 9.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        async def advance() -> None:
            self.log.clock.advance(seconds)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        self.run(advance())

    @rule()
    def stall(self) -> None:
        self.log.hold()
        self.held = True

    @rule()
    def go_on(self) -> None:
        async def release() -> None:
            self.log.release()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        self.held = False
        self.run(release())

    @rule()
    def fail_over(self) -> None:
        async def move() -> None:
            self.log.depose(leader=1002)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.log.release()
            self.part = self.log.restart(self.make)  # type: ignore[assignment]
            self.log.elect()

        self.held = False
        self.run(move())

    # --- what must hold ----------------------------------------------------------------------------

    @invariant()
    def every_request_is_answered_at_most_once(self) -> None:
        assert all(len(request.answers) <= 1 for request in self.requests)
        self.requests = [request for request in self.requests if not request.answers]

    @invariant()
    def no_commit_of_an_older_generation_landed(self) -> None:
        assert self.violations == []

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        row, _ = self.part.fetch(GROUP, [KEY])[KEY]
        assert (0 if row is None else row.offset) >= self.acknowledged

    @invariant()
    def a_follower_has_the_same_state(self) -> None:
        if not self.held and len(self.log.commands) < 60:
            follower = self.make(self.log)
            self.log.replay(follower)
            assert follower.snapshot() == self.part.snapshot()


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(stateful_step_count=40)
