"""How the live view talks to brokers and gateways: their HTTP answers, nothing of Spark.

Rule 1: credentials are named by file and read where they are used; they are in no option, log, error or offset.
Rule 2: a bearer token is sent over TLS or to this machine only, and no redirection is followed.
Rule 3: every wait and every answer is bounded: the wait for its next bytes, the answer as a whole, and what its rows
        take in memory.
Rule 4: what an answer says of others (addresses, names) is checked: a wrong one concerns that one and nobody else.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from georelay.errors import ConfigError, TracesExpired
from georelay.limits import MIB, REGION_NAME_CHARS_MAX
from georelay.tls import client_contexts
from georelay.trace.kinds import TraceKind
from georelay.trace.position import NEXT_KEY, TracePosition
from sla.errors import JobFailed, UsageError

ANSWER_S_MAX: Final = 10.0  # for a connection, and for the next bytes of an answer
WHOLE_ANSWER_S_MAX: Final = 60.0
JSON_BYTES_MAX: Final = 4 * MIB
PAGE_BYTES_MAX: Final = 128 * MIB
PAGE_TABLE_BYTES_MAX: Final = 1_024 * MIB  # of its rows, unpacked
TOKEN_BYTES_MAX: Final = 8_192
SHOWN_CHARS_MAX: Final = 300
_REGION: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")
_WRONG_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


class NotReached(Exception):
    """Nobody answered, or not now: the same request may succeed later."""


class NoTracesHere(NotReached):
    """Who answers serves no traces."""


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
        wait_s, whole_s: see ANSWER_S_MAX, WHOLE_ANSWER_S_MAX.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        *,
        wait_s: float = ANSWER_S_MAX,
        whole_s: float = WHOLE_ANSWER_S_MAX,
    ) -> None:
        parts = check_url(url)
        self.url = url
        self._host, self._port, self._is_tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self._credentials = credentials
        self._wait_s = wait_s
        self._whole_s = whole_s
        self._connection: http.client.HTTPConnection | None = None
        self._has_answered = False

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
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise NotReached(f"{self.url}{path} answers with something else than a JSON object")
        return found

    def writer(self) -> Broker | None:
        """Return who writes the traces that are served here, None when nobody does. Raises as `_get`."""
        found = self._needed("/v1/traces", {"kinds": TraceKind.OUTCOME.value})
        with understood(self.url):
            if not found["is_writing"]:
                return None
            region, gateway = found["region"], str(found.get("gateway", ""))
            if not _REGION.fullmatch(region):
                raise ValueError(f"region {region!r}")
            return Broker(name=f"{region}/{int(found['broker'])}", url=self.url, gateway=gateway)

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
            raise NoTracesHere(f"{self.url} serves no traces")
        try:
            table = _table(raw)
            return table, TracePosition.parse(table.schema.metadata[NEXT_KEY].decode())
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise NotReached(f"{self.url}{path} answers with something else than a page of rows: {error}") from error

    def _needed(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        found = self.json(path, query)
        if found is None:
            raise NoTracesHere(f"{self.url} serves no traces: an older broker, or no broker")
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
            with _cut_after(connection, self._whole_s):
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                status = answer.status
                raw = answer.read(bytes_max + 1)
            if len(raw) > bytes_max:
                raise http.client.HTTPException(f"an answer over {bytes_max} bytes")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NotReached(f"{self.url}: {_why(error)}{self._advice(error)}") from error
        self._has_answered = True
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

    def _advice(self, error: Exception) -> str:
        """Return what a connection may mean that ends before the first answer.

        With TLS 1.3 a client learns that its certificate is missing or refused after its own handshake is over, and
        often by nothing but the end of the connection.
        """
        is_ended = isinstance(error, (ConnectionError, ssl.SSLEOFError))
        if self._has_answered or not self._is_tls or not is_ended or isinstance(error, ConnectionRefusedError):
            return ""
        shown = self._credentials.cert_file
        if shown:
            return f"; perhaps it does not trust the certificate {shown} (--cert)"
        return "; perhaps it lets nobody in without a certificate: give --cert and --key"

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._is_tls:
                context = self._credentials.context()
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._wait_s, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._wait_s)
        if self._connection.sock is None:
            self._connection.connect()
        return self._connection


@contextlib.contextmanager
def _cut_after(connection: http.client.HTTPConnection, most_s: float) -> Iterator[None]:
    """End a connection that is still answering after `most_s`. Raises HTTPException instead of what comes of that."""
    sock = connection.sock
    is_cut = threading.Event()

    def cut() -> None:
        is_cut.set()
        with contextlib.suppress(OSError):  # it has ended
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which may be in the middle of a record

    timer = threading.Timer(most_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_cut.is_set():
            raise
    finally:
        timer.cancel()
    if is_cut.is_set():
        raise http.client.HTTPException(f"its answer takes longer than {most_s:g} s")


def _table(raw: bytes) -> Any:
    """Return the rows of a page. Raises ValueError: they are too large."""
    reader = pa.ipc.open_stream(raw)
    batches, size_bytes = [], 0
    for batch in reader:
        size_bytes += batch.nbytes
        if size_bytes > PAGE_TABLE_BYTES_MAX:
            raise ValueError(f"more than {PAGE_TABLE_BYTES_MAX} bytes of rows")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=reader.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker whose traces are read, or a gateway.

    Args:
        name: region/id, as `eu/2001`; of a gateway the number in the names of its files.
        gateway: its name, "" of a broker.
    """

    name: str
    url: str
    gateway: str = ""

    def kinds(self, asked: Iterable[TraceKind]) -> tuple[TraceKind, ...]:
        """Return those of some kinds that it serves."""
        return tuple(kind for kind in asked if not self.gateway or kind is TraceKind.OUTCOME)


def find_brokers(urls: Iterable[str], credentials: Credentials) -> tuple[dict[str, Broker], list[str]]:
    """Return who writes traces, by name, and one line for each address that did not answer.

    Args:
        urls: gateways, which name every broker of the mesh and may write traces themselves, or brokers.

    Raises:
        JobFailed, UsageError: an answer that no waiting mends.
    """
    addresses: dict[str, None] = {}
    gateways: dict[str, None] = {}
    silent: list[str] = []
    for url in urls:
        try:
            named = _addresses(url, credentials)
        except NotReached as error:
            silent.append(str(error))
            continue
        (addresses if named is None else gateways)[url] = None
        addresses.update(dict.fromkeys(named or ()))
    writers: dict[str, Broker] = {}
    for url in (*addresses, *gateways):
        if not _is_url(url):
            silent.append(f"a gateway names {url[:SHOWN_CHARS_MAX]!r}, which is no address")
            continue
        with contextlib.closing(Server(url, credentials)) as server:
            try:
                writer = server.writer()
                if writer is not None:
                    writers[writer.name] = writer
                elif url not in gateways:
                    silent.append(f"{url} keeps no traces: set trace_dir in its configuration")
            except NoTracesHere as error:
                if url not in gateways:  # an older one serves none
                    silent.append(str(error))
            except NotReached as error:
                silent.append(str(error))
    return writers, silent


def _addresses(url: str, credentials: Credentials) -> list[str] | None:
    """Return the brokers' URLs that a gateway names; None: it is no gateway."""
    with contextlib.closing(Server(url, credentials)) as server:
        document = server.json("/v1/resolve")
    if document is None:
        return None
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


def _is_url(url: str) -> bool:
    try:
        check_url(url)
    except UsageError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _why(error: Exception) -> str:
    """Return what went wrong on the way, and what to do about it where that is known."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        is_name = error.verify_code in _WRONG_NAME
        advice = "use a name or address that is in it" if is_name else "--ca must name the authority of this mesh"
        return f"its certificate is refused ({reason}): {advice}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection comes about ({(error.reason or text).lower().replace('_', ' ')})"
    return text


def _detail(raw: bytes) -> str:
    try:
        detail = json.loads(raw)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = "no reason given"
    return str(detail)[:SHOWN_CHARS_MAX]
