"""HTTP client of a gateway's /v1 paths: JSON in, JSON out, every failure one of two errors.

Rule 1: nothing is retried here; the caller knows whether doing it twice is harmless.
Rule 2: a failure says what became of the request: NOT_STORED only when the gateway said so or no connection came about.
Rule 3: aiohttp is imported when a gateway is opened: it takes longer than everything else that `georelay --help` needs.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from georelay.errors import Outcome, Retry

if TYPE_CHECKING:
    import aiohttp

    from georelay.tls import TlsContexts

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 40.0  # longer than the gateway waits for a broker, so that its own words arrive
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

JsonObject = dict[str, Any]
Query = Mapping[str, str | int]
NO_QUERY: Final[Query] = MappingProxyType({})
_Member = TypeVar("_Member", bound=enum.Enum)


class GatewayError(Exception):
    """A request failed; `str(error)` is one line for a person.

    Args:
        code: as in georelay.errors, such as UNKNOWN_TOPIC; UNREACHABLE without a gateway.
        outcome: what became of the records of a publish.
        retry: what may be done next.
    """

    def __init__(self, text: str, *, code: str, outcome: Outcome, retry: Retry) -> None:
        super().__init__(text)
        self.code = code
        self.outcome = outcome
        self.retry = retry


def authorization(user: str, token: str) -> dict[str, str]:
    """Return the header that signs "name:password" in, or a bearer token where no user is given."""
    if user:
        from georelay.credentials import basic

        name, _, password = user.partition(":")
        return {"Authorization": basic(name, password)}
    return {"Authorization": f"bearer {token}"} if token else {}


class GatewayHttp:
    """One gateway. Use as an async context manager.

    Args:
        url: http://host:port or https://host:port, without a path.
        user: "name:password", empty when the mesh has no users.
        token: a bearer token, where no user is given.
        tls: for https://; None trusts the system's authorities.
    """

    def __init__(self, url: str, *, user: str = "", token: str = "", tls: TlsContexts | None = None) -> None:
        import aiohttp

        self._url = url.rstrip("/")
        headers = authorization(user, token)
        self._session = aiohttp.ClientSession(
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(ssl=True if tls is None else tls.client()),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, query: Query = NO_QUERY, *, wait_ms: int = 0) -> JsonObject:
        """GET `path`; `wait_ms` is how long the gateway may hold the answer back (GatewayError)."""
        parameters = {**query, "wait_ms": wait_ms} if wait_ms else query
        return await self._ask("GET", path, query=parameters, timeout_s=wait_ms / 1000 + ANSWER_TIMEOUT_S)

    async def post(self, path: str, body: object, query: Query = NO_QUERY) -> JsonObject:
        """POST `body` as JSON (GatewayError)."""
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return await self._ask("POST", path, query=query, raw=raw)

    async def patch(self, path: str, body: object, query: Query = NO_QUERY) -> JsonObject:
        """PATCH `path` with `body` as JSON (GatewayError)."""
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return await self._ask("PATCH", path, query=query, raw=raw)

    async def delete(self, path: str, query: Query = NO_QUERY) -> JsonObject:
        """DELETE `path` (GatewayError)."""
        return await self._ask("DELETE", path, query=query)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Query,
        raw: bytes | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> JsonObject:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        headers = {"Content-Type": "application/json"} if raw is not None else {}
        try:
            async with self._session.request(
                method, self._url + path, params=query, data=raw, headers=headers, timeout=timeout
            ) as answer:
                body = await _read_bounded(answer)
                status = answer.status
        except aiohttp.ClientConnectorCertificateError as error:
            raise not_trusted(self._url, _verdict(error)) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise unreachable(self._url, _reason(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unanswered(self._url, _reason(error)) from error
        return decode(self._url, status, body)


async def _read_bounded(answer: aiohttp.ClientResponse) -> bytes:
    import aiohttp

    whole = bytearray()
    async for chunk in answer.content.iter_any():
        whole += chunk
        if len(whole) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"its answer is over {ANSWER_BYTES_MAX} bytes")
    return bytes(whole)


def _verdict(error: aiohttp.ClientConnectorCertificateError) -> str:
    found = error.certificate_error
    return str(getattr(found, "verify_message", "") or found).splitlines()[0]


def _reason(error: BaseException) -> str:
    os_error = getattr(error, "os_error", None)
    if isinstance(os_error, OSError) and os_error.errno is not None and os_error.errno > 0:
        return os.strerror(os_error.errno).lower()
    return (str(error) or type(error).__name__).splitlines()[0]


def not_trusted(url: str, verdict: str) -> GatewayError:
    """Return the error for a certificate of nobody whom we trust."""
    text = f"{url} is not trusted: {verdict}; name its authority with --ca"
    return GatewayError(text, code="UNREACHABLE", outcome=Outcome.NOT_STORED, retry=Retry.NEVER)


def unreachable(url: str, reason: str) -> GatewayError:
    """Return the error for a gateway to which no connection came about."""
    text = f"cannot reach the gateway at {url}: {reason}; is `georelay up` running?"
    return GatewayError(text, code="UNREACHABLE", outcome=Outcome.NOT_STORED, retry=Retry.LATER)


def unanswered(url: str, reason: str) -> GatewayError:
    """Return the error for a request whose answer is lost."""
    text = f"the gateway at {url} did not answer: {reason}"
    return GatewayError(text, code="OUTCOME_UNKNOWN", outcome=Outcome.UNKNOWN, retry=Retry.LATER)


def decode(url: str, status: int, body: bytes) -> JsonObject:
    """Return the JSON object of a good answer, or raise what a problem document says."""
    try:
        document = json.loads(body) if body else {}
    except ValueError:
        document = None
    if status < 400 and isinstance(document, dict):
        return document
    if isinstance(document, dict) and isinstance(document.get("code"), str):
        raise GatewayError(
            str(document.get("detail") or document["code"]).replace("\n", " "),
            code=document["code"],
            outcome=_member(Outcome, document.get("outcome"), Outcome.UNKNOWN),
            retry=_member(Retry, document.get("retry"), Retry.NEVER),
        )
    raise GatewayError(
        f"what listens at {url} is not a georelay gateway (HTTP {status})",
        code="NOT_A_GATEWAY",
        outcome=Outcome.UNKNOWN,
        retry=Retry.NEVER,
    )


def _member(kind: type[_Member], value: object, otherwise: _Member) -> _Member:
    """Return the member of `kind` with that value; a newer gateway may say more than we know."""
    return next((member for member in kind if member.value == value), otherwise)
