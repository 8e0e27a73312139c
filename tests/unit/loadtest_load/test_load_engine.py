"""The engine's thread that watches the clock."""

from __future__ import annotations

import os

import pytest

from loadtest.load import engine


def test_the_thread_that_sends_asks_to_come_before_the_mesh_and_what_it_starts_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, how, p: asked.append((pid, how, p.sched_priority)))
    engine.come_first()
    assert asked == [(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 1)]  # 0: the thread that calls


def test_without_the_right_to_come_first_it_sends_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    engine.come_first()
