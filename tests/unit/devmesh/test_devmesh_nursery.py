"""Processes that a nursery forks are like those that are run from their program: parent, command line, log, death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from region.devmesh import nursery, supervisor
from region.devmesh.nursery import ForkedProcess, Nursery

CHILD = """
import os, signal, sys, time
from georelay.process_guard import die_with_parent
def main():
    die_with_parent(os.getppid())
    has_heavy = "child.heavy" in sys.modules
    print("said", os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), sys.argv[1:], has_heavy, flush=True)
    if sys.argv[2] == "ends":
        return 7
    time.sleep(60)
"""
PARENT = """
import asyncio, sys, time
from pathlib import Path
from region.devmesh import nursery
nursery.MODULES = {"child": ()}
async def main():
    here = Path(sys.argv[1])
    made = nursery.Nursery(here / "nursery.log")
    await made.start()
    process = await made.fork(
        (sys.executable, "-P", "-m", "child", "--config", "stays"), log_path=here / "a.log", directory=here
    )
    while not (here / "a.log").exists() or not (here / "a.log").read_bytes():
        time.sleep(0.01)
    print(process.pid, flush=True)
    time.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a program `child`, which the nursery knows and can import."""
    (tmp_path / "child").mkdir()
    for module in ("__init__", "heavy"):
        (tmp_path / "child" / f"{module}.py").touch()
    (tmp_path / "child" / "__main__.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(nursery, "MODULES", {"child": ()})
    monkeypatch.setattr(nursery, "TRACE_MODULES", ("child.heavy",))
    return tmp_path


def argv(word: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "child", "--config", word)


async def forked(made: Nursery, here: Path, word: str) -> tuple[ForkedProcess, str]:
    """Return a new process and what it said."""
    log_path = here / f"{word}.log"
    process = await made.fork(argv(word), log_path=log_path, directory=here)
    assert process is not None, (here / "nursery.log").read_text()
    async with asyncio.timeout(10):
        while not (log_path.exists() and (said := log_path.read_text()).endswith("\n")):
            await asyncio.sleep(0.01)
    return process, said


async def test_a_forked_process_is_ours_looks_as_if_it_had_been_run_and_has_what_traces_need(here: Path) -> None:
    made = Nursery(here / "nursery.log", traces=True)
    await made.start()
    stays, said = await forked(made, here, "stays")
    assert said == f"said {os.getpid()} True {here} {['--config', 'stays']} True\n"
    shown = Path(f"/proc/{stays.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [argument.encode() for argument in argv("stays")]
    ends, _ = await forked(made, here, "ends")
    assert await ends.wait() == ends.returncode == 7
    with pytest.raises(ProcessLookupError):
        ends.send_signal(signal.SIGTERM)
    await made.stop()
    assert stays.returncode is None  # it does not end with what forked it
    stays.send_signal(signal.SIGTERM)
    assert await stays.wait() == -signal.SIGTERM
    assert await made.fork(argv("late"), log_path=here / "late.log", directory=here) is None


async def test_what_was_forked_last_runs_though_the_nursery_is_told_to_end_at_once(here: Path) -> None:
    for row in range(2):
        made = Nursery(here / "nursery.log")
        await made.start()
        process = await made.fork(argv("ends"), log_path=here / f"{row}.log", directory=here)
        await made.stop()
        assert process is not None and await process.wait() == 7


def test_a_forked_process_dies_with_its_parent_however_that_ends(here: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(here)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if " Z " in Path(f"/proc/{pid}/stat").read_text():
            break  # of whoever adopts orphans here
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{pid}").exists()


UNTOLD = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from georelay.process_guard import adopt_orphans
from region.devmesh import nursery
adopt_orphans(True)
log = Path(sys.argv[1]) / "a.log"
request = {"argv": [sys.executable, "-P", "-m", "child"], "log": str(log), "directory": sys.argv[1]}
ran = {"child": SimpleNamespace(main=lambda: 0)}
pid, begin = nursery._fork(os.getpid(), request, ran, os.dup(1))
os.close(begin)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), log.exists())
"""


def test_a_process_of_which_the_parent_was_not_told_runs_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", UNTOLD, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("1 False\n", "")


async def test_a_nursery_that_does_not_answer_in_time_says_so_and_makes_nothing_later(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "START_TIMEOUT_S", 0.0)
    made = Nursery(here / "nursery.log")
    await made.start()
    assert await made.fork(argv("stays"), log_path=here / "stays.log", directory=here) is None
    assert (here / "nursery.log").read_text() == "nursery: no answer within 0 s\n"
    assert not (here / "stays.log").exists()


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"


@pytest.mark.parametrize(
    ("code", "said"),
    [("raise RuntimeError('no such disk')", "no such disk"), (THREAD, "2 threads")],
    ids=["does not import", "starts a thread"],
)
async def test_where_nothing_can_be_forked_a_child_is_run_from_its_program(here: Path, code: str, said: str) -> None:
    for name in ("logs", "run"):
        (here / name).mkdir()
    (here / "child" / "__main__.py").write_text(f"{code}\nprint('alone', flush=True)\n")
    made = Nursery(here / "logs" / "nursery.log")
    running = supervisor.Supervisor(here, restart=False, on_exit=lambda _: None, nursery=made)
    await made.start()
    await running.start(supervisor.ChildSpec(name="a", argv=argv("x"), ready_address="127.0.0.1:1"))
    assert isinstance(running._processes["a"], asyncio.subprocess.Process)
    async with asyncio.timeout(10):
        while said not in (here / "logs" / "a.log").read_text() and said not in "2 threads":
            await asyncio.sleep(0.01)
    await running.stop()
    assert said in (here / "logs" / "nursery.log").read_text()


@pytest.mark.parametrize(
    ("command", "is_made"),
    [
        ((sys.executable, "-P", "-m", "region", "--config", "a"), True),
        ((sys.executable, "-P", "-m", "gateway", "--config", "a"), True),
        ((sys.executable, "-P", "-m", "region.faults", "--config", "a"), False),
        (("ip", "netns", "exec", "us", sys.executable, "-P", "-m", "region"), False),
        ((sys.executable, "-P", "-m"), False),
    ],
)
def test_only_brokers_and_gateways_of_this_interpreter_are_forked(command: tuple[str, ...], is_made: bool) -> None:
    assert Nursery.makes(command) is is_made
