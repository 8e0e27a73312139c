"""What browsers may send to an HTTP listener: nothing on behalf of pages of other sites, but links that are followed.

A browser on an operator's machine reaches listeners on loopback and, where it remembers a password, any other; a page
of any site may let it send requests there. Programs (curl, the command line, clients) send none of these headers.

Rule 1: a request that comes from a page (`Origin`) is from the listener itself or from an allowed origin;
        `Sec-Fetch-Site`, which no page can set, must not say that it is another site's. That goes for reads too, an
        image's or a script's: they cost, and what they deliver counts as delivered. Only somebody who opens an address
        in a window of the browser may come from anywhere, to look.
Rule 2: whoever connected over loopback means this machine: `Host` is localhost, a loopback address, the machine's own
        name (Debian resolves it to 127.0.1.1), or the host of an allowed origin. Another name was made to point here
        (DNS rebinding), and would be "the same site" to a browser.
Sources: RFC 6454 (Origin), https://www.w3.org/TR/fetch-metadata/.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator

from georelay.errors import PolicyViolation

LOOKING: Final = frozenset({"GET", "HEAD"})
SAME_SITE: Final = frozenset({"same-origin", "none"})
SHOWN_CHARS_MAX: Final = 100


def _checked_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"{origin[:SHOWN_CHARS_MAX]!r} is no origin: scheme://host or scheme://host:port")
    return origin.lower()


Origin = Annotated[str, AfterValidator(_checked_origin)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserGuard:
    """Judges requests of one listener.

    Args:
        allowed_origins: "https://console.example.org": pages whose requests pass.
        machine_names: names of this machine in lower case.
    """

    allowed_origins: Collection[str] = ()
    machine_names: Collection[str] = field(default_factory=lambda: (socket.gethostname().lower(),))

    def check(self, method: str, headers: Mapping[str, str], *, is_on_loopback: bool, scheme: str) -> None:
        """Pass, or raise.

        Args:
            headers: of the request, found whatever their case. is_on_loopback: whether it came in over loopback.
            scheme: "http" or "https", as the listener is.

        Raises:
            PolicyViolation: the request is another site's; nothing was done.
        """
        host = headers.get("Host", "")
        if is_on_loopback and not self._means_this_machine(host):
            raise PolicyViolation(f"Host: {host[:SHOWN_CHARS_MAX]!r} is not this machine; see http_allowed_origins")
        if method in LOOKING and _is_opened(headers):
            return
        origin = headers.get("Origin", "").lower()
        if origin in self.allowed_origins:
            return
        site = headers.get("Sec-Fetch-Site", "none").lower()
        if site not in SAME_SITE or (origin and origin != f"{scheme}://{host.lower()}"):
            shown = origin[:SHOWN_CHARS_MAX] or site[:SHOWN_CHARS_MAX]
            raise PolicyViolation(f"requests of pages of {shown!r} are not taken; see http_allowed_origins")

    def _means_this_machine(self, host: str) -> bool:
        name = _name_of(host)
        if (
            not name
            or name in self.machine_names
            or name == "localhost"
            or name.endswith(".localhost")
            or _is_loopback(name)
        ):
            return True  # without a name nobody was misled: HTTP/1.0, or a program
        return name in {urlsplit(origin).hostname for origin in self.allowed_origins}


def _is_opened(headers: Mapping[str, str]) -> bool:
    """Return whether the answer is for a window of the browser: a link was followed, an address was typed."""
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def is_loopback_address(address: object) -> bool:
    """Return whether a socket's own address ((host, port, ...), None unknown) is of the loopback interface."""
    return isinstance(address, tuple) and bool(address) and _is_loopback(str(address[0]))


def _name_of(host: str) -> str:
    """Return the host in "host", "host:port" or "[v6]:port", in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


@lru_cache(maxsize=256)  # of few addresses, asked for at every request
def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
