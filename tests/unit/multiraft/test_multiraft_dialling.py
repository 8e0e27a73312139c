"""A connection that ends as soon as it is made closes its own number, and later no other file's."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import cast

import uvloop

from mesh.listening.dialling import carried, connected_within


class GivesUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


def test_a_dial_that_is_given_up_closes_no_file_that_has_its_number_now() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        connection = await connected_within(*server.sockets[0].getsockname()[:2], timeout_ms=5_000)
        number = connection.fileno()
        await carried(GivesUp, connection)
        for _ in range(5):
            await asyncio.sleep(0)  # the loop closes it in a turn of its own
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        del connection
        gc.collect()
        os.fstat(number)  # OSError: somebody has closed it
        for each in {null, number}:
            os.close(each)
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
