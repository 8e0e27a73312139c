"""From a URL to addresses: which regions there are, the nearest first, and where their brokers answer gRPC.

http://host:port, https://...      a gateway: GET /v1/resolve ranks the regions
grpc://host:port[,host:port...]    a gateway's or brokers' gRPC addresses, taken as they are
host:port[,host:port...]           the same
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from georelay.errors import BadRequest, ConfigError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from georelay.tls import TlsContexts

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_HTTP: Final = ("http://", "https://")
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAddresses:
    """gRPC addresses of one region; `name` is empty while unknown."""

    name: str
    grpc: tuple[str, ...]


class Resolver:
    """Asks for the regions whenever it is told to.

    Args:
        url: see the module. region: only this one, None for the nearest that is ready.
    """

    def __init__(
        self, url: str, *, region: str | None, authorization: str | None, tls: TlsContexts | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._region = region
        self._authorization = authorization
        self._tls = tls
        self._given = () if self._url.startswith(_HTTP) else _addresses(self._url)

    async def resolve(self) -> list[RegionAddresses]:
        """Return regions to try, in order, at least one.

        Raises:
            Unavailable: the gateway cannot be asked, or no region is ready. BadRequest: no such region.
        """
        if self._given:
            return [RegionAddresses(name="", grpc=self._given)]
        document = await asyncio.to_thread(self._ask)
        try:
            rows = [(row["region"], bool(row["ready"]), tuple(map(str, row["grpc"]))) for row in document["regions"]]
        except (KeyError, TypeError) as error:
            raise BadRequest(f"what answers at {self._url} is not a georelay gateway") from error
        if self._region is not None and self._region not in {name for name, _, _ in rows}:
            known = ", ".join(name for name, _, _ in rows)
            raise BadRequest(f"no region {self._region!r} in this mesh; known: {known}")
        found = [
            RegionAddresses(name=name, grpc=grpc)
            for name, ready, grpc in rows
            if grpc and ready and self._region in (None, name)
        ]
        if not found:
            raise Unavailable("no region of the mesh is ready")
        return found

    def _ask(self) -> Any:
        """Blocking: runs in a thread."""
        headers = {} if self._authorization is None else {"Authorization": self._authorization}
        request = urllib.request.Request(f"{self._url}/v1/resolve", headers=headers)  # noqa: S310 - http(s) only
        context = None if self._tls is None else self._tls.client()
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            *([] if context is None else [urllib.request.HTTPSHandler(context=context)]),
        )
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _UNAUTHORIZED:
                raise Unauthenticated(f"the gateway at {self._url} wants other credentials") from error
            raise Unavailable(f"the gateway at {self._url} answered HTTP {error.code}") from error
        except OSError as error:
            raise Unavailable(f"cannot reach the gateway at {self._url}: {error}") from error
        except ValueError as error:
            raise BadRequest(f"what answers at {self._url} is not a georelay gateway") from error


def _addresses(url: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in url.removeprefix("grpc://").split(",") if part.strip())
    for address in found:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or "/" in address:
            raise ConfigError(f"{url!r}: give http(s)://host:port of a gateway, or grpc://host:port[,host:port]")
    if not found:
        raise ConfigError("the URL is empty")
    return found
