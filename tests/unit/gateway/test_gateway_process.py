"""`python -m gateway` as a process of its own (uvloop): starts, serves all three listeners, ends on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from gateway.__main__ import main
from georelay import process_guard
from tests.free_ports import free_ports
from tests.tiers import first

Run = Callable[[Path], tuple[Any, str]]
METADATA = struct.pack(">ihhih", 10, 3, 0, 7, -1)


def config(path: Path, ports: list[int], *, kafka: str, grpc: str, admin: str, extra: str = "") -> Path:
    file = path / "gateway.toml"
    file.write_text(
        f"""
mesh_id = "m"
users_file = ""
{extra}
[listen]
http = "127.0.0.1:{ports[0]}"
kafka = "127.0.0.1:{ports[1]}"
grpc = "127.0.0.1:{ports[2]}"
text = "{f"127.0.0.1:{ports[3]}" if len(ports) > 3 else ""}"
[[regions]]
name = "us"
number = 1
brokers = [{{number = 1, kafka = "{kafka}", grpc = "{grpc}", admin = "{admin}"}}]
"""
    )
    return file


@pytest.fixture
def run_gateway(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a runner of the command in this process, for what ends by itself: its exit code, and what it said."""
    for name in ("leave_out", "close_files_to_others"):  # would be for all tests that follow
        monkeypatch.setattr(process_guard, name, lambda *_: None)

    def ran(file: Path) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["georelay-gateway", "--config", str(file)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capfd.readouterr().err

    return ran


def test_a_wrong_configuration_is_one_line_on_stderr(run_gateway: Run, tmp_path: Path) -> None:
    file = config(tmp_path, [1, 2, 3], kafka="10.0.0.1:1", grpc="127.0.0.1:1", admin="127.0.0.1:1")
    code, said = run_gateway(file)
    assert code == 2  # the service manager need not try it again
    assert said.count("\n") == 1
    assert "10.0.0.1:1 is not a loopback address" in said


LISTENERS = ("http", "kafka", "grpc", "text")  # in this place of the ports


@pytest.mark.parametrize("listener", first(1, reversed(LISTENERS)))
def test_a_taken_port_is_one_line(run_gateway: Run, tmp_path: Path, listener: str) -> None:
    ports = free_ports(4)
    taken = ports[LISTENERS.index(listener)]
    with socket.create_server(("127.0.0.1", taken)):
        file = config(tmp_path, ports, kafka="127.0.0.1:1", grpc="127.0.0.1:1", admin="127.0.0.1:1")
        code, _ = run_gateway(file)
    assert "\n" not in code  # text: Python prints it and ends with 1
    assert f"cannot listen on 127.0.0.1:{taken} ({listener})" in code


async def test_all_three_listeners_serve_and_sigterm_ends_the_process(start_broker: Any, tmp_path: Path) -> None:
    us = await start_broker()

    async def echo_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def echo_call(request: bytes, context: Any) -> bytes:
        return request

    kafka = await asyncio.start_server(echo_bytes, "127.0.0.1", 0)
    server = grpc.aio.server()
    handlers = {"Publish": grpc.unary_unary_rpc_method_handler(echo_call)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("broker.Broker", handlers),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ports = free_ports(3)
    file = config(
        tmp_path,
        ports,
        kafka=f"127.0.0.1:{kafka.sockets[0].getsockname()[1]}",
        grpc=f"127.0.0.1:{grpc_port}",
        admin=us.admin,
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gateway", "--config", str(file))
    try:
        async with asyncio.timeout(120), aiohttp.ClientSession() as client:
            await ready(client, f"http://127.0.0.1:{ports[0]}/readyz")
            async with client.get(f"http://127.0.0.1:{ports[0]}/v1/topics") as answer:
                assert answer.status == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[1])
            payload = METADATA + struct.pack(">ihh", 20_000_000, 0, 9) + bytes(20_000_000 - 4)
            writer.write(payload)
            assert await reader.readexactly(len(payload)) == payload
            options = [("grpc.enable_http_proxy", 0)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[2]}", options=options) as channel:
                assert await channel.unary_unary("/broker.Broker/Publish")(b"x") == b"x"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert await reader.read() == b""
            writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.stop(None)
        kafka.close()


async def ready(client: aiohttp.ClientSession, url: str) -> None:
    while True:
        try:
            async with client.get(url) as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientConnectorError:
            pass
        await asyncio.sleep(0.05)
