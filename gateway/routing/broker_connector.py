"""HTTP connections to brokers, with TLS that follows its files."""

from __future__ import annotations

from typing import Any

import aiohttp

from georelay.tls import TlsContexts


class _FreshConnector(aiohttp.TCPConnector):
    """Takes the newest context for every connection that it makes."""

    def __init__(self, tls: TlsContexts, **options: Any) -> None:
        super().__init__(ssl=tls.client(), **options)
        self._tls = tls

    async def _create_connection(self, *arguments: Any, **options: Any) -> Any:
        self._ssl = self._tls.client()
        return await super()._create_connection(*arguments, **options)


def broker_connector(tls: TlsContexts | None, **options: Any) -> aiohttp.TCPConnector:
    """Return a connector with these options of aiohttp.TCPConnector; without `tls` for plain text."""
    return aiohttp.TCPConnector(**options) if tls is None else _FreshConnector(tls, **options)
