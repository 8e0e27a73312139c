"""Regular expressions of peers, matched with RE2: the dialect that Go's Serf uses, in time linear in the text.

Python's own engine can be made to run for hours by an expression of thirty characters.
"""

from __future__ import annotations

from typing import Final

TEXT_CHARS_MAX: Final = 1_024


def matches(expression: str, text: str) -> bool:
    """Return whether the expression matches somewhere in the text; an expression that is none matches nothing."""
    if len(text) > TEXT_CHARS_MAX:
        return False
    import pyarrow as pa  # heavy, and questions with expressions are rare
    import pyarrow.compute as pc

    try:
        return bool(pc.match_substring_regex(pa.scalar(text, pa.string()), pattern=expression).as_py())
    except pa.ArrowInvalid:
        return False
