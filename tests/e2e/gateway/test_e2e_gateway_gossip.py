"""One seed per process and no list of anybody else: three regions and a gateway find each other; a fourth one joins.

`georelay up` is used as it is; what it writes into its configuration files is looked at first.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest

from loadtest.mesh_process import MeshProcess
from tests.free_ports import free_ports

REGIONS = "us,eu,ap"
PATIENCE_S = 60.0


class Asker:
    """Asks the gateway of a running mesh."""

    def __init__(self, mesh: MeshProcess, http: aiohttp.ClientSession) -> None:
        self.mesh = mesh
        self.http = http

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        async with self.http.request(method, f"{self.mesh.gateway}{path}", json=body) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def regions(self) -> dict[str, bool]:
        """Return the readiness of every region that the gateway knows."""
        rows = (await self.ask("GET", "/v1/resolve"))["regions"]
        return {row["region"]: row["ready"] for row in rows}

    async def ready_brokers(self, region: str) -> int:
        rows = (await self.ask("GET", "/v1/status"))["regions"]
        return sum(broker["ready"] for row in rows if row["region"] == region for broker in row["brokers"])


async def until(wanted: Callable[[], Awaitable[bool]], what: str) -> None:
    began = time.monotonic()
    while not await wanted():
        assert time.monotonic() < began + PATIENCE_S, what
        await asyncio.sleep(0.1)
    print(f"{time.monotonic() - began:6.1f} s: {what}")


@pytest.fixture
async def asker(tmp_path: Path) -> AsyncIterator[Asker]:
    mesh = MeshProcess(tmp_path, regions=REGIONS, brokers_per_region=1, arguments=("--restart",))
    async with mesh, aiohttp.ClientSession() as http:
        yield Asker(mesh, http)


@pytest.fixture
def run() -> Iterator[Callable[[str, Path], None]]:
    """Run a broker ("region") or a gateway of a configuration file until the test is over."""
    running: list[subprocess.Popen[bytes]] = []

    def run(module: str, file: Path) -> None:
        with file.with_suffix(".log").open("wb") as out:
            running.append(
                subprocess.Popen([sys.executable, "-m", module, "--config", str(file)], stdout=out, stderr=out)
            )

    yield run
    for process in running:
        process.kill()
        process.wait()


def names_only_itself(file: Path) -> bool:
    config = tomllib.loads(file.read_text())
    seeds = config["gossip"]["lan"].get("seeds", []) + config["gossip"].get("wan", {}).get("seeds", [])
    brokers = [(region["name"], row["number"]) for region in config.get("regions", ()) for row in region["brokers"]]
    own = [(config["region"], config["broker"])] if "broker" in config else []
    return len(seeds) == 1 and brokers == own


def write_fourth(folder: Path, mesh: Path) -> tuple[Path, int]:
    """Write the file of the one broker of region sa; return it and its link port."""
    ports = dict(zip(("kafka", "grpc", "peers", "link", "admin", "lan", "wan"), free_ports(7), strict=True))
    address = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    seed = tomllib.loads((mesh / "config" / "us-1.toml").read_text())
    folder.mkdir()
    keyring = folder / "wan.keyring"
    shutil.copy(mesh / "gossip" / "us-1.wan.keyring", keyring)
    listen = "\n".join(f'{name} = "{address[name]}"' for name in ("kafka", "grpc", "peers", "link", "admin"))
    (folder / "broker.toml").write_text(
        f'''
mesh_id = "{seed["mesh_id"]}"
region = "sa"
broker = 1
mesh_secret_file = "{seed["mesh_secret_file"]}"
data_dir = "{folder / "data"}"
die_with_parent = {os.getpid()}

[control]
join = ["1001@{seed["listen"]["link"]}"]

[listen]
{listen}

[gossip]
expect_brokers = 1

[gossip.lan]
listen = "{address["lan"]}"

[gossip.wan]
listen = "{address["wan"]}"
keyring_file = "{keyring}"
seeds = ["{seed["gossip"]["wan"]["listen"]}"]

[[regions]]
name = "sa"
number = 4
brokers = [{{number = 1, peers = "{address["peers"]}", link = "{address["link"]}"}}]
'''
    )
    return folder / "broker.toml", ports["link"]


@pytest.mark.slow
async def test_a_gateway_with_one_seed_follows_a_mesh_without_lists(
    asker: Asker, run: Callable[[str, Path], None], tmp_path: Path
) -> None:
    directory = tmp_path / "mesh"
    files = sorted((directory / "config").glob("*.toml"))
    assert [file.stem for file in files] == ["ap-1", "eu-1", "gateway", "us-1"]
    assert [names_only_itself(file) for file in files] == [True] * 4

    async def all_ready() -> bool:
        return await asker.regions() == {"us": True, "eu": True, "ap": True}

    await until(all_ready, "the gateway knows three regions, and they are ready")
    members = (await asker.ask("GET", "/v1/gossip/members?region=us"))["members"]
    assert {member["tags"]["role"] for member in members} == {"broker", "gateway"}
    await asker.ask("POST", "/v1/topics", {"name": "orders", "partitions": 1, "homes": "one", "home": "us"})

    os.kill(asker.mesh.pid_of("eu-1"), signal.SIGKILL)

    async def eu_is_gone() -> bool:
        return (await asker.regions())["eu"] is False

    await until(eu_is_gone, "the gateway sees that a broker is gone")
    await until(all_ready, "it was started again, and the gateway uses it")

    file, link = write_fourth(tmp_path / "sa-1", directory)
    await asker.ask("POST", "/v1/regions", {"name": "sa", "number": 4, "seeds": [f"4001@127.0.0.1:{link}"]})
    run("region", file)

    async def sa_is_ready() -> bool:
        return (await asker.regions()).get("sa", False) and await asker.ready_brokers("sa") == 1

    await until(sa_is_ready, "a region that joined is known to the gateway, and ready")

    async def topic_is_there() -> bool:
        return "orders" in [row["name"] for row in (await asker.ask("GET", "/v1/topics?region=sa"))["topics"]]

    await until(topic_is_there, "and requests for it are forwarded there")


def write_gateway(folder: Path, mesh: Path, region: str) -> tuple[Path, str]:
    """Write the file of one more gateway, in a region; return it and its HTTP address."""
    broker = tomllib.loads((mesh / "config" / f"{region}-1.toml").read_text())
    folder.mkdir()
    keyring = folder / "lan.keyring"
    shutil.copy(mesh / "gossip" / f"{region}-1.lan.keyring", keyring)
    address = {
        name: f"127.0.0.1:{port}" for name, port in zip(("http", "kafka", "grpc", "lan"), free_ports(4), strict=True)
    }
    listen = "\n".join(f'{name} = "{address[name]}"' for name in ("http", "kafka", "grpc"))
    (folder / "gateway.toml").write_text(
        f'''
mesh_id = "{broker["mesh_id"]}"
name = "gateway-of-{region}"
region = "{region}"
die_with_parent = {os.getpid()}

[listen]
{listen}

[gossip.lan]
listen = "{address["lan"]}"
keyring_file = "{keyring}"
seeds = ["{broker["gossip"]["lan"]["listen"]}"]
'''
    )
    return folder / "gateway.toml", f"http://{address['http']}"


@pytest.mark.slow
async def test_what_is_decided_at_one_gateway_holds_in_other_regions_and_when_it_has_started_again(
    asker: Asker, run: Callable[[str, Path], None], tmp_path: Path
) -> None:
    file, other = write_gateway(tmp_path / "gateway-eu", tmp_path / "mesh", "eu")
    run("gateway", file)

    async def decided(gateway: str) -> list[tuple[str, str, str]] | None:
        """Return what a gateway knows; None while it does not answer."""
        try:
            async with asker.http.get(f"{gateway}/v1/routes") as answer:
                if answer.status != 200:  # it is there and knows no broker yet
                    return None
                rules = (await answer.json())["rules"]
        except aiohttp.ClientError:
            return None
        return [(rule["kind"], rule["subject"], rule["value"]) for rule in rules]

    async def knows(gateway: str, *rules: tuple[str, str, str]) -> bool:
        return await decided(gateway) == list(rules)

    await until(lambda: knows(other), "the gateway of eu answers")
    await asker.ask("POST", "/v1/routes/pin", {"subject": "billing-7", "value": "ap"})
    await asker.ask("POST", "/v1/routes/drain", {"subject": "us", "value": "clients"})
    rules = ("drain", "us", "clients"), ("pin", "billing-7", "ap")
    await until(lambda: knows(other, *rules), "the gateway of eu knows what was decided in us")
    killed = asker.mesh.kill("gateway")

    async def knows_again() -> bool:
        try:
            is_new = asker.mesh.pid_of("gateway") != killed
        except FileNotFoundError:
            return False  # it is not started yet
        return is_new and await knows(asker.mesh.gateway, *rules)

    await until(knows_again, "the gateway of us knows it after its start")
    await asker.ask("POST", "/v1/routes/drain", {"subject": "us", "value": ""})
    await until(lambda: knows(other, rules[1]), "what was taken back is taken back in eu")


@pytest.mark.slow
async def test_the_gateway_writes_down_what_became_of_requests(tmp_path: Path) -> None:
    async with MeshProcess(tmp_path, regions="us", brokers_per_region=1) as mesh, aiohttp.ClientSession() as http:
        asker = Asker(mesh, http)
        await asker.ask("POST", "/v1/topics", {"name": "orders", "partitions": 1, "homes": "one", "home": "us"})
        for _ in range(3):
            await asker.ask("POST", "/v1/topics/orders/records", {"value": "hello"})
        async with http.post(f"{mesh.gateway}/v1/topics/nowhere/records", json={"records": []}) as refused:
            assert 400 <= refused.status < 500
    rows = [
        row
        for path in mesh.traces.glob("date=*/hour=*/region=us/outcome-9*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert {row["gateway"] for row in rows} == {"gateway"}
    publishes = [row for row in rows if row["op"] == "publish"]
    assert len({row["second"] for row in publishes}) == len(publishes)
    totals = {name: sum(row[name] for row in publishes) for name in ("attempts", "ok", "client_error", "offered")}
    assert totals == {"attempts": 4, "ok": 3, "client_error": 1, "offered": 4}
