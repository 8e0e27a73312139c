"""Commit indexes that travel alone are held back, and overtaken by the next Append of their group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId, Term
from region.multiraft.quiet_commits import HOLD_MS, QuietCommits
from region.raft.core import Append

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


class HandClock:
    """The timers of an event loop, run by hand."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> HandClock:
        self.timers.append((delay, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def pass_time(self) -> None:
        due, self.timers = self.timers, []
        for _, callback in due:
            callback()


def append(commit: int, *, to: BrokerId = B, quiet: bool = True) -> Append[Any]:
    return Append(from_=A, to=to, term=Term(1), prev_index=commit, prev_term=Term(1), commit=commit, quiet=quiet)


@pytest.fixture
def sent() -> list[tuple[int, int, int]]:
    return []


@pytest.fixture
def quiet(sent: list[tuple[int, int, int]]) -> QuietCommits:
    return QuietCommits(lambda group, message: sent.append((group, message.to, message.commit)))


def test_a_quiet_commit_leaves_alone_when_nothing_overtakes_it(
    quiet: QuietCommits, sent: list[tuple[int, int, int]]
) -> None:
    clock: Any = HandClock()
    assert quiet.takes(GroupId(1), append(7), clock)
    assert [delay for delay, _ in clock.timers] == [HOLD_MS / 1000]
    assert sent == []
    clock.pass_time()
    assert sent == [(1, B, 7)]
    assert quiet.takes(GroupId(1), append(8), clock)
    clock.pass_time()
    assert sent[1:] == [(1, B, 8)]


def test_the_newest_commit_of_a_group_stands_for_the_older_ones(
    quiet: QuietCommits, sent: list[tuple[int, int, int]]
) -> None:
    clock: Any = HandClock()
    for commit in (7, 8, 9):
        assert quiet.takes(GroupId(1), append(commit), clock)
    assert len(clock.timers) == 1
    clock.pass_time()
    assert sent == [(1, B, 9)]


def test_an_append_that_needs_an_answer_overtakes_what_is_held_for_its_group_and_follower_only(
    quiet: QuietCommits, sent: list[tuple[int, int, int]]
) -> None:
    clock: Any = HandClock()
    for group, to in ((1, B), (1, C), (2, B)):
        assert quiet.takes(GroupId(group), append(7, to=to), clock)
    assert not quiet.takes(GroupId(1), append(8, quiet=False), clock), "it is sent by whoever asks"
    clock.pass_time()
    assert sent == [(1, C, 7), (2, B, 7)]


def test_nothing_leaves_after_stop(quiet: QuietCommits, sent: list[tuple[int, int, int]]) -> None:
    clock: Any = HandClock()
    quiet.takes(GroupId(1), append(7), clock)
    late = list(clock.timers)
    quiet.stop()
    assert clock.timers == []
    for _, callback in late:
        callback()
    assert sent == []
