"""`python -m mesh.gossip.pool_process`: members of one pool without a broker, driven by JSON lines on standard input.

For campaigns: fifty members in a few processes, some of which are killed. One command per line, one answer per line;
between them come lines {"at", "member", "change", "name"} for every change that a member here was told. Times are
CLOCK_MONOTONIC, the same in all processes of a machine.

    {"do": "start", "names": [..], "ports": [..], "seeds": [..], "profile": "lan", "keyring": "FILE"}  -> ["IP:port"]
    {"do": "tags", "name": "m1", "tags": {..}}    {"do": "event", "name": "m1", "event": "e"}    {"do": "counts"}
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.timing import named
from mesh.gossip.view import MemberChange, MemberStatus, MemberView


class PoolProcess:
    """The members of this process."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}

    async def run(self) -> None:
        """Do what standard input says until it ends."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command: dict[str, Any] = json.loads(line)
            answer = await getattr(self, f"_do_{command.pop('do')}")(**command)
            _say({"answer": answer, "at": time.monotonic()})
        await asyncio.gather(*(agent.stop(leave=False) for agent in self._agents.values()))

    async def _do_start(
        self, names: list[str], ports: list[int], seeds: list[str], profile: str, keyring: str
    ) -> list[str]:
        for name, port in zip(names, ports, strict=True):
            agent = Agent(
                AgentSettings(
                    pool="campaign",
                    name=name,
                    listen=("127.0.0.1", port),
                    tags={"role": "broker", "id": name},
                    timing=named(profile),
                    seeds=seeds,
                    keyring_file=Path(keyring) if keyring else None,
                )
            )
            agent.listeners.on_member.append(partial(self._changed, name))
            agent.listeners.on_event = partial(self._event, name)
            await agent.start()
            self._agents[name] = agent
        found = (self._agents[name].address for name in names)
        return [f"{host}:{port}" for host, port in found]

    async def _do_tags(self, name: str, tags: dict[str, str]) -> None:
        await self._agents[name].change_tags(tags)

    async def _do_event(self, name: str, event: str) -> None:
        await self._agents[name].tell(event, b"")

    async def _do_counts(self) -> dict[str, Any]:
        counts: Counter[str] = Counter()
        bytes_out = 0
        for agent in self._agents.values():
            counts.update(agent.all_counts())
            bytes_out += agent.health().bytes_out
        usage = resource.getrusage(resource.RUSAGE_SELF)
        alive = {
            name: sum(member.status is MemberStatus.ALIVE for member in agent.members())
            for name, agent in self._agents.items()
        }
        return {"counts": counts, "bytes_out": bytes_out, "cpu_s": usage.ru_utime + usage.ru_stime, "alive": alive}

    def _changed(self, member: str, change: MemberChange, view: MemberView) -> None:
        _say({"at": time.monotonic(), "member": member, "change": change.value, "name": view.name})

    def _event(self, member: str, name: str, _: bytes) -> None:
        _say({"at": time.monotonic(), "member": member, "change": "event", "name": name})


def _say(document: object) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    asyncio.run(PoolProcess().run())
