"""The console over HTTP: its files, signing in and out, and the overview.

    GET    /console/                 the page
    GET    /console/session          who is signed in: user, may they change anything, must anybody sign in
    POST   /console/session          {"user", "password"} or {"token"}, and "read_only": a session begins
    DELETE /console/session          it ends
    GET    /v1/overview[?after=V]    the mesh at one look; with the version that is known, the next one

Rule 1: what the page does are requests of the HTTP API that anybody may send; its cookie stands for `authorization`.
Rule 2: with the cookie alone nothing is changed: such a request has the session's token in a header as well.
Rule 3: to the page a refused sign-in is an answer and no challenge: browsers would ask by a window of their own.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.authentication import SignIn
from gateway.console.collector import Collector
from gateway.console.pages import INDEX, load_pages
from gateway.console.sessions import LIFE_S, Session, Sessions
from gateway.rest.caller import AUTHORIZATION, authorization_of
from georelay.errors import AccessDenied, BadRequest, PolicyViolation, TooLarge
from georelay.fields import FieldError, parse_object
from georelay.limits import KIB

TOKEN_HEADER: Final = "Georelay-Console"  # noqa: S105  (the name of the header)
SIGN_IN_BYTES_MAX: Final = 4 * KIB
VERSION_DIGITS_MAX: Final = 18
_SAFE: Final = frozenset({"GET", "HEAD"})


class ConsoleHttp:
    """Handlers and the two things done around every request.

    Args:
        mode: "on", "read_only": no session may change anything, "off": there is no console.
    """

    def __init__(self, *, collector: Collector, sessions: Sessions, sign_in: SignIn, mode: str = "on") -> None:
        self._collector = collector
        self._sessions = sessions
        self._sign_in = sign_in
        self._mode = mode
        self._pages = {} if mode == "off" else load_pages()

    async def redirect(self, _: web.Request) -> web.Response:
        """Send who typed /console to the page."""
        return web.Response(status=302, headers={"Location": "/console/"})

    async def page(self, request: web.Request) -> web.Response:
        """Answer with one file."""
        page = self._pages.get(request.match_info.get("file", INDEX))
        if page is None:
            raise web.HTTPNotFound(text="this gateway has no console" if self._mode == "off" else "no such file")
        return page.answer(request)

    async def overview(self, request: web.Request) -> web.Response:
        """Answer with the mesh at one look."""
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= VERSION_DIGITS_MAX):
            raise BadRequest("after: the version of an overview")
        body = await self._collector.overview(authorization_of(request), after=int(after))
        answer = web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})
        answer.enable_compression()
        return answer

    async def session(self, request: web.Request) -> web.Response:
        """Say who is signed in."""
        return self._shown(self._session_of(request))

    async def begin(self, request: web.Request) -> web.Response:
        """Begin a session. Raises Unauthenticated, BadRequest, Busy."""
        if self._mode == "off":
            raise web.HTTPNotFound(text="this gateway has no console")
        authorization, is_read_only = await _credentials(request)
        user = await self._sign_in.authenticate_header(authorization, request.remote or "")
        if not self._sign_in.required:
            raise BadRequest("nobody has to sign in at this mesh")
        cookie, session = self._sessions.begin(
            user=user, authorization=authorization, is_read_only=is_read_only or self._mode == "read_only"
        )
        answer = self._shown(session)
        answer.set_cookie(
            _cookie_name(request),
            cookie,
            max_age=int(LIFE_S),
            path="/",
            httponly=True,
            secure=request.get_extra_info("ssl_object") is not None,
            samesite="Strict",
        )
        return answer

    async def end(self, request: web.Request) -> web.Response:
        """End the session."""
        self._sessions.end(request.cookies.get(_cookie_name(request), ""))
        answer = web.Response(status=204)
        answer.del_cookie(_cookie_name(request), path="/")
        return answer

    @web.middleware
    async def act_for_session(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request with a session's cookie act with what the session signed in with."""
        if "Authorization" not in request.headers and not request.path.startswith("/console"):
            session = self._session_of(request)
            if session is not None:
                if request.method not in _SAFE:
                    _check_change(session, request.headers.get(TOKEN_HEADER, ""))
                request[AUTHORIZATION] = session.authorization
        return await handler(request)

    @staticmethod
    async def no_challenge(request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Take the challenge off answers to the page (signal on_response_prepare)."""
        if TOKEN_HEADER in request.headers:
            response.headers.popall("WWW-Authenticate", None)

    def _session_of(self, request: web.Request) -> Session | None:
        cookie = request.cookies.get(_cookie_name(request))
        return None if cookie is None else self._sessions.find(cookie)

    def _shown(self, session: Session | None) -> web.Response:
        is_read_only = self._mode == "read_only" or (session is not None and session.is_read_only)
        return web.json_response(
            {
                "sign_in_required": self._sign_in.required,
                "user": None if session is None else session.user,
                "read_only": is_read_only,
                "token": "" if session is None else session.token,
            },
            headers={"Cache-Control": "no-store"},
        )


def _check_change(session: Session, token: str) -> None:
    if session.is_read_only:
        raise AccessDenied("this session is read-only: sign in again to change something")
    if not session.may_change(token):
        raise PolicyViolation(f"a request that changes something needs the header {TOKEN_HEADER} of its session")


async def _credentials(request: web.Request) -> tuple[str, bool]:
    """Return (`authorization` for what a sign-in says, whether the session shall be read-only). Raises BadRequest."""
    raw = await request.content.read(SIGN_IN_BYTES_MAX + 1)
    if len(raw) > SIGN_IN_BYTES_MAX or not request.content.at_eof():
        raise TooLarge(f"a sign-in has at most {SIGN_IN_BYTES_MAX} bytes")
    try:
        fields: Any = parse_object(raw)
    except FieldError as error:
        raise BadRequest(str(error)) from error
    user, password, token = (fields.get(name, "") for name in ("user", "password", "token"))
    is_read_only = fields.get("read_only", False)
    if not all(isinstance(text, str) for text in (user, password, token)) or not isinstance(is_read_only, bool):
        raise BadRequest('send {"user": ..., "password": ...} or {"token": ...}, and "read_only": true or false')
    if token and token.isascii() and token.isprintable():
        return f"bearer {token}", is_read_only
    if not user or ":" in user:
        raise BadRequest("a user has a name, without a colon")
    return "basic " + base64.b64encode(f"{user}:{password}".encode()).decode(), is_read_only


def _cookie_name(request: web.Request) -> str:
    """Return a name of this listener's own: cookies do not tell ports of one host from each other."""
    address = request.get_extra_info("sockname")
    port = address[1] if isinstance(address, tuple) and len(address) > 1 else 0
    return f"georelay-session-{port}"
