"""`python -m loadtest.campaign report`: a mesh under load, a cut link, a killed broker, and the report of its traces.

Publishes in every region and reads in every region with foreign clients that keep books, cuts a link, kills a broker
with -9 (it comes back), makes the report as anybody would, and compares it with the books: stream by stream and pair
by pair. Exit code 1 when a record is unaccounted for, 2 when it could not run.

--clocks us=30,eu=-80 sets the clocks of regions wrong by so many milliseconds. Then every corrected latency must lie
within the bound that is printed beside it, and verdicts that the bounds leave open must be INCONCLUSIVE.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from loadtest.bench.client_settings import PLAIN, Settings, environment
from loadtest.bench.machine import describe
from loadtest.campaign.clock_verdict_core import (
    Correction,
    corrections,
    faults_of_corrections,
    wrong_verdicts,
)
from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import CampaignFailed, georelay
from loadtest.campaign.offset_ranges_core import OffsetRanges
from loadtest.campaign.report_verdict_core import PairLine, StreamBook, compare, faults_of_integrity
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory
from loadtest.wan.wan_mesh import PAIRS, SETTLE_SECONDS, WanMesh

READERS_AHEAD_S: Final = 3.0
FLUSH_S: Final = 120.0
DRAIN_S_MAX: Final = 90.0
STILL_S: Final = 5.0  # without a new record, when all readers have as many: everything has come
DOWN_S: Final = 5.0
UNTRACED_S_MAX: Final = 0.2  # of records: each is noted when it is handed over, and only what was under way is not
CUT_AT, KILL_AT = 0.25, 0.65  # shares of the load's time
CLIENT_S_MAX: Final = 3_600.0
LINE_BYTES_MAX: Final = 1 << 26
REPORT_FAILED: Final = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream that is published to in `region`."""

    name: str
    topic: str
    region: str
    homes: str = "one"
    regions_min: int = 1
    is_retrying: bool = True

    @property
    def origin(self) -> str:
        """Return the origin as in the report."""
        return self.region if self.homes == "every" else ""

    @property
    def read_as(self) -> str:
        """Return its name for readers anywhere."""
        return f"{self.region}.{self.topic}" if self.homes == "every" else self.topic


def streams_of(regions: list[str]) -> list[Stream]:
    """Return one stream per region of each kind of home, and one that three regions must have."""
    streams = [Stream(name=f"one-{region}", topic=f"one-{region}", region=region) for region in regions]
    streams += [Stream(name=f"every-{region}", topic="every", region=region, homes="every") for region in regions]
    most = len(regions)
    strict = Stream(name="strict", topic="strict", region=regions[0], regions_min=most, is_retrying=False)
    return [*streams, strict] if most > 1 else streams


class ReportMesh(WanMesh):
    """A mesh in a test bed whose brokers come back, with clocks that may be wrong."""

    def __init__(self, directory: Path, *, brokers_per_region: int, pairs: str, clocks: dict[str, int]) -> None:
        super().__init__(directory, brokers_per_region=brokers_per_region, pairs=pairs)
        self._arguments += broken_up(directory, clocks)


class LoopbackMesh(MeshProcess):
    """The same without a test bed: no delays, nothing to cut, nobody signs in."""

    def __init__(self, directory: Path, *, brokers_per_region: int, regions: list[str], clocks: dict[str, int]) -> None:
        super().__init__(
            directory,
            regions=",".join(regions),
            brokers_per_region=brokers_per_region,
            arguments=broken_up(directory, clocks),
        )
        self.regions = regions

    @property
    def client_settings(self) -> Settings:
        """Return nothing: nobody signs in."""
        return PLAIN


Mesh = ReportMesh | LoopbackMesh


def broken_up(directory: Path, clocks: dict[str, int]) -> tuple[str, ...]:
    """Return the words of `georelay up` for brokers that come back, with wrong clocks if there are any."""
    if not clocks:
        return ("--restart",)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "clocks.json"
    file.write_text(json.dumps(clocks), encoding="utf-8")
    program = (sys.executable, "-P", "-m", "loadtest.campaign.skewed_broker", "--clocks", str(file))
    return ("--restart", *(f"--broker-program={word}" for word in program))


class ReportRun:
    """One run."""

    def __init__(self, mesh: Mesh, options: argparse.Namespace, console: Console) -> None:
        self.mesh = mesh
        self._options = options
        self._console = console
        self.streams = streams_of(mesh.regions)
        self._began = time.monotonic()
        self._read: dict[str, int] = {}
        self._clients: list[asyncio.subprocess.Process] = []
        self.published: dict[str, Any] = {}
        self.consumed: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """Print a line of progress."""
        seconds = time.monotonic() - self._began
        self._console.print(f"{seconds:6.1f} s  {text}", markup=False, highlight=False)

    async def run(self) -> None:
        """Publish, read, break, wait for everything."""
        try:
            await self._run()
        finally:
            for process in self._clients:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _run(self) -> None:
        await self._create_topics()
        bootstrap = {region: ",".join(self.mesh.endpoints["regions"][region]["kafka"]) for region in self.mesh.regions}
        topics = {stream.name: stream.read_as for stream in self.streams}
        readers = [{"region": region, "bootstrap": bootstrap[region], "topics": topics} for region in self.mesh.regions]
        reading = await self._start("consume", {"readers": readers})
        counting = asyncio.create_task(self._count(reading))
        await asyncio.sleep(READERS_AHEAD_S)
        streams = [
            {
                "name": stream.name,
                "topic": stream.topic,
                "bootstrap": bootstrap[stream.region],
                "is_retrying": stream.is_retrying,
            }
            for stream in self.streams
        ]
        options = self._options
        plan = {"seconds": options.seconds, "rate_per_s": options.rate, "flush_s": FLUSH_S, "streams": streams}
        publishing = await self._start("publish", plan)
        await _line(publishing)
        self.say(f"publishing {options.rate} records/s for {options.seconds:g} s to {len(streams)} streams")
        breaking = asyncio.create_task(self._break())
        self.published = await self._ended(publishing)
        await breaking
        self.say(f"published; the producer was {self.published['lag_ms']:.0f} ms late at worst")
        acked = sum(OffsetRanges(book["acked"]).size for book in self.published["books"].values())
        await self._until_all_came(acked)
        assert reading.stdin is not None
        reading.stdin.close()
        self.consumed = (await counting)["regions"]
        if await reading.wait():
            raise CampaignFailed(f"the readers ended with {reading.returncode}")

    async def _create_topics(self) -> None:
        made, name = set(), getattr(self.mesh, "credentials", "")
        user = {"GEORELAY_USER": name} if name else {}
        for stream in self.streams:
            if stream.topic in made:
                continue
            made.add(stream.topic)
            home = ("--home", stream.region) if stream.homes == "one" else ()
            strict = ("--set", f"min.insync.regions={stream.regions_min}") if stream.regions_min > 1 else ()
            words = ("topics", "create", stream.topic, "--partitions", "1", "--homes", stream.homes, *home, *strict)
            await georelay(*words, "--endpoints", str(self.mesh.directory / "endpoints.json"), environment=user)
        await asyncio.sleep(SETTLE_SECONDS)

    async def _start(self, role: str, plan: dict[str, Any]) -> asyncio.subprocess.Process:
        path = self.mesh.directory / f"{role}.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.campaign.report_clients", role, str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            env=environment(self.mesh.client_settings),
        )
        self._clients.append(process)
        return process

    async def _ended(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        async with asyncio.timeout(CLIENT_S_MAX):
            document: dict[str, Any] = json.loads(await _line(process))
            code = await process.wait()
        if code:
            raise CampaignFailed(f"the producers ended with {code}")
        return document

    async def _count(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """Follow what the readers say; return their last line."""
        ticks = 0
        while True:
            document: dict[str, Any] = json.loads(await _line(process))
            if "read" not in document:
                return document
            self._read = document["read"]
            ticks += 1
            if ticks % 10 == 0:
                self.say("read " + ", ".join(f"{region} {count:,}" for region, count in self._read.items()))

    async def _until_all_came(self, acked: int) -> None:
        """Wait until every reader has what was acknowledged, and nothing more has come for a while.

        A while without a record alone says nothing: the reader of a broker that was killed may not be back yet.
        """
        deadline = time.monotonic() + DRAIN_S_MAX
        seen, since = dict(self._read), time.monotonic()
        while time.monotonic() < deadline and not (has_all(seen, acked) and time.monotonic() - since >= STILL_S):
            await asyncio.sleep(0.5)
            if self._read != seen:
                seen, since = dict(self._read), time.monotonic()

    async def _break(self) -> None:
        """Cut the link of the first two regions, then kill the first broker of the second."""
        options, started = self._options, time.monotonic()
        one, other = self.mesh.regions[0], self.mesh.regions[1]
        if options.cut_seconds and isinstance(self.mesh, ReportMesh):
            await asyncio.sleep(options.seconds * CUT_AT)
            self.say(f"cutting {one} and {other} from each other for {options.cut_seconds:g} s")
            await self.mesh.wan_at_ns("cut", one, other)
            await asyncio.sleep(options.cut_seconds)
            await self.mesh.wan_at_ns("heal", one, other)
            self.say("healed")
        if options.kill:
            await asyncio.sleep(max(0.0, options.seconds * KILL_AT - (time.monotonic() - started)))
            name = f"{other}-1"
            hold = self.mesh.directory / "mesh" / "run" / f"{name}.hold"
            hold.touch()
            self.mesh.kill(name)
            self.say(f"kill -9 {name}; it comes back in {DOWN_S:g} s")
            await asyncio.sleep(DOWN_S)
            hold.unlink()

    def books(self) -> list[StreamBook]:
        """Return what the producers wrote down."""
        books = []
        for stream in self.streams:
            told = self.published["books"][stream.name]
            books.append(
                StreamBook(
                    name=stream.name,
                    topic=stream.topic,
                    origin=stream.origin,
                    region=stream.region,
                    is_retrying=stream.is_retrying,
                    sent=told["sent"],
                    refused=told["refused"],
                    redirected=told["redirected"],
                    unknown=told["unknown"],
                    acked=OffsetRanges(told["acked"]),
                )
            )
        return books

    def untraced_max(self) -> dict[str, int]:
        """Return the deliveries per stream that the kill of a broker may leave untraced, by its region."""
        if not self._options.kill:
            return {}
        return {self.mesh.regions[1]: int(UNTRACED_S_MAX * self._options.rate / len(self.streams))}

    def received(self) -> dict[str, dict[str, OffsetRanges]]:
        """Return what the readers wrote down."""
        return {
            region: {name: _with_again(told) for name, told in of_region.items()}
            for region, of_region in self.consumed.items()
        }


def has_all(read: Mapping[str, int], acked: int) -> bool:
    """Return whether every reader may have everything: not less than was acknowledged, and no less than the others.

    Args:
        read: records by region. acked: of all streams; what is stored of unknown outcome comes on top.
    """
    return bool(read) and min(read.values()) >= acked and min(read.values()) == max(read.values())


def _with_again(told: dict[str, Any]) -> OffsetRanges:
    ranges = OffsetRanges(told["ranges"])
    ranges.again = told["again"]
    return ranges


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise CampaignFailed("a client ended before it was asked to")
    return line


def report_of(traces: Path, out: Path, targets: Path | None, say: Any) -> tuple[dict[str, Any], float]:
    """Make the report as anybody would; return report.json and how long it took, s."""
    began = time.monotonic()
    words = ["report", "--traces", str(traces), "--out", str(out), "--fail-on", "never"]
    words += ["--targets", str(targets)] if targets is not None else []
    done = subprocess.run(
        [sys.executable, "-P", "-m", "georelay.cli", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CampaignFailed(f"georelay report ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    seconds = time.monotonic() - began
    say(f"georelay report took {seconds:.0f} s")
    document: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return document, seconds


def latency_rows(traces: Path) -> list[dict[str, Any]]:
    """Return the corrected latencies of every pair and second, as the brokers wrote them."""
    columns = ["stage", "origin", "dest", "n", "clock_offset_us", "clock_err_us"]
    rows: list[dict[str, Any]] = []
    for path in sorted(traces.glob("date=*/hour=*/region=*/latency_hist-*.parquet")):
        rows += pq.ParquetFile(path).read(columns=columns).to_pylist()
    return [row for row in rows if row["stage"] == "total"]


def pairs_table(lines: list[PairLine], books: list[StreamBook]) -> Table:
    """Return the comparison."""
    table = Table(title="clients' books and the report", title_justify="left")
    columns = ("stream", "reader", "sent", "acked", "refused", "unknown", "read", "twice", "| published", "delivered")
    for column in (*columns, "untraced", "refused", "undecided", "never stored", "equal"):
        table.add_column(column, justify="left" if column in ("stream", "reader", "equal") else "right")
    by_name = {book.name: book for book in books}
    for line in lines:
        book = by_name[line.stream]
        numbers = [book.sent, book.acked.size, book.refused, book.unknown, line.received, line.again]
        numbers += [line.published, line.delivered, line.untraced, line.refused, line.undecided, line.unsent]
        words = "yes" if not line.faults else "NO: " + "; ".join(line.faults)
        table.add_row(line.stream, line.dest, *(f"{number:,}" for number in numbers), words)
    return table


def clocks_table(lines: list[Correction]) -> Table:
    """Return what became of the corrections."""
    table = Table(title="corrections of latencies against the clocks as they were set, ms", title_justify="left")
    for column in ("pair", "records", "unknown", "truth", "largest error", "bound", "outside their bound"):
        table.add_column(column, justify="left" if column == "pair" else "right")
    for line in lines:
        bound = f"{line.bound_min_us / 1_000:.1f} .. {line.bound_max_us / 1_000:.1f}"
        table.add_row(
            f"{line.origin} -> {line.dest}",
            f"{line.records:,}",
            f"{line.unknown:,}",
            f"{line.true_us / 1_000:+.0f}",
            f"{line.error_max_us / 1_000:.2f}",
            bound,
            f"{line.outside} of {line.rows}",
        )
    return table


def clock_faults(run: ReportRun, document: dict[str, Any], lines: list[Correction]) -> list[str]:
    """Return what is wrong about corrections and verdicts."""
    faults = faults_of_corrections(lines)
    truth = true_shares(run)
    for target in document["targets"]:
        if target["kind"] == "latency":
            # Judged by a limit of their own, pairs have no truth here: clients count 50 ms only.
            known = {
                subject["name"]: truth[subject["name"]]
                for subject in target["subjects"]
                if not subject["is_own_limit"] and subject["name"] in truth
            }
            faults += wrong_verdicts(target["subjects"], target["objective"], known)
    return faults


def true_shares(run: ReportRun) -> dict[str, float]:
    """Return the share within 50 ms as the clients saw it with one clock, by `us -> eu`."""
    sums: dict[str, list[int]] = {}
    for dest, of_region in run.consumed.items():
        for stream in run.streams:
            told = of_region[stream.name]
            both = sums.setdefault(f"{stream.region} -> {dest}", [0, 0])
            both[0] += told["n_good"]
            both[1] += told["n"]
    return {name: good / count for name, (good, count) in sums.items() if count}


def verdicts_of(document: dict[str, Any]) -> list[str]:
    """Return a line per judged pair."""
    lines = []
    for target in document["targets"]:
        lines.append(f"{target['verdict']:<12} {target['name']}: {target['reason']}")
        if target["kind"] == "latency":
            for subject in target["subjects"]:
                measured = subject["measured"]
                share = "" if measured is None else f" {measured['lo']:.4f} .. {measured['hi']:.4f}"
                lines.append(f"  {subject['verdict']:<12} {subject['name']}{share}")
    return lines


@contextlib.asynccontextmanager
async def running(options: argparse.Namespace, scratch: Path) -> AsyncIterator[Mesh]:
    """Run the mesh."""
    mesh: Mesh
    if options.loopback:
        regions = options.regions.split(",")
        mesh = LoopbackMesh(
            scratch, brokers_per_region=options.brokers_per_region, regions=regions, clocks=options.clocks
        )
    else:
        mesh = ReportMesh(
            scratch, brokers_per_region=options.brokers_per_region, pairs=options.pairs, clocks=options.clocks
        )
    unknown = set(options.clocks) - set(mesh.regions)
    if unknown:
        regions = ", ".join(mesh.regions)
        raise CampaignFailed(f"--clocks: there is no region {', '.join(sorted(unknown))}; there are {regions}")
    async with mesh:
        yield mesh


async def run_report_campaign(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    with contextlib.ExitStack() as stack:
        scratch = options.data or stack.enter_context(scratch_directory("georelay-report-", options.scratch))
        for line in describe(scratch):
            console.print(line, markup=False, highlight=False)
        console.print(f"load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}", highlight=False)
        async with running(options, scratch / "mesh") as mesh:
            run = ReportRun(mesh, options, console)
            await run.run()
        traces = mesh.traces
        document, _ = await asyncio.to_thread(report_of, traces, options.out, options.targets, run.say)
        books = run.books()
        lines = compare(books, run.received(), document["integrity"]["accounts"], untraced_max=run.untraced_max())
        console.print(pairs_table(lines, books))
        for line in verdicts_of(document):
            console.print(line, markup=False, highlight=False)
        faults = [f"{line.stream} in {line.dest}: {fault}" for line in lines for fault in line.faults]
        faults += faults_of_integrity(document["integrity"])
        if options.clocks:
            corrected = corrections(latency_rows(traces), options.clocks)
            console.print(clocks_table(corrected))
            faults += clock_faults(run, document, corrected)
    console.print(f"load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}", highlight=False)
    for fault in faults:
        console.print(f"WRONG: {fault}", markup=False, highlight=False)
    sent = sum(book.sent for book in books)
    untraced = sum(line.untraced for line in lines)
    said = "every record is accounted for" if not faults else f"{len(faults)} things are wrong"
    console.print(
        f"{sent:,} records sent, {len(lines)} streams and readers, {untraced:,} deliveries untraced: {said}; "
        f"{options.out / 'report.html'}",
        markup=False,
        highlight=False,
    )
    return 1 if faults else 0


def parse_clocks(text: str) -> dict[str, int]:
    """Return {"us": 30, "eu": -80} of "us=30,eu=-80". Raises argparse.ArgumentTypeError."""
    clocks = {}
    for item in filter(None, text.split(",")):
        region, _, number = item.partition("=")
        try:
            clocks[region] = int(number)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{item!r}: give REGION=MILLISECONDS, such as us=30") from None
    return clocks


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = new_parser("campaign report", __doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="records per second in all (default 1000)")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long is sent (default 300)")
    parser.add_argument("--cut-seconds", type=float, default=20.0, help="how long a link stays cut; 0: it does not")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="kill no broker")
    parser.add_argument("--brokers-per-region", type=int, default=1, help="default 1")
    parser.add_argument("--pairs", default=PAIRS, help=f"round trips of the test bed (default {PAIRS})")
    parser.add_argument("--loopback", action="store_true", help="without a test bed: no delays, no cut, no root")
    parser.add_argument("--regions", default="us,eu,ap", help="with --loopback (default us,eu,ap)")
    parser.add_argument("--clocks", type=parse_clocks, default={}, help="wrong clocks in ms: us=30,eu=-80")
    parser.add_argument("--targets", type=Path, default=None, help="what the report judges by (default: its own)")
    parser.add_argument("--out", type=Path, default=Path("out") / "report-campaign", help="folder of the report")
    parser.add_argument("--data", type=Path, default=None, help="folder for the mesh and its traces, which stays")
    return parser


def main(arguments: list[str]) -> int:
    """Run it."""
    options = parser().parse_args(arguments)
    if options.rate < 1 or options.seconds <= 0 or options.cut_seconds < 0:
        parser().error("--rate and --seconds must be positive and --cut-seconds not negative")
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
    return carry_out(run_report_campaign, options, width_chars=200)
