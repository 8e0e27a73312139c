"""Debian's `serf agent` beside agents of ours, on ports of loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.view import MemberStatus
from tests.free_ports import free_ports

MakeOurs = Callable[..., Awaitable[Agent]]


class SerfAgent:
    """One `serf agent` process."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.port, self.rpc_port = free_ports(2)
        self.log = folder / f"{name}.log"
        self._out = self.log.open("wb")
        self.process = subprocess.Popen(
            [
                *("serf", "agent", f"-node={name}", f"-bind=127.0.0.1:{self.port}"),
                *(f"-rpc-addr=127.0.0.1:{self.rpc_port}", "-log-level=debug", *arguments),
            ],
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def ready(self) -> None:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.rpc_port), timeout=0.2).close()
                return
            await asyncio.sleep(0.05)
        raise AssertionError(self.text())

    async def run(self, *arguments: str, check: bool = True) -> str:
        """Run `serf COMMAND` against this agent and return what it prints."""
        command = [arguments[0], f"-rpc-addr=127.0.0.1:{self.rpc_port}", *arguments[1:]]
        process = await asyncio.create_subprocess_exec(
            "serf", *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        if check:
            assert process.returncode == 0, (command, out.decode())
        return out.decode()

    async def status_of(self, name: str) -> str:
        """Return "alive", "failed", "left" or "" as `serf members` prints it."""
        for line in (await self.run("members")).splitlines():
            fields = line.split()
            if fields and fields[0] == name:
                return fields[2]
        return ""

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self, how: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, how)

    def close(self) -> None:
        self.kill()
        self.process.wait()
        self._out.close()


async def until(wanted: Callable[[], Any], within_s: float, what: str = "") -> float:
    """Wait until `wanted` (a function, or one that returns an awaitable) is true; returns how long it took."""
    began = time.monotonic()
    while True:
        found = wanted()
        if asyncio.iscoroutine(found):
            found = await found
        took = time.monotonic() - began
        if found:
            return took
        assert took < within_s, f"not within {within_s} s: {what or wanted}"
        await asyncio.sleep(0.02)


def status(agent: Agent, name: str) -> MemberStatus | None:
    return next((member.status for member in agent.members() if member.name == name), None)


def tags(agent: Agent, name: str) -> dict[str, str]:
    return next((dict(member.tags) for member in agent.members() if member.name == name), {})


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[float]]:
    return until


@pytest.fixture(name="status")
def status_fixture() -> Callable[[Agent, str], MemberStatus | None]:
    return status


@pytest.fixture(name="tags")
def tags_fixture() -> Callable[[Agent, str], dict[str, str]]:
    return tags


@pytest.fixture
def make_serf(tmp_path: Path) -> Iterator[Callable[..., Awaitable[SerfAgent]]]:
    if shutil.which("serf") is None:
        pytest.fail("serf is not installed: run `make setup`, or apt-get install serf")
    agents: list[SerfAgent] = []

    async def make(name: str, *arguments: str) -> SerfAgent:
        agent = SerfAgent(tmp_path, name, arguments)
        agents.append(agent)
        await agent.ready()
        return agent

    yield make
    for agent in agents:
        agent.close()


@pytest.fixture
async def make_ours() -> AsyncIterator[MakeOurs]:
    agents: list[Agent] = []

    async def make(name: str, **settings: Any) -> Agent:
        told = {"pool": "lan", "listen": ("127.0.0.1", 0), "tags": {"role": "broker"}, **settings}
        agent = Agent(AgentSettings(name=name, **told))
        agents.append(agent)
        await agent.start()
        return agent

    yield make
    await asyncio.gather(*(agent.stop(leave=False) for agent in agents))
