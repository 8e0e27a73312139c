"""A broker that joins a running mesh: a configuration file beside those of `georelay up`, and a process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CampaignFailed, get_json

PORT_NAMES: Final = ("kafka", "grpc", "peers", "link", "admin")
HOST: Final = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections.
FIRST_PORT: Final = 15_000
LAST_PORT: Final = 30_000
STOP_SECONDS_MAX: Final = 15
ANSWER_SECONDS_MAX: Final = 30


class BesideBroker:
    """One broker beside those that `georelay up` runs; who is derived from it writes its configuration file.

    Args:
        directory: of the mesh: holds config/, brokers/ and logs/.
        name: unique there, such as "us-4".
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.data_dir = directory / "brokers" / name
        self.config_file = directory / "config" / f"{name}.toml"
        first = _free_block(len(PORT_NAMES))
        self.listen = {name: f"{HOST}:{first + row}" for row, name in enumerate(PORT_NAMES)}
        self._log_file = directory / "logs" / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers. Raises CampaignFailed."""
        with self._log_file.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "region", "--config", str(self.config_file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while await get_json(f"http://{self.listen['admin']}/v1/status") is None:
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise CampaignFailed(f"{self.name} does not answer: see {self._log_file}")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop it in order; kill -9 after STOP_SECONDS_MAX."""
        await self._end(signal.SIGTERM)

    async def lose_disk(self) -> None:
        """kill -9, and delete its data directory."""
        await self._end(signal.SIGKILL)
        shutil.rmtree(self.data_dir)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class JoinedBroker(BesideBroker):
    """A broker of a region that there is. Its region and its first peer come from `model`.

    Args:
        model: configuration of a broker of the region, whose other keys are taken over.
        settings: keys to set beside those of the model.
    """

    def __init__(self, directory: Path, model: Path, number: int, settings: dict[str, int] | None = None) -> None:
        known = tomllib.loads(model.read_text(encoding="utf-8"))
        super().__init__(directory, f"{known['region']}-{number}")
        self.number = number
        self.config_file.write_text(self._toml(known, settings or {}), encoding="utf-8")

    def _toml(self, model: dict[str, Any], settings: dict[str, int]) -> str:
        """Return the model's file with this broker's own lines; json.dumps writes what TOML calls a basic string."""
        own = {
            "broker": self.number,
            "data_dir": str(self.data_dir),
            "die_with_parent": os.getpid(),
            **settings,
        }
        kept = {key: value for key, value in model.items() if key not in ("listen", "regions", *own)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**kept, **own}.items()]
        lines += ["[listen]", *(f"{name} = {json.dumps(address)}" for name, address in self.listen.items())]
        for region in model["regions"]:
            rows = list(region["brokers"])
            if region["name"] == model["region"]:
                me = {"number": self.number, "peers": self.listen["peers"], "link": self.listen["link"]}
                rows = [row for row in rows if row["number"] != self.number] + [me]
            shown = ", ".join(
                f"{{number = {row['number']}, peers = {json.dumps(row['peers'])}, link = {json.dumps(row['link'])}}}"
                for row in rows
            )
            lines += ["[[regions]]", f"name = {json.dumps(region['name'])}", f"number = {region['number']}"]
            lines.append(f"brokers = [{shown}]")
        return "\n".join(lines) + "\n"


class NewRegion(BesideBroker):
    """The only broker of a region that the mesh does not know yet; it knows one broker of the mesh, that of `model`."""

    def __init__(self, directory: Path, model: Path, *, region: str, region_number: int) -> None:
        super().__init__(directory, f"{region}-1")
        known = tomllib.loads(model.read_text(encoding="utf-8"))
        of_model = next(row for row in known["regions"] if row["name"] == known["region"])
        self.region, self.region_number = region, region_number
        seed = f"{broker_id(of_model['number'], known['broker'])}@{known['listen']['link']}"
        self.config_file.write_text(self._toml(known["mesh_id"], seed), encoding="utf-8")

    @property
    def seed(self) -> str:
        """Return where it can be reached, as `georelay region add` wants it."""
        return f"{broker_id(self.region_number, 1)}@{self.listen['link']}"

    def _toml(self, mesh_id: str, seed: str) -> str:
        settings = {
            "mesh_id": mesh_id,
            "region": self.region,
            "broker": 1,
            "data_dir": str(self.data_dir),
            "die_with_parent": os.getpid(),
        }
        peers, link = json.dumps(self.listen["peers"]), json.dumps(self.listen["link"])
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        lines += ["[control]", f"join = [{json.dumps(seed)}]", "[listen]"]
        lines += [f"{name} = {json.dumps(address)}" for name, address in self.listen.items()]
        lines += ["[[regions]]", f"name = {json.dumps(self.region)}", f"number = {self.region_number}"]
        lines.append(f"brokers = [{{number = 1, peers = {peers}, link = {link}}}]")
        return "\n".join(lines) + "\n"


def broker_id(region_number: int, number: int) -> int:
    """Return the number of a broker in its mesh."""
    return 1_000 * region_number + number


def _free_block(count: int) -> int:
    """Return the first of `count` free ports. Raises CampaignFailed."""
    for _ in range(100):
        first = random.randrange(FIRST_PORT, LAST_PORT - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise CampaignFailed(f"there are no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
