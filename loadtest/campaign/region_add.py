"""`python -m loadtest.campaign region-add`: a region joins a running mesh and is filled from the log start, under load.

Rule 1: the clock runs from the start of the new region's broker, whose file and directory hold nothing of the mesh.
Rule 2: it has everything when it has every partition of the topic up to what was acknowledged before.
Rule 3: equal means equal twice: by the digest chains, computed again from the stored bytes (`georelay audit --deep`),
        and by the records that a client reads in the home and in the new region.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from georelay.client.stream_reader import EARLIEST, StreamReader
from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.filler import FILL_SECONDS_MAX, fill
from loadtest.campaign.joined_broker import NewRegion
from loadtest.campaign.mesh import (
    CLI,
    CampaignFailed,
    ForeignProducer,
    create_topic,
    georelay,
    get_json,
    run_command,
    wait_until_whole,
)
from loadtest.campaign.phases_core import Phase, lines_of, report
from loadtest.campaign.producer import value_of
from loadtest.history.history_file import read_history
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

TOPIC: Final = "bulk"
LOAD_TOPIC: Final = "load"
NEW_REGION: Final = "sa"
LOOK_SECONDS: Final = 0.1
READ_SECONDS_MAX: Final = 300
PRODUCER_SECONDS_MAX: Final = 3_600
AUDIT_TRIES: Final = 30  # the load goes on: what is newest may not be everywhere yet


async def digest_of_records(brokers: Sequence[str], topic: str, partition: int, end: int) -> str:
    """Return the SHA-256 of all that a client sees of the records below an offset. Raises CampaignFailed."""
    digest, seen = hashlib.sha256(), 0
    reader = StreamReader(brokers=list(brokers), topic=topic, partition=partition, offset=EARLIEST, max_wait_ms=100)
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            async for batch in reader.batches():
                for record in batch.records:
                    if record.offset < end:
                        digest.update(repr(record).encode())
                        seen += 1
                if batch.records and batch.records[-1].offset + 1 >= end:
                    break
    except TimeoutError as error:
        raise CampaignFailed(f"only {seen} of {end} records of {topic}/{partition} could be read") from error
    finally:
        reader.close()
    return f"{seen} {digest.hexdigest()}"


async def ends_of(admins: Sequence[str], topic: str) -> dict[int, int]:
    """Return partition -> offset behind the last committed record, as the brokers of a region know it."""
    ends: dict[int, int] = {}
    for admin in admins:
        status = await get_json(f"http://{admin}/v1/status")
        for row in status["streams"] if status else ():
            if row["topic"] == topic:
                ends[row["partition"]] = max(ends.get(row["partition"], 0), row["high_watermark"])
    return ends


class RegionAdd:
    """One run. Its lines are printed as they are known."""

    def __init__(self, options: argparse.Namespace, mesh: MeshProcess, directory: Path, console: Console) -> None:
        self._options, self._mesh, self._directory, self._console = options, mesh, directory, console
        self._phases: list[Phase] = []
        self._began_ns = 0

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    async def run(self) -> bool:
        """Return whether the new region holds the same, and nothing that was acknowledged is missing there."""
        options, mesh = self._options, self._mesh
        home, regions = options.regions[0], mesh.endpoints["regions"]
        await create_topic(mesh, TOPIC, home=home, partitions=options.partitions)
        await create_topic(mesh, LOAD_TOPIC, home=home, partitions=options.partitions)
        seconds = await fill(
            regions[home]["kafka"], TOPIC, options.partitions, options.records, lambda number: value_of("fill", number)
        )
        self._say(f"{options.records:,} records of 100 B were published in {seconds:.1f} s")
        wanted = await ends_of(regions[home]["admin"], TOPIC)
        for region in options.regions[1:]:
            await self._wait_for(regions[region]["admin"], TOPIC, wanted)
        load = ForeignProducer("load", self._directory)
        try:
            await load.start(
                regions[home]["kafka"],
                LOAD_TOPIC,
                per_second=options.rate,
                seconds=PRODUCER_SECONDS_MAX,
                partitions=options.partitions,
            )
            await load.wait_for_acknowledgement()
            return await self._join(load, wanted)
        finally:
            await load.stop()

    async def _join(self, load: ForeignProducer, wanted: dict[int, int]) -> bool:
        options, mesh = self._options, self._mesh
        home, regions = options.regions[0], mesh.endpoints["regions"]
        self._begin()
        await asyncio.sleep(options.quiet_seconds)
        self._end("before")
        model = mesh.directory / "mesh" / "config" / f"{home}-1.toml"
        joined = NewRegion(mesh.directory / "mesh", model, region=NEW_REGION, region_number=len(options.regions) + 1)
        words = ("region", "add", NEW_REGION, str(joined.region_number), "--seed", joined.seed)
        self._say(f"$ georelay {' '.join(words)}\n{(await georelay(*words, environment=self._environment)).rstrip()}")
        self._begin()
        began = time.monotonic()
        await joined.start()
        answered = time.monotonic() - began
        try:
            admins = [joined.listen["admin"]]
            await self._wait_for(admins, TOPIC, wanted)
            filled, records = time.monotonic() - began, sum(wanted.values())
            self._end("region joins, is filled")
            self._say(
                f"the broker of {NEW_REGION} answered after {answered:.1f} s and had all {records:,} records after "
                f"{filled:.1f} s: {records / (filled - answered):,.0f} records/s"
            )
            self._begin()
            await asyncio.sleep(options.quiet_seconds)
            self._end("after")
            load.end_sending()
            counts = await load.finish()
            loaded = await ends_of(regions[home]["admin"], LOAD_TOPIC)
            await self._wait_for(admins, LOAD_TOPIC, loaded)
            self._say(
                f"load: {counts['acked']:,} acknowledged, {counts['failed']} given up, "
                f"{sum(loaded.values()):,} in {NEW_REGION}"
            )
            equal = await self._compare([joined.listen["kafka"]], {TOPIC: wanted, LOAD_TOPIC: loaded})
            audits = [await self._audit(topic) for topic in (TOPIC, LOAD_TOPIC)]
        finally:
            await joined.stop()
        self._say("\n".join(["publishing meanwhile", *lines_of(report(self._phases, read_history([load.history])))]))
        return equal and all(audits) and not counts["failed"] and counts["acked"] <= sum(loaded.values())

    async def _compare(self, brokers: Sequence[str], topics: dict[str, dict[int, int]]) -> bool:
        home = self._mesh.endpoints["regions"][self._options.regions[0]]["kafka"]
        differing = []
        for topic, ends in topics.items():
            for partition, end in sorted(ends.items()):
                ours = await digest_of_records(home, topic, partition, end)
                if await digest_of_records(brokers, topic, partition, end) != ours:
                    differing.append(f"{topic}/{partition}")
        said = f"DIFFER: {', '.join(differing)}" if differing else "equal"
        self._say(f"records as clients read them in {self._options.regions[0]} and {NEW_REGION}: {said}")
        return not differing

    async def _audit(self, topic: str) -> bool:
        for _ in range(AUDIT_TRIES):
            words = (*CLI, "audit", topic, "--deep")
            code, said, why = await run_command(words, within_s=FILL_SECONDS_MAX, environment=self._environment)
            if code in (0, 1):
                self._say(f"$ georelay audit {topic} --deep\n{said}(exit code {code})")
                return code == 0
            await asyncio.sleep(1)
        raise CampaignFailed(f"the audit of {topic} reaches no end: {said}{why}")

    async def _wait_for(self, admins: Sequence[str], topic: str, wanted: dict[int, int]) -> None:
        deadline = time.monotonic() + FILL_SECONDS_MAX
        while time.monotonic() < deadline:
            found = await ends_of(admins, topic)
            if all(found.get(partition, 0) >= end for partition, end in wanted.items()):
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise CampaignFailed(f"{topic} came to {found} instead of {wanted} within {FILL_SECONDS_MAX} s")

    def _begin(self) -> None:
        self._began_ns = time.monotonic_ns()

    def _end(self, name: str) -> None:
        self._phases.append(Phase(name=name, from_ns=self._began_ns, to_ns=time.monotonic_ns()))

    @property
    def _environment(self) -> dict[str, str]:
        return {"GEORELAY_GATEWAY": self._mesh.gateway, "COLUMNS": "140"}


async def run_region_add(options: argparse.Namespace, console: Console) -> int:
    """Run it; return the exit code."""
    with scratch_directory("georelay-region-add-", options.scratch) as directory:
        mesh = MeshProcess(directory, regions=",".join(options.regions), brokers_per_region=options.brokers_per_region)
        async with mesh:
            await wait_until_whole(mesh)
            return 0 if await RegionAdd(options, mesh, directory, console).run() else 1


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = new_parser("campaign region-add", __doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="that are there before (default 1000000)")
    parser.add_argument("--rate", type=float, default=1_000, help="records per second meanwhile (default 1000)")
    parser.add_argument("--partitions", type=int, default=4, help="of each topic (default 4)")
    parser.add_argument("--quiet-seconds", type=float, default=10, help="measured before and after (default 10)")
    parser.add_argument("--brokers-per-region", type=int, default=1, choices=(1, 3, 5))
    parser.add_argument(
        "--regions", type=lambda text: text.split(","), default=["us", "eu", "ap"], help="default us,eu,ap"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run it; return the exit code."""
    options = parser().parse_args(arguments)
    return carry_out(run_region_add, options)
