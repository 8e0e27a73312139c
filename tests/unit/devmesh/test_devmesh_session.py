"""`georelay up` with real processes: small scripts instead of brokers, one loopback block per test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from georelay import process_guard
from georelay.errors import ConfigError
from georelay.process_guard import refuse_foreign_packages
from region.devmesh import command, supervisor

# Three of them in each mesh: http.server would take most of what one costs.
CHILD = """
import os, signal, socket, sys, tomllib
sys.path.insert(0, os.environ["SDK"])
from georelay.process_guard import die_with_parent
config = tomllib.load(open(sys.argv[2], "rb"))
die_with_parent(config["die_with_parent"])
name = f"{config.get('region', 'gateway')}-{config.get('broker', 0)}"
mode = dict(line.split() for line in open(os.environ["MODES"])).get(name, "")
if mode == "die":
    sys.exit("cannot open the log: disk is on fire")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

address = config["listen"].get("admin") or config["listen"]["http"]
host, port = address.split(":")
status = b"503 Not Yet" if mode == "unready" else b"200 OK"
server = socket.create_server((host, int(port)))
while True:
    peer, _ = server.accept()
    with peer:
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 %s\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n" % status)
"""

DRIVER = """
import asyncio, os, sys
from pathlib import Path
from rich.console import Console
from georelay.errors import GeorelayError
from region.devmesh import supervisor
from region.devmesh.terminal import TerminalProgress
from region.devmesh.session import UpOptions, run
supervisor.STOP_TIMEOUT_S = 0.5
supervisor.RESTART_DELAY_S = 0.01
directory, child, restart, timeout_s = sys.argv[1:]
argv = (sys.executable, "-I", "-S", child)
options = UpOptions(
    regions=("us", "eu"), brokers_per_region=1, directory=Path(directory), base_port=0, restart=restart == "restart",
    users=(("alice", "hunter2"),), ready_timeout_s=float(timeout_s), broker_argv=argv, gateway_argv=argv,
)
try:
    with TerminalProgress(Console(stderr=True, width=200)) as progress:
        asyncio.run(run(options, progress))
except GeorelayError as error:
    sys.exit(f"georelay up: {error}")
"""


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60  # on a busy machine
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Up:
    """One run of the driver."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "mesh"
        self.endpoints = self.directory / "endpoints.json"
        self._tmp_path = tmp_path
        self.modes: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        (tmp_path / "child.py").write_text(CHILD)
        (tmp_path / "driver.py").write_text(DRIVER)

    def start(self, *, restart: bool = False, timeout_s: float = 60) -> subprocess.Popen[str]:
        (self._tmp_path / "modes").write_text("".join(f"{name} {mode}\n" for name, mode in self.modes.items()))
        sdk = str(Path(process_guard.__file__).parents[1])
        environment = {**os.environ, "SDK": sdk, "MODES": str(self._tmp_path / "modes")}
        arguments = [
            str(self.directory),
            str(self._tmp_path / "child.py"),
            "restart" if restart else "no",
            str(timeout_s),
        ]
        self.process = subprocess.Popen(
            [sys.executable, str(self._tmp_path / "driver.py"), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self.process

    def start_ready(self, *, restart: bool = False) -> subprocess.Popen[str]:
        process = self.start(restart=restart)
        eventually(lambda: self.endpoints.exists() or process.poll() is not None, "no endpoint file")
        assert process.poll() is None, process.communicate()[1]
        return process

    def pids(self) -> dict[str, int]:
        return {path.stem: int(path.read_text()) for path in (self.directory / "run").glob("*.pid")}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def test_mesh_starts_shows_its_password_to_nobody_stops_and_leaves_nothing_running(up: Up) -> None:
    process = up.start_ready()
    pids = up.pids()
    assert sorted(pids) == ["eu-1", "gateway", "us-1"]
    for pid in pids.values():
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
    for path in up.directory.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "is ready: us, eu; 2 brokers" in said
    assert not up.endpoints.exists()
    assert not any(is_running(pid) for pid in pids.values())
    assert up.pids() == {}


def test_killed_parent_takes_its_children_along_and_a_second_start_keeps_ports_and_mesh(up: Up) -> None:
    process = up.start_ready()
    before = json.loads(up.endpoints.read_text())
    pids = up.pids().values()
    process.kill()
    process.communicate()
    eventually(lambda: not any(map(is_running, pids)), "children survived their parent")
    assert up.endpoints.exists()
    up.start()
    eventually(lambda: not up.endpoints.exists(), "the endpoint file of the killed one stayed")
    eventually(up.endpoints.exists, "no endpoint file")
    assert json.loads(up.endpoints.read_text()) == before


@pytest.mark.slow
def test_stubborn_child_is_killed(up: Up) -> None:
    up.modes = {"us-1": "stubborn"}
    process = up.start_ready()
    pid = up.pids()["us-1"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 0
    assert not is_running(pid)


async def test_supervisor_kills_what_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.05)
    for name in ("logs", "run"):
        (tmp_path / name).mkdir()
    ended: list[supervisor.ChildExit] = []
    running = supervisor.Supervisor(tmp_path, restart=False, on_exit=ended.append)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    await running.start(
        supervisor.ChildSpec(name="a", argv=(sys.executable, "-S", "-c", code), ready_address="127.0.0.1:1")
    )
    pid = running.pids["a"]
    eventually(lambda: supervisor.last_line(running.log_path("a")) == "deaf", "it did not start")
    await running.stop()
    assert not is_running(pid)
    assert ended == []  # it did not end by itself


async def test_a_child_that_ran_steadily_comes_back_at_once_however_often_it_died_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            monkeypatch.setattr(supervisor, "STEADY_S", 0.0)  # from here on every run counts as a steady one
        elif len(pauses) == 5:
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(supervisor, "_pause", note)
    for name in ("logs", "run"):
        (tmp_path / name).mkdir()
    running = supervisor.Supervisor(tmp_path, restart=True, on_exit=lambda _: None)
    await running.start(supervisor.ChildSpec(name="a", argv=("/bin/false",), ready_address="127.0.0.1:1"))
    async with asyncio.timeout(10):
        await enough.wait()
    await running.stop()
    assert pauses == [0.5, 1.0, 2.0, 4.0, 0.5]


def test_child_that_dies_early_stops_the_start_and_is_quoted(up: Up) -> None:
    up.modes = {"eu-1": "die"}
    _, said = up.start().communicate(timeout=60)
    assert "eu-1 ended with 1: cannot open the log: disk is on fire (log: " in said
    assert "Traceback" not in said
    assert up.pids() == {}


def test_child_that_is_never_ready_is_named(up: Up) -> None:
    up.modes = {"us-1": "unready"}
    process = up.start(timeout_s=1.5)
    _, said = process.communicate(timeout=60)
    assert "georelay up: not ready after 1.5 s: us-1 (logs: " in said
    assert process.returncode == 1


def start_again(directory: Path, name: str) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    return CliRunner().invoke(app, ["up", "--data", str(directory), "--start", name])


def test_a_killed_broker_is_reported_is_started_again_by_a_command_and_ends_with_the_others(up: Up) -> None:
    process = up.start_ready()
    pids = up.pids()
    before = pids["us-1"]
    assert f"us-1 runs, as process {before}" in start_again(up.directory, "us-1").stderr
    os.kill(before, signal.SIGKILL)
    eventually(lambda: "us-1" not in up.pids(), "the death was not noticed")
    assert is_running(pids["eu-1"]) and is_running(pids["gateway"])
    started = start_again(up.directory, "us-1")
    after = up.pids()["us-1"]
    assert (started.exit_code, started.stdout.split(" (")[0]) == (0, f"us-1 is started, as process {after}")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=10)
    assert "us-1 was killed by SIGKILL" in said
    assert f"again: georelay up --data {up.directory} --start us-1" in said
    assert not any(map(is_running, (after, *pids.values())))


def test_a_broker_cannot_be_started_again_where_no_mesh_runs_or_under_another_name(up: Up, tmp_path: Path) -> None:
    nothing = start_again(tmp_path, "us-1")
    assert (nothing.exit_code, nothing.stderr.count("\n")) == (2, 1)
    assert "holds no mesh" in nothing.stderr
    (up.directory / "config").mkdir(parents=True)
    (up.directory / "config" / "us-1.toml").touch()
    assert "it has us-1" in start_again(up.directory, "us-9").stderr
    assert "no 'georelay up' runs" in start_again(up.directory, "us-1").stderr


@pytest.mark.slow
def test_killed_broker_comes_back_when_asked_to(up: Up) -> None:
    up.start_ready(restart=True)
    before = up.pids()["us-1"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: up.pids().get("us-1", before) != before, "it did not come back")


async def test_a_broker_that_is_held_down_comes_back_when_it_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, polls = tmp_path / "run" / "a.hold", []
    started = asyncio.Event()

    async def note(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 3:
            hold.unlink()

    def ended(_: object) -> None:
        if polls:
            started.set()  # a second life has ended as well
        else:
            hold.touch()

    monkeypatch.setattr(supervisor, "_pause", note)
    for name in ("logs", "run"):
        (tmp_path / name).mkdir()
    hold.touch()  # of somebody who was killed: a new start forgets it
    running = supervisor.Supervisor(tmp_path, restart=True, on_exit=ended)
    await running.start(supervisor.ChildSpec(name="a", argv=("/bin/false",), ready_address="127.0.0.1:1"))
    async with asyncio.timeout(10):
        await started.wait()
    await running.stop()
    assert polls[:3] == [supervisor.HOLD_POLL_S] * 3


async def test_a_child_that_is_being_started_when_all_are_stopped_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, may_go = asyncio.create_subprocess_exec, asyncio.Event(), asyncio.Event()
    made: list[asyncio.subprocess.Process] = []

    async def slowly(*argv: str, **settings: Any) -> asyncio.subprocess.Process:
        made.append(await real(*argv, **settings))
        if len(made) == 2:
            begun.set()
            await may_go.wait()
        return made[-1]

    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    monkeypatch.setattr(supervisor, "_pause", at_once)
    for name in ("logs", "run"):
        (tmp_path / name).mkdir()
    running = supervisor.Supervisor(tmp_path, restart=True, on_exit=lambda _: None)
    await running.start(supervisor.ChildSpec(name="a", argv=("/bin/sleep", "60"), ready_address="127.0.0.1:1"))
    made[0].kill()
    async with asyncio.timeout(10):
        await begun.wait()
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)
        may_go.set()
        await stopping
    assert len(made) == 2
    assert made[1].returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--brokers-per-region", "2"], "--brokers-per-region: 2 is not 1, 3 or 5"),
        (["--regions", "us,US"], "--regions: 'US' is not a region name"),
        (["--base-port", "70000"], "--base-port: 70000 does not leave 77 ports"),
        (["--user", "alice"], "--user must be NAME:PASSWORD"),
        (["--base-port", "0", "--endpoints", "/nonexistent/file"], "--endpoints:"),
        (["--base-port", "0", "--link-override", "x"], "--link-override: 'x' is not"),
        (["--data", "/dev/null"], "--data: cannot use /dev/null"),
    ],
)
def test_wrong_flag_is_one_clear_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "mesh"), *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"georelay up: {says}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_process_whose_parent_is_gone_ends_at_once() -> None:
    code = "from georelay.process_guard import die_with_parent; die_with_parent(1 << 22); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no child of process 4194304" in done.stderr
    assert "georelay up --start NAME" in done.stderr


def test_python_without_assertions_is_refused() -> None:
    code = "from georelay.process_guard import refuse_optimised_python as r\ntry: r()\nexcept Exception as e: print(e)"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("georelay needs its assertions")


def test_package_of_another_distribution_is_refused_and_a_checkout_is_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_foreign_packages()
    with pytest.raises(ConfigError, match="belongs to structlog"):
        refuse_foreign_packages(("structlog",))
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"tests": ["another"], "pytest": ["x"]})
    refuse_foreign_packages(("tests", "not-installed"))
    with pytest.raises(ConfigError, match="belongs to x"):
        refuse_foreign_packages(("pytest",))


def test_other_users_read_nothing_that_a_process_makes_and_a_stricter_shell_stays_so() -> None:
    before = os.umask(0)
    try:
        for shell, wanted in ((0o022, 0o027), (0o000, 0o007), (0o077, 0o077)):
            os.umask(shell)
            process_guard.close_files_to_others()
            assert os.umask(0) == wanted
    finally:
        os.umask(before)
