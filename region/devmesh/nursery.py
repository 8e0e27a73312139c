"""A process that has imported what brokers and gateways are made of, and forks them: ten processes of a mesh begin
with one import instead of ten.

`python -P -m region.devmesh.nursery PARENT ROOM PROGRAM,... MODULE...` answers "ready", then reads one request per line
of its standard input and answers with the pid of the process that it made. It ends at the end of its input.

Rule 1: it forks only while it has one thread, and before any event loop.
Rule 2: what it forked is a child of PARENT, not of it: a process between both ends at once, and PARENT adopts orphans.
        The new process goes on only then, so that it dies with PARENT as one that PARENT has started does, and only
        once PARENT is told of it: a broker that nobody knows of would keep its data from the one that is run instead.
Rule 3: a forked process shows the command line that it would have been started with (`ps`, /proc), and has a session,
        a working directory and a log of its own.
Rule 4: only the first start of a mesh is made so. A process that starts again is run from its program, as any is.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import itertools
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from georelay.errors import ConfigError
from georelay.process_guard import adopt_orphans, die_with_parent, leave_out, refuse_foreign_packages

START_TIMEOUT_S: Final = 120.0  # of a machine without an idle moment, where ten imports take ten times as long
END_TIMEOUT_S: Final = 5.0
MODULES: Final = {"region": ("region.app",), "gateway": ()}  # what their __main__ imports only later
TRACE_MODULES: Final = ("mesh.tracing.shelf", "mesh.tracing.writer")  # what both import who write traces: Arrow
_READY: Final = b"ready\n"
_BEGIN: Final = b"!"
_ROOM_BYTES: Final = 4_096  # for command lines
_STAT_ARG_START: Final = 45  # of the fields behind the name in /proc/self/stat


class ForkedProcess:
    """A child that was not started through asyncio: what is used of asyncio.subprocess.Process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._handle = os.pidfd_open(pid)
        self._loop.add_reader(self._handle, self._reap)

    def _reap(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """Return the exit code, negative for a signal, once the process has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises ProcessLookupError when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)


class Nursery:
    """The parent's side.

    Args:
        log_path: where it says why it failed.
        traces: what it forks writes traces.
    """

    def __init__(self, log_path: Path, *, traces: bool = False) -> None:
        self._log_path = log_path
        self._traces = traces
        self._process: asyncio.subprocess.Process | None = None

    @staticmethod
    def makes(argv: Sequence[str]) -> bool:
        """Return whether a command line is one of a process that can be forked."""
        return tuple(argv[:3]) == (sys.executable, "-P", "-m") and len(argv) > 3 and argv[3] in MODULES

    async def start(self) -> None:
        """Begin to import; from the main thread."""
        adopt_orphans(True)
        modules = [*itertools.chain(*MODULES.values()), *(TRACE_MODULES if self._traces else ())]
        words = (str(os.getpid()), "." * _ROOM_BYTES, ",".join(MODULES), *modules)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", __name__, *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    async def fork(self, argv: Sequence[str], *, log_path: Path, directory: Path) -> ForkedProcess | None:
        """Return a new process, None when there can be none: it has to be run from its program then."""
        if self._process is None:
            return None
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"argv": list(argv), "log": str(log_path), "directory": str(directory)}
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                await self._process.stdin.drain()
                while (answer := await self._process.stdout.readline()) == _READY:
                    pass
        except TimeoutError:
            answer = b""
            with suppress(ProcessLookupError):
                self._process.kill()  # left alone, it would still do what it was asked for, beside what is run instead
            with self._log_path.open("a") as log:
                log.write(f"nursery: no answer within {START_TIMEOUT_S:g} s\n")
        except OSError:
            answer = b""
        if not answer:  # why is in its log
            await self.stop()
            return None
        return ForkedProcess(int(answer))

    async def stop(self) -> None:
        """End it; what it forked goes on."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # it ends by itself: killed, it could not let run what it has just told of
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        adopt_orphans(False)


# --- the process itself -------------------------------------------------------------------------------


def main() -> None:
    """Import, then fork for each request; does not return in a forked process before that has ended."""
    parent, _, names, *modules = sys.argv[1:]
    die_with_parent(int(parent))
    answers = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    leave_out("numpy", "pandas", "rich")  # structlog loads rich, for logs that people read in a terminal
    with suppress(ConfigError):  # each process says so itself
        refuse_foreign_packages()
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # of an allocator that Arrow brings and does not use
    show_command_line([sys.executable, "-P", "-m", "region.devmesh.nursery"])
    gc.disable()
    programs = {name: importlib.import_module(f"{name}.__main__") for name in names.split(",")}
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    gc.freeze()  # what is shared stays shared
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        sys.exit(f"nursery: {threads} threads after the imports: nothing can be forked")
    os.write(answers, _READY)
    for line in _lines():
        request = json.loads(line)
        pid, begin = _fork(int(parent), request, programs, answers)
        os.write(answers, b"%d\n" % pid)
        os.write(begin, _BEGIN)
        os.close(begin)
    os._exit(0)  # to take apart what was imported takes longer than to fork it


def _lines() -> Any:
    """Yield the lines of standard input; nothing that was read stays in a buffer that a fork would copy."""
    rest = b""
    while data := os.read(0, 65_536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _fork(parent: int, request: dict[str, Any], programs: dict[str, ModuleType], answers: int) -> tuple[int, int]:
    """Return the pid of a new child of `parent`, and where _BEGIN lets it run what is asked for.

    It ends when that is closed without. `answers` is not for it.
    """
    told, tell = os.pipe()
    begin, let_begin = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid:
            os.write(tell, b"%d" % pid)
            os._exit(0)
        for handle in (answers, told, tell, let_begin):
            os.close(handle)
        may_begin = os.read(begin, 1) == _BEGIN  # the process between is gone by then, and `parent` is ours
        os.close(begin)
        if not may_begin or os.getppid() != parent:
            os._exit(1)
        _become(request, programs)
    for handle in (tell, begin):
        os.close(handle)
    os.waitpid(between, 0)
    pid = int(os.read(told, 32))
    os.close(told)
    return pid, let_begin


def _become(request: dict[str, Any], programs: dict[str, ModuleType]) -> None:
    """Run a program in this process, which was just forked, and end with it."""
    os.setsid()
    os.chdir(request["directory"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    argv: list[str] = request["argv"]
    show_command_line(argv)
    sys.argv = [f"-m {argv[3]}", *argv[4:]]
    sys.exit(programs[argv[3]].main())


def show_command_line(argv: Sequence[str]) -> None:
    """Have the kernel show this command line; as much of it as there is room for."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[_STAT_ARG_START]), int(fields[_STAT_ARG_START + 1])
    size = end - start
    if size > 0:
        shown = b"".join(argument.encode() + b"\0" for argument in argv)[: size - 1]
        ctypes.memmove(start, shown.ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()
