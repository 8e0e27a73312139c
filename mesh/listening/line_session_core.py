"""One conversation in lines: what a line leads to. Pure.

    state     may say                                           goes to
    SIGN_IN   AUTH, HELP, QUIT                                  READY after a right AUTH, OVER after too many wrong ones
    READY     everything but AUTH                               OVER after QUIT or too many mistakes in a row
    OVER      nothing                                           -

Rule 1: every line that is not empty has exactly one answer: `OK ...` or `ERR CODE text`; lines that begin with `*`
        come before it.
Rule 2: an answer is one line, whatever stood in the request.
Rule 3: who has not signed in may send short lines only.
Rule 4: who begins with a request of HTTP is hung up on: a page of any site can let a browser send one here, with
        commands in its body.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from georelay.errors import BadRequest, GeorelayError, TooLarge, Unauthenticated
from georelay.limits import KIB
from mesh.listening.line_commands_core import Auth, Help, Language, Quit
from mesh.listening.line_core import Line, Overlong

LINE_BEFORE_SIGN_IN_BYTES_MAX: Final = 2 * KIB
MISTAKES_IN_A_ROW_MAX: Final = 20
SIGN_INS_MAX: Final = 3
_ANSWER_CHARS_MAX: Final = 600
_HTTP: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE) \S+ HTTP/")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class State(enum.Enum):
    """See the table."""

    SIGN_IN = "sign_in"
    READY = "ready"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Say:
    """Send one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """Do what the command says; its answer is said when it is done."""

    command: object


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close after what was said."""


Action = Say | Run | HangUp


class Session:
    """The state of one connection.

    Args:
        speaker: who answers, as the greeting says it, such as "region us broker 1001".
        line_bytes_max: the longest line after a sign-in.
    """

    def __init__(self, language: Language, *, sign_in_needed: bool, speaker: str, line_bytes_max: int) -> None:
        self.state = State.SIGN_IN if sign_in_needed else State.READY
        self._language = language
        self._speaker = speaker
        self._line_bytes_max = line_bytes_max
        self._mistakes = 0
        self._sign_ins = 0
        self._has_begun = False

    @property
    def line_bytes_max(self) -> int:
        """Return the longest line that is read now."""
        return LINE_BEFORE_SIGN_IN_BYTES_MAX if self.state is State.SIGN_IN else self._line_bytes_max

    def greeting(self) -> Say:
        """Return what is said first."""
        first = "AUTH user password" if self.state is State.SIGN_IN else "HELP"
        return Say(f"OK georelay text 1 {self._speaker}; begin with {first}")

    def line(self, line: Line) -> Sequence[Action]:
        """Return what a line leads to."""
        if self.state is State.OVER:
            return ()
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._may_be_http(line):
            self.state = State.OVER
            return [refusal(BadRequest("no request of HTTP, nor a first line that long, is taken here")), HangUp()]
        try:
            command = self._command(line)
        except GeorelayError as error:
            return self._mistake(error)
        if command is None:
            return ()
        self._mistakes = 0
        match command:
            case Help():
                return [*map(Say, self._language.help()), ok()]
            case Quit():
                self.state = State.OVER
                return [ok("bye"), HangUp()]
            case _:
                return [Run(command)]

    def _may_be_http(self, line: Line) -> bool:
        """Return whether a first line may be that of a request; one over the limit only where nobody has to sign in."""
        return self.state is State.READY if isinstance(line, Overlong) else _HTTP.match(line) is not None

    def _command(self, line: Line) -> object | None:
        if isinstance(line, Overlong):
            raise TooLarge(f"a line may have {self.line_bytes_max} bytes")
        command = self._language.parse(line)
        if self.state is State.SIGN_IN and not isinstance(command, Auth | Help | Quit | None):
            raise Unauthenticated("sign in first: AUTH user password")
        if self.state is State.READY and isinstance(command, Auth):
            raise BadRequest("nobody has to sign in here now")
        return command

    def _mistake(self, error: GeorelayError) -> Sequence[Action]:
        self._mistakes += 1
        if self._mistakes < MISTAKES_IN_A_ROW_MAX:
            return [refusal(error)]
        self.state = State.OVER
        return [refusal(error), Say("* too many mistakes in a row"), HangUp()]

    def signed_in(self, user: str) -> Sequence[Action]:
        """Return what follows a right AUTH."""
        self.state = State.READY
        return [ok(f"signed in as {user}")]

    def not_signed_in(self, error: GeorelayError) -> Sequence[Action]:
        """Return what follows a wrong AUTH, or one that could not be judged."""
        self._sign_ins += isinstance(error, Unauthenticated)
        if self._sign_ins < SIGN_INS_MAX:
            return [refusal(error)]
        self.state = State.OVER
        return [refusal(error), HangUp()]


def ok(tail: str = "") -> Say:
    """Return the answer of a success."""
    return Say(one_line(f"OK {tail}".rstrip()))


def refusal(error: GeorelayError, *, names_outcome: bool = False) -> Say:
    """Return the answer of a failure: its code, what became of the record where that was asked for, and what to do."""
    outcome = f"{error.outcome.value.upper()} " if names_outcome else ""
    return Say(one_line(f"ERR {error.code} {outcome}{error}"))


def one_line(text: str) -> str:
    """Return `text` without line ends and other control characters, cut to a length that a person reads."""
    return _UNPRINTABLE.sub("?", text[:_ANSWER_CHARS_MAX])
