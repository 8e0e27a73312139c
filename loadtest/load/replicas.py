"""Where the replicas of a campaign's topics are, by what brokers say, and whether they are equal, by their files.

Rule 1: settled: each partition has as many replicas as its region has brokers, three at most, and nothing moves.
Rule 2: replicas are compared below an offset that is committed, once each of them has come so far: by a program that
        knows the format of the files and nothing of what the brokers say of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadtest.campaign.mesh import CampaignFailed, NotYet, run_command, until

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

REPLICAS: Final = 3  # of a topic that does not say otherwise, where there are so many brokers
SETTLE_S: Final = 180.0
NICENESS: Final = 5  # whoever compares steps back, and on a machine without an idle moment it still ends
Rows = list[dict[str, Any]]


async def wait_until_heard(stage: Stage, name: str, *, heard: bool) -> None:
    """Wait until the others of its region hear a broker, on the disk that it is known with, or hear it no more.

    Raises:
        CampaignFailed: not within SETTLE_S.
    """

    async def look() -> None:
        rows = await _rows(stage, name.rpartition("-")[0], "/v1/brokers", "brokers", but=name)
        if not any(row["id"] == stage.broker_id(name) and row["alive"] == heard for row in rows):
            raise NotYet(f"{name} is {'not heard' if heard else 'still heard'}")

    await until(look, within_s=SETTLE_S)


async def wait_until_settled(stage: Stage) -> None:
    """Wait until every topic is where rule 1 wants it. Raises CampaignFailed: not within SETTLE_S."""

    async def look() -> None:
        for region in stage.regions:
            brokers = await _rows(stage, region, "/v1/brokers", "brokers")
            active = {row["id"] for row in brokers if row["state"] == "active"}
            if not active or any(row["moving"] for row in brokers):
                raise NotYet(f"replicas move in {region}: {brokers}")
            for topic in stage.campaign.topics:
                for row in await _partitions(stage, region, topic.name) or [{}]:
                    replicas = row.get("replicas", ())
                    is_whole = len(replicas) == min(REPLICAS, len(active)) and active.issuperset(replicas)
                    if not (is_whole and row.get("is_settled", False) and row["leader"] > 0):
                        raise NotYet(f"{topic.name} has not settled in {region}: {row}")

    await until(look, within_s=SETTLE_S)


async def compare(stage: Stage) -> None:
    """Compare the files of all replicas of every topic, as far as it is committed now; add it to replicas.jsonl.

    Raises:
        CampaignFailed: replicas do not come so far within SETTLE_S, or one is damaged.
    """
    for region in stage.regions:
        for topic in stage.campaign.topics:
            compared = await until(partial(_compared, stage, region, topic.name), within_s=SETTLE_S)
            for partition, end, folders, differ in compared:
                note(stage, f"{topic.name}/{partition}", end, compared=list(folders), differ=differ)


async def _compared(stage: Stage, region: str, topic: str) -> list[tuple[int, int, dict[str, Path], tuple[str, ...]]]:
    """Return what `_level` does with the brokers that differ. Raises NotYet: another fault moved one meanwhile."""
    return [
        (partition, end, folders, await replicas_differ(folders, below=end))
        for partition, end, folders in await _level(stage, region, topic)
    ]


def note(stage: Stage, of: str, below: int, *, compared: Sequence[str], differ: Sequence[str]) -> None:
    """Add a comparison to replicas.jsonl: who was compared below an offset, and who of them holds something else."""
    row = {"second": time.time(), "of": of, "below": below, "compared": list(compared), "differ": list(differ)}
    with (stage.folder / "replicas.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


async def _level(stage: Stage, region: str, topic: str) -> list[tuple[int, int, dict[str, Path]]]:
    """Wait until every replica of a topic in a region has what is committed there now.

    Returns:
        One row per partition: (partition, committed end, broker -> folder of its replica).
    """
    ends = await until(lambda: _ends_of_all(stage, region, topic), within_s=SETTLE_S)

    async def look() -> dict[int, dict[str, Path]]:
        found: dict[int, dict[str, Path]] = {}
        behind: list[str] = []
        partitions = {row["partition"]: row for row in await _partitions(stage, region, topic)}
        told = await _streams(stage, region, topic)
        for broker, rows in told.items():
            for row in rows:
                if row["partition"] in partitions and row["high_watermark"] >= ends.get(row["partition"], 0):
                    folder = stage.data_of(broker) / "groups" / str(partitions[row["partition"]]["group"])
                    found.setdefault(row["partition"], {})[broker] = folder
                else:
                    behind.append(f"{broker} has {row['partition']} up to {row['high_watermark']}")
        behind += [f"{broker} does not answer" for broker in stage.admins(region) if broker not in told]
        lacking = {
            at: row["replicas"] for at, row in partitions.items() if len(found.get(at, ())) < len(row["replicas"])
        }
        if lacking or not partitions:
            raise NotYet(f"the replicas of {topic} in {region} do not come to {ends}: {behind}, replicas {lacking}")
        return found

    found = await until(look, within_s=SETTLE_S)
    return [(partition, ends.get(partition, 0), folders) for partition, folders in sorted(found.items())]


async def _ends_of_all(stage: Stage, region: str, topic: str) -> dict[int, int]:
    """Return what `committed` does, once every replica was asked: one that lags knows of less. Raises NotYet."""
    told = await _streams(stage, region, topic)
    count = Counter(row["partition"] for rows in told.values() for row in rows)
    partitions = await _partitions(stage, region, topic)
    if not partitions or any(count[row["partition"]] < len(row["replicas"]) for row in partitions):
        silent = [f"{broker} does not answer" for broker in stage.admins(region) if broker not in told]
        raise NotYet(f"not every replica of {topic} in {region} says how far it has come: {silent}")
    return _highest(told)


async def committed(stage: Stage, region: str, topic: str) -> dict[int, int]:
    """Return partition -> offset behind the last committed record, as the brokers of a region know it now."""
    return _highest(await _streams(stage, region, topic))


def _highest(told: Mapping[str, Rows]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for row in (row for rows in told.values() for row in rows):
        ends[row["partition"]] = max(ends.get(row["partition"], 0), row["high_watermark"])
    return ends


async def _streams(stage: Stage, region: str, topic: str) -> dict[str, Rows]:
    """Return what each broker that answers says of its own replicas of a topic."""
    admins = stage.admins(region)
    answers = await asyncio.gather(*(stage.ask(address, "/v1/status") for address in admins.values()))
    return {
        name: [row for row in answer["streams"] if row["topic"] == topic]
        for name, answer in zip(admins, answers, strict=True)
        if answer is not None
    }


async def _partitions(stage: Stage, region: str, topic: str) -> Rows:
    return await _rows(stage, region, f"/v1/topics/{topic}", "partition_states")


async def _rows(stage: Stage, region: str, path: str, key: str, *, but: str = "") -> Rows:
    """Return what the first broker of a region says that answers, [] when none does; `but`: who is not asked."""
    for name, address in stage.admins(region).items():
        if name != but and (answer := await stage.ask(address, path)) is not None:
            return list(answer[key])
    return []


async def replicas_differ(folders: Mapping[str, Path], *, below: int) -> tuple[str, ...]:
    """Return the brokers whose replica is not that of the first one, batch by batch below an offset.

    Args:
        folders: broker -> folder of the group. Each replica must have come to `below`.

    Raises:
        CampaignFailed: a replica is damaged. NotYet: one is not there any more.
    """
    digests = await asyncio.gather(*(_digest(folder, below) for folder in folders.values()))
    return tuple(broker for broker, digest in zip(folders, digests, strict=True) if digest != digests[0])


async def _digest(folder: Path, below: int) -> str:
    arguments = ("-P", "-m", "region.log.segment_reader", "--sha256", "--below", str(below), str(folder))
    words = ("nice", "-n", str(NICENESS), sys.executable, *arguments)
    code, said, why = await run_command(words, within_s=SETTLE_S)
    if code and not await asyncio.to_thread(folder.is_dir):
        raise NotYet(f"{folder} is there no more")
    if code:
        raise CampaignFailed(f"{folder}: {why.strip()}")
    return said.split()[-1]
