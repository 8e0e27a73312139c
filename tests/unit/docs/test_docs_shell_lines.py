"""Every line that documents tell to type is run by tests/e2e/docs, or stands in the table of those run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.e2e.docs.pages import PAGES
from tests.unit.docs.lines_run_elsewhere import ELSEWHERE
from tests.unit.docs.shell_lines import ShellLine, shell_lines
from tests.unit.docs.written_commands import commands_of

ROOT: Final = Path(__file__).resolve().parents[3]
LINES_MIN: Final = 190  # fewer: the documents are not read any more
PAGES_READ: Final = (
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "sdk/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)


def all_lines() -> list[ShellLine]:
    return [line for page in PAGES_READ for line in shell_lines(page.relative_to(ROOT).as_posix(), page.read_text())]


def test_each_line_to_type_is_run_or_has_a_reason_and_a_test_that_runs_it() -> None:
    lines = all_lines()
    assert len(lines) >= LINES_MIN
    prepared = {page.name for page in PAGES}
    nowhere = [str(line) for line in lines if line.page not in prepared and not any(row.has(line) for row in ELSEWHERE)]
    assert not nowhere, "\n".join(nowhere)


def test_each_row_of_what_is_run_elsewhere_is_of_a_line_and_names_a_test() -> None:
    lines = all_lines()
    stale = [
        f"{row.page}: {begins}" for row in ELSEWHERE for begins in row.begins if not _begun(lines, row.page, begins)
    ]
    assert not stale, "\n".join(stale)
    absent = [row.test for row in ELSEWHERE if not (ROOT / row.test).exists()]
    assert not absent, "\n".join(absent)


def test_each_page_that_is_prepared_has_a_line_to_run() -> None:
    lines = [line for line in all_lines() if not any(row.has(line) for row in ELSEWHERE)]
    assert {page.name for page in PAGES} == {line.page for line in lines}


def test_what_is_prepared_before_a_line_is_of_a_line() -> None:
    lines = all_lines()
    stale = [
        f"{page.name}: {begins}" for page in PAGES for begins in page.before if not _begun(lines, page.name, begins)
    ]
    assert not stale, "\n".join(stale)


def test_each_command_that_is_parsed_in_a_block_is_a_line_to_type() -> None:
    typed = {(line.page, line.number) for line in all_lines()}
    missed = [
        str(found)
        for page in PAGES_READ
        for found in commands_of(page.relative_to(ROOT).as_posix(), page.read_text())
        if found.is_fenced and "${STATE_DIRECTORY}" not in found.text  # of a unit of systemd
        if (found.where.rpartition(":")[0], int(found.where.rpartition(":")[2])) not in typed
    ]
    assert not missed, "\n".join(missed)


def test_a_line_goes_on_behind_a_backslash_and_ends_before_what_it_shows() -> None:
    text = (
        "```\n$ curl -d 1 \\\n    http://a   (explained)\n{}\n\n$ python - <<'E'\nprint(1)\nE\n1\n```\n`georelay up`\n"
    )
    first, second = shell_lines("page.md", text)
    assert (first.text, first.shown) == ("curl -d 1 http://a", ("{}",))
    assert (second.text, second.shown) == ("python - <<'E'\nprint(1)\nE", ("1",))


def _begun(lines: list[ShellLine], page: str, begins: str) -> bool:
    return any(line.page == page and line.text.startswith(begins) for line in lines)
