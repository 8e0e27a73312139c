"""A broker that joins a running mesh: a configuration file beside those of `georelay up`, and a process."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CampaignFailed, NotYet, get_json, until
from loadtest.child_process import PYTHON, ChildProcess
from loadtest.free_ports import HOST, free_ports
from loadtest.toml_core import toml_of

PORT_NAMES: Final = ("kafka", "grpc", "peers", "link", "admin")
ANSWER_SECONDS_MAX: Final = 30
POOLS: Final = ("lan", "wan")


class BesideBroker(ChildProcess):
    """One broker beside those that `georelay up` runs; who is derived from it writes its configuration file.

    Args:
        directory: of the mesh: holds config/, brokers/ and logs/.
        name: unique there, such as "us-4".
    """

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(name, log=directory / "logs" / f"{name}.log")
        self.data_dir = directory / "brokers" / name
        self.config_file = directory / "config" / f"{name}.toml"
        ports = free_ports(len(PORT_NAMES))
        self.listen = {name: f"{HOST}:{port}" for name, port in zip(PORT_NAMES, ports, strict=True)}
        self.code: Path | None = None  # folder of another version's code; None: this one's

    @property
    def own(self) -> dict[str, Any]:
        """Return the keys of its configuration that are nobody else's."""
        return {"data_dir": str(self.data_dir), "die_with_parent": os.getpid(), "listen": self.listen}

    def row(self, number: int) -> dict[str, Any]:
        """Return its row in the table of its region; number: there."""
        return {"number": number, "peers": self.listen["peers"], "link": self.listen["link"]}

    async def start(self) -> None:
        """Start it and wait until it answers. Raises CampaignFailed."""
        older = None if self.code is None else os.environ | {"PYTHONPATH": f"{self.code}:{self.code / 'sdk'}"}
        await self.launch(
            PYTHON, "-P", "-m", "region", "--config", str(self.config_file), environment=older, own_session=True
        )

        async def look() -> None:
            if await get_json(f"http://{self.listen['admin']}/v1/status") is None:
                said = f"{self.name} does not answer, see {self.log_file}: {self.last_words()}"
                raise CampaignFailed(said) if self.ended_by_itself else NotYet(said)

        await until(look, within_s=ANSWER_SECONDS_MAX, every_s=0.05)


class JoinedBroker(BesideBroker):
    """A broker of a region that there is. Its region and its first peer come from `model`.

    Args:
        model: configuration of a broker of the region, whose other keys are taken over.
    """

    def __init__(self, directory: Path, model: Path, number: int) -> None:
        known = tomllib.loads(model.read_text(encoding="utf-8"))
        super().__init__(directory, f"{known['region']}-{number}")
        self.number = number
        self.config_file.write_text(toml_of(self._document(known)), encoding="utf-8")

    def _document(self, model: dict[str, Any]) -> dict[str, Any]:
        """Return the model's document with what is this broker's own."""
        me = self.row(self.number)
        regions = [
            region | {"brokers": [row for row in region["brokers"] if row["number"] != self.number] + [me]}
            if region["name"] == model["region"]
            else region
            for region in model["regions"]
        ]
        gossip = {"gossip": self._pools(model["gossip"])} if "gossip" in model else {}
        return {**model, **self.own, "broker": self.number, **gossip, "regions": regions}

    def _pools(self, model: dict[str, Any]) -> dict[str, Any]:
        """Return the model's pools as this broker enters them: at its own address, by the model as seed."""
        pools = dict(model)
        for name, port in zip(POOLS, free_ports(len(POOLS)), strict=True):
            of_model = model[name]
            keyring = Path(of_model["keyring_file"])
            own_keyring = keyring.with_name(f"{self.name}.{name}.keyring")  # its own: it writes it
            shutil.copy(keyring, own_keyring)
            pools[name] = {
                "listen": f"{HOST}:{port}",
                "keyring_file": str(own_keyring),
                "seeds": [of_model["listen"]],
            }
        return pools


class NewRegion(BesideBroker):
    """The only broker of a region that the mesh does not know yet; it knows one broker of the mesh, that of `model`."""

    def __init__(self, directory: Path, model: Path, *, region: str, region_number: int) -> None:
        super().__init__(directory, f"{region}-1")
        known = tomllib.loads(model.read_text(encoding="utf-8"))
        of_model = next(row for row in known["regions"] if row["name"] == known["region"])
        self.region, self.region_number = region, region_number
        seed = f"{broker_id(of_model['number'], known['broker'])}@{known['listen']['link']}"
        secret = {key: known[key] for key in ("mesh_secret_file",) if key in known}
        self.config_file.write_text(toml_of(self._document(known["mesh_id"], seed) | secret), encoding="utf-8")

    @property
    def seed(self) -> str:
        """Return where it can be reached, as `georelay region add` wants it."""
        return f"{broker_id(self.region_number, 1)}@{self.listen['link']}"

    def _document(self, mesh_id: str, seed: str) -> dict[str, Any]:
        regions = [{"name": self.region, "number": self.region_number, "brokers": [self.row(1)]}]
        told = {"mesh_id": mesh_id, "region": self.region, "broker": 1, "control": {"join": [seed]}}
        return {**told, **self.own, "regions": regions}


def broker_id(region_number: int, number: int) -> int:
    """Return the number of a broker in its mesh."""
    return 1_000 * region_number + number
