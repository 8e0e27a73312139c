"""`up`, `status` and `down` of a cluster on this machine.

Rule 1: `up` starts what is missing and leaves alone what runs, whatever died before and however.
Rule 2: `down` ends the processes of the directory's files and no other; it asks first and kills after STOP_S_MAX.
Rule 3: one `up` or `down` at a time works on a directory (a lock on `.lock`, let go by the kernel when one is killed).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sla.cluster.daemon_file import DaemonFile, all_daemons, read_daemon
from sla.cluster.launch import MASTER, open_directory, require_here
from sla.cluster.master_page import ALIVE, MasterState, ask_master
from sla.cluster.ports import take_port
from sla.cluster.secret import FILE_NAME, ensure_secret
from sla.cluster.settings import LOOPBACK, MASTER_PORT
from sla.errors import JobFailed, UsageError

START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 20.0
WORKERS_MAX: Final = 64
_POLL_S: Final = 0.2
LOG_MODE: Final = 0o600
_LOG_TAIL_BYTES: Final = 16 * 1024

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What shall run.

    Args:
        directory: of the secret, the process files, the logs and the executors' work.
        host: address that master and workers listen on.
        port: of the master; 0: the kernel chooses. None: that of the master that runs, else 7077.
        web_port: of the master's page on loopback, which `status` asks; 0: the kernel chooses.
        workers: how many at least. cores, memory_mib: of each that is started.
    """

    directory: Path
    host: str = LOOPBACK
    port: int | None = None
    web_port: int = 0
    workers: int = 2
    cores: int = 1
    memory_mib: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """What was found; `master` is None when it does not answer."""

    directory: Path
    daemons: tuple[DaemonFile, ...]
    running: frozenset[str]
    master: MasterState | None

    @property
    def url(self) -> str | None:
        """Return what jobs are given, None when no master runs."""
        return next((daemon.url for daemon in self.daemons if daemon.name == MASTER and MASTER in self.running), None)

    @property
    def is_whole(self) -> bool:
        """Return whether every daemon that was started can be used."""
        if self.master is None or self.master.state != ALIVE or not self.daemons:
            return False
        return all(
            daemon.name in self.running and (daemon.name == MASTER or (daemon.host, daemon.port) in self.master.alive)
            for daemon in self.daemons
        )


def up(request: UpRequest, on_step: OnStep = lambda _: None) -> ClusterStatus:
    """Start what is missing of a cluster, wait until the master has every worker, and return what runs.

    Raises:
        UsageError: an argument that cannot be used, or a master that runs with others.
        JobFailed: no Java, a port is taken, a daemon ended; the line says why and where its log is.
    """
    if not 0 <= request.workers <= WORKERS_MAX:
        raise UsageError(f"--workers must be 0 to {WORKERS_MAX}, not {request.workers}")
    require_here()
    open_directory(request.directory)
    with _locked(request.directory):
        ensure_secret(request.directory / FILE_NAME)
        master = _master(request, on_step)
        for number in range(1, request.workers + 1):
            _worker(request, f"worker-{number}", master, on_step)
        _wait_for_workers(request, master, on_step)
        return status(request.directory)


def status(directory: Path) -> ClusterStatus:
    """Return what runs of a cluster."""
    daemons = tuple(all_daemons(directory))
    running = frozenset(daemon.name for daemon in daemons if daemon.is_running())
    master = next((daemon for daemon in daemons if daemon.name == MASTER and MASTER in running), None)
    return ClusterStatus(
        directory=directory,
        daemons=daemons,
        running=running,
        master=None if master is None else ask_master(master.web_port),
    )


def down(directory: Path, on_step: OnStep = lambda _: None) -> list[str]:
    """End every daemon of a directory, workers first, and return the names of those that ran.

    Raises:
        JobFailed: a process cannot be ended.
    """
    if not directory.is_dir():
        return []
    with _locked(directory):
        daemons = all_daemons(directory)[::-1]
        running = [daemon for daemon in daemons if daemon.is_running()]
        on_step(f"stopping {len(running)} processes")
        _stop(running)
        for daemon in daemons:
            daemon.remove(directory)
        return sorted(daemon.name for daemon in running)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobFailed(f"another up or down works on {directory}: wait for it") from None
        yield


def _master(request: UpRequest, on_step: OnStep) -> DaemonFile:
    known = read_daemon(request.directory, MASTER)
    if known is not None and known.is_running():
        if known.host != request.host or request.port not in (None, 0, known.port):
            raise UsageError(f"the master of {request.directory} runs at {known.url}: run down first, or ask for that")
        return _wait_for_master(request, known, on_step)
    port = MASTER_PORT if request.port is None else request.port
    # Asked for here too: the answer is one line, not a pointer to the log of a process that ended.
    take_port(request.host, port, "--port")
    take_port(LOOPBACK, request.web_port, "--webui-port")
    ports = ["--port", str(port), "--webui-port", str(request.web_port)]
    daemon = _start(request, MASTER, ["master", "--host", request.host, *ports], on_step)
    return _wait_for_master(request, daemon, on_step)


def _worker(request: UpRequest, name: str, master: DaemonFile, on_step: OnStep) -> None:
    known = read_daemon(request.directory, name)
    if known is not None and known.is_running():
        if known.url == master.url:
            return
        _stop([known])  # of a master that is gone
    _start(
        request,
        name,
        [
            *("worker", "--name", name, "--master", master.url, "--host", request.host),
            *("--cores", str(request.cores), "--memory", f"{request.memory_mib}m"),
            *("--secret", str(request.directory / FILE_NAME)),
        ],
        on_step,
    )


def _start(request: UpRequest, name: str, arguments: list[str], on_step: OnStep) -> DaemonFile:
    on_step(f"starting {name}")
    log = _log(request.directory, name)
    log.parent.mkdir(exist_ok=True)
    if log.exists():
        os.replace(log, log.with_name(f"{log.name}.1"))
    command = [sys.executable, "-m", "sla", "cluster", *arguments, "--dir", str(request.directory)]
    # Not subprocess: the daemon outlives us, and nobody here is to wait for it.
    pid = os.posix_spawn(
        sys.executable,
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, LOG_MODE),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    for _ in _polls():
        daemon = read_daemon(request.directory, name)
        if daemon is not None and daemon.pid == pid:
            return daemon
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise JobFailed(_why(name, log))
    raise JobFailed(f"{name} did not start within {START_S_MAX:.0f} s; its log is {log}")


def _wait_for_master(request: UpRequest, daemon: DaemonFile, on_step: OnStep) -> DaemonFile:
    on_step("waiting for the master")
    for _ in _polls():
        found = ask_master(daemon.web_port)
        if found is not None and found.state == ALIVE:
            return daemon
        if not daemon.is_running():
            raise JobFailed(_why(MASTER, _log(request.directory, MASTER)))
    log = _log(request.directory, MASTER)
    raise JobFailed(f"the master (process {daemon.pid}) did not answer within {START_S_MAX:.0f} s; its log is {log}")


def _wait_for_workers(request: UpRequest, master: DaemonFile, on_step: OnStep) -> None:
    on_step("waiting until the master has every worker")
    names = [f"worker-{number}" for number in range(1, request.workers + 1)]
    missing: list[str] = []
    for _ in _polls():
        found = ask_master(master.web_port)
        alive = set() if found is None else found.alive
        missing = []
        for name in names:
            daemon = read_daemon(request.directory, name)
            if daemon is None or not daemon.is_running():
                raise JobFailed(_why(name, _log(request.directory, name)))
            if (daemon.host, daemon.port) not in alive:
                missing.append(name)
        if not missing:
            return
    log = _log(request.directory, missing[0])
    raise JobFailed(f"the master did not take {', '.join(missing)} within {START_S_MAX:.0f} s; see {log}")


def _polls() -> Iterator[None]:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL_S)


def _stop(daemons: list[DaemonFile]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for daemon in daemons:
            _signal(daemon, number)
        deadline = time.monotonic() + STOP_S_MAX
        while any(daemon.is_running() for daemon in daemons):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        else:
            return
    left = ", ".join(f"{daemon.name} (process {daemon.pid})" for daemon in daemons if daemon.is_running())
    raise JobFailed(f"cannot be ended: {left}")


def _signal(daemon: DaemonFile, number: signal.Signals) -> None:
    """Send a signal to that very process: a descriptor of it stays its own, even when the number is given away."""
    try:
        descriptor = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return
    try:
        if daemon.is_running():
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise JobFailed(f"{daemon.name} is process {daemon.pid} of another user") from None
    finally:
        os.close(descriptor)


def _log(directory: Path, name: str) -> Path:
    return directory / "logs" / f"{name}.log"


def _why(name: str, log: Path) -> str:
    """Return why a daemon ended: what its log says of an error, else its last line."""
    text = ""
    if log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "Exception" in line or " ERROR " in line or "georelay-sla:" in line]
        text = (telling or lines or [""])[-1].removeprefix("georelay-sla: ")
    return f"{name} ended: {text or 'it said nothing'} (log: {log})"
