"""Child processes of `georelay up`: started, watched, asked to stop, and killed if they do not.

Rule 1: children are started from the main thread, because the kernel's kill-on-parent-death follows that thread.
Rule 2: a child has its own session, so Ctrl-C reaches the supervisor only and it stops them in one way.
Rule 3: nobody's password is on a command line or in an environment: children read files.
Rule 4: without `restart`, a child that ended is started again when somebody makes run/NAME.start.
Rule 5: the first processes are forked by a nursery where there is one; what starts again is run from its program.
Rule 6: with `restart`, a child that ended stays down while run/NAME.hold is there, and starts at once when it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from region.devmesh.nursery import ForkedProcess, Nursery

STOP_TIMEOUT_S: Final = 10.0  # from SIGTERM to SIGKILL; leaving the pools of gossip takes about 3 s of it
RESTART_DELAY_S: Final = 0.5  # doubled for each restart of one child, up to RESTART_DELAY_S_MAX
RESTART_DELAY_S_MAX: Final = 10.0
HOLD_POLL_S: Final = 0.1
STEADY_S: Final = 30.0  # a child that ran for so long begins again with the first delay
LOG_BYTES_MAX: Final = 16 * 1024 * 1024  # at start a longer log moves to NAME.log.1
LOG_TAIL_BYTES: Final = 4_096

Child = asyncio.subprocess.Process | ForkedProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process to run.

    Args:
        name: for files and lines, unique.
        argv: program and arguments.
        ready_address: where it answers /readyz.
    """

    name: str
    argv: tuple[str, ...]
    ready_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """A child that ended by itself: its exit code, negative for a signal."""

    name: str
    code: int
    log_path: Path

    def describe(self) -> str:
        """Return one line: who, how, and the last thing it said."""
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with {self.code}"
        said = last_line(self.log_path)
        return f"{self.name} {how}" + (f": {said}" if said else "") + f" (log: {self.log_path})"


class Supervisor:
    """Runs the children of one mesh.

    Args:
        directory: holds logs/ and run/; also the children's working directory.
        restart: start a child again that ended by itself.
        on_exit: told of each child that ended by itself.
        nursery: forks what it can, until `all_started`; None: every child is run from its program.
    """

    def __init__(
        self,
        directory: Path,
        *,
        restart: bool,
        on_exit: Callable[[ChildExit], None],
        nursery: Nursery | None = None,
    ) -> None:
        self._nursery = nursery
        self._directory = directory
        self._restart = restart
        self._on_exit = on_exit
        self._processes: dict[str, Child] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[Child]] = set()
        self._stopping = False

    @property
    def pids(self) -> dict[str, int]:
        """Return the process id of each child that runs."""
        return {name: process.pid for name, process in self._processes.items() if process.returncode is None}

    async def start(self, spec: ChildSpec) -> None:
        """Start a child and watch it. Raises OSError when the program cannot be run."""
        for left in (self._hold_path(spec.name), start_path(self._directory, spec.name)):
            left.unlink(missing_ok=True)  # of somebody who was killed
        process = await self._start_process(spec)
        watcher = asyncio.create_task(self._watch(spec, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def all_started(self) -> None:
        """End the nursery: it is for the first start."""
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            await nursery.stop()

    async def stop(self) -> None:
        """Stop all children: SIGTERM, and SIGKILL for those that still run after STOP_TIMEOUT_S."""
        self._stopping = True
        await asyncio.gather(*self._starts, return_exceptions=True)  # half started, a child has no pid to signal
        await self.all_started()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._wait_for_all()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._wait_for_all()
        for watcher in list(self._watchers):
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    def kill(self) -> None:
        """Kill all children at once: the user asked twice."""
        self._signal(signal.SIGKILL)

    async def _start_process(self, spec: ChildSpec) -> Child:
        start = asyncio.create_task(self._spawn(spec))
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        return await start

    async def _spawn(self, spec: ChildSpec) -> Child:
        log_path = self.log_path(spec.name)
        with contextlib.suppress(FileNotFoundError):
            if log_path.stat().st_size > LOG_BYTES_MAX:
                log_path.replace(log_path.with_name(log_path.name + ".1"))
        process: Child | None = None
        if self._nursery is not None and self._nursery.makes(spec.argv):
            process = await self._nursery.fork(spec.argv, log_path=log_path, directory=self._directory)
        if process is None:
            process = await self._run(spec.argv, log_path)
        self._processes[spec.name] = process
        pid_path(self._directory, spec.name).write_text(f"{process.pid}\n", encoding="ascii")
        start_path(self._directory, spec.name).unlink(missing_ok=True)
        return process

    async def _run(self, argv: Sequence[str], log_path: Path) -> Child:
        descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                cwd=self._directory,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    async def _watch(self, spec: ChildSpec, process: Child) -> None:
        delay_s = RESTART_DELAY_S
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            code = await process.wait()
            if loop.time() - started_s >= STEADY_S:
                delay_s = RESTART_DELAY_S
            pid_path(self._directory, spec.name).unlink(missing_ok=True)
            if self._stopping:
                return
            self._on_exit(ChildExit(name=spec.name, code=code, log_path=self.log_path(spec.name)))
            if not self._restart:
                await self._until_wanted(spec.name)
            elif not await self._was_held(spec.name):
                await _pause(delay_s)
            delay_s = min(2 * delay_s, RESTART_DELAY_S_MAX)
            if self._stopping:
                return
            process = await self._start_process(spec)

    async def _until_wanted(self, name: str) -> None:
        """Return when somebody wants a child started again, or all are stopped."""
        request = start_path(self._directory, name)
        while not request.exists() and not self._stopping:
            await _pause(HOLD_POLL_S)

    async def _was_held(self, name: str) -> bool:
        """Return whether somebody wanted a child to stay down; returns when nobody does any more."""
        held = False
        while self._hold_path(name).exists() and not self._stopping:
            held = True
            await _pause(HOLD_POLL_S)
        return held

    async def _wait_for_all(self) -> None:
        await asyncio.gather(*(process.wait() for process in self._processes.values()))

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    def log_path(self, name: str) -> Path:
        """Return where a child's output goes."""
        return self._directory / "logs" / f"{name}.log"

    def _hold_path(self, name: str) -> Path:
        return self._directory / "run" / f"{name}.hold"


def pid_path(directory: Path, name: str) -> Path:
    """Return the file with the process id of a child that runs."""
    return directory / "run" / f"{name}.pid"


def start_path(directory: Path, name: str) -> Path:
    """Return the file that asks for a child to be started again."""
    return directory / "run" / f"{name}.start"


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def last_line(path: Path) -> str:
    """Return the last line of a log that says something, at most 200 characters; "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read(LOG_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:200] if said else ""
