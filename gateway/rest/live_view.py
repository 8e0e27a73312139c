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
        """Answer with the file. Raises as `read`."""
        raw = await self.read()
        return web.Response(body=raw, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def read(self) -> bytes:
        """Return the file as it is now.

        Raises:
            Unavailable: there is none, it may not be read, or it is over LIVE_BYTES_MAX; the text says which.
        """
        if self._path is None:
            raise Unavailable("this gateway shows no live view: set live_file to the live.json of georelay-sla live")
        return await asyncio.to_thread(_read, self._path)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(LIVE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise Unavailable("live_file is not there: is georelay-sla live running, with that checkpoint?") from error
    except OSError as error:
        raise Unavailable(f"live_file cannot be read: {error.strerror or error}") from error
    if len(raw) > LIVE_BYTES_MAX:
        raise Unavailable(f"live_file is over {LIVE_BYTES_MAX // MIB} MiB: it is no live.json of georelay-sla live")
    return raw
