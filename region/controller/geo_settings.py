"""Topic settings about regions: who must have a record before consumers see it, how far mirrors may lag, failover.

Rule 1: they stand in a definition's `config` in Kafka's words, so a definition of before stays what it was.
Rule 2: the form of a value is judged by its row (topic_settings); that it fits the number of regions, where a topic is
        defined or altered.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

from georelay.errors import InvalidTopic
from georelay.fields import INT64_MAX
from georelay.limits import REGIONS_MAX

MIN_INSYNC_REGIONS: Final = "min.insync.regions"
MAX_GEO_LAG_MS: Final = "max.geo.lag.ms"
MAX_GEO_LAG_RECORDS: Final = "max.geo.lag.records"
FAILOVER: Final = "failover"
PROTECT_K: Final = "protect.k"
# Stands in a definition whose MIN_INSYNC_REGIONS, over 1, was raised at some time; nobody sets or sees it.
INSYNC_RAISED: Final = "min.insync.regions.raised"
_WHOLE: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class FailoverPolicy(enum.StrEnum):
    """Who moves the home of a topic whose region is lost."""

    MANUAL = "manual"
    AUTO = "auto"


# The bounds of the numbers; the lowest one is also the default: one region, no bound, nothing protected by promise.
NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    MIN_INSYNC_REGIONS: (1, REGIONS_MAX),
    MAX_GEO_LAG_MS: (0, INT64_MAX // 1_000_000),
    MAX_GEO_LAG_RECORDS: (0, INT64_MAX),
    PROTECT_K: (0, REGIONS_MAX),
}
GEO_DEFAULTS: Final[Mapping[str, str]] = {
    **{name: str(low) for name, (low, _) in NUMBERS.items()},
    FAILOVER: FailoverPolicy.MANUAL.value,
}


def number(config: tuple[tuple[str, str], ...], name: str) -> int:
    """Return a number of a definition; its default where it is not set, or was set by a newer broker to more."""
    low, high = NUMBERS[name]
    value = dict(config).get(name, "")
    return min(max(int(value), low), high) if _WHOLE.fullmatch(value) else low


def with_raise_noted(config: Mapping[str, str], *, before: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return an altered config; that it asks for more regions than `before` did is kept while it asks for several.

    Readers were shown more than a leader can tell that is elected after the change (region.geo.stream_geo).
    """
    rows = tuple(sorted(config.items()))
    asked, asked_before = number(rows, MIN_INSYNC_REGIONS), number(before, MIN_INSYNC_REGIONS)
    was_raised = asked > asked_before or INSYNC_RAISED in config
    others = {name: value for name, value in rows if name != INSYNC_RAISED}
    return tuple(sorted(({**others, INSYNC_RAISED: "true"} if was_raised and asked > 1 else others).items()))


def failover_of(config: tuple[tuple[str, str], ...]) -> FailoverPolicy:
    """Return the failover policy of a definition."""
    return FailoverPolicy.AUTO if dict(config).get(FAILOVER) == FailoverPolicy.AUTO else FailoverPolicy.MANUAL


def check_together(config: tuple[tuple[str, str], ...], *, regions: int) -> None:
    """Judge a topic's settings together, for a topic that `regions` regions hold.

    Raises:
        InvalidTopic: more regions than there are, or a protection that nobody waits for.
    """
    insync, protected = number(config, MIN_INSYNC_REGIONS), number(config, PROTECT_K)
    if insync > regions:
        raise InvalidTopic(
            f"setting {MIN_INSYNC_REGIONS}={insync}: {regions} region(s) hold the topic; use 1..{regions}"
        )
    if protected > insync:
        raise InvalidTopic(
            f"setting {PROTECT_K}={protected} is over {MIN_INSYNC_REGIONS}={insync}: a forced move can only keep what "
            "that many regions were waited for"
        )
