"""A group with members that a test moves by hand: time stands still until it is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from georelay.wire.api import ErrorCode
from region.groups.group_core import Group, GroupState
from region.groups.settings import GroupSettings
from region.groups.values import (
    Effect,
    GroupRecord,
    Identity,
    JoinAnswered,
    JoinWish,
    Store,
    SyncAnswered,
    SyncWish,
)
from tests.unit.groups.coordinator_world import World

MS = 1_000_000
NOT_YET: Any = None


@dataclass
class Call:
    """One request of a member; `answer` is None until there is one."""

    answer: Any = NOT_YET
    answers: list[Any] = field(default_factory=list)

    def __call__(self, answer: Any) -> None:
        self.answer = answer
        self.answers.append(answer)


class Scene:
    """One group; stores succeed at once unless `hold_stores`."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.group = Group("g", settings)
        self.now_ms = 0
        self.records: list[GroupRecord] = []
        self.hold_stores = False
        self.held: list[Store] = []
        self._ids = itertools.count(1)

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"t"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        needs_known_id: bool = False,
        can_skip: bool = False,
    ) -> Call:
        call = Call()
        wish = JoinWish(
            member_id=member_id,
            new_member_id=f"m{next(self._ids)}",
            instance_id=instance_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            needs_known_id=needs_known_id,
            can_skip_assignment=can_skip,
        )
        self.perform(self.group.join(wish, call, self.now_ms * MS))
        return call

    def sync(
        self, member_id: str, assignments: dict[str, bytes] | None = None, *, generation: int | None = None, **more: Any
    ) -> Call:
        call = Call()
        wish = SyncWish(
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
            assignments=assignments or {},
            **more,
        )
        self.perform(self.group.sync(wish, call, self.now_ms * MS))
        return call

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        who = Identity(
            member_id=member_id,
            generation=self.group.generation if generation is None else generation,
            instance_id=instance_id,
        )
        return self.group.heartbeat(who, self.now_ms * MS)

    def commit(self, member_id: str = "", *, generation: int | None = None, **more: Any) -> ErrorCode:
        wanted = self.group.generation if generation is None else generation
        return self.group.check_commit(Identity(member_id=member_id, generation=wanted), self.now_ms * MS, **more)

    def leave(self, member_id: str = "", *, instance_id: str | None = None) -> ErrorCode:
        code, effects = self.group.leave(Identity(member_id=member_id, instance_id=instance_id), self.now_ms * MS)
        self.perform(effects)
        return code

    def pass_ms(self, ms: int) -> None:
        """Let time pass; what is due happens at its time."""
        until_ms = self.now_ms + ms
        while (due_ns := self.group.next_due_ns()) is not None and due_ns <= until_ms * MS:
            self.now_ms = max(self.now_ms, due_ns // MS)
            self.perform(self.group.due(self.now_ms * MS))
        self.now_ms = until_ms

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case JoinAnswered(ticket=ticket, answer=answer) | SyncAnswered(ticket=ticket, answer=answer):
                    assert callable(ticket)
                    ticket(answer)
                case Store() if self.hold_stores:
                    self.held.append(effect)
                case Store():
                    self.stored(effect)

    def stored(self, effect: Store, error: ErrorCode = ErrorCode.NONE) -> None:
        if error is ErrorCode.NONE:
            self.records.append(effect.record)
        self.perform(effect.done(error, self.now_ms * MS))

    def stable(self, count: int, **more: Any) -> list[str]:
        """Bring `count` members into one generation, each with its own assignment; returns their ids, leader first."""
        calls = [self.join(**more) for _ in range(count)]
        self.pass_ms(self.settings.initial_rebalance_delay_ms)
        while any(call.answer is None for call in calls):
            self.pass_ms(self.settings.initial_rebalance_delay_ms)
        ids = [call.answer.member_id for call in calls]
        leader = calls[0].answer.leader
        ids.sort(key=lambda member: member != leader)
        self.sync(leader, {member: member.encode() for member in ids})
        for member in ids[1:]:
            self.sync(member)
        assert self.group.state is GroupState.STABLE
        return ids


@pytest.fixture
def scene() -> Scene:
    """A group that waits 100 ms before its first rebalance ends."""
    return Scene(GroupSettings(initial_rebalance_delay_ms=100))


@pytest.fixture
def make_scene() -> Callable[..., Scene]:
    """Build a scene with other settings."""
    return lambda **settings: Scene(GroupSettings(**settings))


@pytest.fixture
def world() -> World:
    made = World()
    made.log.elect()
    return made
