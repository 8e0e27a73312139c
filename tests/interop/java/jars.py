"""Jars of Apache Kafka for `make interop-java`: given as a folder, or fetched by Maven as pom.xml names them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
FETCHED: Final = HERE.parents[2] / "build" / "interop-java"
NEEDED: Final = ("kafka-clients", "slf4j-api", "slf4j-simple", "lz4-java", "snappy-java", "zstd-jni")
WHOLE: Final = ("kafka-streams", "connect-runtime", "connect-file", "connect-mirror", "kafka-tools", "kafka_2.13")
FETCH_SECONDS_MAX: Final = 600


class JarsMissing(Exception):
    """Something that is needed is not there; the text is one line that says what to do."""


def jars(folder: Path | None) -> list[Path]:
    """Return the jars of a folder, or those that Maven brings. Raises JarsMissing."""
    if shutil.which("javac") is None:
        raise JarsMissing("javac is missing: apt-get install openjdk-17-jdk-headless")
    folder = fetched() if folder is None else folder
    absent = [name for name in NEEDED if not list(folder.glob(f"{name}-*.jar"))]
    if absent:
        raise JarsMissing(f"{folder} has no {', '.join(f'{name}-*.jar' for name in absent)}")
    return sorted(folder.glob("*.jar"))


def has_everything(found: list[Path]) -> bool:
    """Return whether more than the client is there: Streams, Connect, MirrorMaker 2 and the tools."""
    return all(any(jar.name.startswith(f"{name}-") for jar in found) for name in WHOLE)


def fetched() -> Path:
    """Return the folder with what pom.xml names, fetched when it is not there. Raises JarsMissing."""
    done = FETCHED / "done"
    named = (HERE / "pom.xml").read_text()
    if done.exists() and done.read_text() == named:
        return FETCHED
    if shutil.which("mvn") is None:
        raise JarsMissing("mvn is missing: apt-get install maven, or say make interop-java JARS=FOLDER of jars")
    shutil.rmtree(FETCHED, ignore_errors=True)
    FETCHED.mkdir(parents=True)
    command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
    try:
        said = subprocess.run(
            [*command, f"-DoutputDirectory={FETCHED}"],
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JarsMissing(f"mvn did not bring the jars in {FETCH_SECONDS_MAX} s; ask again") from None
    if said.returncode:
        raise JarsMissing(f"mvn did not bring the jars: {said.stdout.strip().splitlines()[0][:300]}")
    done.write_text(named)
    return FETCHED
