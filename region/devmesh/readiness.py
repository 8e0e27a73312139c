"""Asking a process whether it is ready: GET /readyz, the status line is the answer."""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.tls import TlsContexts

PROBE_TIMEOUT_S: Final = 2.0
STATUS_LINE_BYTES_MAX: Final = 1_024


async def is_ready(address: str, tls: TlsContexts | None = None) -> bool:
    """Return whether `GET http://address/readyz` (https with `tls`) answers 200 within PROBE_TIMEOUT_S."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                host, int(port), limit=STATUS_LINE_BYTES_MAX, ssl=None if tls is None else tls.client()
            )
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))
