"""`python -m loadtest.campaign queue`: a work queue whose consumers die, reject and are killed; its coordinator too.

Records are published while three consumers work; some die by themselves with leases in their hands, one is killed with
-9 now and then, and so is the broker that leads the queue's coordinator. Some records are poison: every consumer
rejects them. At the end what the consumers were told is held against what was published (queue_verdict_core).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console
from rich.table import Table

import georelay
from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import CampaignFailed, create_topic, wait_until_whole
from loadtest.campaign.queue_consumer import POISON
from loadtest.campaign.queue_history import read_events
from loadtest.campaign.queue_verdict_core import QueueVerdict, judge
from loadtest.child_process import PYTHON, KeptProcess
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

REGION: Final = "us"
TOPIC: Final = "orders"
QUEUE: Final = "bills"
LETTERS: Final = "bills-dead-letters"
GOOD: Final = "good"
BATCH: Final = 200
PARTITIONS: Final = 6
PUBLISH_SECONDS_MAX: Final = 120
DRAIN_SECONDS_MAX: Final = 240
HTTP_TIMEOUT: Final = aiohttp.ClientTimeout(total=40)


class QueueRun:
    """One run over one mesh."""

    def __init__(self, options: argparse.Namespace, mesh: MeshProcess, http: aiohttp.ClientSession) -> None:
        self._options = options
        self._mesh = mesh
        self._http = http
        self._rng = random.Random(options.seed)
        self.consumers: list[KeptProcess] = []
        self.coordinators_killed = 0
        step = max(1, round(1 / options.poison)) if options.poison else options.records + 1
        self.poison = {number for number in range(options.records) if number % step == step - 1}

    async def run(self, directory: Path) -> QueueVerdict:
        """Publish, consume, hurt, and judge. Raises CampaignFailed."""
        options = self._options
        await create_topic(self._mesh, TOPIC, home=REGION, partitions=PARTITIONS)
        body = {
            "name": QUEUE,
            "topic": TOPIC,
            "visibility_timeout_ms": options.visibility_timeout_ms,
            "max_deliveries": options.max_deliveries,
            "dead_letter_topic": LETTERS,
        }
        await self._ask("POST", "/v1/queues", body)
        histories = [directory / f"consumer-{number}.history" for number in range(options.consumers)]
        self.consumers = [self._consumer(number, path) for number, path in enumerate(histories)]
        hurting = asyncio.create_task(self._hurt())
        try:
            await self._publish(hurting)
            await self._wait_until_drained(hurting)
        finally:
            hurting.cancel()
            await asyncio.gather(*(consumer.stop() for consumer in self.consumers), hurting, return_exceptions=True)
        letters = await self._letters()
        return judge(
            good=set(range(options.records)) - self.poison,
            poison=self.poison,
            events=list(read_events(path for path in histories if path.exists())),
            dead_letters=letters,
        )

    def _consumer(self, number: int, history: Path) -> KeptProcess:
        options, name = self._options, f"consumer-{number}"
        words = [PYTHON, "-m", "loadtest.campaign.queue_consumer"]
        words += ["--gateway", self._mesh.gateway, "--queue", QUEUE, "--history", str(history)]
        words += ["--rejects", str(options.rejects), "--reject-delay-ms", str(options.reject_delay_ms)]
        words += ["--death", str(options.death)]
        return KeptProcess(
            name,
            lambda starts: [*words, "--name", f"{name}-{starts}", "--seed", str(starts * 1_000 + number)],
            log=history.with_suffix(".log"),
        )

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the answer; a request that an election keeps from being answered is asked again."""
        deadline = time.monotonic() + 30
        while True:
            try:
                async with self._http.request(method, f"{self._mesh.gateway}{path}", json=body) as answer:
                    if answer.status < 300:
                        return dict(await answer.json())
                    said = f"{answer.status} {await answer.text()}"
            except (aiohttp.ClientError, TimeoutError) as error:
                said = repr(error)
            if time.monotonic() > deadline:
                raise CampaignFailed(f"{method} {path}: {said}")
            await asyncio.sleep(0.2)

    async def _publish(self, hurting: asyncio.Task[None]) -> None:
        """Publish every record once, whoever is killed meanwhile: the producer is idempotent.

        The last batch waits for a kill of each kind: a machine that works faster than it is hurt shows nothing.
        """
        records = self._options.records
        async with (
            georelay.connect(self._mesh.gateway, region=REGION) as connection,
            connection.producer(delivery_timeout_s=PUBLISH_SECONDS_MAX) as producer,
        ):
            for first in range(0, records, BATCH):
                while first + BATCH >= records and not self._is_hurt() and not hurting.done():
                    await asyncio.sleep(0.1)
                stored = [
                    await producer.send(
                        TOPIC, f"{POISON if n in self.poison else GOOD}:{n}".encode(), partition=n % PARTITIONS
                    )
                    for n in range(first, min(first + BATCH, records))
                ]
                try:
                    await asyncio.gather(*stored)
                except georelay.GeorelayError as error:
                    raise CampaignFailed(f"records {first} and later were not published: {error}") from error

    def _is_hurt(self) -> bool:
        return self.consumers_killed > 0 and (self.coordinators_killed > 0 or not self._options.kill_coordinator_s)

    @property
    def consumers_killed(self) -> int:
        """Return how often consumers were killed with -9."""
        return sum(consumer.kills for consumer in self.consumers)

    async def _hurt(self) -> None:
        """Kill a consumer every few seconds, and the coordinator's broker less often."""
        options = self._options
        coordinator_at = time.monotonic() + options.kill_coordinator_s
        while True:
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * options.kill_consumer_s)
            self._rng.choice(self.consumers).strike()
            if options.kill_coordinator_s and time.monotonic() >= coordinator_at:
                await self._kill_coordinator()
                coordinator_at = time.monotonic() + options.kill_coordinator_s

    async def _kill_coordinator(self) -> None:
        described = await self._ask("GET", f"/v1/queues/{QUEUE}")
        if described["coordinator"] > 0:
            self._mesh.kill(f"{REGION}-{described['coordinator'] % 1000}")
            self.coordinators_killed += 1
            await wait_until_whole(self._mesh)

    async def _wait_until_drained(self, hurting: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while time.monotonic() < deadline:
            if hurting.done():
                hurting.result()
            described = await self._ask("GET", f"/v1/queues/{QUEUE}")
            is_read = all(row["cursor"] > 0 for row in described["partitions"])
            left = sum(described[name] for name in ("ready", "delayed", "leased", "dead_lettering"))
            done = described["acknowledged"] + described["dead_lettered"]
            if is_read and not left and done >= self._options.records:
                return
            await asyncio.sleep(0.5)
        raise CampaignFailed(f"the queue is not empty after {DRAIN_SECONDS_MAX} s: {described}")

    async def _letters(self) -> list[int]:
        numbers: list[int] = []
        offset = 0
        while True:
            answer = await self._ask("GET", f"/v1/topics/{LETTERS}/records?offset={offset}&max=1000")
            numbers += [int(row["value"].partition(":")[2]) for row in answer["records"]]
            offset = answer["next_offset"]
            if offset >= answer["high_watermark"]:
                return numbers


def table_of(run: QueueRun, verdict: QueueVerdict, options: argparse.Namespace, seconds: float) -> Table:
    """Return what is printed."""
    table = Table(title=f"queue: {options.records} records, {options.consumers} consumers, {seconds:.0f} s")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("wanted", justify="right")
    good = verdict.published - verdict.poison
    lease, delay = f"{options.visibility_timeout_ms} ms", f"{options.reject_delay_ms} ms"
    killed = f"{run.consumers_killed} / {sum(consumer.deaths for consumer in run.consumers)}"
    rows: list[tuple[str, object, object]] = [
        ("consumers killed with -9 / died by themselves", killed, ""),
        ("kills of the coordinator's broker", run.coordinators_killed, ""),
        ("deliveries seen, of them again", f"{verdict.received} / {verdict.redelivered}", ""),
        ("good records acknowledged once", verdict.acknowledged_once + verdict.answer_lost, good),
        ("  of them with a lost answer", verdict.answer_lost, ""),
        ("good records never acknowledged", len(verdict.never_acknowledged), 0),
        ("good records acknowledged twice", len(verdict.acknowledged_twice), 0),
        ("good records delivered after their acknowledge", len(verdict.delivered_after), 0),
        ("poison records in the dead-letter topic", verdict.dead_letters, verdict.poison),
        ("  missing / twice / not poison", _three(verdict), "0 / 0 / 0"),
        ("redelivered before their time", len(verdict.early), 0),
        (f"after a lease of {lease}: later by (median / worst ms)", _late(verdict.after_lease_ms), ""),
        (f"after a reject with {delay}: later by (median / worst ms)", _late(verdict.after_reject_ms), ""),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*map(str, row))
    table.caption = "exact" if verdict.is_exact else "NOT EXACT"
    return table


def _three(verdict: QueueVerdict) -> str:
    parts = (verdict.dead_letters_missing, verdict.dead_letters_twice, verdict.dead_letters_wrong)
    return " / ".join(str(len(part)) for part in parts)


def _late(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} / {max(values):.0f} ({len(values)})" if values else "-"


async def run_queue(options: argparse.Namespace, console: Console) -> int:
    """Run it; return the exit code."""
    with scratch_directory("georelay-queue-", options.scratch) as directory:
        async with (
            MeshProcess(directory, regions=REGION, brokers_per_region=3, arguments=("--restart",)) as mesh,
            aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http,
        ):
            await wait_until_whole(mesh)
            run = QueueRun(options, mesh, http)
            started = time.monotonic()
            verdict = await run.run(directory)
            console.print(table_of(run, verdict, options, time.monotonic() - started))
    return 0 if verdict.is_exact else 1


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = new_parser("campaign queue", __doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--poison", type=float, default=0.01, help="share of records that every consumer rejects")
    parser.add_argument("--rejects", type=float, default=0.05, help="share of deliveries of good records rejected")
    parser.add_argument("--reject-delay-ms", type=int, default=500)
    parser.add_argument("--visibility-timeout-ms", type=int, default=3_000)
    parser.add_argument("--max-deliveries", type=int, default=8, help="a good record must not meet so much bad luck")
    parser.add_argument("--death", type=float, default=0.01, help="chance that a consumer dies after a receive")
    parser.add_argument("--kill-consumer-s", type=float, default=3.0, help="about how often one is killed with -9")
    parser.add_argument("--kill-coordinator-s", type=float, default=10.0, help="how often its broker is; 0: never")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run it; return the exit code."""
    return carry_out(run_queue, parser().parse_args(arguments))
