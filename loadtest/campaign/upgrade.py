"""`python -m loadtest.campaign.upgrade --from COMMIT`: brokers of an older version are replaced one by one, under load.

Two regions: three brokers in the first, which is the home, and one in the second. All begin with the code of COMMIT and
no mesh secret. Rule 1: each broker keeps its data directory and its addresses, and is replaced when all others are
there. Rule 2: first by this version with the secret, which nobody demands yet; then a second time, and it is demanded.
Rule 3: one producer sends in each region from the beginning to the end, and a reader in each region reads on; what
they were told is judged together with everything that both regions hold at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.joined_broker import BesideBroker, broker_id, toml_of
from loadtest.campaign.loading import loading
from loadtest.campaign.mesh import CampaignFailed, get_json
from loadtest.campaign.old_version import unpack_version
from loadtest.campaign.producer import name_of
from loadtest.campaign.region_read import read_everything
from loadtest.history.checker_core import check
from loadtest.history.history_file import read_history
from loadtest.history.verdict import Verdict
from loadtest.scratch import scratch_directory

TOPIC: Final = "load"
PARTITIONS: Final = 3
HOME: Final = "us"
MESH: Final = "upgrade"
REGIONS: Final = {"us": (1, 3), "eu": (2, 1)}  # name: number, brokers
SECONDS_MAX: Final = 3_600
READY_SECONDS_MAX: Final = 120
LOOK_SECONDS: Final = 0.2
DIRECTORIES: Final = ("config", "brokers", "logs")


class ReplacedBroker(BesideBroker):
    """A broker that is stopped and started again, with another version's code or another configuration."""

    def __init__(self, directory: Path, region: str, number: int) -> None:
        super().__init__(directory, f"{region}-{number}")
        self.region, self.number = region, number
        self.id = broker_id(REGIONS[region][0], number)

    def configure(self, brokers: Sequence[ReplacedBroker], more: dict[str, Any]) -> None:
        """Write its configuration: every broker by its address, and `more` keys."""
        rows = [
            {
                "name": region,
                "number": number,
                "brokers": [
                    {"number": broker.number, "peers": broker.listen["peers"], "link": broker.listen["link"]}
                    for broker in brokers
                    if broker.region == region
                ],
            }
            for region, (number, _) in REGIONS.items()
        ]
        document = {
            "mesh_id": MESH,
            "region": self.region,
            "broker": self.number,
            "data_dir": str(self.data_dir),
            "definitions_home": HOME,
            "die_with_parent": os.getpid(),
            "listen": self.listen,
            "regions": rows,
            **more,
        }
        self.config_file.write_text(toml_of(document), encoding="utf-8")


class SteadyReader:
    """A foreign consumer of all partitions in a thread: counts what it reads, and what it reads twice."""

    def __init__(self, kafka: Sequence[str]) -> None:
        self.read = self.twice = 0
        self._settings = {
            "bootstrap.servers": ",".join(kafka),
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        names: set[str] = set()
        while not self._ended.is_set():
            for record in consumer.consume(1_000, timeout=0.2):
                if record.error() is None:
                    name = name_of(record.value() or b"")
                    self.twice += name in names
                    names.add(name)
                    self.read = len(names)
        consumer.close()

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join()


class Upgrade:
    """One run."""

    def __init__(self, options: argparse.Namespace, directory: Path, console: Console) -> None:
        self._options, self._directory, self._console = options, directory, console
        for name in DIRECTORIES:
            (directory / name).mkdir()
        self._secret = directory / "mesh.secret"
        self._secret.write_text(secrets.token_hex(32) + "\n")
        self._secret.chmod(0o600)
        self._brokers = [
            ReplacedBroker(directory, region, number)
            for region, (_, count) in REGIONS.items()
            for number in range(1, count + 1)
        ]
        self._readers: dict[str, SteadyReader] = {}

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Return where clients connect, the home first."""
        return {"regions": {region: {"kafka": self._kafka(region)} for region in REGIONS}}

    async def run(self) -> Verdict:
        """Return the judgement of everything that clients were told and that the regions hold."""
        old = await asyncio.to_thread(unpack_version, self._options.commit, self._directory / "old")
        secret = {"mesh_secret_file": str(self._secret)}
        async with AsyncExitStack() as stack:
            for broker in self._brokers:
                broker.configure(self._brokers, {})
                broker.code = old
                stack.push_async_callback(broker.stop)
            await asyncio.gather(*(broker.start() for broker in self._brokers))
            await self._wait_until_whole()
            self._say(f"all brokers run {self._options.commit}")
            await self._create_topic()
            load = loading(
                self,
                TOPIC,
                entries=list(REGIONS),
                directory=self._directory,
                per_second=self._options.rate / len(REGIONS),
                seconds=SECONDS_MAX,
                partitions=PARTITIONS,
            )
            producers = await stack.enter_async_context(load)
            for region in REGIONS:
                self._readers[region] = SteadyReader(self._kafka(region))
                stack.callback(self._readers[region].stop)
            await self._replace_all("this version, with the secret", secret | {"mesh_secret_required": False})
            await self._replace_all("the secret demanded", secret)
            for producer in producers:
                producer.end_sending()
            counts = [await producer.finish() for producer in producers]
            self._say(f"sent {sum(row['sent'] for row in counts)}, given up {sum(row['failed'] for row in counts)}")
            complete = await read_everything(self, TOPIC, PARTITIONS, self._directory / "complete.history")
            verdict = check(read_history([complete, *(producer.history for producer in producers)]))
        twice = sum(reader.twice for reader in self._readers.values())
        if twice or any(row["failed"] for row in counts):
            raise CampaignFailed(f"readers saw {twice} records twice; producers: {counts}")
        return verdict

    async def _replace_all(self, what: str, keys: dict[str, Any]) -> None:
        for broker in self._brokers:
            before = self._read()
            await broker.stop()
            broker.configure(self._brokers, keys)
            broker.code = None
            await broker.start()
            await self._wait_until_whole()
            await self._wait_until_read(before)
            read = ", ".join(f"{region} {count}" for region, count in self._read().items())
            self._say(f"{broker.name}: {what}; read {read}; {await self._levels()}")

    def _read(self) -> dict[str, int]:
        return {region: reader.read for region, reader in self._readers.items()}

    async def _wait_until_read(self, before: dict[str, int]) -> None:
        """Wait until a second's worth of records more was read in each region."""
        async with asyncio.timeout(READY_SECONDS_MAX):
            while any(self._read()[region] < count + self._options.rate for region, count in before.items()):
                await asyncio.sleep(LOOK_SECONDS)

    def _kafka(self, region: str) -> list[str]:
        return [broker.listen["kafka"] for broker in self._brokers if broker.region == region]

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    async def _wait_until_whole(self) -> None:
        """Wait until every broker is ready and hears all of its region. Raises CampaignFailed."""
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                for broker in self._brokers:
                    while not await self._is_whole(broker):
                        await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            raise CampaignFailed(f"{broker.name} is not whole after {READY_SECONDS_MAX} s, see its log") from error

    async def _is_whole(self, broker: ReplacedBroker) -> bool:
        status = await get_json(f"http://{broker.listen['admin']}/v1/status")
        heard = sum(row["alive"] for row in status["brokers"]) if status else 0
        return bool(status and status["ready"]) and heard == REGIONS[broker.region][1]

    async def _levels(self) -> str:
        answer = await get_json(f"http://{self._brokers[0].listen['admin']}/v1/regions") or {}
        return "feature levels " + ", ".join(f"{row['name']} {row['level']}" for row in answer.get("regions", ()))

    async def _create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": ",".join(self._kafka(HOME)), "log_level": 0})
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], request_timeout=30)[TOPIC]
        await asyncio.to_thread(made.result, READY_SECONDS_MAX)


async def run(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    with scratch_directory("georelay-upgrade-", options.scratch) as directory:
        verdict = await Upgrade(options, directory, console).run()
    for finding in verdict.findings:
        console.print(f"{finding.category.value}\n{finding.describe()}", markup=False, highlight=False)
    wrong = sum(verdict.counts.values())
    console.print(
        f"upgrade from {options.commit}: {verdict.acknowledged:,} acknowledged, {verdict.records_read:,} read in "
        f"{len(REGIONS)} regions, {wrong} lost, doubled or moved",
        highlight=False,
    )
    return 0 if verdict.is_valid else 1


def main() -> int:
    """Run it."""
    parser = new_parser("campaign.upgrade", __doc__)
    parser.add_argument("--from", dest="commit", required=True, help="commit of the older version")
    parser.add_argument("--rate", type=float, default=200, help="records per second of both regions (default 200)")
    return carry_out(run, parser.parse_args(), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
