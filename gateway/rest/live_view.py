"""GET /v1/live: the file that `georelay-sla live` keeps, as it is now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from aiohttp import web

from georelay.errors import Unavailable
from georelay.limits import MIB

LIVE_BYTES_MAX: Final = 8 * MIB


class LiveView:
    """The handler. `path`: of live.json, which may come later; None: this gateway shows none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    async def show(self, _: web.Request) -> web.Response:
        """Answer with the file. Raises Unavailable: nobody keeps one."""
        if self._path is None:
            raise Unavailable("this gateway shows no live view: set live_file to the live.json of georelay-sla live")
        raw = await self.read()
        if raw is None:
            raise Unavailable("live_file cannot be read: is georelay-sla live running, with that checkpoint?")
        return web.Response(body=raw, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def read(self) -> bytes | None:
        """Return the file as it is now, None when there is none."""
        return None if self._path is None else await asyncio.to_thread(_read, self._path)


def _read(path: Path) -> bytes | None:
    """Return the whole file, None when there is none or it is too large for one."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIVE_BYTES_MAX + 1)
    except OSError:
        return None
    return raw if len(raw) <= LIVE_BYTES_MAX else None
