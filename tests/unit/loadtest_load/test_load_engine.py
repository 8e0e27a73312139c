"""The threads of an engine that publishes."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.load import engine, publisher


def test_a_thread_that_may_keep_the_sender_waiting_comes_before_the_mesh_and_what_it_starts_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, int, int]] = []

    def note(pid: int, how: int, param: os.sched_param) -> None:
        asked.append((threading.get_ident(), pid, how, param.sched_priority))

    monkeypatch.setattr(os, "sched_setscheduler", note)
    worked_in: list[int] = []
    thread = publisher.first_thread(lambda: worked_in.append(threading.get_ident()))
    thread.start()
    thread.join()
    assert asked == [(*worked_in, 0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 1)]  # 0: the thread that calls


def test_without_the_right_to_come_first_it_sends_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    publisher.come_first()


def test_an_engine_whose_sender_has_died_does_not_go_on_as_if_nothing_was_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)  # this process must not come before others

    class Dead(engine.PublishEngine):
        def __init__(self) -> None:
            self._users = []

        def _send(self) -> None:
            """End at once."""

    commands: Any = SimpleNamespace(get=lambda timeout: {"users": []})
    with pytest.raises(RuntimeError, match="the thread that sends has ended"):
        Dead().run(commands)
