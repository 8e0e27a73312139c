"""A foreign idempotent producer (confluent-kafka) in a process of its own, and what a region holds at the end.

`python -m tests.e2e.foreign_producer BOOTSTRAP TOPIC NAME RATE SECONDS HISTORY`

Rule: what was sent and every acknowledgement is in HISTORY (loadtest.history.history_file) before the next record is
sent, so what a campaign demands back is never more than what this process was told, and never less.

Record NUMBER goes to partition NUMBER modulo PARTITIONS. SIGTERM ends the sending early. At the end one JSON line is
printed: records sent, acknowledged and given up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from georelay.client.stream_reader import EARLIEST, StreamReader
from loadtest.campaign.mesh import CampaignFailed
from loadtest.child_process import PYTHON, ChildProcess
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from loadtest.load import engine_values
from loadtest.load.engine_values import name_of

READY_SECONDS_MAX: Final = 30
READ_SECONDS_MAX: Final = 60
MAX_WAIT_MS: Final = 100
VALUE_BYTES: Final = 100
GIVE_UP_SECONDS: Final = 120  # longer than any fault of a campaign lasts
BURST_SECONDS: Final = 0.005  # records that became due meanwhile are sent together


@dataclass(slots=True)
class Sent:
    """What happened to the records so far."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    last_error: str = ""
    stopped: bool = False


def value_of(name: str, number: int) -> bytes:
    """Return the value of one record."""
    return engine_values.value_of(name, number, 0, VALUE_BYTES)


def key_of(topic: str, partition: int) -> str:
    """Return the key of a partition in the history."""
    return f"{topic}/{partition}"


def _delivered(writer: HistoryWriter, sent: Sent, number: int, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        sent.failed += 1
        sent.last_error = str(error)
        writer.unknown(number, str(error))  # a record that timed out may have been stored
        return
    writer.produced(number, message.offset())
    sent.acknowledged += 1


def produce(options: argparse.Namespace, writer: HistoryWriter, sent: Sent) -> None:
    """Send at a steady rate, then wait for the last acknowledgement."""
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "message.timeout.ms": GIVE_UP_SECONDS * 1000,
        "log_level": 0,  # lost connections are the point of a campaign
    }
    if options.request_timeout_ms:
        settings |= {
            "request.timeout.ms": options.request_timeout_ms,
            "socket.timeout.ms": options.request_timeout_ms,
            "socket.connection.setup.timeout.ms": max(1_000, options.request_timeout_ms),
            "reconnect.backoff.max.ms": max(100, options.request_timeout_ms),  # not the client's 10 s
        }
    producer = Producer(settings)
    producer.list_topics(options.topic, timeout=10)
    try:
        _send_all(producer, options, writer, sent)
    except KafkaException as error:
        # An idempotent producer that lost track (a record went missing, or came twice) refuses to go on. What it has
        # sent and was not told of stays without an end in the history: unknown.
        sent.failed += 1
        sent.last_error = str(error)


def _send_all(producer: Any, options: argparse.Namespace, writer: HistoryWriter, sent: Sent) -> None:
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < options.seconds and not sent.stopped:
        while sent.sent < elapsed * options.rate:
            producer.poll(0)
            partition, value = sent.sent % options.partitions, value_of(options.name, sent.sent)
            number = writer.invoke(Kind.PRODUCE, key_of(options.topic, partition), value=name_of(value))
            delivered = partial(_delivered, writer, sent, number)
            producer.produce(options.topic, value, partition=partition, on_delivery=delivered)
            sent.sent += 1
        producer.poll(BURST_SECONDS)
    producer.flush(GIVE_UP_SECONDS)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.foreign_producer", description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("name")
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("history", type=Path)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--request-timeout-ms", type=int, default=0, help="0: the client's own default")
    return parser


def main() -> int:
    """Run it."""
    options = parser().parse_args()
    sent = Sent()
    signal.signal(signal.SIGTERM, lambda *_: setattr(sent, "stopped", True))
    writer = HistoryWriter(options.history, options.name)
    try:
        produce(options, writer, sent)
    finally:
        writer.close()
    row = {"sent": sent.sent, "acked": sent.acknowledged, "failed": sent.failed, "error": sent.last_error}
    sys.stdout.write(json.dumps(row) + "\n")
    return 0


class Reachable(Protocol):
    """A mesh whose brokers can be reached."""

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Return what `georelay up` writes into its endpoint file."""


class ForeignProducer(ChildProcess):
    """The same as a child process."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self.history = directory / f"{name}.history"

    async def start(
        self,
        brokers: Sequence[str],
        topic: str,
        *,
        per_second: float,
        seconds: float,
        partitions: int = 1,
        request_timeout_ms: int = 0,
    ) -> None:
        """Start to send."""
        arguments = (",".join(brokers), topic, self.name, str(per_second), str(seconds), str(self.history))
        options = ("--partitions", str(partitions), "--request-timeout-ms", str(request_timeout_ms))
        await self.launch(PYTHON, "-m", "tests.e2e.foreign_producer", *arguments, *options)

    async def wait_for_acknowledgement(self) -> None:
        """Wait until something was acknowledged. Raises CampaignFailed."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.history.exists() or b'{"e":"ok"' not in self.history.read_bytes():
            if time.monotonic() > deadline:
                raise CampaignFailed(f"producer {self.name} got no acknowledgement within {READY_SECONDS_MAX} s")
            await asyncio.sleep(0.02)

    def end_sending(self) -> None:
        """Ask it to send nothing more; it still waits for what it has sent."""
        self.send(signal.SIGTERM)

    async def finish(self) -> dict[str, Any]:
        """Wait for the end; return its counts. Raises CampaignFailed."""
        code, said, why = await self.answer()
        if code:
            raise CampaignFailed(f"producer {self.name} ended with {code}: {why.strip()[-300:]}")
        return dict(json.loads(said))

    async def stop(self) -> None:
        """Kill it if it still runs."""
        await self.kill()


@asynccontextmanager
async def loading(
    mesh: Reachable,
    topic: str,
    *,
    entries: Sequence[str],
    directory: Path,
    per_second: float,
    seconds: float,
    partitions: int = 1,
) -> AsyncIterator[list[ForeignProducer]]:
    """Run one producer in each region of `entries`; ready once each was answered. Raises CampaignFailed.

    Args:
        per_second: records of each producer. seconds: how long at most.
    """
    producers = [ForeignProducer(f"{topic}-{region}-{row + 1}", directory) for row, region in enumerate(entries)]
    try:
        for region, producer in zip(entries, producers, strict=True):
            brokers = mesh.endpoints["regions"][region]["kafka"]
            await producer.start(brokers, topic, per_second=per_second, seconds=seconds, partitions=partitions)
        for producer in producers:
            await producer.wait_for_acknowledgement()
        yield producers
    finally:
        for producer in producers:
            await producer.stop()


async def read_everything(mesh: Reachable, topic: str, partitions: int, history: Path) -> Path:
    """Read all of a topic in its home, the first region, then in the others as far as there; return the history.

    A region that does not come so far in time is recorded as it is: the checker judges it.
    """
    writer = HistoryWriter(history, "complete")
    try:
        for partition in range(partitions):
            end = 0
            for region, addresses in mesh.endpoints["regions"].items():
                read = await read_region(writer, addresses["kafka"], topic, partition, site=region, at_least=end)
                end = max(end, read)
    finally:
        writer.close()
    return history


async def read_region(
    writer: HistoryWriter, brokers: Sequence[str], topic: str, partition: int, *, site: str, at_least: int = 0
) -> int:
    """Record all records of a partition up to the high watermark; return the offset behind them.

    A partition that does not come so far within READ_SECONDS_MAX is recorded as it is: the checker judges it.

    Args:
        at_least: wait until so many are there.
    """
    key, position = key_of(topic, partition), 0
    reader = StreamReader(
        brokers=list(brokers), topic=topic, partition=partition, offset=EARLIEST, max_wait_ms=MAX_WAIT_MS
    )
    began_ns = time.monotonic_ns()
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            async for batch in reader.batches():
                number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True, at_ns=began_ns)
                writer.fetched(number, [(record.offset, name_of(record.value or b"")) for record in batch.records])
                if batch.records:
                    position = batch.records[-1].offset + 1
                began_ns = time.monotonic_ns()
                if position >= max(batch.high_watermark, at_least):
                    break
    except TimeoutError:
        pass  # nothing more came: what is missing is in the verdict
    finally:
        reader.close()
    number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True)
    writer.fetched(number, [])  # a region without a single record has a complete read too
    return position


if __name__ == "__main__":
    sys.exit(main())
