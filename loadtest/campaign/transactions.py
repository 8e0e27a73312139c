"""`python -m loadtest.campaign transactions`: transactions under kill -9 of brokers and of their own clients.

Part 1: writers put one record into each of four topics in every transaction, while the brokers that lead partitions and
the writers themselves are killed in turn. Readers of committed records, one of them reading all the time, must find
every transaction whole or not at all, as its writer was told.
Part 2: a pipeline reads a topic, writes to another one and commits its offsets in one transaction, while it and the
brokers are killed. Every input must come out once.

Exit code 1: something was torn, lost, there twice, or did not end. 2: the campaign could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import CampaignFailed, create_topic, leader_of, new_mesh, wait_until_whole
from loadtest.campaign.transactions_verdict_core import (
    Fate,
    Name,
    PipelineVerdict,
    TransactionsVerdict,
    judge_pipeline,
    judge_transactions,
    read_journal,
)
from loadtest.child_process import PYTHON, KeptProcess
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

REGION: Final = "us"
TOPICS: Final = ("txn-a", "txn-b", "txn-c", "txn-d")
PARTITIONS: Final = 3
INPUT, OUTPUT, GROUP = "txn-input", "txn-output", "transform"
QUIET_S: Final = 3.0  # a reader that got nothing for so long at the end has everything
END_S: Final = 120.0


def worker(module: str, *arguments: str, log: Path) -> KeptProcess:
    """Return a module that runs, and is started again until it has ended well."""
    return KeptProcess(module, lambda _: (PYTHON, "-m", module, *arguments), log=log)


class LiveReader:
    """Reads committed records of all partitions all the time, in a thread. `found`: values by topic and partition."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.found: dict[tuple[str, int], list[bytes]] = {
            (topic, partition): [] for topic in topics for partition in range(PARTITIONS)
        }
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "live",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, row, OFFSET_BEGINNING) for topic, row in self.found])
        self._newest = time.monotonic()
        self._ends = asyncio.Event()
        self._thread = asyncio.create_task(asyncio.to_thread(self._read))
        self._stopped = False

    def _read(self) -> None:
        while not self._stopped:
            for record in self._consumer.consume(500, 0.2):
                if record.error() is None:
                    self.found[record.topic(), record.partition()].append(record.value())
                    self._newest = time.monotonic()
        self._consumer.close()

    async def finish(self) -> dict[str, list[bytes]]:
        """Return the values by topic once nothing more comes."""
        while time.monotonic() - self._newest < QUIET_S:
            await asyncio.sleep(0.1)
        self._stopped = True
        await self._thread
        values: dict[str, list[bytes]] = {}
        for (topic, _), rows in self.found.items():
            values.setdefault(topic, []).extend(rows)
        return values


@asynccontextmanager
async def killing(
    mesh: MeshProcess, workers: Sequence[KeptProcess], topics: Sequence[str], *, kills: int, pause_s: float
) -> AsyncIterator[asyncio.Task[list[str]]]:
    """Kill leaders and workers in turn, `kills` times, while the body runs."""

    async def run() -> list[str]:
        rng, killed = random.Random(kills), []
        for number in range(kills):
            await asyncio.sleep(pause_s)
            if number % 2:
                rng.choice(list(workers)).strike()
                killed.append("client")
                continue
            await wait_until_whole(mesh)
            name = await leader_of(mesh, REGION, rng.choice(list(topics)), rng.randrange(PARTITIONS))
            mesh.kill(name)
            killed.append(name)
        return killed

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run_writers(mesh: MeshProcess, options: argparse.Namespace, scratch: Path, say: Any) -> TransactionsVerdict:
    """Part 1. Raises CampaignFailed: a writer does not come to its end."""
    bootstrap = ",".join(mesh.endpoints["regions"][REGION]["kafka"])
    for topic in TOPICS:
        await create_topic(mesh, topic, home=REGION, partitions=PARTITIONS)
    each = -(-options.transactions // options.writers)
    names = [f"writer-{number}" for number in range(options.writers)]
    reader = LiveReader(bootstrap, TOPICS)
    workers = [
        worker(
            "loadtest.campaign.transactional_writer",
            *(bootstrap, name, ",".join(TOPICS), str(each), str(scratch / f"{name}.journal")),
            log=scratch / f"{name}.log",
        )
        for name in names
    ]
    started = time.monotonic()
    try:
        async with killing(mesh, workers, TOPICS, kills=options.kills, pause_s=options.pause) as killed:
            for writer in workers:
                if not await writer.is_done(options.patience):
                    raise CampaignFailed(f"a writer has not come to its end after {options.patience} s")
            if killed.done():
                say(f"killed: {', '.join(killed.result())}")
    finally:
        for writer in workers:
            await writer.stop()
    say(f"{options.transactions} transactions in {time.monotonic() - started:.1f} s")
    await wait_until_whole(mesh)
    live = await reader.finish()
    again = await LiveReader(bootstrap, TOPICS).finish()
    if {topic: sorted(rows) for topic, rows in live.items()} != {topic: sorted(rows) for topic, rows in again.items()}:
        raise CampaignFailed("a reader that read all the time and one that read at the end found different records")
    fates: dict[Name, Fate] = {}
    for name in names:
        journal = read_journal((scratch / f"{name}.journal").read_text(encoding="utf-8"))
        fates.update({(name, number): fate for number, fate in journal.fates.items()})
    return judge_transactions(
        fates, {topic: [_name_of(value) for value in rows] for topic, rows in again.items()}, topics=TOPICS
    )


def _name_of(value: bytes) -> Name:
    writer, _, number = value.decode().partition(":")
    return writer, int(number)


async def run_pipeline(mesh: MeshProcess, options: argparse.Namespace, scratch: Path, say: Any) -> PipelineVerdict:
    """Part 2."""
    bootstrap = ",".join(mesh.endpoints["regions"][REGION]["kafka"])
    for topic in (INPUT, OUTPUT):
        await create_topic(mesh, topic, home=REGION, partitions=PARTITIONS)
    transformer = worker("loadtest.campaign.transformer", bootstrap, GROUP, INPUT, OUTPUT, log=scratch / "piped.log")
    reader = LiveReader(bootstrap, [OUTPUT])
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    try:
        async with killing(
            mesh, [transformer], [INPUT, OUTPUT], kills=options.pipeline_kills, pause_s=options.pause
        ) as task:
            number = 0
            while not task.done() or number < options.records:  # records come as long as something is killed
                producer.produce(INPUT, value=str(number), key=str(number))
                number += 1
                if number % 20 == 0:
                    producer.poll(0)
                    await asyncio.sleep(0.1)
            say(f"killed: {', '.join(task.result())}")
        left = await asyncio.to_thread(producer.flush, END_S)
        if left:
            raise CampaignFailed(f"{left} inputs were not acknowledged")
        deadline = time.monotonic() + END_S
        while sum(map(len, reader.found.values())) < number and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
    finally:
        await transformer.stop()
    found = await reader.finish()
    say(f"{number} inputs; the pipeline was started {transformer.starts} times")
    return judge_pipeline(range(number), [int(value.strip(b"<>")) for value in found[OUTPUT]])


async def run(options: argparse.Namespace, console: Console) -> int:
    """Run both parts; return the exit code."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    with scratch_directory("georelay-transactions-", options.scratch) as scratch:
        async with new_mesh(scratch, [REGION], "--restart") as mesh:
            await wait_until_whole(mesh)
            written = await run_writers(mesh, options, scratch, say)
            console.print(_writers_table(written))
            piped = await run_pipeline(mesh, options, scratch, say)
            console.print(_pipeline_table(piped))
    return 0 if written.is_exact and piped.is_exact else 1


def _writers_table(verdict: TransactionsVerdict) -> Table:
    table = Table(title=f"transactions over {len(TOPICS)} topics, read committed", title_justify="left")
    row = {
        "told committed": verdict.committed,
        "told aborted": verdict.aborted,
        "fate unknown": verdict.unknown,
        "of these there": verdict.resolved,
        "torn": len(verdict.torn),
        "lost": len(verdict.lost),
        "raised": len(verdict.raised),
        "repeated": verdict.repeated,
        "foreign": verdict.foreign,
    }
    for name in row:
        table.add_column(name, justify="right")
    table.add_row(*(f"{count:,}" for count in row.values()))
    return table


def _pipeline_table(verdict: PipelineVerdict) -> Table:
    table = Table(title="consume, transform, produce", title_justify="left")
    for name in ("inputs", "outputs", "missing", "repeated", "foreign"):
        table.add_column(name, justify="right")
    table.add_row(*(f"{getattr(verdict, name):,}" for name in ("inputs", "outputs", "missing", "repeated", "foreign")))
    return table


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = new_parser("campaign transactions", __doc__)
    parser.add_argument("--transactions", type=int, default=10_000, help="of all writers together (default 10000)")
    parser.add_argument("--writers", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--kills", type=int, default=20, help="of brokers and writers in turn (default 20)")
    parser.add_argument("--records", type=int, default=2_000, help="least inputs of the pipeline (default 2000)")
    parser.add_argument("--pipeline-kills", type=int, default=20, help="of brokers and the pipeline (default 20)")
    parser.add_argument("--pause", type=float, default=3, help="seconds before each kill (default 3)")
    parser.add_argument("--patience", type=float, default=1_800, help="seconds for all writers to end (default 1800)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the campaign."""
    options = parser().parse_args(arguments)
    if min(options.transactions, options.writers, options.records) < 1 or options.pause <= 0:
        parser().error("--transactions, --writers, --records and --pause must be positive")
    return carry_out(run, options, run=asyncio.run)
