"""`python -m tests.interop.java FOLDER`: Kafka's own client for Java against a real region of three brokers.

FOLDER holds kafka-clients-*.jar and what it needs (slf4j-api, slf4j-simple, lz4-java, snappy-java, zstd-jni): they come
from Maven, which the set-up of this project does not use, so they are given from outside.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtest.mesh_process import MeshProcess

SOURCE = Path(__file__).with_name("KafkaClients.java")
NEEDED = ("kafka-clients", "slf4j-api", "slf4j-simple", "lz4-java", "snappy-java", "zstd-jni")
SECONDS_MAX = 300


def missing(folder: Path | None) -> str:
    """Return the one line that says what is missing, "" when everything is there."""
    if folder is None or not folder.is_dir():
        return f"say where the jars are: make interop-java JARS=FOLDER with {', '.join(NEEDED)} from Maven Central"
    absent = [name for name in NEEDED if not list(folder.glob(f"{name}-*.jar"))]
    if absent:
        return f"{folder} has no {', '.join(f'{name}-*.jar' for name in absent)}"
    if shutil.which("javac") is None:
        return "javac is missing: apt-get install openjdk-17-jdk-headless"
    return ""


async def play(folder: Path) -> int:
    """Run the program once with each version of kafka-clients; return its worst exit code."""
    jars = sorted(folder.glob("*.jar"))
    versions = [jar for jar in jars if jar.name.startswith("kafka-clients-")]
    others = [jar for jar in jars if jar not in versions]
    worst = 0
    with tempfile.TemporaryDirectory(prefix="georelay-java-") as scratch:
        compiled = Path(scratch) / "classes"
        subprocess.run(["javac", "-cp", str(versions[0]), "-d", str(compiled), str(SOURCE)], check=True)
        async with MeshProcess(Path(scratch), regions="us", brokers_per_region=3) as mesh:
            for jar in versions:
                print(f"-- {jar.stem}", flush=True)
                path = ":".join(map(str, [compiled, jar, *others]))
                level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
                name = jar.stem.removeprefix("kafka-clients-").replace(".", "-")
                command = ["java", level, "-cp", path, "KafkaClients", mesh.endpoints["gateway"]["kafka"][0], name]
                done = await asyncio.to_thread(subprocess.run, command, timeout=SECONDS_MAX, check=False)
                worst = max(worst, done.returncode)
    return worst


def main() -> int:
    """Return the exit code: 0 all calls did what they should, 1 one did not, 2 something is missing."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else None
    if text := missing(folder):
        print(text, file=sys.stderr)
        return 2
    assert folder is not None
    return asyncio.run(play(folder))


if __name__ == "__main__":
    sys.exit(main())
