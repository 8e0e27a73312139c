"""How tables of distances go through a region's pool: a page an answer, as brokers tell of each other. Pure.

A broker asks the gateways of its region for what they measured (OWN_QUERY), and gateways ask a broker for what those of
another region did (FAR_QUERY): who is in the pool has its key, and is trusted with where brokers are as well.

    question: after [" " region]     after: hexadecimal key of the last row that is known, or "-"; region: of FAR_QUERY
    answer: packed rows of mesh.distance.prefix_table_core behind that key, PAGE_ROWS of them, fewer on the last page
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from georelay.limits import REGION_NAME_CHARS_MAX
from mesh.distance.prefix_table_core import KEY_BYTES, ROW_BYTES, ROWS_MAX, PrefixTable, PrefixTableFault, key_of_page
from mesh.gossip.directory_core import PAGE_BYTES_MAX

OWN_QUERY: Final = "client-distances"
FAR_QUERY: Final = "region-distances"
PAGE_ROWS: Final = PAGE_BYTES_MAX // ROW_BYTES
PAGES_MAX: Final = ROWS_MAX // PAGE_ROWS + 1
_FIRST: Final = "-"
_QUESTION: Final = re.compile(rf"(-|[0-9a-f]{{{2 * KEY_BYTES}}})(?: ([a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}))?")


def question(after: bytes, region: str = "") -> bytes:
    """Return the question for the page behind a key, b"": for the first one."""
    return f"{after.hex() or _FIRST}{' ' if region else ''}{region}".encode()


def answer(payload: bytes, table_of: Callable[[str], PrefixTable | None]) -> bytes | None:
    """Return the page that is asked for; None: it is no question, or nobody knows anything.

    Args:
        table_of: the table of a region by its name; "": of who is asked.
    """
    found = _QUESTION.fullmatch(payload.decode("ascii", "replace"))
    table = None if found is None else table_of(found[2] or "")
    if found is None or table is None:
        return None
    return table.page(b"" if found[1] == _FIRST else bytes.fromhex(found[1]), PAGE_ROWS)


class PagesRead:
    """The pages of one table as they come. `after` is the key to ask for behind."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._pages = 0
        self.after = b""
        self.is_over = False

    def take(self, page: bytes) -> None:
        """Take in the next page. Raises PrefixTableFault: it is none, or there are too many."""
        self._pages += 1
        if len(page) > PAGE_ROWS * ROW_BYTES or len(page) % ROW_BYTES or self._pages > PAGES_MAX:
            raise PrefixTableFault(f"{len(page)} bytes are no page of a table, or one too many")
        if page and page[:KEY_BYTES] <= self.after:
            raise PrefixTableFault("the pages of a table are not in order")
        self._rows += page
        self.after = key_of_page(page) if page else self.after
        self.is_over = len(page) < PAGE_ROWS * ROW_BYTES

    def table(self) -> PrefixTable:
        """Return the table. Raises PrefixTableFault."""
        return PrefixTable.read_rows(bytes(self._rows))
