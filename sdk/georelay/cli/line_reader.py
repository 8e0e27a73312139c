"""Reads lines in a daemon thread, a few batches ahead, so that a silent pipe neither stalls nor outlives a command."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from georelay.cli.failure import CommandFailed
from georelay.cli.record_lines import KeyRule, LineBatch, batches

BATCHES_AHEAD_MAX: Final = 2


async def read_ahead(source: BinaryIO, rule: KeyRule, *, records_max: int) -> AsyncIterator[LineBatch]:
    """Yield the batches of record_lines.batches.

    Raises:
        CommandFailed: a wrong line, or the source cannot be read on; batches before it were yielded.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[LineBatch | CommandFailed | None] = asyncio.Queue()
    free = threading.Semaphore(BATCHES_AHEAD_MAX)
    ended = threading.Event()

    def hand_over(item: LineBatch | CommandFailed | None) -> None:
        free.acquire()
        if not ended.is_set():
            with contextlib.suppress(RuntimeError):  # the loop was closed: the command ended just now
                loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        last: CommandFailed | None = None
        try:
            for batch in batches(source, rule, records_max=records_max):
                hand_over(batch)
                if ended.is_set():
                    return
        except CommandFailed as failure:
            last = failure
        except (OSError, ValueError) as error:  # ValueError: closed, because the command has ended
            last = CommandFailed(f"cannot read on: {error}")
        hand_over(last)

    threading.Thread(target=read, name="line-reader", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, CommandFailed):
                raise item
            free.release()
            yield item
    finally:
        ended.set()
        free.release()
