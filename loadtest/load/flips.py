"""One random bit of one file of a broker is flipped; then the region is waited for until it is whole again.

Rule 1: a broker that refuses its directory gets an empty one.
Rule 2: meanwhile the broker is read by HTTP at random offsets; the checker judges what it showed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadtest.campaign.mesh import NotYet, meanwhile, until
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load.campaign import Fault
from loadtest.load.engine_values import SHOWN, name_of
from loadtest.load.file_kinds import FILE_KINDS
from loadtest.load.replicas import SETTLE_S, committed

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

PAUSE_S: Final = 0.05
READ_MAX: Final = 100
REFUSAL: Final = "georelay-broker: "
UNSOUND: Final = ("georelay_groups_repairing ", "georelay_groups_refused ")  # lines of each broker's metrics
FOUND_BY: Final = {
    "log.tail_lost": "by recovery, against the mark",
    "log.cut_at_damage": "by recovery, above the newest manifest",
    "log.index_refused": "by the checksum at open",
    "manifest.damaged": "by the checksum when read",
    "mark.damaged": "by the checksum at open",
    "damage.found": "by the scrubber",
    "log.damage_found": "by a read for a follower",
    "segment.damaged": "by a read or by its index",
}
DONE: Final = {
    "log.repaired": "cut and sent again",
    "segment.repaired": "fetched again",
    "manifest.repaired": "fetched again",
    "log.index_rebuilt": "made again",
}


@asynccontextmanager
async def bit_flip(stage: Stage, _: Fault, what: str) -> AsyncIterator[dict[str, Any]]:
    """Flip a bit of KIND of BROKER; ready once the region is whole. Raises CampaignFailed: it does not become so."""
    async with stage.one_by_one:
        yield await _flipped(stage, what)


async def _flipped(stage: Stage, what: str) -> dict[str, str]:
    name, _, broker = what.partition(" of ")
    kind, topic = FILE_KINDS[name], stage.campaign.topics[0].name
    region, home, log = broker.rpartition("-")[0], stage.data_of(broker), stage.directory / "logs" / f"{broker}.log"
    told = await stage.ask(stage.admins(region)[broker], f"/v1/topics/{topic}")
    group = told["partition_states"][0]["group"] if told else -1

    async def file() -> Path:
        if (path := kind.choose(home, group, stage.rng)) is None:
            raise NotYet(f"{home} has no {name} to flip a bit of")
        return path

    if not (kind.stopped and kind.newest):  # that one is written as the broker stops
        await until(file, within_s=SETTLE_S)
    async with _down(stage, broker, signal.SIGTERM if kind.stopped else signal.SIGKILL, runs_on=kind.running):
        path = await until(file, within_s=SETTLE_S)
        said = log.stat().st_size
        before = _flip(path, stage.rng)
    was_refused = False

    async def repaired() -> None:
        nonlocal was_refused
        if not was_refused and _refusals(log, said):
            await asyncio.to_thread(shutil.rmtree, home)
            was_refused = True
        if kind.restored and not (path.exists() and path.read_bytes() == before):
            raise NotYet(f"{path} is not what it was")
        if not await _is_whole(stage, region, broker, topic):
            raise NotYet(f"{region} is not whole after a flip of {what}")

    try:
        async with meanwhile(_read(stage, broker, f"{topic}/0")):
            await until(repaired, within_s=SETTLE_S)
    finally:
        stage.may_end.discard(broker)
    return {"file": path.name, **_judged(log, said)}


@asynccontextmanager
async def _down(stage: Stage, broker: str, how: signal.Signals, *, runs_on: bool) -> AsyncIterator[None]:
    """Keep a broker down meanwhile, unless it runs on."""
    hold = stage.hold_file(broker)
    if runs_on:
        yield
        return
    hold.touch()
    try:
        pid = stage.pids()[broker]
        stage.killed.add(pid)
        stage.may_end.add(broker)  # it may refuse what it finds
        os.kill(pid, how)
        await stage.gone(broker)
        yield
    finally:
        hold.unlink()


def _flip(path: Path, rng: random.Random) -> bytes:
    """Flip one bit in place, not in room taken in advance; return what the file held."""
    raw = path.read_bytes()
    position = rng.randrange(len(raw.rstrip(b"\0")))
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([raw[position] ^ (1 << rng.randrange(8))]))
    return raw


async def _is_whole(stage: Stage, region: str, broker: str, topic: str) -> bool:
    """Return whether the broker serves, repairs nothing, and has what the region had when this was called."""
    admins = stage.admins(region)
    answers = {name: await stage.ask(address, "/v1/status") for name, address in admins.items()}
    if any(not (told and told["ready"] and all(row["alive"] for row in told["brokers"])) for told in answers.values()):
        return False
    wanted = await committed(stage, region, topic)
    own = await stage.ask(admins[broker], "/v1/status") or {"streams": ()}
    has = {row["partition"]: row["high_watermark"] for row in own["streams"] if row["topic"] == topic}
    if any(has.get(partition, -1) < end for partition, end in wanted.items()):
        return False
    unsound = [float(line.split()[-1]) for line in await stage.metric_lines(UNSOUND, region)]
    return unsound == [0.0] * len(UNSOUND) * len(admins)  # every broker says so


async def _read(stage: Stage, broker: str, key: str) -> None:
    """Read a broker at random offsets, and keep what it shows."""
    region, (topic, _, partition) = broker.rpartition("-")[0], key.partition("/")
    address, end = stage.admins(region)[broker], 1
    process = f"{SHOWN}-{time.monotonic_ns()}"
    writer = HistoryWriter(stage.folder / "histories" / f"{process}.history", process)
    try:
        while True:
            await asyncio.sleep(PAUSE_S)
            offset, began_ns = stage.rng.randrange(end), time.monotonic_ns()
            path = f"/v1/topics/{topic}/records?partition={partition}&offset={offset}&max={READ_MAX}"
            if (told := await stage.ask(address, path)) is None:
                continue  # it is down
            rows = [(row["offset"], name_of(row["value"].encode())) for row in told.get("records", ())]
            end = max(end, told.get("high_watermark", 0))
            writer.fetched(writer.invoke(Kind.FETCH, key, site=region, position=offset, at_ns=began_ns), rows)
    finally:
        writer.close()


def _lines(log: Path, said: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(said)
        return file.read().decode("utf-8", "replace").splitlines()


def _refusals(log: Path, said: int) -> list[str]:
    return [line.partition(REFUSAL)[2] for line in _lines(log, said) if REFUSAL in line]


def _judged(log: Path, said: int) -> dict[str, str]:
    """Return how the damage was found and what was done about it."""
    if refused := _refusals(log, said):
        return {"found": "at start", "done": f"refused: {refused[0]}; joined anew"}
    events = {str(json.loads(line).get("event")) for line in _lines(log, said) if line.startswith("{")}
    found = [text for event, text in FOUND_BY.items() if event in events] or ["not read"]
    done = [text for event, text in DONE.items() if event in events] or ["harmless"]
    return {"found": found[0], "done": done[0]}
