"""A mesh that begins with an older version's code and no mesh secret; its brokers are replaced by this version's.

Rule 1: each broker keeps its data directory and its addresses, and is replaced when all others are there.
Rule 2: first by this version with the secret, which nobody demands yet; a second time, and it is demanded.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.joined_broker import BesideBroker
from loadtest.campaign.mesh import CampaignFailed, NotYet, get_json, until
from loadtest.mesh_process import MeshProcess
from loadtest.toml_core import toml_of

CHECKOUT: Final = Path(__file__).resolve().parents[2]
GENERATE: Final = """
import sys
from pathlib import Path
root = Path.cwd()
sys.path[:0] = [str(root / "sdk"), str(root)]
import build_hook, hatch_build
build_hook.generate(hatch_build.BROKER_CONTRACTS, source=root / "proto", package=root / "region" / "api" / "_pb")
build_hook.generate(build_hook.CONTRACTS, source=root / "proto", package=root / "sdk" / build_hook.PACKAGE)
"""
MESH: Final = "upgrade"
WHOLE_S: Final = 120.0


class OlderMesh(MeshProcess):
    """Brokers without a gateway: the first one answers what a gateway would be asked.

    Args:
        commit: whose code they begin with.
        regions: the first is the home of what is defined.
    """

    def __init__(self, directory: Path, *, commit: str, regions: Sequence[str], brokers_per_region: int) -> None:
        super().__init__(directory, regions=",".join(regions), brokers_per_region=brokers_per_region)
        self._commit = commit
        self._folder = directory / "mesh"
        self._secret = self._folder / "mesh.secret"
        self._regions, self._count = regions, brokers_per_region
        self._brokers: dict[str, list[BesideBroker]] = {}
        self._upgrades: Counter[str] = Counter()

    async def __aenter__(self) -> MeshProcess:
        """Start all of them. Raises CampaignFailed."""
        for name in ("config", "brokers", "logs", "run"):
            (self._folder / name).mkdir(parents=True)
        self._secret.write_text(secrets.token_hex(32) + "\n")
        self._secret.chmod(0o600)
        numbers = range(1, self._count + 1)
        for region in self._regions:
            self._brokers[region] = [BesideBroker(self._folder, f"{region}-{number}") for number in numbers]
        listen = {
            region: {name: [each.listen[name] for each in brokers] for name in brokers[0].listen}
            for region, brokers in self._brokers.items()
        }
        self.endpoints = {
            "version": 1,
            "mesh": MESH,
            "regions": listen,
            "gateway": {"http": listen[self._regions[0]]["admin"][:1]},
        }
        (self.directory / "endpoints.json").write_text(json.dumps(self.endpoints), encoding="utf-8")
        old = await asyncio.to_thread(unpack_version, self._commit, self.directory / "older")
        try:
            for broker in self._all():
                self._configure(broker, {})
                broker.code = old
            await asyncio.gather(*(self._start(broker) for broker in self._all()))
            await self._whole()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all of them."""
        await asyncio.gather(*(broker.stop() for broker in self._all()))

    async def upgrade(self, region: str, killed: set[int]) -> str:
        """Replace the brokers of a region, one after the other; return the feature levels then. Raises CampaignFailed.

        Args:
            killed: takes the processes that are stopped for it.
        """
        keys: dict[str, Any] = {"mesh_secret_file": str(self._secret)}
        keys |= {} if self._upgrades[region] else {"mesh_secret_required": False}
        self._upgrades[region] += 1
        for broker in self._brokers[region]:
            killed.add(self.pid_of(broker.name))
            await broker.stop()
            self._configure(broker, keys)
            broker.code = None
            await self._start(broker)
            await self._whole()
        answer = await get_json(f"http://{self._brokers[region][0].listen['admin']}/v1/regions") or {}
        return ", ".join(f"{row['name']} {row['level']}" for row in answer.get("regions", ()))

    def _all(self) -> list[BesideBroker]:
        return [broker for brokers in self._brokers.values() for broker in brokers]

    async def _start(self, broker: BesideBroker) -> None:
        await broker.start()
        (self._folder / "run" / f"{broker.name}.pid").write_text(str(broker.pid))

    async def _whole(self) -> None:
        """Wait until every broker is ready and hears all of its region. Raises CampaignFailed."""

        async def look() -> None:
            for broker in self._all():
                status = await get_json(f"http://{broker.listen['admin']}/v1/status")
                if not status or not status["ready"] or sum(row["alive"] for row in status["brokers"]) < self._count:
                    raise NotYet(f"{broker.name} is not whole: {broker.last_words()}")

        await until(look, within_s=WHOLE_S)

    def _configure(self, own: BesideBroker, more: dict[str, Any]) -> None:
        """Write the configuration of a broker: every broker by its address, and `more` keys."""
        rows = [
            {
                "name": region,
                "number": number,
                "brokers": [broker.row(place) for place, broker in enumerate(brokers, start=1)],
            }
            for number, (region, brokers) in enumerate(self._brokers.items(), start=1)
        ]
        region, _, place = own.name.rpartition("-")
        document = {
            "mesh_id": MESH,
            "region": region,
            "broker": int(place),
            "definitions_home": self._regions[0],
            "regions": rows,
        }
        own.config_file.write_text(toml_of(document | own.own | more), encoding="utf-8")


def unpack_version(commit: str, folder: Path) -> Path:
    """Write the code of a commit into a new folder and compile its contracts; return the folder.

    The dependencies are those that are installed: a version that needs others cannot be run so.

    Raises:
        CampaignFailed: no git, no such commit, or its contracts do not compile.
    """
    folder.mkdir(parents=True)
    archive = _run(["git", "archive", "--format=tar", commit], CHECKOUT, f"cannot take {commit} from git")
    _run(["tar", "x"], folder, f"cannot unpack {commit}", given=archive)
    _run([sys.executable, "-P", "-c", GENERATE], folder, f"the contracts of {commit} do not compile")
    return folder


def _run(words: list[str], folder: Path, failed: str, given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(words, cwd=folder, input=given, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise CampaignFailed(f"{failed}: {words[0]} is not installed") from error
    if done.returncode:
        raise CampaignFailed(f"{failed}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
