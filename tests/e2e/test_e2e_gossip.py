"""Brokers whose files name nobody but themselves and one seed: they found their regions, link, and find back.

GEORELAY_E2E_GOSSIP_BROKERS (1) brokers in each of three regions; with 3 it is the nine brokers of a whole mesh.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

REGIONS = {"us": 1, "eu": 2, "ap": 3}
BROKERS = int(os.environ.get("GEORELAY_E2E_GOSSIP_BROKERS", "1"))
PATIENCE_S = 90.0
LISTENERS = ("kafka", "grpc", "peers", "link", "admin", "lan", "wan")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@dataclass(slots=True)
class Lone:
    """A broker that knows itself and one seed."""

    region: str
    number: int
    folder: Path
    ports: dict[str, int]
    process: subprocess.Popen[bytes] | None = None

    def write(self, seed: int) -> None:
        self.folder.mkdir()
        address = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        (self.folder / "broker.toml").write_text(
            f'''
mesh_id = "shop"
region = "{self.region}"
broker = {self.number}
data_dir = "{self.folder / "data"}"
definitions_home = "us"
die_with_parent = {os.getpid()}

[listen]
kafka = "{address["kafka"]}"
grpc = "{address["grpc"]}"
peers = "{address["peers"]}"
link = "{address["link"]}"
admin = "{address["admin"]}"

[gossip]
expect_brokers = {BROKERS}
expect_regions = {len(REGIONS)}

[gossip.lan]
listen = "{address["lan"]}"

[gossip.wan]
listen = "{address["wan"]}"
seeds = ["127.0.0.1:{seed}"]

[[regions]]
name = "{self.region}"
number = {REGIONS[self.region]}
brokers = [{{number = {self.number}, peers = "{address["peers"]}", link = "{address["link"]}"}}]
'''
        )

    def start(self) -> None:
        with (self.folder / "out").open("ab") as out:
            command = [sys.executable, "-m", "region", "--config", str(self.folder / "broker.toml")]
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def stop(self, how: int) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()

    def ask(self, path: str, body: object = None) -> Any:
        url = f"http://127.0.0.1:{self.ports['admin']}{path}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("/readyz")["status"] == "ready")
        return False

    def sees(self, pool: str, wanted: dict[str, str]) -> bool:
        return self.statuses(pool) == wanted

    def statuses(self, pool: str) -> dict[str, str]:
        return {m["name"]: m["status"] for m in self.ask(f"/v1/gossip/members?pool={pool}")["members"]}


def until(wanted: Callable[[], Any], what: str) -> None:
    began = time.monotonic()
    while not wanted():
        assert time.monotonic() < began + PATIENCE_S, what
        time.sleep(0.1)
    print(f"{time.monotonic() - began:6.1f} s: {what}")


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[list[Lone]]:
    ports = free_ports(len(LISTENERS) * BROKERS * len(REGIONS))
    brokers = []
    for region in REGIONS:
        for number in range(1, BROKERS + 1):
            own = dict(zip(LISTENERS, (ports.pop() for _ in LISTENERS), strict=True))
            brokers.append(Lone(region, number, tmp_path / f"{region}-{number}", own))
    for broker in brokers:
        broker.write(brokers[0].ports["wan"])
        broker.start()
    yield brokers
    for broker in brokers:
        broker.stop(signal.SIGKILL)


def test_brokers_find_each_other_from_one_seed_and_find_back_after_a_kill(mesh: list[Lone]) -> None:
    for broker in mesh:
        until(broker.is_ready, f"{broker.region}-{broker.number} is ready")
    everybody = {f"{REGIONS[b.region] * 1000 + b.number}.{b.region}": "alive" for b in mesh}
    for broker in mesh:
        until(partial(broker.sees, "wan", everybody), "all are in the WAN pool")
        own = {str(REGIONS[b.region] * 1000 + b.number): "alive" for b in mesh if b.region == broker.region}
        until(partial(broker.sees, "lan", own), "the region is in the LAN pool")
    last = mesh[-1]
    mesh[0].ask("/v1/topics", {"name": "orders", "partitions": 1, "homes": "one", "home": "us"})
    until(lambda: "orders" in [row["name"] for row in last.ask("/v1/topics")["topics"]], "the topic is known afar")

    mesh[0].stop(signal.SIGKILL)  # the seed
    last.stop(signal.SIGKILL)
    last.start()
    until(last.is_ready, "a broker finds back while the only seed is gone")
    others = {name: status for name, status in everybody.items() if name != next(iter(everybody))}
    until(lambda: others.items() <= last.statuses("wan").items(), "and finds the others, by what it remembers")
    mesh[0].start()
    until(mesh[0].is_ready, "the seed itself finds back")
    for broker in mesh:
        until(partial(broker.sees, "wan", everybody), "all are there again")

    def told_ready() -> bool:
        answers = mesh[0].ask("/v1/gossip/queries?pool=wan", {"name": "mesh-status", "timeout_ms": 1000})["answers"]
        return {name: json.loads(text)["ready"] for name, text in answers.items()} == dict.fromkeys(everybody, True)

    until(told_ready, "all say by query that they are ready")


def test_a_broker_that_still_waits_for_other_regions_says_so_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    lone = Lone("eu", 1, tmp_path / "eu-1", dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True)))
    lone.write(free_ports(1)[0])
    lone.start()
    until(lambda: "gossip.regions_awaited" in (lone.folder / "out").read_text(), "it says what it waits for")
    assert lone.process is not None
    lone.process.send_signal(signal.SIGTERM)
    assert lone.process.wait(timeout=20) == 0
    assert "2 of 3 regions (known: eu)" in (lone.folder / "out").read_text()
    assert "Traceback" not in (lone.folder / "out").read_text()
