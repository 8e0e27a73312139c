"""Sockets through gateways that are killed, and sockets whose clients do not read or do not answer. Real processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadtest.mesh_process import MeshProcess
from tests.free_ports import free_ports

pytestmark = pytest.mark.slow
RECORDS = 6_000
KILLS = 5
PATIENCE_S = 240  # a gateway takes half a minute to start beside busy processes
FULL_BYTES = 48 * 1024 * 1024
CUT_OFF_S = 90.0  # a message waits 30 s, a pong 60 s


@pytest.fixture(scope="module")
def mesh() -> Iterator[MeshProcess]:
    """One region of one broker; its own gateway makes the topics."""
    with tempfile.TemporaryDirectory() as folder:
        mesh = MeshProcess(Path(folder), regions="us", brokers_per_region=1)
        asyncio.run(mesh.__aenter__())
        try:
            yield mesh
        finally:
            mesh.stop()


class Gateways:
    """Gateways of the mesh that are killed and started again, each on ports of its own."""

    def __init__(self, mesh: MeshProcess, folder: Path) -> None:
        self._broker = {name: rows[0] for name, rows in mesh.endpoints["regions"]["us"].items()}
        self._folder = folder
        self._running: list[tuple[subprocess.Popen[bytes], str]] = []

    def start(self) -> None:
        http, kafka, grpc = free_ports(3)
        file = self._folder / f"gateway-{http}.toml"
        address = {name: self._broker[name] for name in ("kafka", "grpc", "admin")}
        row = ", ".join(f'{name} = "{where}"' for name, where in address.items())
        listen = f'http = "127.0.0.1:{http}"\nkafka = "127.0.0.1:{kafka}"\ngrpc = "127.0.0.1:{grpc}"'
        regions = f'[[regions]]\nname = "us"\nnumber = 1\nbrokers = [{{number = 1, {row}}}]'
        file.write_text(f'mesh_id = "m"\n[listen]\n{listen}\n{regions}\n')
        command = [sys.executable, "-m", "gateway", "--config", str(file)]
        with file.with_suffix(".log").open("wb") as log:
            self._running.append((subprocess.Popen(command, stdout=log, stderr=log), f"http://127.0.0.1:{http}"))

    @property
    def urls(self) -> list[str]:
        return [url for _, url in self._running]

    def kill(self, url: str) -> None:
        """kill -9 one, and start another one in its place."""
        process = next(process for process, at in self._running if at == url)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._running = [(other, at) for other, at in self._running if at != url]
        self.start()

    def stop(self) -> None:
        for process, _ in self._running:
            process.kill()
            process.wait()


async def connect(session: aiohttp.ClientSession, gateways: Gateways) -> tuple[str, Any]:
    """Return (URL, socket) of any gateway that takes one."""
    until_s = time.monotonic() + PATIENCE_S
    failed: dict[str, str] = {}
    while True:
        for url in gateways.urls:
            try:
                return url, await session.ws_connect(f"{url}/v1/socket")
            except (aiohttp.ClientError, TimeoutError) as error:
                failed[url] = repr(error)
        assert time.monotonic() < until_s, failed
        await asyncio.sleep(0.1)


async def publish(mesh: MeshProcess, topic: str, count: int) -> None:
    """Publish numbers to one partition over a socket of the broker, in order."""
    admin = mesh.endpoints["regions"]["us"]["admin"][0]
    async with aiohttp.ClientSession() as session, session.ws_connect(f"http://{admin}/v1/socket") as ws:
        await ws.receive(timeout=10)
        for number in range(count):
            record = {"value": str(number), "partition": 0}
            await ws.send_str(json.dumps({"type": "publish", "id": number, "topic": topic, "records": record}))
        for _ in range(count):
            answer = json.loads((await ws.receive(timeout=60)).data)
            assert answer["type"] == "published", answer
            assert answer["records"][0]["offset"] == answer["id"], "stored in the order in which they were sent"


async def make_topic(mesh: MeshProcess, name: str) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"name": name, "partitions": 1, "home": "us"}
        async with session.post(f"{mesh.gateway}/v1/topics", json=body) as answer:
            assert answer.status == 201, await answer.text()


async def test_a_reader_goes_on_behind_killed_gateways_without_loss_or_repetition(
    mesh: MeshProcess, tmp_path: Path
) -> None:
    await make_topic(mesh, "killed")
    gateways = Gateways(mesh, tmp_path)
    gateways.start()
    gateways.start()
    publishing = asyncio.get_running_loop().create_task(publish(mesh, "killed", RECORDS))
    read: list[int] = []
    positions: dict[str, int] | str = "earliest"
    kills = 0
    try:
        async with aiohttp.ClientSession() as session:
            while len(read) < RECORDS:
                url, ws = await connect(session, gateways)
                async with ws:
                    wish = {"type": "subscribe", "id": 1, "topic": "killed", "from": positions, "credit_bytes": 20_000}
                    await ws.send_str(json.dumps(wish))
                    while len(read) < RECORDS:
                        message = await ws.receive(timeout=60)
                        if message.type is not aiohttp.WSMsgType.TEXT:
                            break
                        said = json.loads(message.data)
                        if said["type"] != "records":
                            continue
                        read += [int(row["value"]) for row in said["records"]]
                        positions = said["positions"]
                        if url not in gateways.urls:
                            continue  # what the killed one had sent before
                        await ws.send_str(json.dumps({"type": "credit", "id": 1, "bytes": said["size_bytes"]}))
                        if kills < KILLS and len(read) > RECORDS * (kills + 1) // (KILLS + 1):
                            kills += 1
                            gateways.kill(url)
        await publishing
    finally:
        publishing.cancel()
        gateways.stop()
    assert kills == KILLS
    assert read == list(range(RECORDS)), "each once, in order"


def handshake(address: str, read_buffer_bytes: int) -> socket.socket:
    """Return a socket behind its handshake that nobody reads."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as opened:
        raw = opened.enter_context(socket.socket())
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_buffer_bytes)
        raw.settimeout(10)
        raw.connect((host, int(port)))
        raw.sendall(
            b"GET /v1/socket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert raw.recv(12) == b"HTTP/1.1 101"
        opened.pop_all()
    return raw


def say(raw: socket.socket, message: Any) -> None:
    """Send a short message of text, masked with zeros."""
    body = json.dumps(message).encode()
    assert len(body) < 65_536
    raw.sendall(b"\x81" + bytes([0x80 | 126]) + len(body).to_bytes(2, "big") + bytes(4) + body)


def is_cut_off(raw: socket.socket) -> bool:
    """Return whether the other end has reset the connection; nothing is read."""
    return bool(raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) or _state(raw) != 1


def _state(raw: socket.socket) -> int:
    """Return the kernel's state of a connection, 1: established (struct tcp_info)."""
    try:
        return raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return 0


async def read_all(session: aiohttp.ClientSession, admin: str) -> None:
    """Read what fills the topic."""
    read_bytes = 0
    async with session.ws_connect(f"http://{admin}/v1/socket") as ws:
        wish = {"type": "subscribe", "id": 1, "topic": "full", "from": "earliest", "credit_bytes": 2**26}
        await ws.send_str(json.dumps(wish))
        while read_bytes < FULL_BYTES:
            read_bytes += json.loads((await ws.receive(timeout=30)).data).get("size_bytes", 0)


async def test_who_does_not_read_or_answer_is_cut_off_and_holds_up_no_other_reader(mesh: MeshProcess) -> None:
    await make_topic(mesh, "full")
    admin = mesh.endpoints["regions"]["us"]["admin"][0]
    async with aiohttp.ClientSession() as session:
        body = json.dumps([{"value": "x" * 65_536, "partition": 0}] * 16).encode()
        for _ in range(FULL_BYTES // (16 * 65_536)):
            async with session.post(f"{mesh.gateway}/v1/topics/full/records", data=io.BytesIO(body)) as answer:
                assert answer.status == 200, await answer.text()
        lazy = [handshake(admin, 4096) for _ in range(20)]
        for raw in lazy:
            say(raw, {"type": "subscribe", "id": 1, "topic": "full", "from": "earliest", "credit_bytes": 2**26})
        mute = handshake(mesh.endpoints["gateway"]["http"][0], 4096)  # asks for nothing, answers no ping
        began_s = time.monotonic()
        cut: dict[str, float] = {}
        await asyncio.wait_for(read_all(session, admin), CUT_OFF_S)  # beside them another reader reads everything
        while time.monotonic() < began_s + CUT_OFF_S and len(cut) < 2:
            if "lazy" not in cut and all(map(is_cut_off, lazy)):
                cut["lazy"] = time.monotonic() - began_s
            if "mute" not in cut and is_cut_off(mute):
                cut["mute"] = time.monotonic() - began_s
            await asyncio.sleep(0.5)
    for raw in (*lazy, mute):
        raw.close()
    assert set(cut) == {"lazy", "mute"}, cut
