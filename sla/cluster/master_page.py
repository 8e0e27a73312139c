"""What a master says of itself and its workers on its page, as values."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any, Final

from sla.cluster.settings import LOOPBACK

ANSWER_S_MAX: Final = 5
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
ALIVE: Final = "ALIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker as its master sees it."""

    host: str
    port: int
    state: str
    cores: int
    cores_used: int
    memory_mib: int
    memory_used_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterState:
    """A master; `applications`: jobs that run now."""

    state: str
    workers: tuple[WorkerState, ...]
    applications: int

    @property
    def alive(self) -> set[tuple[str, int]]:
        """Return host and port of each worker that the master can use."""
        return {(worker.host, worker.port) for worker in self.workers if worker.state == ALIVE}


def ask_master(web_port: int) -> MasterState | None:
    """Return what the page on loopback says, None when nobody answers there or nothing that we understand."""
    connection = http.client.HTTPConnection(LOOPBACK, web_port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/json/")
        answer = connection.getresponse()
        return decode_state(answer.read(ANSWER_BYTES_MAX)) if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def decode_state(raw: bytes) -> MasterState | None:
    """Read the JSON of the page `/json/` (Spark's JsonProtocol.writeMasterState)."""
    try:
        values: dict[str, Any] = json.loads(raw)
        workers = [
            WorkerState(
                host=str(worker["host"]),
                port=int(worker["port"]),
                state=str(worker["state"]),
                cores=int(worker["cores"]),
                cores_used=int(worker["coresused"]),
                memory_mib=int(worker["memory"]),
                memory_used_mib=int(worker["memoryused"]),
            )
            for worker in values["workers"]
        ]
        return MasterState(
            state=str(values["status"]),
            workers=tuple(sorted(workers, key=lambda worker: (worker.host, worker.port))),
            applications=len(values["activeapps"]),
        )
    except (ValueError, TypeError, KeyError):
        return None
