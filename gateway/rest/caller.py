"""In whose name a request is answered: its own `authorization`, or that of the session that its cookie names."""

from __future__ import annotations

from typing import Final

from aiohttp import web

AUTHORIZATION: Final = web.RequestKey("authorization", str)  # of a session, see gateway.console.console_http


def authorization_of(request: web.BaseRequest) -> str | None:
    """Return the credentials of a request, None when it has none."""
    of_session = request.get(AUTHORIZATION)
    return of_session if of_session is not None else request.headers.get("Authorization")
