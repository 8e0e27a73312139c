"""Link overrides: `FROM:TO:N=HOST:PORT` sends region FROM's links to broker N of region TO through another address.

For tests that put a forwarder between two regions and cut it. Given by flag, or kept in DIR/overrides.json as
{"links": {"us:eu:1": "127.0.0.1:9999"}}; a flag wins over the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from georelay.errors import ConfigError
from region.devmesh.plan_core import MeshPlan

LinkOverrides: TypeAlias = Mapping[tuple[str, str, int], str]  # (from region, to region, broker number) -> "host:port"
FILE_NAME: Final = "overrides.json"
_FORM: Final = re.compile(r"([a-z0-9-]+):([a-z0-9-]+):([1-9][0-9]{0,2})=([^\s:=]+:[0-9]{1,5})")


def parse_overrides(texts: Iterable[str], *, plan: MeshPlan) -> dict[tuple[str, str, int], str]:
    """Return the overrides in "us:eu:1=127.0.0.1:9999" texts.

    Raises:
        ConfigError: one that is malformed or names a region or broker that the mesh does not have.
    """
    brokers = {(broker.region, broker.number) for broker in plan.brokers}
    names = {region.name for region in plan.regions}
    overrides = {}
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError(f"--link-override: '{text}' is not FROM:TO:BROKER=HOST:PORT")
        source, target, number = match[1], match[2], int(match[3])
        if source not in names or (target, number) not in brokers:
            raise ConfigError(f"--link-override: '{text}' names a region or broker that this mesh does not have")
        overrides[source, target, number] = match[4]
    return overrides


def read_overrides(directory: Path) -> list[str]:
    """Return the overrides kept in the data directory, as texts; none when there is no file.

    Raises:
        ConfigError: the file cannot be read or has another form.
    """
    path = directory / FILE_NAME
    try:
        links = json.loads(path.read_bytes())["links"]
        return [f"{link}={address}" for link, address in links.items()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f'{path} is not {{"links": {{"us:eu:1": "host:port"}}}}') from error
