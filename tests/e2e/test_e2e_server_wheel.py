"""The server's wheel by itself: it declares what brokers and commands need, and they run with nothing else."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import site
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from loadtest.http_body import body_of
from tests.free_ports import free_ports

pytestmark = pytest.mark.timeout(180)

ROOT: Final = Path(__file__).resolve().parents[2]
LISTENERS: Final = ("kafka", "grpc", "peers", "link", "admin")
READY_S: Final = 60
RUNNER: Final = """
import importlib.abc, json, runpy, sys
undeclared, module, *words = json.loads(sys.argv[1]), *sys.argv[2:]
class Undeclared(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in undeclared:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Undeclared())
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
OURS: Final = {"georelay-server"}


@pytest.fixture(scope="module")
def server_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; what the wheel depends on is lent by ours."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = directory.glob("georelay_server-*.whl")
    home = directory / "server"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python3*/site-packages")
    # As pip would; that pip can is what tests of the release show. A broker compiles what it imports, half of it.
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages)
    (packages / "lent.pth").write_text(f"{site.getsitepackages()[0]}\n")
    return python


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _wheel_metadata(python: Path) -> importlib.metadata.Distribution:
    (found,) = python.parents[1].glob("lib/python3*/site-packages/georelay_server-*.dist-info")
    return importlib.metadata.Distribution.at(found)


def _needed(distribution: importlib.metadata.Distribution) -> set[str]:
    """Return the distributions that pip would bring, by name."""
    found: set[str] = set()
    waiting = [row for row in distribution.requires or () if "extra ==" not in row]
    while waiting:
        name = _name(waiting.pop())
        if name in found:
            continue
        try:
            below = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # of another platform or version of Python
            continue
        found.add(name)
        waiting += [row for row in below.requires or () if "extra ==" not in row]
    return found


@functools.cache  # it reads the record of every installed file
def _undeclared(python: Path) -> list[str]:
    """Return the names under which everything else is imported that is installed here."""
    needed = _needed(_wheel_metadata(python))
    owners = importlib.metadata.packages_distributions()
    return sorted(name for name, of in owners.items() if not {_name(each) for each in of} & (needed | OURS))


def _start(python: Path, *words: str, cwd: Path) -> subprocess.Popen[bytes]:
    undeclared = json.dumps(_undeclared(python))
    return subprocess.Popen(
        [str(python), "-I", "-c", RUNNER, undeclared, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _config(directory: Path) -> tuple[Path, str]:
    listen = dict(zip(LISTENERS, (f"127.0.0.1:{port}" for port in free_ports(len(LISTENERS))), strict=True))
    me = f'{{number = 1, peers = "{listen["peers"]}", link = "{listen["link"]}"}}'
    lines = [
        'mesh_id = "wheel"',
        'region = "us"',
        "broker = 1",
        f'data_dir = "{directory / "data"}"',
        f'trace_dir = "{directory / "traces"}"',
        'definitions_home = "us"',
        f"die_with_parent = {os.getpid()}",
        "[listen]",
        *(f'{name} = "{address}"' for name, address in listen.items()),
        "[[regions]]",
        'name = "us"',
        "number = 1",
        f"brokers = [{me}]",
    ]
    file = directory / "broker.toml"
    file.write_text("\n".join(lines) + "\n")
    return file, listen["admin"]


def _answers(url: str) -> bool:
    try:
        body_of(url, timeout_s=2)
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_broker_of_the_wheel_serves_with_its_declared_dependencies_alone(server_python: Path, tmp_path: Path) -> None:
    file, admin = _config(tmp_path)
    broker = _start(server_python, "region", "--config", str(file), cwd=tmp_path)
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(f"http://{admin}/readyz"):
            assert broker.poll() is None and time.monotonic() < deadline, broker.communicate(timeout=5)[0].decode()
            time.sleep(0.05)
        create = ("topics", "create", "orders", "--gateway", f"http://{admin}")
        said, _ = _start(server_python, "georelay.cli", *create, cwd=tmp_path).communicate(timeout=60)
        assert b"created" in said, said.decode()
    finally:
        broker.terminate()
        broker.communicate(timeout=20)
    assert broker.returncode == 0


def test_the_wheel_brings_no_tool_of_developers_and_nothing_for_reports_or_test_beds(server_python: Path) -> None:
    needed = _needed(_wheel_metadata(server_python))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    development = {_name(row) for row in project["dependency-groups"]["dev"]}
    extras = {_name(row) for rows in project["project"]["optional-dependencies"].values() for row in rows}
    assert not needed & (development | extras)


def test_the_wheel_holds_the_compiled_contracts_and_no_test(server_python: Path) -> None:
    (packages,) = server_python.parents[1].glob("lib/python3*/site-packages")
    assert (packages / "region/api/_pb/broker_pb2.py").exists()
    assert (packages / "georelay/_pb/streams_pb2.py").exists()
    assert not (packages / "tests").exists()
