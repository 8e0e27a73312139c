"""README's own lines, run in their order, and curl's of the HTTP page, against three regions of one broker in a thread.

What needs processes of its own (`up`, `make`, kcat) is run by other tests. Ports are this test's.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from grpc_tools import protoc

from gateway.app import Gateway
from gateway.config import GatewayConfig
from georelay.cli.application import PLUGIN_GROUP, run
from georelay.cli.location import GATEWAY_VARIABLE
from region.app import Broker
from region.config import BrokerConfig
from tests.free_ports import free_ports
from tests.unit.docs.written_commands import Written, commands_of

ROOT: Final = Path(__file__).resolve().parents[3]
README: Final = (ROOT / "README.md").read_text()
REGIONS: Final = {"us": 1, "eu": 2, "ap": 3}
LISTENERS: Final = ("kafka", "grpc", "peers", "link", "admin")
PORTS_IN_README: Final = {"21045": "http", "21046": "kafka", "21047": "grpc"}
READY_S: Final = 30
# Run by tests of processes; members needs gossip, and users and acls a mesh in which people sign in.
ELSEWHERE: Final = {"up", "members", "acls", "users"}
ENDLESS: Final = {"subscribe": ("--max", "3")}
PORT_HTTP: Final = "http://127.0.0.1:21045"
CURL_SAYS: Final = {
    f"curl -X POST {PORT_HTTP}/v1/topics": "409",  # the command line made it a section above
    f"curl -X POST {PORT_HTTP}/v1/topics/orders/records": '200 {"records":[{"partition":3,',
    f"curl '{PORT_HTTP}/v1/topics/orders/records?partition=3&offset=earliest&max=100&wait_ms=1000&region=ap'": "200",
    f"curl {PORT_HTTP}/v1/resolve": "200",
    f"curl '{PORT_HTTP}/v1/topics/orders/consumers/bills/records?max=100&wait_ms=5000'": "200",
    f"curl -X POST {PORT_HTTP}/v1/topics/orders/consumers/bills/acknowledge": (
        '200 {"topic":"orders","consumer":"bills","positions":{"3":2}}'
    ),
    f"curl -N {PORT_HTTP}/v1/topics/orders/consumers/bills/events": "200 : georelay",
}
HTTP_PAGE: Final = "docs/protocol/http-and-grpc.md"
EVENTS: Final = [{"key": f"customer-{number}", "state": "placed"} for number in range(3)]
NEAREST_S_MAX = 20


class MeshInThread:
    """Three regions of one broker and a gateway, on an event loop in a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.ports: dict[str, int] = {}
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._brokers: list[Broker] = []
        self._gateway: Gateway | None = None

    def __enter__(self) -> MeshInThread:
        self._thread.start()
        try:
            self._wait(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(READY_S)

    async def _start(self) -> None:
        numbers = iter(free_ports(len(REGIONS) * len(LISTENERS)))
        listen = {region: {name: f"127.0.0.1:{next(numbers)}" for name in LISTENERS} for region in REGIONS}
        rows = [
            {"name": region, "number": number, "brokers": [{"number": 1, **_of(listen[region], "peers", "link")}]}
            for region, number in REGIONS.items()
        ]
        for region in REGIONS:
            config = {
                "mesh_id": "readme",
                "region": region,
                "broker": 1,
                "data_dir": str(self._directory / region),
                "definitions_home": "us",
                "tick_ms": 20,
                "listen": listen[region],
                "regions": rows,
            }
            self._brokers.append(Broker(BrokerConfig.model_validate(config)))
        await asyncio.gather(*(broker.start() for broker in self._brokers))
        seen = [
            {
                "name": region,
                "number": number,
                "brokers": [{"number": 1, **_of(listen[region], "kafka", "grpc", "admin")}],
            }
            for region, number in REGIONS.items()
        ]
        own = dict.fromkeys(("http", "kafka", "grpc"), "127.0.0.1:0")
        self._gateway = Gateway(GatewayConfig.model_validate({"mesh_id": "readme", "listen": own, "regions": seen}))
        ports = await self._gateway.start()
        self.ports = {"http": ports.http, "kafka": ports.kafka, "grpc": ports.grpc}
        async with aiohttp.ClientSession() as http:
            while not await self._is_ready(http):
                await asyncio.sleep(0.02)

    async def _is_ready(self, http: aiohttp.ClientSession) -> bool:
        """Return whether the gateway sees every region ready."""
        async with http.get(f"http://127.0.0.1:{self.ports['http']}/v1/resolve") as answer:
            found = (await answer.json()).get("regions", ())
        return [region["ready"] for region in found] == [True] * len(REGIONS)

    async def _stop(self) -> None:
        if self._gateway is not None:
            await self._gateway.close()
        await asyncio.gather(*(broker.stop() for broker in self._brokers))


def _of(addresses: dict[str, str], *names: str) -> dict[str, str]:
    return {name: addresses[name] for name in names}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshInThread]:
    with MeshInThread(tmp_path_factory.mktemp("readme")) as running:
        yield running


def _here(text: str, mesh: MeshInThread) -> str:
    for port, name in PORTS_IN_README.items():
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{mesh.ports[name]}")
    return text


def _curl(words: tuple[str, ...]) -> str:
    method, body, url = "GET", None, ""
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-X":
            method = rest.pop(0)
        elif word == "-d":
            body = rest.pop(0).encode()
        elif word != "-N":
            url = word
    request = urllib.request.Request(url, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            raw = answer.readline() if "-N" in words else answer.read()  # what is not buffered does not end
            return f"{answer.status} {raw.decode()}"
    except urllib.error.HTTPError as refused:
        with refused:
            return f"{refused.code} {refused.read().decode()}"


def _fenced() -> list[Written]:
    http = commands_of(HTTP_PAGE, (ROOT / HTTP_PAGE).read_text())
    return [found for found in (*commands_of("README.md", README), *http) if found.is_fenced]


def test_the_commands_of_the_readme_do_what_they_say(
    mesh: MeshInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(GATEWAY_VARIABLE, f"http://127.0.0.1:{mesh.ports['http']}")
    (tmp_path / "events.ndjson").write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS))
    plugins = list(importlib.metadata.entry_points(group=PLUGIN_GROUP))
    for written in _fenced():
        program, *words = written.words
        if program == "georelay" and words[0] not in ELSEWHERE:
            until = time.monotonic() + NEAREST_S_MAX
            while True:
                code = run([*words, *ENDLESS.get(words[0], ())], plugins)
                captured = capsys.readouterr()
                # On a busy machine another region may be the nearest for a moment; queues are of one region's clients.
                if code == 0 or "does not exist" not in captured.err or time.monotonic() > until:
                    break
                time.sleep(0.1)
            assert code == 0, f"{written}: {captured}"
            assert captured.out or captured.err, written
        elif program == "curl":
            answer = _curl(tuple(_here(word, mesh) for word in written.words))
            assert answer.startswith(CURL_SAYS[written.text.split(" -d ")[0]]), f"{written}: {answer}"


def test_the_python_of_the_readme_runs(
    mesh: MeshInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    include = f"-I{ROOT / 'proto'}"
    assert protoc.main(["", include, f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", "broker.proto"]) == 0
    monkeypatch.syspath_prepend(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(_here(block, mesh), "README.md", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "greetings/0/0" in said
    assert "customer-" in said
    for name in ("broker_pb2", "broker_pb2_grpc"):
        sys.modules.pop(name, None)
