"""The SDK's wheel by itself: built, installed without the network and without the server, and used."""

from __future__ import annotations

import asyncio
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from loadtest.mesh_process import MeshProcess

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

SDK = Path(__file__).resolve().parents[3] / "sdk"
EXAMPLE = SDK / "examples" / "publish_and_read.py"
# What a client must get along without: everything that only brokers, tools and optional codecs need.
FORBIDDEN = (
    *("aiohttp", "cramjam", "cryptography", "lz4", "prometheus_client", "pyarrow", "pydantic", "rich"),
    *("structlog", "typer", "uvloop", "zstandard", "region", "gateway", "mesh", "loadtest", "sla"),
)
RUNNER = f"""
import importlib.abc, runpy, sys
class Forbidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Forbidden())
import georelay
print(georelay.__file__)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def client_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel, and the wheel's few dependencies lent by ours."""
    directory = tmp_path_factory.mktemp("wheel")
    dist = directory / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=SDK, check=True, capture_output=True, timeout=100)
    (wheel,) = dist.glob("georelay-*.whl")
    home = directory / "client"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=100)
    (packages,) = home.glob("lib/python3*/site-packages")
    (packages / "lent.pth").write_text(f"{site.getsitepackages()[0]}\n")  # its own .pth files are not followed
    return python


async def test_the_wheel_installs_alone_and_its_example_runs(
    mesh: MeshProcess, topic: str, client_python: Path, tmp_path: Path
) -> None:
    ran = await asyncio.to_thread(
        subprocess.run,
        [str(client_python), "-I", "-c", RUNNER, str(EXAMPLE), mesh.gateway, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    where, *_, last = ran.stdout.splitlines()
    assert Path(where).is_relative_to(client_python.parents[1])
    assert last == "read 0/9 order 9"


@pytest.mark.slow
def test_the_wheel_is_typed_and_holds_nothing_of_the_server(client_python: Path) -> None:
    (package,) = client_python.parents[1].glob("lib/python3*/site-packages/georelay")
    names = {path.relative_to(package).parts[0] for path in package.rglob("*.py")}
    assert (package / "py.typed").exists()
    assert {"_pb", "wire", "producer.py", "consumer.py", "sync.py"} <= names
    assert not {"cli", "client", "trace", "pki"} & names
