"""Where tables are printed: as wide as the terminal, and never cut when another program reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

PIPED_CHARS_PER_LINE: Final = 2_000  # rich takes 80 for what is no terminal and cuts cells to fit


def table_console() -> Console:
    """Return a console for standard output that shows every cell whole unless it is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_CHARS_PER_LINE)
