"""`python -m tests.interop.java [FOLDER]`: Kafka's own programs for Java against a real region of three brokers.

Its client, kafka-topics and kafka-configs, Streams (the topology of WordCountDemo), Connect and MirrorMaker 2, each
against a broker of the region and through the gateway. Maven brings the jars (pom.xml), or FOLDER has them; where
FOLDER has only the client, as in several versions, that is what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from loadtest.mesh_process import MeshProcess
from tests.free_ports import free_ports
from tests.interop.java import steps
from tests.interop.java.jars import JarsMissing, has_everything, jars
from tests.interop.java.programs import Java, StepFailed, until

Step = Callable[[Java, str], Awaitable[str]]


async def play(found: list[Path]) -> int:
    """Run every step; return 0 when all did what they should, else 1."""
    versions = [jar for jar in found if jar.name.startswith("kafka-clients-")]
    others = [jar for jar in found if jar not in versions]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="georelay-java-") as folder:
        scratch = Path(folder)
        async with MeshProcess(scratch / "mesh", regions="us", brokers_per_region=3) as mesh:
            ends = mesh.endpoints
            doors = {"region": ends["regions"]["us"]["kafka"][0], "gateway": ends["gateway"]["kafka"][0]}
            print("| what | through | version | result | seconds |\n|---|---|---|---|---|")
            for jar in versions:
                version = jar.stem.removeprefix("kafka-clients-")
                java = Java([jar, *others], made(scratch / version))
                failed += await _all(java, doors, version, {"client": steps.clients})
            if has_everything(found):
                java = Java(found, made(scratch / "whole"))
                failed += await _whole(java, doors, versions[-1].stem.removeprefix("kafka-clients-"))
    return 1 if failed else 0


def made(folder: Path) -> Path:
    """Return a folder that is there."""
    folder.mkdir()
    return folder


async def _whole(java: Java, doors: dict[str, str], version: str) -> int:
    java.compile("WordCount.java")
    several: dict[str, Step] = {
        "kafka-topics, kafka-configs": steps.tools,
        "Streams, word count": steps.word_count,
        "Connect, file source and sink": steps.connect,
    }
    failed = await _all(java, doors, version, several)
    plain, controller = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(java.scratch / "kafka-data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    file = str(steps.written(java.scratch / "kafka.properties", settings))
    await java.run("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", file)
    kafka = f"127.0.0.1:{plain}"
    async with java.serving("kafka.Kafka", file):
        await until(functools.partial(_listens, plain), seconds=steps.SECONDS, what="a Kafka broker")
        mirror = functools.partial(steps.mirror_maker, kafka=kafka)
        return failed + await _all(java, doors, version, {"MirrorMaker 2, in and out": mirror})


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


async def _all(java: Java, doors: dict[str, str], version: str, several: dict[str, Step]) -> int:
    """Print a row for each step and door; return how many failed."""
    failed = 0
    for what, step in several.items():
        for door, servers in doors.items():
            began = time.monotonic()
            try:
                if step is steps.clients:
                    java.compile("KafkaClients.java")
                result = await step(java, servers)
            except StepFailed as error:
                failed += 1
                result = f"FAIL {error}".replace("|", "/").replace("\n", " ")
            print(f"| {what} | {door} | {version} | {result} | {time.monotonic() - began:.0f} |", flush=True)
    return failed


def main() -> int:
    """Return the exit code: 0 all steps did what they should, 1 one did not, 2 something is missing."""
    try:
        found = jars(Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None)
    except JarsMissing as error:
        print(error, file=sys.stderr)
        return 2
    return asyncio.run(play(found))


if __name__ == "__main__":
    sys.exit(main())
