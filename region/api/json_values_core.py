"""How many values a JSON text holds, told before anything is made of it: 16 MiB of `{},` are 5 million objects. Pure.

Rule: each value but the first follows a comma, or is the first of an object or an array, outside of strings; an empty
object or array counts as two. What is no JSON is not found out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from georelay.limits import KIB

WINDOW_BYTES: Final = 64 * KIB  # looked at without a pause: other threads have a turn in between


def values_at_most(text: bytes) -> int:
    """Return a number of values that `text` cannot exceed: what stands in its strings is taken for values too."""
    return 1 + sum(map(text.count, (b",", b"[", b"{")))


def has_more_values(text: bytes, most: int) -> bool:
    """Return whether `text` holds more than `most` values; looks no further than it has to."""
    count = 1
    for piece in _outside_strings(text):
        count += values_at_most(piece) - 1
        if count > most:
            return True
    return False


def _outside_strings(text: bytes) -> Iterator[bytes]:
    is_inside, rest = False, b""
    for start in range(0, len(text), WINDOW_BYTES):
        window = rest + text[start : start + WINDOW_BYTES]
        window = window.replace(b"\\\\", b"").replace(b'\\"', b"")  # in this order: runs of them pair from the left
        rest = b"\\" if window.endswith(b"\\") else b""  # what it escapes comes with the next window
        pieces = window.removesuffix(b"\\").split(b'"')
        yield b"".join(pieces[is_inside::2])
        is_inside ^= len(pieces) % 2 == 0
