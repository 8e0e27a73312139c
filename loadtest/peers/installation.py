"""Brings the foreign brokers and their Python clients into an ignored folder, by package name alone.

NATS server comes through the Go module proxy, Apache Kafka from Maven Central, RabbitMQ and Erlang as Debian packages
that are unpacked and not installed, the clients from PyPI: whatever the clients of those registries are set up to ask.
What is there already is not fetched again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
FOLDER: Final = ROOT / "build" / "peers"
NATS_MODULE: Final = "github.com/nats-io/nats-server/v2@latest"
FETCH_SECONDS_MAX: Final = 600
ERLANG: Final = (
    *("erlang-base", "erlang-asn1", "erlang-crypto", "erlang-eldap", "erlang-inets", "erlang-mnesia", "erlang-os-mon"),
    *("erlang-parsetools", "erlang-public-key", "erlang-runtime-tools", "erlang-ssl", "erlang-syntax-tools"),
    *("erlang-tools", "erlang-xmerl"),
)
NEEDS: Final = {  # a program, and what to do when it is missing
    "go": "NATS server is built with Go: apt-get install golang, or put a newer go on PATH",
    "mvn": "Apache Kafka's jars are brought by Maven: apt-get install maven",
    "java": "Apache Kafka runs on Java 17: apt-get install openjdk-17-jre-headless",
    "apt-get": "RabbitMQ is unpacked from Debian's packages: this needs a Debian with apt-get",
    "dpkg": "RabbitMQ is unpacked from Debian's packages: this needs dpkg",
}


class PeersMissing(Exception):
    """Something that is needed is not there; the text says what and what to do, a line for each."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the foreign programs are."""

    folder: Path

    @property
    def nats_server(self) -> Path:
        """Return the program of NATS."""
        return self.folder / "nats" / "nats-server"

    @property
    def kafka_jars(self) -> str:
        """Return the class path of Apache Kafka."""
        return str(self.folder / "kafka" / "*")

    @property
    def kafka_version(self) -> str:
        """Return the version of Apache Kafka, of its jar."""
        return next((self.folder / "kafka").glob("kafka-server-[0-9]*.jar")).stem.rpartition("-")[2]

    @property
    def erlang(self) -> Path:
        """Return the root of Erlang."""
        return self.folder / "rabbitmq" / "usr" / "lib" / "erlang"

    @property
    def rabbitmq(self) -> Path:
        """Return the home of RabbitMQ."""
        return next((self.folder / "rabbitmq" / "usr" / "lib" / "rabbitmq" / "lib").glob("rabbitmq_server-*"))

    @property
    def packages(self) -> Path:
        """Return the folder of the clients' Python packages."""
        return self.folder / "python"


def missing(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return a line for each program that is not there."""
    return [f"{program} is missing. {hint}" for program, hint in NEEDS.items() if which(program) is None]


def install(requirements: Sequence[str], folder: Path = FOLDER) -> Installed:
    """Bring what is not there yet. Raises PeersMissing with a line for each thing that could not be had."""
    lines = missing()
    if lines:
        raise PeersMissing("\n".join(lines))
    parts: dict[str, tuple[str, Callable[[Path], None]]] = {
        "nats": (NATS_MODULE, _nats),
        "kafka": ((HERE / "pom.xml").read_text(), _kafka),
        "rabbitmq": ("\n".join(ERLANG), _rabbitmq),
        "python": ("\n".join(requirements), lambda place: _python(requirements, place)),
    }
    for name, (named, bring) in parts.items():
        try:
            _once(folder / name, named, bring)
        except PeersMissing as error:
            lines.append(f"{name}: {error}")
    if lines:
        raise PeersMissing("\n".join(lines))
    return Installed(folder)


def _once(place: Path, named: str, bring: Callable[[Path], None]) -> None:
    done = place / "done"
    if done.exists() and done.read_text() == named:
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    sys.stderr.write(f"bringing {place.name} ...\n")
    bring(place)
    done.write_text(named)


def _nats(place: Path) -> None:
    _run(["go", "install", NATS_MODULE], place, {"GOBIN": str(place)})


def _kafka(place: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
    _run([*command, f"-DoutputDirectory={place}"], place)


def _rabbitmq(place: Path) -> None:
    _run(["apt-get", "download", "rabbitmq-server", *ERLANG], place, hint="; apt-get update brings the lists")
    for package in sorted(place.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(place)], place)
        package.unlink()
    write_erl(Installed(place.parent), place / "erl")
    starts = [str(place / "erl"), "-noshell", "-eval", "{ok, _} = application:ensure_all_started(ssl), halt()."]
    _run(starts, place, hint="; Erlang needs libraries of the system, say apt-get install libsctp1 libncurses6")


def write_erl(installed: Installed, script: Path) -> None:
    """Write the program `erl` for an Erlang that is not where Debian puts it."""
    erts = next(installed.erlang.glob("erts-*"))
    lines = ["#!/bin/sh", f"export ROOTDIR={installed.erlang} BINDIR={erts}/bin EMU=beam PROGNAME=erl"]
    script.write_text("\n".join([*lines, f'exec {erts}/bin/erlexec "$@"', ""]))
    script.chmod(0o755)


def _python(requirements: Sequence[str], place: Path) -> None:
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(place), *constraints, *requirements], place)


def _run(command: Sequence[str], place: Path, environment: dict[str, str] | None = None, hint: str = "") -> None:
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeersMissing(f"{command[0]} was not done in {FETCH_SECONDS_MAX} s; ask again") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines() or ["it said nothing"]
        raise PeersMissing(f"{' '.join(command[:2])} failed: {said[0][:300]}{hint}")
