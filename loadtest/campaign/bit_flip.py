"""`python -m loadtest.campaign bit-flip`: one random bit of one file of one broker, again and again, under load.

Three real brokers of one region with --restart. Each run takes the next kind of file and, for most kinds, kills a
broker, flips one bit of such a file of it while it is down, and waits until the region is whole again; segments are
damaged under the running broker as well. A broker that refuses its directory gets an empty one.

Rule 1: everything acknowledged is read back at the end, and all replicas are compared by their files.
Rule 2: meanwhile the damaged broker is read by HTTP at random offsets; what it showed is judged at the end as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import (
    CampaignFailed,
    ForeignProducer,
    get_json,
    leader_of,
    new_mesh,
    wait_until_whole,
)
from loadtest.campaign.producer import key_of, name_of
from loadtest.campaign.region_read import read_region, replicas_differ
from loadtest.history.checker_core import check
from loadtest.history.history_file import HistoryWriter, read_history
from loadtest.history.operation import Kind
from loadtest.history.verdict import Verdict
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

REGION: Final = "us"
TOPIC: Final = "flipped"
KEY: Final = key_of(TOPIC, 0)
BROKERS: Final = (1, 2, 3)
SEGMENT_BYTES: Final = 32 * 1024
SEALED_MIN: Final = 3  # before the first flip
WHOLE_SECONDS_MAX: Final = 150  # a scrub of a running broker begins once a minute
SEND_SECONDS_MAX: Final = 24 * 3600
READ_PAUSE_SECONDS: Final = 0.05
HTTP_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
REFUSAL: Final = "georelay-broker: "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """One kind of file of a data directory.

    Args:
        choose: (data directory, group of the topic, random) -> the file.
        running: the bit is flipped under the running broker; else after a kill -9.
        stopped: after a clean stop instead, because only that leaves such a file for certain.
        restored: the file must become again what it was.
    """

    name: str
    choose: Callable[[Path, int, random.Random], Path]
    running: bool = False
    stopped: bool = False
    restored: bool = False


def _top(name: str) -> Callable[[Path, int, random.Random], Path]:
    return lambda home, _group, _rng: home / name


def _of(suffix: str, *, controller: bool = False, newest: bool = False) -> Callable[[Path, int, random.Random], Path]:
    def choose(home: Path, group: int, rng: random.Random) -> Path:
        folder = home / "groups" / ("0" if controller else str(group))
        paths = sorted(path for path in folder.glob(f"*{suffix}") if path.stat().st_size)
        if not paths or (len(paths) < 2 and not newest):
            raise CampaignFailed(f"{folder} has no {suffix} file to choose")
        return paths[-1] if newest else rng.choice(paths[:-1])

    return choose


KINDS: Final = (
    FileKind(name="sealed .log", choose=_of(".log"), restored=True),
    FileKind(name="sealed .log, running", choose=_of(".log"), running=True, restored=True),
    FileKind(name="active .log", choose=_of(".log", newest=True)),
    FileKind(name="sealed .index", choose=_of(".index")),
    FileKind(name="newest .manifest", choose=_of(".manifest", newest=True)),
    FileKind(name="flushed-marks", choose=_top("flushed-marks")),
    FileKind(name="controller .log", choose=_of(".log", controller=True, newest=True)),
    FileKind(name="controller .manifest", choose=_of(".manifest", controller=True, newest=True), stopped=True),
    FileKind(name="hard-state", choose=_top("hard-state")),
    FileKind(name="founding.json", choose=_top("founding.json")),
    FileKind(name="FORMAT", choose=_top("FORMAT")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipResult:
    """One run: how the damage was found, what was done, and seconds from the flip to a whole region."""

    kind: str
    broker: str
    led: bool
    found: str
    done: str
    seconds: float


class Flips:
    """The runs on one mesh."""

    def __init__(self, mesh: MeshProcess, rng: random.Random, shown: HistoryWriter) -> None:
        self._mesh = mesh
        self._rng = rng
        self._shown = shown  # by the damaged brokers
        self._known_end = 1
        self.group = 0

    def home(self, broker: str) -> Path:
        """Return a broker's data directory."""
        return self._mesh.directory / "mesh" / "brokers" / broker

    def _log(self, broker: str) -> Path:
        return self._mesh.directory / "mesh" / "logs" / f"{broker}.log"

    def _admin(self, broker: str) -> str:
        return str(self._mesh.endpoints["regions"][REGION]["admin"][int(broker.rpartition("-")[2]) - 1])

    async def create_topic(self) -> None:
        """Create the topic, and learn its group. Raises CampaignFailed."""
        body = {"name": TOPIC, "partitions": 1, "homes": "one", "home": REGION, "segment_bytes": SEGMENT_BYTES}
        async with (
            aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http,
            http.post(f"{self._mesh.gateway}/v1/topics", json=body) as answer,
        ):
            if answer.status >= 300:
                raise CampaignFailed(f"topic {TOPIC} was not created: {answer.status} {await answer.text()}")
        await leader_of(self._mesh, REGION, TOPIC)

    async def until_sealed(self) -> None:
        """Wait until every broker has some sealed segments. Raises CampaignFailed."""
        deadline = time.monotonic() + WHOLE_SECONDS_MAX
        while time.monotonic() < deadline:
            folders = [max((self.home(f"{REGION}-{n}") / "groups").iterdir(), key=_number) for n in BROKERS]
            self.group = _number(folders[0])
            if all(len(list(folder.glob("*.log"))) > SEALED_MIN for folder in folders):
                return
            await asyncio.sleep(0.2)
        raise CampaignFailed("the topic did not grow")

    async def run(self, kind: FileKind) -> FlipResult:
        """Do one run. Raises CampaignFailed when the region does not become whole again."""
        broker = f"{REGION}-{self._rng.choice(BROKERS)}"
        led = await leader_of(self._mesh, REGION, TOPIC) == broker
        if not kind.running:
            await self._end(broker, signal.SIGTERM if kind.stopped else signal.SIGKILL)
        path = kind.choose(self.home(broker), self.group, self._rng)
        said = self._log(broker).stat().st_size
        before = _flip(path, self._rng)
        began = time.monotonic()
        reader = asyncio.create_task(self._read(broker))
        try:
            await self._until_whole(broker, said, path, before if kind.restored else None, kind.name)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        found, done = self._judge(broker, said)
        seconds = time.monotonic() - began
        return FlipResult(kind=kind.name, broker=broker, led=led, found=found, done=done, seconds=seconds)

    async def _end(self, broker: str, how: signal.Signals) -> None:
        pid = self._mesh.pid_of(broker)
        os.kill(pid, how)
        while _runs(pid):
            await asyncio.sleep(0.001)

    async def _until_whole(self, broker: str, said: int, path: Path, before: bytes | None, kind: str) -> None:
        deadline = time.monotonic() + WHOLE_SECONDS_MAX
        wiped = False
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            if not wiped and self._refusal(broker, said) is not None:
                shutil.rmtree(self.home(broker))
                wiped = True
            if (before is None or _holds(path, before)) and await self._is_whole(broker):
                return
        raise CampaignFailed(f"{kind} of {broker}: not whole after {WHOLE_SECONDS_MAX} s: {self._judge(broker, said)}")

    async def _is_whole(self, broker: str) -> bool:
        """Return whether the broker serves, repairs nothing, and has what the region had when this was called."""
        ends = {}
        for number in BROKERS:
            name = f"{REGION}-{number}"
            status = await get_json(f"http://{self._admin(name)}/v1/status")
            if status is None or not status["ready"] or not all(row["alive"] for row in status["brokers"]):
                return False
            streams = [row for row in status["streams"] if row["topic"] == TOPIC]
            ends[name] = streams[0]["high_watermark"] if streams else -1
        if min(ends.values()) < 0:
            return False
        wanted = max(ends.values())
        status = await get_json(f"http://{self._admin(broker)}/v1/status")
        rows = [] if status is None else [row for row in status["streams"] if row["topic"] == TOPIC]
        return bool(rows) and rows[0]["high_watermark"] >= wanted and await self._is_sound(broker)

    async def _is_sound(self, broker: str) -> bool:
        async with (
            aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http,
            http.get(f"http://{self._admin(broker)}/metrics") as answer,
        ):
            rows = dict(line.rsplit(" ", 1) for line in (await answer.text()).splitlines() if line[:1] not in ("", "#"))
        return all(float(rows.get(name, 0)) == 0 for name in ("georelay_groups_repairing", "georelay_groups_refused"))

    async def _read(self, broker: str) -> None:
        """Read the broker at random offsets, and keep what it shows."""
        url = f"http://{self._admin(broker)}/v1/topics/{TOPIC}/records"
        async with aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http:
            while True:
                await asyncio.sleep(READ_PAUSE_SECONDS)
                offset, began_ns = self._rng.randrange(self._known_end), time.monotonic_ns()
                query = {"offset": str(offset), "max": "100"}
                try:
                    async with http.get(url, params=query) as answer:
                        body = await answer.json(content_type=None)
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    continue  # it is down
                rows = [(row["offset"], name_of(row["value"].encode())) for row in body.get("records", ())]
                self._known_end = max(self._known_end, body.get("high_watermark", 0))
                number = self._shown.invoke(Kind.FETCH, KEY, site=REGION, position=offset, at_ns=began_ns)
                self._shown.fetched(number, rows)

    # -- what the broker says --------------------------------------------------------------------------

    def _lines(self, broker: str, said: int) -> list[str]:
        with self._log(broker).open("rb") as file:
            file.seek(said)
            return file.read().decode("utf-8", "replace").splitlines()

    def _refusal(self, broker: str, said: int) -> str | None:
        lines = [line.partition(REFUSAL)[2] for line in self._lines(broker, said) if REFUSAL in line]
        return lines[0] if lines else None

    def _judge(self, broker: str, said: int) -> tuple[str, str]:
        """Return how the damage was found and what was done about it."""
        refusal = self._refusal(broker, said)
        if refusal is not None:
            return "at start", f"refused: {refusal.replace(str(self._mesh.directory), '…')}; joined anew"
        events = _events(self._lines(broker, said))
        found = [text for event, text in FOUND_BY.items() if event in events]
        done = [text for event, text in DONE.items() if event in events]
        return found[0] if found else "not read", done[0] if done else "harmless"


def _events(lines: Sequence[str]) -> set[str]:
    events = set()
    for line in lines:
        if line.startswith("{"):
            events.add(str(json.loads(line).get("event")))
    return events


def _runs(pid: int) -> bool:
    """Return whether a process still has its files open."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _holds(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content


def _number(folder: Path) -> int:
    return int(folder.name)


def _flip(path: Path, rng: random.Random) -> bytes:
    """Flip one bit in place, not in room taken in advance; return what the file held."""
    raw = path.read_bytes()
    position = rng.randrange(len(raw.rstrip(b"\0")))
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([raw[position] ^ (1 << rng.randrange(8))]))
    return raw


# --- the campaign -----------------------------------------------------------------------------------


async def run_flips(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    rng = random.Random(options.seed)
    results: list[FlipResult] = []
    with scratch_directory("georelay-campaign-", options.scratch) as scratch:
        async with new_mesh(scratch, [REGION], "--restart") as mesh:
            producer = ForeignProducer("load", scratch)
            shown = HistoryWriter(scratch / "shown.history", "shown")
            flips = Flips(mesh, rng, shown)
            try:
                await wait_until_whole(mesh)
                await flips.create_topic()
                brokers = mesh.endpoints["regions"][REGION]["kafka"]
                await producer.start(brokers, TOPIC, per_second=options.rate, seconds=SEND_SECONDS_MAX)
                await producer.wait_for_acknowledgement()
                await flips.until_sealed()
                for number in range(options.runs):
                    result = await flips.run(KINDS[number % len(KINDS)])
                    results.append(result)
                    console.print(f"run {number + 1}: {_text(result)}", markup=False, highlight=False)
                producer.end_sending()
                failed = (await producer.finish())["failed"]
                verdict, differ = await _verdict(flips, mesh, [producer.history, scratch / "shown.history"], scratch)
            finally:
                await producer.stop()
                shown.close()
                if results:
                    console.print(table_of(results, options.seed, options.rate))
    said = f"{verdict.describe()}; given up: {failed}; replicas that differ: {', '.join(differ) or 'none'}"
    console.print(said, markup=False, highlight=False)
    return 0 if verdict.is_valid and not failed and not differ else 1


async def _verdict(
    flips: Flips, mesh: MeshProcess, histories: Sequence[Path], scratch: Path
) -> tuple[Verdict, tuple[str, ...]]:
    """Read everything back; return the verdict on it and on what was shown, and whose replica is another one."""
    complete = scratch / "complete.history"
    writer = HistoryWriter(complete, "complete")
    try:
        end = await read_region(writer, mesh.endpoints["regions"][REGION]["kafka"], TOPIC, 0, site=REGION)
    finally:
        writer.close()
    folders = {f"{REGION}-{n}": flips.home(f"{REGION}-{n}") / "groups" / str(flips.group) for n in BROKERS}
    return check(read_history([complete, *histories])), await replicas_differ(folders, below=end - 1)


def _text(result: FlipResult) -> str:
    role = "leader" if result.led else "follower"
    return f"{result.kind} of {result.broker} ({role}): {result.found}; {result.done}; {result.seconds:.1f} s"


def table_of(results: Sequence[FlipResult], seed: int, rate: float) -> Table:
    """Return the table."""
    table = Table(title=f"bit-flip: {len(results)} runs, seed {seed}, {rate:g} records/s", title_justify="left")
    for column in ("file kind", "broker", "how it was found", "what happened"):
        table.add_column(column)
    table.add_column("seconds to whole", justify="right")
    for result in results:
        broker = f"{result.broker} {'leader' if result.led else ''}"
        table.add_row(result.kind, broker, result.found, result.done, f"{result.seconds:.1f}")
    return table


def main(arguments: Sequence[str]) -> int:
    """Run it; return the exit code: 1 when something was lost, doubled or wrong, 2 when it could not run."""
    parser = new_parser("campaign bit-flip", __doc__)
    parser.add_argument(
        "--runs", type=int, default=len(KINDS), help=f"how often (default {len(KINDS)}, each kind once)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is random here (default 1)")
    parser.add_argument("--rate", type=float, default=200, help="records per second (default 200)")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.rate <= 0:
        parser.error("--runs and --rate must be positive")
    return carry_out(run_flips, options)
