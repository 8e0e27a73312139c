"""Every line that README.md and docs/ tell to type into a shell, and what they show as its answer. Pure.

1. Such a line stands in a fenced block, begins with `$ `, or with a program of ours behind nothing but its folder and
   variables. What ends with a backslash goes on with the next line, and a here-document with all lines up to its end.
2. What is explained behind two spaces is not typed.
3. What follows up to the next such line, or the end of the block, is what the page shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_BARE: Final = re.compile(
    r"(?:[A-Z][A-Z_]*=\S+ )*(?:\.venv/bin/|georelay-env/bin/)?"
    r"(?:georelay(?:-\w+)?|python3?|pip|make|curl|kcat|openssl|echo|serf|spark-submit|git|touch|kill)(?= |$)"
)
_PROSE: Final = re.compile(r"georelay(?:-\w+)? text |georelay(?:-\w+)?:|georelay \d")
_EXPLAINED: Final = re.compile(r"\s{2,}(?:#.*|[(\w].*)$|\s+#\s.*$")
_HERE_DOCUMENT: Final = re.compile(r"<<'?(\w+)'?")
_NOT_SHELL: Final = ("python", "toml", "json", "mermaid", "proto", "ini")


@dataclass(frozen=True, slots=True)
class ShellLine:
    """One line to type, as it is typed, and the lines that the page shows below it."""

    page: str
    number: int
    text: str
    shown: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return f"{self.page}:{self.number}: {self.text}"


def shell_lines(page: str, text: str) -> Iterator[ShellLine]:
    """Return the lines of one document in their order."""
    lines = text.split("\n")
    number, is_fenced, language = 0, False, ""
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("```"):
            is_fenced, language = not is_fenced, line.strip("` ")
        elif is_fenced and language not in _NOT_SHELL and _is_typed(line):
            first = number
            typed, number = _whole(line.removeprefix("$ "), lines, number)
            shown, at = [], number
            while not lines[at].lstrip().startswith("```") and not _is_typed(lines[at]):
                shown.append(lines[at])
                at += 1
            yield ShellLine(page, first, typed, tuple(row for row in shown if row.strip()))


def _is_typed(line: str) -> bool:
    return line.startswith("$ ") or (_BARE.match(line) is not None and _PROSE.match(line) is None)


def _whole(line: str, lines: list[str], number: int) -> tuple[str, int]:
    """Return the line with what it goes on with, and the number of the line behind that."""
    while line.endswith("\\"):
        line = f"{line[:-1].rstrip()} {lines[number].strip()}"
        number += 1
    line = _EXPLAINED.sub("", line)
    here = _HERE_DOCUMENT.search(line)
    if here is not None:
        end = lines.index(here[1], number)
        line = "\n".join([line, *lines[number : end + 1]])
        number = end + 1
    return line, number
