"""Clients of others that close what they opened, also where something fails on the way.

What is left open is told by the collector of cycles much later, in whatever test runs then.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

with warnings.catch_warnings():  # kafka-python 3 reads its schemas with a call that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    kafka = importlib.import_module("kafka")
    importlib.import_module("kafka.admin")
    _inet = importlib.import_module("kafka.net.inet")


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    """Use a client of aiokafka; one that fails while it starts is stopped as well, unlike by its own context."""
    stop = client.stop if hasattr(client, "stop") else client.close
    try:
        await client.start()
        yield client
    finally:
        await stop()


def _closing(connect: Any) -> Any:
    async def sock_connect(self: Any, net: Any, sock: Any, sockaddr: Any, timeout_at: Any = None) -> Any:
        try:
            return await connect(self, net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise

    return sock_connect


# kafka-python 3.0 drops a socket that was refused, or was not told in time that it is connected.
_inet.KafkaNetSocket.sock_connect = _closing(_inet.KafkaNetSocket.sock_connect)
