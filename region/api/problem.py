"""RFC 9457 problem documents: how every error leaves over HTTP."""

from __future__ import annotations

import json
from typing import Final

from aiohttp import web

from georelay.errors import GeorelayError, Throttled, Unauthenticated

PROBLEM_JSON: Final = "application/problem+json"


def problem_body(*, code: str, status: int, detail: str, outcome: str, retry: str) -> bytes:
    """Return the JSON of one problem."""
    return json.dumps(
        {
            "type": f"urn:georelay:error:{code}",
            "title": code.replace("_", " ").capitalize(),
            "status": status,
            "detail": detail,
            "code": code,
            "outcome": outcome,
            "retry": retry,
        },
        ensure_ascii=False,
    ).encode("utf-8", "replace")  # a text may quote half of a surrogate pair, which JSON can spell and UTF-8 cannot


def problem_of(error: GeorelayError) -> bytes:
    """Return the JSON for an error of georelay.errors."""
    return problem_body(
        code=error.code,
        status=error.http_status,
        detail=str(error),
        outcome=error.outcome.value,
        retry=error.retry.value,
    )


def problem_response(error: GeorelayError) -> web.Response:
    """Return the response for an error of georelay.errors; 401 carries the challenge, 429 when to ask again."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Basic realm="georelay", charset="UTF-8"'
    if isinstance(error, Throttled):
        headers["Retry-After"] = str(error.retry_after_s)
    body = problem_of(error)
    return web.Response(status=error.http_status, body=body, content_type=PROBLEM_JSON, headers=headers)


def http_problem(error: web.HTTPException) -> web.Response:
    """Return aiohttp's own refusals (404 no such path, 405, 413) in the same form."""
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}.get(error.status, "BAD_REQUEST")
    body = problem_body(
        code=code, status=error.status, detail=error.text or error.reason, outcome="not_stored", retry="never"
    )
    allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return web.Response(status=error.status, body=body, content_type=PROBLEM_JSON, headers=allow)
