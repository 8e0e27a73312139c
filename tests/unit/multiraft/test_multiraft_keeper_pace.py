"""A keeper whose groups are all as they should be looks more rarely; whatever is wanted anew is seen at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId
from region.multiraft.replica_keeper_core import ReplicaTarget
from region.multiraft.replicas import SETTLED_LOOKS, ReplicaKeeper


class CountedGroups(dict[GroupId, Any]):
    """A host's groups, none of them, and how often they were looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


class IdleHost:
    me = BrokerId(1001)

    def __init__(self) -> None:
        self.groups = CountedGroups()

    def is_alive(self, _: BrokerId) -> bool:
        return True


class PacedKeeper:
    """A keeper whose timer is turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = IdleHost()
        self.targets: Mapping[GroupId, ReplicaTarget] = {}
        host: Any = self.host
        self.keeper = ReplicaKeeper(host, targets=lambda: self.targets, barrier=self.nothing, report=self.nothing)
        monkeypatch.setattr(self.keeper, "start", lambda: None)

    async def nothing(self, *_: object) -> None:
        return None

    def turn(self, times: int) -> int:
        """Let the timer fire; return how many looks it led to."""
        before = self.host.groups.looks
        for _ in range(times):
            self.keeper._look_again()
        return self.host.groups.looks - before


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> PacedKeeper:
    return PacedKeeper(monkeypatch)


def test_while_nothing_is_due_one_of_several_looks_is_taken(paced: PacedKeeper) -> None:
    assert paced.turn(1) == 1
    assert paced.turn(SETTLED_LOOKS - 1) == 0
    assert paced.turn(1) == 1


def test_other_targets_are_looked_at_by_the_next_timer(paced: PacedKeeper) -> None:
    paced.turn(1)
    paced.targets = {GroupId(1): ReplicaTarget(voters=(BrokerId(1001),))}
    assert paced.turn(1) == 1
