"""Where a reader of a broker's traces is: a run of the broker and the number of the next row of one kind.

Positions of one broker and kind are a chain: the rows of a run by number, and runs in the order they were made. The
text is `boot/row`; `/0`, with no run, is before everything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

ROW_MAX: Final = 10**15 - 1
_TEXT: Final = re.compile(r"([0-9a-z]{0,32})/([0-9]{1,15})", re.ASCII)

# What a page of rows has beside the columns of its kind, and the key of its Arrow schema's metadata.
BOOT_COLUMN: Final = "trace_boot"
ROW_COLUMN: Final = "trace_row"
NEXT_KEY: Final = b"georelay.next"
PAGE_CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class TracePosition:
    """A place between two rows.

    Args:
        boot_id: names one run of the broker process, [0-9a-z]{1,32}; "" only in BEGINNING.
        row: number of the next row of the kind in that run, 0..ROW_MAX.
    """

    boot_id: str
    row: int

    def __str__(self) -> str:
        return f"{self.boot_id}/{self.row}"

    @classmethod
    def parse(cls, text: str) -> TracePosition:
        """Read the text form.

        Raises:
            ValueError: it is none.
        """
        match = _TEXT.fullmatch(text)
        if match is None or (not match[1] and int(match[2])):
            raise ValueError(f"{text[:60]!r} is no position such as 54b1c987107e/1200")
        return cls(match[1], int(match[2]))


BEGINNING: Final = TracePosition("", 0)
