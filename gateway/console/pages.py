"""The console's files: read once, sent whole or compressed, never made per request.

Rule 1: a page may load scripts, styles and data of this gateway and nothing else; nobody may frame it, and no text
        becomes HTML (Trusted Types).
Rule 2: only what lies in the folder at the start is served: a name is looked up, never opened.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from aiohttp import web

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-cache",  # kept, and asked for by its tag each time: a new gateway has a new console
}
INDEX: Final = "index.html"
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One file."""

    raw: bytes
    packed: bytes
    content_type: str
    tag: str

    def answer(self, request: web.BaseRequest) -> web.Response:
        """Return the answer to a GET; 304 when the browser has it."""
        headers = {**HEADERS, "ETag": self.tag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == self.tag:
            return web.Response(status=304, headers=headers)
        body = self.raw
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = self.packed
        return web.Response(body=body, content_type=self.content_type, charset="utf-8", headers=headers)


def load_pages() -> dict[str, Page]:
    """Return every file of the console by its name."""
    found = {}
    for file in files("gateway.console").joinpath("static").iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            raw = file.read_bytes()
            found[file.name] = Page(
                raw=raw,
                packed=gzip.compress(raw, mtime=0),
                content_type=content_type,
                tag=f'"{hashlib.sha256(raw).hexdigest()[:32]}"',
            )
    return found
