"""How members of a group are started as child processes, and what has to be installed for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from loadtest.campaign.mesh import CampaignFailed
from loadtest.child_process import PYTHON
from loadtest.groups.member import SESSION_MS

CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python", "kcat", "kafkajs", "sdk")
MODULES: Final = {"aiokafka": "aiokafka", "kafka-python": "kafka"}  # of clients that no extra brings
MIXED: Final = "mixed"  # every client in one group
KAFKAJS_VARIABLE: Final = "KAFKAJS"
KAFKAJS_MEMBER: Final = Path(__file__).parent / "kafkajs_member.cjs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupToJoin:
    """What every member of a group is told. `bootstrap` is for Kafka's clients, `url` for georelay.connect."""

    bootstrap: str
    url: str
    group: str
    topic: str
    assignor: str = "range"


def missing_for(client: str, environ: Mapping[str, str]) -> str:
    """Return what has to be installed before a client can be a member, "" for nothing."""
    if client in MODULES and find_spec(MODULES[client]) is None:
        return f"{client} is not installed: pip install {client}"
    if client == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed: apt-get install kcat"
    if client == "kafkajs":
        if shutil.which("node") is None:
            return "node is not installed: apt-get install nodejs npm"
        folder = environ.get(KAFKAJS_VARIABLE, "")
        if not (Path(folder) / "node_modules" / "kafkajs").is_dir():
            return f"kafkajs is not installed: npm install kafkajs in a folder, and {KAFKAJS_VARIABLE}=that folder"
    return ""


def need(clients: Iterable[str]) -> None:
    """Raise CampaignFailed where one of these clients is not installed; names of what always is are passed over."""
    for client in clients:
        if missing := missing_for(client, os.environ):
            raise CampaignFailed(missing)


def kinds_of(client: str, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the kinds of the members of a group, in turn, as far as they are installed; the SDK comes first."""
    kinds = [client] if client != MIXED else CLIENTS[::-1]
    return [kind for kind in kinds if not missing_for(kind, environ)]


def command_of(client: str, name: str, told: GroupToJoin, events: Path) -> Sequence[str]:
    """Return the command line of a member.

    Args:
        name: its client id.
        events: what it writes its events into; kcat prints them.
    """
    where = (told.bootstrap, told.group, told.topic, str(events))
    match client:
        case "kcat":
            settings = {
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "auto.commit.interval.ms": 200,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": told.assignor,
                "client.id": name,
            }
            options = [option for key, value in settings.items() for option in ("-X", f"{key}={value}")]
            return ("kcat", "-b", told.bootstrap, "-u", "-f", "%p %o\\n", *options, "-G", told.group, told.topic)
        case "kafkajs":
            return ("node", str(KAFKAJS_MEMBER), *where, name)
        case _:
            options = ["--name", name, "--assignor", told.assignor]
            if client == "sdk":
                where = (told.url, *where[1:])
            return (PYTHON, "-m", "loadtest.groups.member", client, *where, *options)
