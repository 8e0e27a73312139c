"""Every command that README.md and docs/ name, taken out of the text. Pure.

A command stands alone on a line of a fenced block, behind `$ ` or not, or is a whole span of inline code. What begins
like one of PROGRAMS is a command; what a program prints never does. A synopsis is made concrete: `[--wait]` is taken,
`a|b` becomes two commands, and `TOPIC` becomes 1, which is a name and a number.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PROGRAMS: Final = ("georelay", "georelay-sla", "georelay-broker", "georelay-gateway", "python", "make", "curl")
PLACEHOLDER_VALUE: Final = "1"
_FOLDER: Final = r"(?:\.venv/bin/|georelay-env/bin/|/usr/local/bin/)?"
_PREFIX: Final = re.compile(rf"(?:\$ |# )?(?:ExecStart=)?(?:[A-Z][A-Z_]*=\S+ )*{_FOLDER}")
_PROGRAM: Final = re.compile(rf"(?:{'|'.join(PROGRAMS)})(?= |$)")
_COMMENT: Final = re.compile(r"\s{2,}(?!-|\\$).*|\s+#.*")
_PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z_]*(?::[A-Z_]+)*(?:\.\.\.)?")
_SHELL_END: Final = re.compile(r"\s(?:[<>|&]|2>).*")
_VARIANTS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Written:
    """One command: `words` without what the shell takes off, as a list of arguments of its program."""

    where: str
    text: str
    words: tuple[str, ...]
    is_fenced: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def commands_of(name: str, text: str) -> Iterator[Written]:
    """Return the commands of one document, with the lines where they stand."""
    lines = text.split("\n")
    fence = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        where = f"{name}:{number + 1}"
        number += 1
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.lstrip() or "```"
        elif not fence:
            for span in re.findall(r"`([^`]+)`", line):
                yield from _read(where, span.replace("\\|", "|"), is_fenced=False)
        else:
            while line.endswith("\\") and number < len(lines):
                line = f"{line[:-1].rstrip()} {lines[number].strip()}"
                number += 1
            yield from _read(where, line, is_fenced=True)


def _read(where: str, text: str, *, is_fenced: bool) -> Iterator[Written]:
    prefix = _PREFIX.match(text)
    rest = text[prefix.end() :] if prefix is not None else text
    if _PROGRAM.match(rest) is None:
        return
    shown = _COMMENT.sub("", rest.strip())
    bare = _SHELL_END.sub("", shown) if is_fenced else shown
    for words in _variants(_split(bare, where)):
        yield Written(where, shown, words, is_fenced)


def _split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise AssertionError(f"{where}: {text!r} is no command line: {error}") from error


def _variants(words: list[str]) -> list[tuple[str, ...]]:
    """Return the concrete command lines of a synopsis, or the one that stands there."""
    if words[0] == "curl":
        return [tuple(words)]
    choices = [_choices(word) for word in words]
    return [
        tuple(word for part in chosen for word in part)
        for chosen in itertools.islice(itertools.product(*choices), _VARIANTS_MAX)
    ]


def _choices(word: str) -> list[tuple[str, ...]]:
    bare = re.sub(r"(?<!\\)[\[\]]", "", word)
    if bare in ("...", "…"):
        return [()]
    parts = bare.split("|")
    if "=" in parts[0]:
        name, _, first = parts[0].partition("=")
        parts = [f"{name}={value}" for value in (first, *parts[1:])]
    return [
        (PLACEHOLDER_VALUE if _PLACEHOLDER.fullmatch(part) else part.removesuffix("...").removesuffix("…"),)
        for part in parts
    ]
