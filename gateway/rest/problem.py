"""RFC 9457 problem documents: the one form in which an error leaves over HTTP."""

from __future__ import annotations

import json
from typing import Final

from aiohttp import web

from georelay.errors import GeorelayError, Outcome, Retry, Unauthenticated

PROBLEM_JSON: Final = "application/problem+json"
CHALLENGE: Final = 'Basic realm="georelay", charset="UTF-8"'
_HTTP_CODES: Final = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}


def problem_response(error: GeorelayError) -> web.Response:
    """Return the answer for an error of georelay.errors; 401 carries the challenge."""
    headers = {"WWW-Authenticate": CHALLENGE} if isinstance(error, Unauthenticated) else {}
    return _response(
        status=error.http_status,
        code=error.code,
        detail=str(error),
        outcome=error.outcome,
        retry=error.retry,
        headers=headers,
    )


def http_problem(error: web.HTTPException) -> web.Response:
    """Return aiohttp's own refusals (no such path, wrong method) in the same form."""
    allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return _response(
        status=error.status,
        code=_HTTP_CODES.get(error.status, "BAD_REQUEST"),
        detail=error.text or error.reason,
        outcome=Outcome.NOT_STORED,
        retry=Retry.NEVER,
        headers=allow,
    )


def defect_problem() -> web.Response:
    """Return the answer for a defect of ours: its text stays in the log, and nothing is promised."""
    return _response(
        status=500,
        code=GeorelayError.code,
        detail="an error of the gateway itself; its log has the details",
        outcome=Outcome.UNKNOWN,
        retry=Retry.NEVER,
        headers={},
    )


def _response(
    *, status: int, code: str, detail: str, outcome: Outcome, retry: Retry, headers: dict[str, str]
) -> web.Response:
    document = {
        "type": f"urn:georelay:error:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
        "outcome": outcome.value,
        "retry": retry.value,
    }
    body = json.dumps(document, ensure_ascii=False).encode()
    return web.Response(status=status, body=body, content_type=PROBLEM_JSON, headers=headers)
