"""The body of one answer over HTTP, with a connection that is closed whatever the answer is.

urllib raises a refusal as an error that is the answer as well: its connection stays open until that is closed.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request


def body_of(request: urllib.request.Request | str, *, timeout_s: float, context: ssl.SSLContext | None = None) -> bytes:
    """Send a request of our own and return the body of its answer.

    Raises:
        urllib.error.HTTPError: refused; it is closed, and cannot be read any more. OSError: no answer.
    """
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:  # noqa: S310 - own URLs
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        refused.close()
        raise
