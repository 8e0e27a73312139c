"""One request to a gateway without an event loop: commands that ask once answer in half the time so.

The rules are those of georelay.client.gateway_http, whose errors and answers these are.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from georelay.client.gateway_http import (
    ANSWER_BYTES_MAX,
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    JsonObject,
    Query,
    authorization,
    decode,
    not_trusted,
    unanswered,
    unreachable,
)

if TYPE_CHECKING:
    from georelay.tls import TlsContexts


class GatewayPlace(NamedTuple):
    """Where a gateway is and who asks; as GatewayHttp takes it."""

    url: str
    user: str
    token: str
    tls: TlsContexts | None


def ask_once(place: GatewayPlace, method: str, path: str, *, query: Query, body: object = None) -> JsonObject:
    """Return the answer to one request; `body` is sent as JSON unless it is None (GatewayError)."""
    url = place.url.rstrip("/")
    headers = authorization(place.user, place.token)
    raw = None
    if body is not None:
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        headers["Content-Type"] = "application/json"
    connection = _connection(url, place.tls)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        raise not_trusted(url, error.verify_message or str(error)) from error
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise unreachable(url, _reason(error)) from error
    try:
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        connection.request(method, _target(path, query), body=raw, headers=headers)
        answer = connection.getresponse()
        whole = answer.read(ANSWER_BYTES_MAX + 1)
        status = answer.status
    except (OSError, http.client.HTTPException) as error:
        raise unanswered(url, _reason(error)) from error
    finally:
        connection.close()
    if len(whole) > ANSWER_BYTES_MAX:
        raise unanswered(url, f"its answer is over {ANSWER_BYTES_MAX} bytes")
    return decode(url, status, whole)


def _target(path: str, query: Query) -> str:
    quoted = quote(path, safe="/%~:@!$&'()*+,;=")  # names in it are quoted already, or are region names
    return f"{quoted}?{urlencode(query)}" if query else quoted


def _connection(url: str, tls: TlsContexts | None) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context() if tls is None else tls.client()
        return http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_TIMEOUT_S, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=CONNECT_TIMEOUT_S)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (str(error) or type(error).__name__).splitlines()[0]
