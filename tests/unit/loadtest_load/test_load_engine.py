"""The threads of engines: when they run, and that one which has ended is noticed."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.load import engine, publisher
from loadtest.load.campaign import Campaign, Checks, Readers, Stage, Topic, Users
from loadtest.load.engine_values import Plan


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


class Mortal(engine.ReadEngine):
    """Has one reader, whose thread ends after so many looks at it."""

    def __init__(self, looks: int) -> None:
        checks = Checks(settle_s=0.1)
        self._plan: Any = SimpleNamespace(
            endpoints={"regions": {}}, settings={}, campaign=SimpleNamespace(checks=checks)
        )
        self._tally: Any = SimpleNamespace(tell=lambda: None)
        self._is_final = False
        self._readers: Any = [self]
        self.name = "w1-deliver0.0-us"
        self.progress: Any = SimpleNamespace(next={("orders", 0): 0})
        self._looks = looks

    def start(self) -> None:
        """Do nothing, as all of it."""

    hurry = stop = start

    @property
    def is_alive(self) -> bool:
        self._looks -= 1
        return self._looks >= 0


@pytest.mark.parametrize(
    ("looks", "command"),
    [(0, {"users": []}), (2, {"users": []}), (1, {"end": True})],
    ids=["at once", "under load", "while it waits for everything"],
)
def test_an_engine_whose_reader_has_died_does_not_say_that_records_are_missing(
    looks: int, command: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SAME_ENDS_S", 0.0)
    monkeypatch.setattr(engine, "ends_of", lambda *_: {})
    told = iter([command] * 5)
    commands: Any = SimpleNamespace(get=lambda timeout: next(told))
    with pytest.raises(RuntimeError, match=r"the thread that reads as w1-deliver0\.0-us has ended"):
        Mortal(looks).run(commands)


def test_an_engine_without_the_client_of_a_reader_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = Campaign(
        name="unit",
        about="",
        topics=(Topic(name="orders"),),
        stages=(Stage(seconds=1, users=1, rate=1),),
        users=(Users(kind="kafka", topics=("orders",)),),
        readers=(Readers(kind="aiokafka", topics=("orders",)),),
    )
    plan = Plan(campaign=campaign, endpoints={}, regions=("us",), folder=tmp_path, worker="w1", settings={})
    monkeypatch.setattr(engine, "read_plan", lambda *_: plan)
    monkeypatch.setattr("loadtest.groups.member_process.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["engine", "read", "plan.json"])
    switch_s = sys.getswitchinterval()
    assert engine.main() == 3
    sys.setswitchinterval(switch_s)
    said = "the read engine could not begin: aiokafka is not installed: pip install aiokafka"
    assert json.loads(capsys.readouterr().out) == {"failed": said}
