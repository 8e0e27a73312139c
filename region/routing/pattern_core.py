"""Patterns of topic names, as those of NATS subjects: `*` is one word, `>` at the end is one or more. Pure.

Words are what stands between dots: `orders.*.eu` matches `orders.new.eu`, `orders.>` matches `orders.new` and
`orders.new.eu`, but not `orders`.
"""

from __future__ import annotations

import re
from typing import Final

from georelay.limits import TOPIC_NAME_CHARS_MAX

ONE: Final = "*"
REST: Final = ">"
_WORD: Final = re.compile(r"[a-zA-Z0-9_-]+")


def pattern_error(pattern: str) -> str:
    """Return what is wrong with a pattern, "" when it is one."""
    if not 1 <= len(pattern) <= TOPIC_NAME_CHARS_MAX:
        return f"a pattern has 1..{TOPIC_NAME_CHARS_MAX} characters"
    words = pattern.split(".")
    for at, word in enumerate(words):
        if word == REST and at != len(words) - 1:
            return f"{REST!r} stands at the end of a pattern only"
        if word not in (ONE, REST) and _WORD.fullmatch(word) is None:
            return f"{word[:40]!r} is no word of a topic name, nor {ONE!r} or {REST!r}"
    return ""


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic's name is one that the pattern means."""
    wanted, words = pattern.split("."), topic.split(".")
    if wanted[-1] == REST:
        wanted = wanted[:-1]
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(
        expected in (ONE, word) for expected, word in zip(wanted, words, strict=True)
    )
