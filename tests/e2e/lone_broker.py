"""A broker process whose file names nobody but itself and one seed; gossip finds the others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.http_body import body_of

REGIONS = {"us": 1, "eu": 2, "ap": 3}
PATIENCE_S = 90.0
LISTENERS = ("kafka", "grpc", "peers", "link", "admin", "lan", "wan")


def until(wanted: Callable[[], Any], what: str) -> None:
    """Wait for what other processes bring about, and print how long that took."""
    began = time.monotonic()
    while not wanted():
        assert time.monotonic() < began + PATIENCE_S, what
        time.sleep(0.1)
    print(f"{time.monotonic() - began:6.1f} s: {what}")


@dataclass(slots=True)
class LoneBroker:
    """A broker that knows itself and one seed.

    Args:
        is_breakable: it is started by `python -m region.faults`, and `break_with` breaks it.
    """

    region: str
    number: int
    folder: Path
    ports: dict[str, int]
    is_breakable: bool = False
    process: subprocess.Popen[bytes] | None = None
    generation: int = 0

    @property
    def id(self) -> int:
        return REGIONS[self.region] * 1000 + self.number

    @property
    def log(self) -> str:
        return (self.folder / "out").read_text()

    def write(self, seed: int, *, brokers: int, regions: int = len(REGIONS)) -> None:
        """Write its file. `seed`: WAN port of any broker; `brokers`, `regions`: how many are waited for."""
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
expect_brokers = {brokers}
expect_regions = {regions}

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
        command = [sys.executable, "-m", "region"]
        if self.is_breakable:
            self._write_faults()
            command = [sys.executable, "-m", "region.faults", "broker", "--break-things"]
            command += ["--control", str(self.folder / "faults.json")]
        with (self.folder / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.folder / "broker.toml")], stdout=out, stderr=out
            )

    def stop(self, how: int) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()

    def break_with(self, **faults: int) -> None:
        """Set faults (region.faults.settings) and return when it obeys."""
        self.generation += 1
        self._write_faults(**faults)
        applied = self.folder / "faults.json.applied"
        began = time.monotonic()
        while not applied.exists() or applied.read_text() != f"{self.generation}\n":
            assert time.monotonic() < began + PATIENCE_S, self.log[-2_000:]
            time.sleep(0.005)

    def _write_faults(self, **faults: int) -> None:
        draft = self.folder / "faults.json.tmp"
        draft.write_text(json.dumps({"version": 1, "generation": self.generation, **faults}))
        os.replace(draft, self.folder / "faults.json")

    def ask(self, path: str, body: object = None, *, timeout_s: float = 10.0) -> Any:
        return json.loads(self.text(path, body, timeout_s=timeout_s) or "null")

    def text(self, path: str, body: object = None, *, timeout_s: float = 10.0) -> str:
        url = f"http://127.0.0.1:{self.ports['admin']}{path}"
        data = None if body is None else json.dumps(body).encode()
        return body_of(urllib.request.Request(url, data), timeout_s=timeout_s).decode()

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("/readyz")["status"] == "ready")
        return False

    def sees(self, pool: str, wanted: dict[str, str]) -> bool:
        return self.statuses(pool) == wanted

    def statuses(self, pool: str) -> dict[str, str]:
        return {m["name"]: m["status"] for m in self.ask(f"/v1/gossip/members?pool={pool}")["members"]}
