"""What campaigns do with a running mesh: commands, and questions over HTTP."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import aiohttp

from loadtest.child_process import ChildProcess

POLL_SECONDS: Final = 0.1
COMMAND_S: Final = 60.0
CLI: Final = (sys.executable, "-P", "-m", "georelay.cli")
Found = TypeVar("Found")
HTTP_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


class CampaignFailed(Exception):
    """The campaign itself could not go on: nothing was measured."""


class NotYet(Exception):
    """What is waited for is not so; the text says what is instead."""


async def until(look: Callable[[], Awaitable[Found]], *, within_s: float, every_s: float = POLL_SECONDS) -> Found:
    """Look again and again until it raises NotYet no more; return what it found. Raises CampaignFailed: it always does.

    Args:
        within_s: how long. every_s: what is between two looks.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return await look()
        except NotYet as error:
            if time.monotonic() > deadline:
                raise CampaignFailed(f"{error} (for {within_s:g} s)") from error
        await asyncio.sleep(every_s)


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something until the block ends. Raises what went wrong with it: it is a failure of the block's."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def run_command(
    words: Sequence[str], *, within_s: float = COMMAND_S, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command to its end; return its exit code, output and errors. Raises CampaignFailed: it does not end.

    Args:
        environment: set beside that of this process.
    """
    process = ChildProcess(" ".join(words))
    await process.launch(*words, environment={**os.environ, **(environment or {})})
    try:
        async with asyncio.timeout(within_s):
            return await process.answer()
    except TimeoutError as error:
        await process.kill()
        raise CampaignFailed(f"{process.name} did not end within {within_s:g} s") from error


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
