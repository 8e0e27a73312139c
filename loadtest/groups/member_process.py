"""Members of a group as child processes: started, asked to leave, killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.child_process import PYTHON, ChildProcess
from loadtest.groups.events import read_events, read_kcat
from loadtest.groups.member import SESSION_MS
from loadtest.groups.verdict_core import Event

CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python", "kcat", "kafkajs", "sdk")
KAFKAJS_VARIABLE: Final = "KAFKAJS"
KAFKAJS_MEMBER: Final = Path(__file__).parent / "kafkajs_member.cjs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupToJoin:
    """What every member of a run is told. `bootstrap` is for Kafka's clients, `url` for georelay.connect."""

    bootstrap: str
    url: str
    group: str
    topic: str
    directory: Path
    assignor: str = "range"


def missing_for(client: str, environ: Mapping[str, str]) -> str:
    """Return what has to be installed before a client can be a member, "" for nothing."""
    if client == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed: apt-get install kcat"
    if client == "kafkajs":
        if shutil.which("node") is None:
            return "node is not installed: apt-get install nodejs npm"
        folder = environ.get(KAFKAJS_VARIABLE, "")
        if not (Path(folder) / "node_modules" / "kafkajs").is_dir():
            return f"kafkajs is not installed: npm install kafkajs in a folder, and {KAFKAJS_VARIABLE}=that folder"
    return ""


class MemberProcess(ChildProcess):
    """One member. `name` is its client id and the name of its file of events."""

    def __init__(self, client: str, name: str, told: GroupToJoin) -> None:
        self._events = told.directory / f"{name}.events"
        super().__init__(name, log=self._events if client == "kcat" else told.directory / f"{name}.log")
        self.client = client
        self._told = told

    async def start(self) -> None:
        """Start it; it joins as soon as it can."""
        await self.launch(*self._command())

    def _command(self) -> Sequence[str]:
        told = self._told
        where = (told.bootstrap, told.group, told.topic, str(self._events))
        match self.client:
            case "kcat":
                settings = {
                    "session.timeout.ms": SESSION_MS,
                    "heartbeat.interval.ms": 500,
                    "auto.commit.interval.ms": 200,
                    "auto.offset.reset": "earliest",
                    "partition.assignment.strategy": told.assignor,
                    "client.id": self.name,
                }
                options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
                return ("kcat", "-b", told.bootstrap, "-u", "-f", "%p %o\\n", *options, "-G", told.group, told.topic)
            case "kafkajs":
                return ("node", str(KAFKAJS_MEMBER), *where, self.name)
            case _:
                options = ["--name", self.name, "--assignor", told.assignor]
                if self.client == "sdk":
                    where = (told.url, *where[1:])
                return (PYTHON, "-m", "loadtest.groups.member", self.client, *where, *options)

    def events(self) -> Iterable[Event]:
        """Return what it did so far."""
        if not self._events.exists():
            return ()
        return read_kcat(self._events) if self.client == "kcat" else read_events(self._events)
