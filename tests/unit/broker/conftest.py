"""A whole broker in this process: one region of one, real sockets on loopback, a file system that can fail."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from region.app import Broker
from region.config import BrokerConfig
from region.log.filesystem import OsFileSystem


class FailingFileSystem(OsFileSystem):
    """The operating system's, until a sync is told to fail."""

    def __init__(self) -> None:
        self.fails = False
        self.flowing = threading.Event()  # closed: syncs wait
        self.flowing.set()

    def fdatasync(self, handle: int) -> None:
        self.flowing.wait()
        if self.fails:
            raise OSError(5, "Input/output error")
        super().fdatasync(handle)


def config_of(directory: Path) -> dict[str, Any]:
    sockets = [socket.socket() for _ in range(5)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    listen = dict(zip(("kafka", "grpc", "peers", "link", "admin"), addresses, strict=True))
    return {
        "mesh_id": "test",
        "region": "us",
        "broker": 1,
        "data_dir": str(directory / "data"),
        "definitions_home": "us",
        "tick_ms": 10,
        "listen": listen,
        "regions": [
            {
                "name": "us",
                "number": 1,
                "brokers": [{"number": 1, "peers": listen["peers"], "link": listen["link"]}],
            }
        ],
    }


async def wait_until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError("the condition did not come true in time")


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    return lambda: config_of(tmp_path)


@pytest.fixture
def until() -> Any:
    return wait_until


@pytest.fixture
def disk() -> FailingFileSystem:
    return FailingFileSystem()


@pytest.fixture
async def broker(tmp_path: Path, disk: FailingFileSystem) -> AsyncIterator[Broker]:
    made = Broker(BrokerConfig.model_validate(config_of(tmp_path)), file_system=disk)
    await made.start()
    await wait_until(made.cluster.ready)
    yield made
    await made.stop()
