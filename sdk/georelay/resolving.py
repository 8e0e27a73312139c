"""From a URL to addresses: which regions there are, the best first, and where their brokers answer gRPC.

http://host:port, https://...      a gateway: POST /v1/resolve ranks the regions for this client
grpc://host:port[,host:port...]    a gateway's or brokers' gRPC addresses, taken as they are
host:port[,host:port...]           the same
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from georelay.errors import BadRequest, ConfigError, Unauthenticated, Unavailable
from georelay.ranking import Ranking, RankingFile, RegionAddresses, ranking_of

if TYPE_CHECKING:
    from georelay.tls import TlsContexts

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_HTTP: Final = ("http://", "https://")
_BAD_REQUEST: Final = 400
_UNAUTHORIZED: Final = 401
_UNKNOWN_TO_OLDER: Final = (404, 405)  # gateways that rank regions by their own distance alone


class Resolver:
    """Asks for the regions whenever it is told to.

    Args:
        url: see the module. region: only this one, None for the best.
        client: name that this client is known by, for pins and for what is remembered of it; may be empty.
        kept: file for the answers, None for none.
    """

    def __init__(
        self,
        url: str,
        *,
        region: str | None,
        authorization: str | None,
        tls: TlsContexts | None = None,
        client: str = "",
        kept: RankingFile | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._region = region
        self._authorization = authorization
        self._tls = tls
        self._client = client
        self._kept = kept
        self._given = () if self._url.startswith(_HTTP) else _addresses(self._url)

    @property
    def is_told(self) -> bool:
        """Return whether a gateway says which region this client shall use."""
        return not self._given and self._region is None

    async def kept(self) -> Ranking | None:
        """Return what the last answer was, perhaps of a run before; None where nothing is kept."""
        if self._kept is None or not self.is_told:
            return None
        return await asyncio.to_thread(self._kept.read, now_s=time.time())

    async def resolve(self, observed: Sequence[dict[str, Any]] = (), *, here: str = "") -> Ranking:
        """Return regions to try, in order, at least one.

        Args:
            observed: round trips that this client measured, as POST /v1/resolve takes them.
            here: region that this client is in.

        Raises:
            Unavailable: the gateway cannot be asked, or no region is ready. BadRequest: no such region.
        """
        if self._given:
            return Ranking(regions=(RegionAddresses(name="", grpc=self._given),))
        asked = {"client": self._client, "observed": list(observed)}
        document = await asyncio.to_thread(self._ask, asked | ({"region": here} if here else {}))
        try:
            ranking, names = ranking_of(document)
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"what answers at {self._url} is not a georelay gateway") from error
        if self._region is not None:
            if self._region not in names:
                raise BadRequest(f"no region {self._region!r} in this mesh; known: {', '.join(names)}")
            ranking = Ranking(regions=tuple(row for row in ranking.regions if row.name == self._region))
        if not ranking.regions:
            raise Unavailable("no region of the mesh is ready")
        if self._kept is not None and self.is_told:
            await asyncio.to_thread(self._kept.write, ranking, now_s=time.time())
        return ranking

    def _ask(self, asked: dict[str, Any]) -> Any:
        """Blocking: runs in a thread."""
        if self._region is None:
            try:
                return self._call(json.dumps(asked).encode())
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == _BAD_REQUEST and asked.pop("region", ""):
                    return self._ask(asked)  # an older gateway does not know this field
                if error.code not in _UNKNOWN_TO_OLDER:
                    raise self._refused(error.code) from error
        try:
            return self._call(None)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refused(error.code) from error

    def _call(self, body: bytes | None) -> Any:
        headers = {} if self._authorization is None else {"Authorization": self._authorization}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"{self._url}/v1/resolve", data=body, headers=headers)  # noqa: S310 - http(s)
        context = None if self._tls is None else self._tls.client()
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            *([] if context is None else [urllib.request.HTTPSHandler(context=context)]),
        )
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError:
            raise
        except OSError as error:
            raise Unavailable(f"cannot reach the gateway at {self._url}: {error}") from error
        except ValueError as error:
            raise BadRequest(f"what answers at {self._url} is not a georelay gateway") from error

    def _refused(self, status: int) -> Unauthenticated | Unavailable:
        if status == _UNAUTHORIZED:
            return Unauthenticated(f"the gateway at {self._url} wants other credentials")
        return Unavailable(f"the gateway at {self._url} answered HTTP {status}")


def _addresses(url: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in url.removeprefix("grpc://").split(",") if part.strip())
    for address in found:
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit() or "/" in address:
            raise ConfigError(f"{url!r}: give http(s)://host:port of a gateway, or grpc://host:port[,host:port]")
    if not found:
        raise ConfigError("the URL is empty")
    return found
