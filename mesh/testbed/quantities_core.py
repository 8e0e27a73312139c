"""Durations, rates and shares as people write them on a command line, as integers with the unit in their name.

Rule: what cannot be read, or is over a bound, is a ConfigError that shows the text and one right example.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from georelay.errors import ConfigError

DURATION_US_MAX: Final = 60_000_000
RATE_BITS_S_MAX: Final = 1_000_000_000_000
SHARE_PPM_MAX: Final = 1_000_000
_QUANTITY: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z%]*)")
_DURATIONS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000}
_RATES: Final = {"bit": 1, "kbit": 1_000, "mbit": 1_000_000, "gbit": 1_000_000_000}
_SHARES: Final = {"%": 10_000, "ppm": 1}


def parse_duration_us(text: str) -> int:
    """Return the microseconds in "70ms", "1.5s" or "200us" (0 to 60 s). Raises ConfigError."""
    return _parse(text, _DURATIONS, DURATION_US_MAX, "a duration up to 60s, such as 70ms")


def parse_rate_bits_s(text: str) -> int:
    """Return the bits per second in "50mbit", "1gbit" or "800kbit"; 0: no cap. Raises ConfigError."""
    return _parse(text, _RATES, RATE_BITS_S_MAX, "a rate, such as 50mbit")


def parse_share_ppm(text: str) -> int:
    """Return the parts per million in "1%", "0.1%" or "500ppm". Raises ConfigError."""
    return _parse(text, _SHARES, SHARE_PPM_MAX, "a share up to 100%, such as 1%")


def _parse(text: str, units: dict[str, int], largest: int, wanted: str) -> int:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is not None:
        factor = units.get(match[2]) if match[2] else (1 if Decimal(match[1]) == 0 else None)
        if factor is not None:
            value = Decimal(match[1]) * factor
            if value == int(value) and value <= largest:
                return int(value)
    raise ConfigError(f"{text[:40]!r} is not {wanted}")
