"""Programs that campaigns run: real ones, of this Python."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest import child_process
from loadtest.child_process import PYTHON, ChildProcess, KeptProcess

WAITS = "import signal, sys; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


async def until_it_says(process: ChildProcess, words: str) -> None:
    async with asyncio.timeout(20):
        while process.last_words() != words:
            await asyncio.sleep(0.01)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_program_that_was_asked_to_go_has_not_ended_by_itself(tmp_path: Path) -> None:
    process = ChildProcess("waits", log=tmp_path / "log")
    await process.launch(PYTHON, "-c", WAITS)
    await until_it_says(process, "up")
    await process.stop()
    assert (process.is_running, process.ended_by_itself) == (False, False)


async def test_a_program_that_was_killed_by_others_has_and_its_last_words_are_kept(tmp_path: Path) -> None:
    process = ChildProcess("dies", log=tmp_path / "log")
    await process.launch(PYTHON, "-c", "import sys; print('first'); sys.exit('no room')")
    assert await process.ended() == 1
    assert (process.ended_by_itself, process.last_words()) == (True, "no room")
    process.send(signal.SIGTERM)  # nothing is there any more
    await process.kill()
    assert not process.ended_by_itself


async def test_without_a_log_its_output_and_errors_are_the_answer() -> None:
    process = ChildProcess("answers")
    await process.launch(PYTHON, "-c", "import sys; print('42'); sys.exit('but')")
    assert await process.answer() == (1, "42\n", "but\n")


async def test_a_kept_program_is_started_again_until_it_ends_well(tmp_path: Path) -> None:
    kept = KeptProcess("kept", lambda start: (PYTHON, "-c", f"import sys; sys.exit({3 - start})"), log=tmp_path / "log")
    await until(lambda: kept.starts == 3 and kept.ended_by_itself)
    assert kept.starts == 3
    await kept.stop()


async def test_a_kept_program_that_is_killed_comes_back_and_one_that_is_stopped_does_not(tmp_path: Path) -> None:
    kept = KeptProcess("kept", lambda start: (PYTHON, "-c", WAITS.replace("up", f"up {start}")), log=tmp_path / "log")
    await until_it_says(kept, "up 1")
    kept.strike()
    await until_it_says(kept, "up 2")
    assert kept.is_running
    await kept.stop()
    assert (kept.starts, kept.is_running) == (2, False)


async def test_a_signal_takes_nobodys_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = ChildProcess("child", log=tmp_path / "log")
    await child.launch(PYTHON, "-c", "import time; time.sleep(60)")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "poll", lambda _: pytest.fail("it looks whether the child has ended"))
        child.send(signal.SIGTERM)
    assert await child.ended() == -signal.SIGTERM


async def test_a_kept_program_that_dies_of_its_request_to_end_is_asked_again_until_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "ASK_AGAIN_S", 0.02)
    ends = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); "
        "print('up {start}', flush=True); signal.pause()"
    )

    def words(start: int) -> tuple[str, ...]:
        return (PYTHON, "-c", ends.format(code=3 if start == 1 else 0, start=start))

    kept = KeptProcess("kept", words, log=tmp_path / "log")
    await until_it_says(kept, "up 1")
    assert await kept.ends_well(20)
    assert kept.starts >= 2
    deaf = KeptProcess("deaf", lambda _: (PYTHON, "-c", DEAF), log=tmp_path / "deaf")
    await until_it_says(deaf, "up")
    assert not await deaf.ends_well(0.05)
    deaf.strike()
    await deaf.stop()


async def test_a_kept_program_that_takes_longer_to_start_than_it_is_asked_again_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "ASK_AGAIN_S", 0.02)
    slow = "import time; time.sleep(0.2); import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
    kept = KeptProcess("slow", lambda _: (PYTHON, "-c", f"{slow} signal.pause()"), log=tmp_path / "log")
    await until(lambda: kept.is_running)
    assert await kept.ends_well(60)


@pytest.mark.parametrize("own_session", [True, False])
async def test_a_client_hears_what_its_group_is_told_and_a_program_with_its_own_session_does_not(
    tmp_path: Path, own_session: bool
) -> None:
    process = ChildProcess("waits", log=tmp_path / "log")
    await process.launch(PYTHON, "-c", "import os; print(os.getpgrp())", own_session=own_session)
    await process.ended()
    assert (process.last_words() == str(os.getpgrp())) is not own_session


async def test_a_kept_program_that_ends_at_once_is_started_again_ever_later_until_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    nap = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds >= child_process.PAUSE_S:
            slept.append(seconds)
            monkeypatch.setattr(child_process, "LIVED_S", 0.0 if len(slept) == 5 else 600.0)
        await nap(0)

    monkeypatch.setattr(child_process, "LIVED_S", 600.0)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    kept = KeptProcess("kept", lambda start: (PYTHON, "-c", f"raise SystemExit({8 - start})"), log=tmp_path / "log")
    async with asyncio.timeout(60):
        await asyncio.wait((kept._task,))
    assert slept == [0.2, 0.4, 0.8, 1.6, 2.0, 0.2, 0.4]
    await kept.stop()


async def test_what_keeps_a_program_from_starting_is_raised_by_whoever_looks(tmp_path: Path) -> None:
    kept = KeptProcess("kept", lambda _: ("/no/such/program",), log=tmp_path / "log")
    kept.check()
    await asyncio.wait((kept._task,))
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        kept.check()
    await kept.stop()


async def test_a_kept_program_that_was_stopped_needs_not_be_asked_to_end(tmp_path: Path) -> None:
    kept = KeptProcess("kept", lambda _: (PYTHON, "-c", WAITS), log=tmp_path / "log")
    await until_it_says(kept, "up")
    await kept.stop()
    assert await kept.ends_well(1)
