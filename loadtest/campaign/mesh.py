"""What campaigns do with a running mesh: commands, questions over HTTP, producers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from loadtest.child_process import PYTHON, ChildProcess

READY_SECONDS_MAX: Final = 30
POLL_SECONDS: Final = 0.1
COMMAND_S: Final = 60.0
CLI: Final = (sys.executable, "-P", "-m", "georelay.cli")
HTTP_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


class CampaignFailed(Exception):
    """The campaign itself could not go on: nothing was measured."""


class Reachable(Protocol):
    """A mesh whose brokers can be reached."""

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Return what `georelay up` writes into its endpoint file."""


async def run_command(
    words: Sequence[str], *, within_s: float = COMMAND_S, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command to its end; return its exit code, output and errors. Raises CampaignFailed: it does not end.

    Args:
        environment: set beside that of this process.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        async with asyncio.timeout(within_s):
            said, why = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise CampaignFailed(f"{' '.join(words)} did not end within {within_s:g} s") from error
    assert process.returncode is not None, "it has ended"
    return process.returncode, said.decode("utf-8", "replace"), why.decode("utf-8", "replace")


async def georelay(*words: str, within_s: float = COMMAND_S, environment: Mapping[str, str] | None = None) -> str:
    """Run `georelay WORDS` as anybody would; return what it prints. Raises CampaignFailed with its last line."""
    code, said, why = await run_command((*CLI, *words), within_s=within_s, environment=environment)
    if code:
        last = ["it said nothing", *(why or said).strip().splitlines()][-1]
        raise CampaignFailed(f"georelay {' '.join(words)}: {last}")
    return said


async def get_json(
    url: str, *, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> dict[str, Any] | None:
    """Return the JSON answer with status 200; None for anything else."""
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=HTTP_TIMEOUT) as http,
            http.get(url, ssl=tls or True) as answer,
        ):
            return dict(await answer.json(content_type=None)) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


class ForeignProducer(ChildProcess):
    """loadtest.campaign.producer as a child process."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self.history = directory / f"{name}.history"

    async def start(
        self,
        brokers: Sequence[str],
        topic: str,
        *,
        per_second: float,
        seconds: float,
        partitions: int = 1,
        request_timeout_ms: int = 0,
    ) -> None:
        """Start to send."""
        arguments = (",".join(brokers), topic, self.name, str(per_second), str(seconds), str(self.history))
        options = ("--partitions", str(partitions), "--request-timeout-ms", str(request_timeout_ms))
        await self.launch(PYTHON, "-m", "loadtest.campaign.producer", *arguments, *options)

    async def wait_for_acknowledgement(self) -> None:
        """Wait until something was acknowledged. Raises CampaignFailed."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.history.exists() or b'{"e":"ok"' not in self.history.read_bytes():
            if time.monotonic() > deadline:
                raise CampaignFailed(f"producer {self.name} got no acknowledgement within {READY_SECONDS_MAX} s")
            await asyncio.sleep(0.02)

    def end_sending(self) -> None:
        """Ask it to send nothing more; it still waits for what it has sent."""
        self.send(signal.SIGTERM)

    async def finish(self) -> dict[str, Any]:
        """Wait for the end; return its counts. Raises CampaignFailed."""
        code, said, why = await self.answer()
        if code:
            raise CampaignFailed(f"producer {self.name} ended with {code}: {why.strip()[-300:]}")
        return dict(json.loads(said))

    async def stop(self) -> None:
        """Kill it if it still runs."""
        await self.kill()
