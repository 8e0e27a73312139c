"""In whose name a request is answered (its own `authorization`, or that of the session that its cookie names), and who
asks: a client by the name that it gives itself."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.routing.client_book_core import NAME_CHARS_MAX, NAME_HEADER, ClientKey

AUTHORIZATION: Final = web.RequestKey("authorization", str)  # of a session, see gateway.console.console_http


def authorization_of(request: web.BaseRequest) -> str | None:
    """Return the credentials of a request, None when it has none."""
    of_session = request.get(AUTHORIZATION)
    return of_session if of_session is not None else request.headers.get("Authorization")


def client_of(request: web.BaseRequest) -> ClientKey:
    """Return who asks: the name it gives itself in a header, at the address it asks from."""
    return ClientKey(request.headers.get(NAME_HEADER, "")[:NAME_CHARS_MAX], request.remote or "")
