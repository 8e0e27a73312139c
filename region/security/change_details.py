"""Values of a change as the audit log shows them: one text each, short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

NUMBERS_SHOWN_MAX: Final = 20


def shown_settings(settings: Mapping[str, str]) -> str:
    """Return settings as "retention.ms=1000, segment.bytes=2000", sorted."""
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def shown_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as "1, 2, 3", the first of many."""
    rows = list(numbers)
    more = f" and {len(rows) - NUMBERS_SHOWN_MAX} more" if len(rows) > NUMBERS_SHOWN_MAX else ""
    return ", ".join(map(str, rows[:NUMBERS_SHOWN_MAX])) + more


def shown_before(offset: int) -> str:
    """Return up to where records are deleted; a negative offset is whatever is committed (Kafka's -1)."""
    return str(offset) if offset >= 0 else "high watermark"
