"""The regions that a client may use, best first, as a gateway ranked them; kept in a file for a start without gateway.

Rule 1: what is in the file decides where credentials go: it is read only when it is a plain file of this user that
        nobody else may write, and never when it is older than CACHE_AGE_S_MAX.
Rule 2: a file that cannot be read or written costs a slower start at most; it fails nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from georelay.library_log import log

CACHE_VERSION: Final = 1
CACHE_BYTES_MAX: Final = 64 * 1024
CACHE_AGE_S_MAX: Final = 7 * 86_400.0
REGIONS_MAX: Final = 64
ADDRESSES_MAX: Final = 256  # of one region
TTL_S: Final = 30.0
TTL_S_MIN: Final = 1.0
SPREAD_S_MAX: Final = 300.0
OTHERS_WHO_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAddresses:
    """gRPC addresses of one region; `name` is empty while unknown.

    `estimate_ms`, `error_ms`: round trip from this client and how wrong it may be; infinite: not known.
    """

    name: str
    grpc: tuple[str, ...]
    estimate_ms: float = math.inf
    error_ms: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a gateway answered, without the regions that cannot be used.

    Args:
        ttl_s: ask again after so long. spread_s: move at a random time within so long.
    """

    regions: tuple[RegionAddresses, ...]
    ttl_s: float = TTL_S
    spread_s: float = 0.0

    def addresses_of(self, region: str) -> tuple[str, ...]:
        """Return where a region answers, nothing when it is not among them."""
        return next((row.grpc for row in self.regions if row.name == region), ())


def ranking_of(document: Mapping[str, Any]) -> tuple[Ranking, tuple[str, ...]]:
    """Return the regions of a gateway's answer that are ready and have addresses, and the names of all.

    Raises:
        KeyError, TypeError, ValueError: it is not such an answer.
    """
    rows = list(document["regions"])[:REGIONS_MAX]
    found = tuple(
        RegionAddresses(
            name=str(row["region"]),
            grpc=tuple(str(address) for address in row["grpc"][:ADDRESSES_MAX]),
            estimate_ms=_number(row.get("estimate_ms")),
            error_ms=_number(row.get("error_ms")),
        )
        for row in rows
        if row["ready"] and row["grpc"]
    )
    return (
        Ranking(
            regions=found,
            ttl_s=max(TTL_S_MIN, float(document.get("ttl_s", TTL_S))),
            spread_s=min(SPREAD_S_MAX, max(0.0, float(document.get("reconnect_spread_ms", 0)) / 1000)),
        ),
        tuple(str(row["region"]) for row in rows),
    )


class RankingFile:
    """One file in `folder` for each URL. Blocking; a few kilobytes."""

    def __init__(self, folder: Path, url: str) -> None:
        self.path = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    def read(self, *, now_s: float) -> Ranking | None:
        """Return what was kept, None without anything that may be used (rule 1). `now_s`: since 1970."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    return None
                if status.st_mode & OTHERS_WHO_WRITE:
                    log.warning("ranking.not_trusted", path=str(self.path), reason="others may write it")
                    return None
                document = json.loads(file.read(CACHE_BYTES_MAX))
            if document["version"] != CACHE_VERSION or not 0 <= now_s - document["written_s"] <= CACHE_AGE_S_MAX:
                return None
            ranking, _ = ranking_of(document)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("ranking.unreadable", path=str(self.path), error=str(error))
            return None
        return ranking if ranking.regions else None

    def write(self, ranking: Ranking, *, now_s: float) -> None:
        """Keep a ranking; the file is there whole or not at all."""
        regions = [{"region": row.name, "ready": True, "grpc": list(row.grpc)} for row in ranking.regions]
        raw = json.dumps({"version": CACHE_VERSION, "written_s": int(now_s), "regions": regions}).encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=".ranking-")  # for this user alone
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(raw)
                Path(name).replace(self.path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    Path(name).unlink()
                raise
        except OSError as error:
            log.info("ranking.not_kept", path=str(self.path), error=str(error))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.inf
