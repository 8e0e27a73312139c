"""A broker and a gateway tell the service manager the truth: ready when /readyz says so, stopping when they stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import _serve
from gateway.config import load_config as load_gateway
from georelay.service_notice import ServiceNotice
from region.__main__ import _run
from region.config import load_config as load_broker
from tests.free_ports import free_ports

PATIENCE_S = 30


@pytest.fixture
async def heard(tmp_path: Path) -> AsyncIterator[Callable[[str], Coroutine[Any, Any, list[str]]]]:
    """Return a reader: every line up to the one that is waited for."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)

    async def until(line: str) -> list[str]:
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while line not in lines:
                lines += (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode().splitlines()
        return lines

    yield until
    manager.close()


def notice(tmp_path: Path) -> ServiceNotice:
    return ServiceNotice({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"})


@asynccontextmanager
async def running(process: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(process)
    yield
    os.kill(os.getpid(), signal.SIGTERM)  # handled by the loop that the process set it up on
    await asyncio.wait_for(task, PATIENCE_S)


async def test_a_broker_says_that_it_is_ready_when_it_commits_and_that_it_stops(heard: Any, tmp_path: Path) -> None:
    listen = dict(
        zip(
            ("kafka", "grpc", "peers", "link", "admin"),
            (f"127.0.0.1:{port}" for port in free_ports(5)),
            strict=True,
        )
    )
    file = tmp_path / "broker.toml"
    file.write_text(
        f'mesh_id = "m"\nregion = "us"\nbroker = 1\ndefinitions_home = "us"\ndata_dir = "{tmp_path}/data"\n[listen]\n'
        + "".join(f'{name} = "{address}"\n' for name, address in listen.items())
        + '[[regions]]\nname = "us"\nnumber = 1\n'
        + f'brokers = [{{number = 1, peers = "{listen["peers"]}", link = "{listen["link"]}"}}]\n'
    )
    async with running(_run(load_broker(file), notice(tmp_path))):
        before = await heard("READY=1")
        assert before[:2] == ["EXTEND_TIMEOUT_USEC=120000000", "STATUS=starting: not ready to serve yet"]
        _, writer = await asyncio.open_connection(*listen["kafka"].split(":"))
        writer.close()
        await heard("WATCHDOG=1")
    assert "STATUS=stopping" in await heard("STOPPING=1")


async def test_a_gateway_without_a_region_is_not_ready_and_stops_when_told(heard: Any, tmp_path: Path) -> None:
    http, kafka, grpc, nobody = free_ports(4)
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'mesh_id = "m"\nusers_file = ""\n[listen]\nhttp = "127.0.0.1:{http}"\nkafka = "127.0.0.1:{kafka}"\n'
        f'grpc = "127.0.0.1:{grpc}"\n[[regions]]\nname = "us"\nnumber = 1\nbrokers = [{{number = 1, '
        + ", ".join(f'{name} = "127.0.0.1:{nobody}"' for name in ("kafka", "grpc", "admin"))
        + "}]\n"
    )
    async with running(_serve(load_gateway(file), notice(tmp_path))):
        for _ in range(3):
            assert "READY=1" not in await heard("EXTEND_TIMEOUT_USEC=120000000")
    assert "READY=1" not in await heard("STOPPING=1")
