"""A broker process with a part of the tests: started by test_e2e_coordinator_kill.py, which may kill it at any moment.

Lines of JSON on stdin, answered in any order on stdout:
    {"id": 7, "add": "text"}     {"id": 7} once it is acknowledged, or {"id": 7, "error": code}
    {"id": 7, "list": true}      {"id": 7, "commands": [...], "leader": broker id}
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import structlog

from georelay.errors import GeorelayError
from georelay.ids import RaftIndex
from region.app import Broker
from region.config import BrokerConfig
from region.coordination import region_coordinators
from region.coordination.log import CoordinatorLog
from region.coordination.part import Part

KEY = "one coordinator"
CALL_SECONDS = 15


class Commands:
    """A CoordinatorPart: every command it was given, in order, duplicates included."""

    part = Part.GROUPS

    def __init__(self, log: CoordinatorLog) -> None:
        self.log = log
        self.commands: list[str] = []

    def apply(self, command: bytes, *, index: RaftIndex, append_us: int) -> None:
        del index, append_us
        self.commands.append(command.decode())

    def snapshot(self) -> bytes:
        return json.dumps(self.commands).encode() if self.commands else b""

    def restore(self, raw: bytes) -> None:
        self.commands = json.loads(raw) if raw else []

    def fence(self, *, append_us: int, epoch: int, is_whole: bool = False) -> None:
        del append_us

    def claim(self, name: str) -> int:
        del name
        return 0

    def elected(self) -> None:
        pass

    def deposed(self) -> None:
        pass

    def close(self) -> None:
        pass

    async def call(self, operation: str, body: dict[str, Any], *, principal: str) -> dict[str, Any]:
        del principal
        if operation == "add":
            await self.log.propose(self.part, body["command"].encode())
            return {}
        return {"commands": self.commands}


async def answer(broker: Broker, asked: dict[str, Any]) -> None:
    coordinators = broker.core.coordinators
    said: dict[str, Any] = {"id": asked["id"]}
    try:
        if "add" in asked:
            body = {"command": asked["add"]}
            await coordinators.call(Part.GROUPS, KEY, "add", body, timeout_s=CALL_SECONDS)
        else:
            said |= await coordinators.call(Part.GROUPS, KEY, "list", {}, timeout_s=CALL_SECONDS)
            said["leader"] = int(coordinators.leader_of(KEY))
    except GeorelayError as error:
        said["error"] = error.code
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def serve(path: Path) -> None:
    broker = Broker(BrokerConfig.model_validate_json(path.read_text()))
    broker.core.coordinators._makes.clear()
    broker.core.coordinators.register(Part.GROUPS, Commands)
    await broker.start()
    stdin = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    answering: set[asyncio.Task[None]] = set()
    while line := await stdin.readline():
        task = loop.create_task(answer(broker, json.loads(line)))
        answering.add(task)
        task.add_done_callback(answering.discard)
    await broker.stop()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))
    vars(region_coordinators)["SEGMENT_BYTES"] = 16 * 1024  # manifests are made while it runs
    asyncio.run(serve(Path(sys.argv[1])))
