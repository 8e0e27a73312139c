"""Commands of one line each, for a person with telnet: one line into one value. Pure.

A line is words between spaces or tabs; the command is written in any case. What a listener answers is its Language;
AUTH, HELP and QUIT are in each of them.

Rule: every refusal is a BadRequest whose text shows how the command is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from georelay.errors import BadRequest

SPACES: Final = re.compile(r"[ \t]+")
SHOWN_CHARS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH user password. Holds a secret: never log it."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Auth({self.user!r}, <secret>)"


@dataclass(frozen=True, slots=True)
class Help:
    """HELP."""


@dataclass(frozen=True, slots=True)
class Quit:
    """QUIT."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One command.

    Args:
        how: how it is written. what: what it does, for HELP.
        parse: returns its value for what follows the name, None where it is written otherwise; may raise BadRequest.
    """

    how: str
    what: str
    parse: Callable[[str], object | None]


class Language:
    """The commands that one listener knows, by name, in the order of HELP; `verbs` are its own."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs: dict[str, Verb] = {
            "AUTH": Verb("AUTH user password", "sign in", _auth),
            **verbs,
            "HELP": Verb("HELP", "show this", lambda _: Help()),
            "QUIT": Verb("QUIT", "close the connection", lambda rest: None if rest else Quit()),
        }

    def parse(self, line: bytes) -> object | None:
        """Return the command of a line, None for an empty one.

        Raises:
            BadRequest: not UTF-8, an unknown command, or one that is not written as it must be.
        """
        try:
            text = line.decode().strip(" \t")
        except UnicodeDecodeError as error:
            raise BadRequest(f"the line is not UTF-8 at byte {error.start}") from None
        if not text:
            return None
        word, *rest = SPACES.split(text, maxsplit=1)
        verb = self._verbs.get(word.upper())
        if verb is None:
            raise BadRequest(f"unknown command {word[:SHOWN_CHARS_MAX]!r}; HELP shows the commands")
        command = verb.parse(rest[0] if rest else "")
        if command is None:
            raise BadRequest(f"write it so: {verb.how}")
        return command

    def help(self) -> list[str]:
        """Return one line for each command."""
        width = max(len(verb.how) for verb in self._verbs.values())
        return [f"* {verb.how:<{width}} {verb.what}" for verb in self._verbs.values()]


def _auth(rest: str) -> Auth | None:
    user, *password = SPACES.split(rest, maxsplit=1)
    return Auth(user, password[0]) if password else None
