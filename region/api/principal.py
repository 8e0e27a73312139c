"""Who an HTTP request is from: set by the sign-in of the listener before any handler runs."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from region.security.access import Principal

PRINCIPAL: Final = web.RequestKey("principal", Principal)
