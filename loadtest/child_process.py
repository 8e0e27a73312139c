"""A program as a child process: started, signalled, waited for, ended; clients and brokers of campaigns are such."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PYTHON: Final = sys.executable
STOP_SECONDS_MAX: Final = 15
ASK_AGAIN_S: Final = 1.0
PAUSE_S, PAUSE_S_MAX = 0.2, 2.0  # before a program is started again, one that lived for less than LIVED_S
LIVED_S: Final = 5.0
SAID_BYTES_MAX: Final = 4_096
SAID_NOTHING: Final = "it said nothing"
_GUARD: Final = """
import os, sys
from georelay.process_guard import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def guarded(*words: object) -> list[str]:
    """Return a command line that ends with the thread that runs it, also by kill -9; its pid is that of the program."""
    return [PYTHON, "-c", _GUARD, str(os.getpid()), *map(str, words)]


def end(process: subprocess.Popen[Any], *, within_s: float = STOP_SECONDS_MAX) -> None:
    """Stop a process in order and wait for it; kill -9 when it does not end. One that is gone stays so."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ChildProcess:
    """One program, started as often as it is wanted.

    Args:
        name: for people; what derived classes name files after.
        log: takes what it says, behind what is there; None: what it says is read by `answer`.
    """

    def __init__(self, name: str, *, log: Path | None = None) -> None:
        self.name = name
        self.log_file = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Return whether there is a process."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Return the number of the process that was launched last."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def ended_by_itself(self) -> bool:
        """Return whether the process is gone although nobody here asked it to go."""
        return self._process is not None and self._process.returncode is not None

    async def launch(
        self, *words: str, environment: Mapping[str, str] | None = None, own_session: bool = False
    ) -> None:
        """Run this command line.

        Args:
            environment: all of it; None: that of this process.
            own_session: signals to the group of this process, such as Ctrl-C, do not reach it: for brokers, which end
                with their parent anyhow.
        """
        assert not self.is_running, f"{self.name} runs already"
        with contextlib.ExitStack() as stack:
            output = asyncio.subprocess.PIPE if self.log_file is None else stack.enter_context(self.log_file.open("ab"))
            self._process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=own_session,
                env=environment,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing when it is gone.

        Not by `Process.send_signal`: that takes the exit code of a child that has just ended, and `ended` says 255.
        """
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def answer(self) -> tuple[int, str, str]:
        """Wait until it ends; return its exit code, output and errors."""
        assert self._process is not None, f"{self.name} was not started"
        said, why = await self._process.communicate()
        assert self._process.returncode is not None, "it has ended"
        return self._process.returncode, said.decode("utf-8", "replace"), why.decode("utf-8", "replace")

    async def ended(self) -> int:
        """Wait until it ends; return its exit code."""
        assert self._process is not None, f"{self.name} was not started"
        return await self._process.wait()

    async def reap(self) -> None:
        """Wait until it is gone, and do not call that its own doing."""
        if self._process is not None:
            await self._process.wait()
            self._process = None

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        await self.reap()

    async def stop(self) -> None:
        """Stop it in order; kill -9 after STOP_SECONDS_MAX."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self.reap()
        except TimeoutError:
            await self.kill()

    def last_words(self) -> str:
        """Return the last line of its log, cut to one screen line or two."""
        if self.log_file is None or not self.log_file.exists():
            return SAID_NOTHING
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - SAID_BYTES_MAX))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else SAID_NOTHING


class KeptProcess(ChildProcess):
    """A program that is started again until it has ended well, or is stopped.

    Args:
        words: its command line at its first start, its second and so on.
        environment: all of it; None: that of this process.
    """

    def __init__(
        self,
        name: str,
        words: Callable[[int], Sequence[str]],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, log=log)
        self.starts = 0
        self._words, self._environment = words, environment
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        time, pause_s = asyncio.get_running_loop().time, PAUSE_S
        while True:
            self.starts += 1
            await self.launch(*self._words(self.starts), environment=self._environment)
            began = time()
            if await self.ended() == 0:
                return
            pause_s = PAUSE_S if time() - began >= LIVED_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def check(self) -> None:
        """Raise what kept it from starting, if anything did."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    def strike(self) -> None:
        """kill -9, if it runs; it comes back."""
        self.send(signal.SIGKILL)

    async def ends_well(self, within_s: float) -> bool:
        """Ask it to end, again where it was started again; return whether it did. Raises what kept it from starting.

        One that is asked while it starts dies of it: so the time until it is asked again doubles.
        """
        time, wait_s = asyncio.get_running_loop().time, ASK_AGAIN_S
        deadline = time() + within_s
        while not self._task.done() and (left_s := deadline - time()) > 0:
            self.send(signal.SIGTERM)
            await asyncio.wait((self._task,), timeout=min(wait_s, left_s))
            wait_s *= 2
        self.check()
        return self._task.done()

    async def stop(self) -> None:
        """End it for good."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        await super().stop()
