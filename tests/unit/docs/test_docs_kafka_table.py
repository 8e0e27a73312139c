"""The table of APIs in docs/protocol/kafka.md is written by the code.

`pytest tests/unit/docs --rewrite -k kafka` writes it anew; the notes in its last column are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from georelay.wire.api import SUPPORTED, ApiKey, frame_bytes_max, is_flexible

Rows = Callable[[str], list[list[str]]]
HEAD = "| key | API | versions | flexible from | request bytes at most | notes |\n|---|---|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def row(key: ApiKey, versions: range, note: str) -> str:
    flexible = next((str(version) for version in versions if is_flexible(key, version)), "-")
    last = versions.stop - 1
    shown = str(last) if versions.start == last else f"{versions.start}-{last}"
    return f"| {int(key)} | {key.name} | {shown} | {flexible} | {frame_bytes_max(key)} | {note} |\n"


@pytest.fixture
def page(root: Path, request: pytest.FixtureRequest, table_rows: Rows) -> str:
    """The document, written anew first when that was asked for."""
    file = root / "docs/protocol/kafka.md"
    if request.config.getoption("--rewrite"):
        file.write_text(TABLE.sub(lambda _: generated(file.read_text(), table_rows), file.read_text()))
    return file.read_text()


def generated(page: str, table_rows: Rows) -> str:
    """Return the table as the code has it, with the notes of `page`."""
    found = TABLE.search(page)
    assert found is not None, "docs/protocol/kafka.md has no table of APIs"
    notes = {int(cells[0]): cells[5] for cells in table_rows(found[0])}
    return HEAD + "".join(row(key, versions, notes.get(int(key), "")) for key, versions in SUPPORTED.items())


def test_the_kafka_table_is_what_the_code_serves(page: str, table_rows: Rows) -> None:
    found = TABLE.search(page)
    assert found is not None
    assert found[0] == generated(page, table_rows)


def test_every_api_has_a_note_on_what_it_does_here(page: str, table_rows: Rows) -> None:
    found = TABLE.search(page)
    assert found is not None
    assert [cells[1] for cells in table_rows(found[0]) if len(cells[5]) < 8] == []
