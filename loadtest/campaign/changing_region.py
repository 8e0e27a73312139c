"""A region whose brokers come and go, as an operator changes it: configuration files and `georelay` commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.joined_broker import JoinedBroker
from loadtest.campaign.mesh import CampaignFailed, georelay, get_json
from loadtest.mesh_process import MeshProcess

REGION: Final = "us"
SETTLE_SECONDS_MAX: Final = 180
COMMAND_S_MAX: Final = 2 * SETTLE_SECONDS_MAX  # one that waits ends by itself first
LOOK_SECONDS: Final = 0.1


class ChangingRegion:
    """One region on this machine: its first broker belongs to `georelay up`, the others come later.

    Args:
        say: told of each command and what it printed.
        settings: configuration keys of the brokers that join.
    """

    def __init__(self, directory: Path, *, say: Callable[[str], None], settings: dict[str, int] | None = None) -> None:
        self._mesh = MeshProcess(directory, regions=REGION, brokers_per_region=1)
        self._directory = directory / "mesh"
        self._say = say
        self._settings = settings
        self.joined: dict[int, JoinedBroker] = {}

    async def __aenter__(self) -> ChangingRegion:
        """Start the first broker and the gateway."""
        await self._mesh.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await asyncio.gather(*(broker.stop() for broker in self.joined.values()))
        await self._mesh.__aexit__()

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Return where clients connect now, in the form of `georelay up`'s endpoint file."""
        first = self._mesh.endpoints["regions"][REGION]
        later = [broker.listen for broker in self.joined.values()]
        return {
            "regions": {
                REGION: {name: [*first[name], *(one[name] for one in later)] for name in ("kafka", "grpc", "admin")}
            }
        }

    @property
    def gateway(self) -> str:
        """Return the base URL of the gateway."""
        return self._mesh.gateway

    @property
    def kafka(self) -> list[str]:
        """Return the Kafka addresses of the brokers that are there."""
        return list(self.endpoints["regions"][REGION]["kafka"])

    @property
    def numbers(self) -> list[int]:
        """Return the brokers that are there, by number."""
        return [1, *sorted(self.joined)]

    def folder(self, number: int, group: int) -> Path:
        """Return where a broker keeps its replica of a group."""
        return self._directory / "brokers" / f"{REGION}-{number}" / "groups" / str(group)

    # --- what an operator does --------------------------------------------------------------------

    async def command(self, *arguments: str) -> str:
        """Run `georelay ARGUMENTS` and return what it printed. Raises CampaignFailed."""
        where = {"GEORELAY_GATEWAY": self.gateway, "COLUMNS": "140"}
        said = await georelay(*arguments, within_s=COMMAND_S_MAX, environment=where)
        self._say(f"$ georelay {' '.join(arguments)}\n{said.rstrip()}")
        return said.rstrip()

    async def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic with the default number of replicas, at most one per broker."""
        await self.command("topics", "create", name, "--partitions", str(partitions))

    async def add(self, number: int) -> JoinedBroker:
        """Write a configuration, let the broker in and start it."""
        model = self._directory / "config" / f"{REGION}-1.toml"
        broker = JoinedBroker(self._directory, model, number, self._settings)
        await self.command("broker", "add", str(broker_id(number)), "--peers", broker.listen["peers"])
        self.joined[number] = broker
        await broker.start()
        return broker

    async def remove(self, number: int) -> None:
        """Drain a broker, remove it and stop it."""
        await self.command("broker", "remove", str(broker_id(number)), "--wait", "--timeout", str(SETTLE_SECONDS_MAX))
        await self.joined.pop(number).stop()

    # --- what can be seen -------------------------------------------------------------------------

    async def brokers(self) -> list[dict[str, Any]]:
        """Return the rows of `georelay broker list`, [] when nobody answers."""
        return list((await self._ask("/v1/brokers") or {}).get("brokers", ()))

    async def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Return the rows of `georelay topics describe`, [] when nobody answers."""
        return list((await self._ask(f"/v1/topics/{topic}") or {}).get("partition_states", ()))

    async def _ask(self, path: str) -> dict[str, Any] | None:
        for admin in self.endpoints["regions"][REGION]["admin"]:
            answer = await get_json(f"http://{admin}{path}")
            if answer is not None:
                return answer
        return None

    async def statuses(self) -> dict[int, dict[str, Any]]:
        """Return each broker's own /v1/status; one that does not answer is left out."""
        admins = self.endpoints["regions"][REGION]["admin"]
        answers = await asyncio.gather(*(get_json(f"http://{admin}/v1/status") for admin in admins))
        numbers = [1, *self.joined]
        return {number: answer for number, answer in zip(numbers, answers, strict=True) if answer is not None}

    async def wait_until_settled(self, topic: str, *, replicas: int, only: Iterable[int] | None = None) -> float:
        """Wait until every partition of a topic has that many replicas and nothing moves; return the seconds.

        Args:
            only: broker numbers that the replicas are on; None: any.

        Raises:
            CampaignFailed: not within SETTLE_SECONDS_MAX.
        """
        allowed = None if only is None else {broker_id(number) for number in only}
        began = time.monotonic()
        rows: list[dict[str, Any]] = []
        while time.monotonic() - began < SETTLE_SECONDS_MAX:
            rows = await self.partitions(topic)
            brokers = await self.brokers()
            placed = rows and all(_is_placed(row, replicas, allowed) for row in rows)
            if placed and brokers and not any(row["moving"] for row in brokers):
                return time.monotonic() - began
            await asyncio.sleep(LOOK_SECONDS)
        raise CampaignFailed(f"{topic} has not settled on {replicas} replicas: {rows}")

    async def wait_until_spread(self, topic: str, *, replicas: int) -> None:
        """Wait until a topic has settled, everybody is heard, and nobody holds two replicas more than another.

        Raises:
            CampaignFailed: not within SETTLE_SECONDS_MAX.
        """
        wanted = {broker_id(number) for number in self.numbers}
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            await self.wait_until_settled(topic, replicas=replicas)
            held = {row["id"]: row["replicas"] or 0 for row in await self.brokers() if row["alive"]}
            if set(held) == wanted and max(held.values()) - min(held.values()) < 2:
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise CampaignFailed(f"the replicas are not spread over {sorted(wanted)}: {await self.brokers()}")

    async def wait_until_heard(self, number: int, *, heard: bool) -> None:
        """Wait until the region hears a broker, on the disk that it is known with, or hears it no more.

        Raises:
            CampaignFailed: not within SETTLE_SECONDS_MAX.
        """
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            if any(row["id"] == broker_id(number) and row["alive"] == heard for row in await self.brokers()):
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise CampaignFailed(f"broker {broker_id(number)} is {'not heard' if heard else 'still heard'}")

    async def wait_until_level(self, topic: str) -> list[tuple[int, int, dict[str, Path]]]:
        """Wait until every replica of a topic has what is committed now.

        Returns:
            One row per partition: (partition, committed end, broker -> folder of its replica).

        Raises:
            CampaignFailed: not within SETTLE_SECONDS_MAX.
        """
        ends = {row["partition"]: max(row.get("high_watermark", 0), 0) for row in await self._stream_rows(topic)}
        groups = {row["partition"]: row["group"] for row in await self.partitions(topic)}
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            found: dict[int, dict[str, Path]] = {partition: {} for partition in ends}
            for number, status in (await self.statuses()).items():
                for row in status["streams"]:
                    if row["topic"] == topic and row["high_watermark"] >= ends.get(row["partition"], 0):
                        folder = self.folder(number, groups[row["partition"]])
                        found.setdefault(row["partition"], {})[f"{REGION}-{number}"] = folder
            wanted = {row["partition"]: len(row["replicas"]) for row in await self.partitions(topic)}
            if wanted and all(len(found.get(partition, {})) == count for partition, count in wanted.items()):
                return [(partition, ends[partition], folders) for partition, folders in sorted(found.items())]
            await asyncio.sleep(LOOK_SECONDS)
        raise CampaignFailed(f"the replicas of {topic} do not come to {ends}")

    async def _stream_rows(self, topic: str) -> list[dict[str, Any]]:
        """Return the rows of the furthest replica of each partition."""
        best: dict[int, dict[str, Any]] = {}
        for status in (await self.statuses()).values():
            for row in status["streams"]:
                known = best.get(row["partition"])
                if row["topic"] == topic and (known is None or row["high_watermark"] > known["high_watermark"]):
                    best[row["partition"]] = row
        return list(best.values())


def broker_id(number: int) -> int:
    """Return the id that the brokers of the region have."""
    return 1000 + number


def _is_placed(row: Mapping[str, Any], replicas: int, allowed: set[int] | None) -> bool:
    settled = row.get("is_settled", False) and len(row["replicas"]) == replicas and row["leader"] > 0
    return bool(settled) and (allowed is None or set(row["replicas"]) <= allowed)
