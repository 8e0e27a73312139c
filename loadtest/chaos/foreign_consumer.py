"""The foreign consumer of a chaos run: aiokafka, in a process of its own, everything it sees recorded.

`python -m loadtest.chaos.foreign_consumer BOOTSTRAP TOPIC PARTITIONS NAME SITE HISTORY [--linear-ends]`

It reads every partition from the beginning and asks for the ends ten times a second, until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from loadtest.campaign.producer import key_of, name_of
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind

ASK_SECONDS: Final = 0.1
POLL_MS: Final = 100
REQUEST_TIMEOUT_MS: Final = 1_000


class RecordingConsumer:
    """Polls and end queries of one consumer, written as a history."""

    def __init__(self, consumer: Any, partitions: Sequence[Any], writer: HistoryWriter, *, site: str, linear: bool):
        self._consumer = consumer
        self._partitions = partitions
        self._writer = writer
        self._site = site
        self._linear = linear
        self._begun: set[Any] = set()

    async def poll(self) -> None:
        """Read for ever. Refused or timed-out polls are recorded too, and tried again."""
        while True:
            began_ns = time.monotonic_ns()
            try:
                found = await self._consumer.getmany(timeout_ms=POLL_MS)
            except KafkaError as error:
                self._note_error(began_ns, error)
                await asyncio.sleep(ASK_SECONDS)
                continue
            for partition, records in found.items():
                self._note_records(began_ns, partition, records)

    def _note_records(self, began_ns: int, partition: Any, records: Sequence[Any]) -> None:
        position = None if partition in self._begun else 0  # it began at 0 and goes on by itself
        self._begun.add(partition)
        number = self._writer.invoke(
            Kind.FETCH,
            key_of(partition.topic, partition.partition),
            site=self._site,
            position=position,
            at_ns=began_ns,
        )
        self._writer.fetched(number, [(record.offset, name_of(record.value)) for record in records])

    def _note_error(self, began_ns: int, error: Exception) -> None:
        first = self._partitions[0]
        number = self._writer.invoke(Kind.FETCH, key_of(first.topic, first.partition), site=self._site, at_ns=began_ns)
        self._writer.unknown(number, repr(error))

    async def ask(self) -> None:
        """Ask for the ends for ever, one partition after the other."""
        while True:
            for partition in self._partitions:
                key = key_of(partition.topic, partition.partition)
                number = self._writer.invoke(Kind.END, key, site=self._site, linear=self._linear)
                try:
                    ends = await self._consumer.end_offsets([partition])
                except (KafkaError, TimeoutError) as error:
                    self._writer.unknown(number, repr(error))
                else:
                    self._writer.answered(number, int(ends[partition]))
            await asyncio.sleep(ASK_SECONDS)


async def run(options: argparse.Namespace) -> None:
    """Consume until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap.split(","),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=POLL_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_max_age_ms=1_000,
    )
    partitions = [TopicPartition(options.topic, row) for row in range(options.partitions)]
    writer = HistoryWriter(options.history, options.name)
    await consumer.start()
    try:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        recording = RecordingConsumer(consumer, partitions, writer, site=options.site, linear=options.linear_ends)
        tasks = [asyncio.create_task(recording.poll()), asyncio.create_task(recording.ask())]
        ended = asyncio.create_task(stopped.wait())
        await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [result for result in results if not isinstance(result, asyncio.CancelledError)]
        if failures:
            raise RuntimeError(f"the consumer broke: {failures[0]!r}")
    finally:
        await consumer.stop()
        writer.close()


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos.foreign_consumer", description=__doc__)
    for name in ("bootstrap", "topic"):
        parser.add_argument(name)
    parser.add_argument("partitions", type=int)
    for name in ("name", "site"):
        parser.add_argument(name)
    parser.add_argument("history", type=Path)
    parser.add_argument("--linear-ends", action="store_true", help="the ends answered here promise to be up to date")
    return parser


def main() -> int:
    """Run it."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # lost connections are the point
    asyncio.run(run(parser().parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
