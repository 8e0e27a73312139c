"""How the live view talks to brokers and gateways: their HTTP answers, nothing of Spark.

Rule 1: credentials are named by file and read where they are used; they are in no option, log, error or offset.
Rule 2: a bearer token is sent over TLS or to this machine only, and no redirection is followed.
Rule 3: every wait and every answer is bounded.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from georelay.errors import ConfigError, TracesExpired
from georelay.limits import MIB
from georelay.tls import client_contexts
from georelay.trace.position import NEXT_KEY, TracePosition
from georelay.trace.schema import TraceKind
from sla.errors import JobFailed, UsageError

ANSWER_S_MAX: Final = 10.0
JSON_BYTES_MAX: Final = 4 * MIB
PAGE_BYTES_MAX: Final = 128 * MIB
TOKEN_BYTES_MAX: Final = 8_192
SHOWN_CHARS_MAX: Final = 300


class NotReached(Exception):
    """Nobody answered, or not now: the same request may succeed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What is shown to brokers, by file.

    Args:
        token_file: its first line is a bearer token.
        ca_file: whom to trust over https; "" the system's authorities.
        cert_file, key_file: shown to brokers that ask for a certificate.
    """

    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def check(self) -> None:
        """Read everything once. Raises UsageError."""
        self.token()
        self.context()

    def token(self) -> str:
        """Return the token, "" without a file. Raises UsageError."""
        if not self.token_file:
            return ""
        try:
            with open(self.token_file, "rb") as file:
                raw = file.read(TOKEN_BYTES_MAX)
            token = raw.decode("ascii").split("\n", 1)[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise UsageError(f"--token-file {self.token_file}: {reason}") from None
        if not token or any(character.isspace() for character in token):
            raise UsageError(f"--token-file {self.token_file}: its first line must be the token and nothing else")
        return token

    def context(self) -> ssl.SSLContext:
        """Return what https is dialed with. Raises UsageError."""
        files = {
            name: Path(path) if path else None
            for name, path in (("ca", self.ca_file), ("cert", self.cert_file), ("key", self.key_file))
        }
        try:
            return client_contexts(**files, name="live").client()
        except ConfigError as error:
            raise UsageError(str(error)) from error


class Server:
    """One broker or gateway over HTTP; keeps its connection. For one thread at a time.

    Args:
        url: http(s)://host:port.
    """

    def __init__(self, url: str, credentials: Credentials, *, wait_s: float = ANSWER_S_MAX) -> None:
        parts = check_url(url)
        self.url = url
        self._host, self._port, self._is_tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self._credentials = credentials
        self._wait_s = wait_s
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def json(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Return the object at a path, None when there is no such path. Raises as `_get`."""
        raw = self._get(path, query or {}, bytes_max=JSON_BYTES_MAX)
        if raw is None:
            return None
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NotReached(f"{self.url}{path} answers with something else than a JSON object")
        return found

    def name(self) -> str:
        """Return the broker's name as region/id, "" when it writes no traces. Raises as `_get`."""
        found = self._needed("/v1/traces", {"kinds": TraceKind.PROBE.value})
        with understood(self.url):
            return f"{found['region']}/{int(found['broker'])}" if found["is_writing"] else ""

    def positions(self, kind: TraceKind) -> tuple[TracePosition, TracePosition]:
        """Return the oldest and the latest position of a kind. Raises as `_get`."""
        found = self._needed("/v1/traces", {"kinds": kind.value})
        with understood(self.url):
            positions = found["kinds"][kind.value]
            return TracePosition.parse(positions["oldest"]), TracePosition.parse(positions["latest"])

    def reach(
        self, kind: TraceKind, start: TracePosition, *, rows: int | None, until: TracePosition | None
    ) -> tuple[TracePosition, bool]:
        """Return where `rows` rows (None: as many as one answer reaches) end, and whether there are more."""
        query = {"from": str(start)}
        if rows is not None:
            query["rows"] = str(rows)
        if until is not None:
            query["until"] = str(until)
        found = self._needed(f"/v1/traces/{kind.value}/end", query)
        with understood(self.url):
            return TracePosition.parse(found["end"]), bool(found["has_more"])

    def page(self, kind: TraceKind, start: TracePosition, until: TracePosition) -> tuple[Any, TracePosition]:
        """Return a page as an Arrow table, and the position behind it. Raises as `_get`."""
        path = f"/v1/traces/{kind.value}"
        raw = self._get(path, {"from": str(start), "until": str(until)}, bytes_max=PAGE_BYTES_MAX)
        if raw is None:
            raise NotReached(f"{self.url} serves no traces")
        try:
            table = pa.ipc.open_stream(raw).read_all()
            return table, TracePosition.parse(table.schema.metadata[NEXT_KEY].decode())
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise NotReached(f"{self.url}{path} answers with something else than a page of rows: {error}") from error

    def _needed(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        found = self.json(path, query)
        if found is None:
            raise NotReached(f"{self.url} serves no traces: an older broker, or no broker")
        return found

    def _get(self, path: str, query: Mapping[str, str], *, bytes_max: int) -> bytes | None:
        """Return the body of the answer, None for 404.

        Raises:
            NotReached: no answer, or one that says to come again.
            TracesExpired: the rows were deleted.
            JobFailed: the request is refused; the text says why.
        """
        target = path + (f"?{urlencode(query, quote_via=quote, safe='/,')}" if query else "")
        headers = {"Accept-Encoding": "identity"}
        token = self._credentials.token()
        if token:
            if not self._is_tls and not is_loopback(self._host):
                raise UsageError(f"{self.url}: a token is sent over https or to this machine only")
            headers["Authorization"] = f"Bearer {token}"
        try:
            connection = self._connected()
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            status = answer.status
            raw = answer.read(bytes_max + 1)
            if len(raw) > bytes_max:
                raise http.client.HTTPException(f"an answer over {bytes_max} bytes")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NotReached(f"{self.url}: {error or type(error).__name__}") from error
        if status == 200:
            return raw
        if status == 404:
            return None
        detail = _detail(raw)
        if status == TracesExpired.http_status:
            raise TracesExpired(f"{self.url}: {detail}")
        if status in (429, 503, 502, 504, 500):
            raise NotReached(f"{self.url} answers {status}: {detail}")
        raise JobFailed(f"{self.url}{path} answers {status}: {detail}")

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._is_tls:
                context = self._credentials.context()
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._wait_s, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._wait_s)
        return self._connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker whose traces are read. `name` is region/id, as `eu/2001`."""

    name: str
    url: str


def find_brokers(urls: Iterable[str], credentials: Credentials) -> tuple[dict[str, Broker], list[str]]:
    """Return the brokers that write traces, by name, and one line for each address that did not answer.

    Args:
        urls: gateways, which name every broker of the mesh, or brokers.

    Raises:
        JobFailed, UsageError: an answer that no waiting mends.
    """
    addresses: dict[str, None] = {}
    silent: list[str] = []
    for url in urls:
        try:
            addresses.update(dict.fromkeys(_addresses(url, credentials)))
        except NotReached as error:
            silent.append(str(error))
    brokers: dict[str, Broker] = {}
    for url in addresses:
        with contextlib.closing(Server(url, credentials)) as server:
            try:
                name = server.name()
                if name:
                    brokers[name] = Broker(name=name, url=url)
                else:
                    silent.append(f"{url} keeps no traces: set trace_dir in its configuration")
            except NotReached as error:
                silent.append(str(error))
    return brokers, silent


def _addresses(url: str, credentials: Credentials) -> list[str]:
    """Return the brokers' URLs that a gateway names; of a broker its own."""
    with contextlib.closing(Server(url, credentials)) as server:
        document = server.json("/v1/resolve")
    if document is None:
        return [url]
    scheme = url.partition("://")[0]
    with understood(url):
        return [f"{scheme}://{address}" for region in document["regions"] for address in region["http"]]


@contextlib.contextmanager
def understood(url: str) -> Iterator[None]:
    """Turn what is raised over an answer of another form into NotReached."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise NotReached(f"{url} answers with something that is not understood: {error!r}"[:SHOWN_CHARS_MAX]) from error


def check_url(url: str) -> Any:
    """Return the parts of http(s)://host:port. Raises UsageError."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        is_right = False
    if not is_right or parts.path.strip("/") or parts.query or parts.username is not None:
        raise UsageError(f"{url[:SHOWN_CHARS_MAX]!r} is no http://host:port or https://host:port")
    return parts


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _detail(raw: bytes) -> str:
    try:
        detail = json.loads(raw)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = "no reason given"
    return str(detail)[:SHOWN_CHARS_MAX]
