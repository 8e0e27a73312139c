"""How a command ends when it cannot do its work: one line on stderr, never a traceback."""

from __future__ import annotations

from typing import Final

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # as shells report SIGINT


class CommandFailed(Exception):
    """Ends the command with `exit_code`; the text is the one line for the user."""

    def __init__(self, text: str, *, exit_code: int = EXIT_ERROR) -> None:
        super().__init__(text)
        self.exit_code = exit_code
