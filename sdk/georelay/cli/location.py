"""Where the gateway is: the flags that every command has, and their order of precedence.

--gateway, then --endpoints, then GEORELAY_GATEWAY, then ./georelay-endpoints.json as `georelay up` writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.client.gateway_http import GatewayHttp

GATEWAY_VARIABLE: Final = "GEORELAY_GATEWAY"
USER_VARIABLE: Final = "GEORELAY_USER"
ENDPOINTS_FILE: Final = "georelay-endpoints.json"
ENDPOINTS_VERSION: Final = 1
ENDPOINTS_BYTES_MAX: Final = 1024 * 1024

GatewayOption = Annotated[
    str, typer.Option("--gateway", metavar="URL", help=f"Gateway, http://host:port (or {GATEWAY_VARIABLE}).")
]
EndpointsOption = Annotated[
    str, typer.Option("--endpoints", metavar="FILE", help="File written by `georelay up --endpoints FILE`.")
]
UserOption = Annotated[
    str, typer.Option("--user", metavar="NAME:PASSWORD", help=f"When the mesh has users (or {USER_VARIABLE}).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def open_gateway(gateway: str, endpoints: str, user: str) -> GatewayHttp:
    """Return the client that the flags and the environment name; needs a running event loop.

    Raises:
        CommandFailed: nothing names a gateway, or something does so wrongly.
    """
    url = gateway_url(gateway, endpoints, environ=os.environ, directory=Path())
    credentials = user or os.environ.get(USER_VARIABLE, "")
    if (credentials and not credentials.partition(":")[0]) or (credentials and ":" not in credentials):
        raise CommandFailed("--user must be NAME:PASSWORD", exit_code=EXIT_USAGE)
    return GatewayHttp(url, user=credentials)


def gateway_url(gateway: str, endpoints: str, *, environ: Mapping[str, str], directory: Path) -> str:
    """Return the gateway's URL (CommandFailed as above)."""
    if gateway:
        return _checked(gateway, "--gateway")
    if endpoints:
        return _from_endpoints(Path(endpoints))
    if environ.get(GATEWAY_VARIABLE):
        return _checked(environ[GATEWAY_VARIABLE], GATEWAY_VARIABLE)
    if (directory / ENDPOINTS_FILE).exists():
        return _from_endpoints(directory / ENDPOINTS_FILE)
    raise CommandFailed(
        f"which mesh? give --gateway URL, --endpoints FILE or {GATEWAY_VARIABLE} (`georelay up` prints the URL)",
        exit_code=EXIT_USAGE,
    )


def _checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        valid = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/") and parts.port != 0
        )
    except ValueError:  # a port that is no number
        valid = False
    if not valid:
        raise CommandFailed(f"{source}: {url!r} is not http://host:port", exit_code=EXIT_USAGE)
    return url.rstrip("/")


def _from_endpoints(path: Path) -> str:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(ENDPOINTS_BYTES_MAX))
    except FileNotFoundError as error:
        raise CommandFailed(
            f"endpoints file {path} does not exist; `georelay up` writes it when the mesh is ready"
        ) from error
    except OSError as error:
        raise CommandFailed(f"endpoints file {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(f"endpoints file {path} is not JSON") from error
    if not isinstance(document, dict) or document.get("version") != ENDPOINTS_VERSION:
        raise CommandFailed(f"endpoints file {path} is not one of `georelay up` (version {ENDPOINTS_VERSION})")
    gateway = document.get("gateway")
    addresses = gateway.get("http") if isinstance(gateway, dict) else None
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        raise CommandFailed(f"endpoints file {path} names no gateway address under gateway.http")
    address = addresses[0]
    return _checked(address if "://" in address else f"http://{address}", f"endpoints file {path}")
