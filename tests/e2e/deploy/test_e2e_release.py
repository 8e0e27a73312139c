"""The release for real: built twice from one commit, installed without a network, and a broker of it serves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from deploy.release.__main__ import build
from deploy.release.archive import unpack
from loadtest.http_body import body_of
from tests.free_ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[3]
LISTENERS: Final = ("kafka", "grpc", "peers", "link", "admin")
READY_S: Final = 60


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commit that is checked out, without what a developer has changed meanwhile."""
    target = tmp_path_factory.mktemp("clone") / "georelay"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(target)], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def release(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (archive,) = build(clone, tmp_path_factory.mktemp("dist"))
    return archive


@pytest.fixture(scope="module")
def unpacked(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("host")
    unpack(release, target)
    return target / release.name.removesuffix(".tar.gz")


def test_two_builds_of_one_commit_are_equal_byte_by_byte(clone: Path, release: Path, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        (again,) = build(clone, tmp_path)
    finally:
        os.umask(old)
    assert again.name == release.name
    assert again.read_bytes() == release.read_bytes()


def test_the_lines_of_its_document_install_it_without_a_network_and_a_broker_serves(unpacked: Path) -> None:
    steps = (unpacked / "INSTALL.md").read_text().split("```")[1].strip().splitlines()
    assert steps[1] == "python3 -m venv venv"
    steps[1] = f"{sys.executable} -m venv venv"
    alone = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": "http://127.0.0.1:1/", "PIP_RETRIES": "0"}
    for step in steps:
        done = subprocess.run(step.split(), cwd=unpacked, env=alone, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    names = {path.name.partition("-")[0] for path in (unpacked / "wheels").iterdir()}
    assert not names & {"pyspark", "pandas", "matplotlib", "pyroute2", "pytest"}
    _serves(unpacked / "venv/bin", unpacked)


def _serves(commands: Path, home: Path) -> None:
    listen = dict(zip(LISTENERS, (f"127.0.0.1:{port}" for port in free_ports(len(LISTENERS))), strict=True))
    file = home / "broker.toml"
    file.write_text(
        f'mesh_id = "release"\nregion = "us"\nbroker = 1\ndata_dir = "{home / "data"}"\ndefinitions_home = "us"\n'
        f"die_with_parent = {os.getpid()}\n[listen]\n"
        + "".join(f'{name} = "{address}"\n' for name, address in listen.items())
        + '[[regions]]\nname = "us"\nnumber = 1\n'
        + f'brokers = [{{number = 1, peers = "{listen["peers"]}", link = "{listen["link"]}"}}]\n'
    )
    log = home / "broker.log"
    with log.open("wb") as said:
        broker = subprocess.Popen([commands / "georelay-broker", "--config", file], cwd=home, stderr=said)
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(f"http://{listen['admin']}/readyz"):
            assert broker.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
    finally:
        broker.terminate()
        assert broker.wait(timeout=20) == 0


def _answers(url: str) -> bool:
    try:
        body_of(url, timeout_s=2)
    except OSError:
        return False
    return True
