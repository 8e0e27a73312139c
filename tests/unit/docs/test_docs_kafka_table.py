"""The tables of APIs and of topic settings in docs/protocol/kafka.md are written by the code.

`pytest tests/unit/docs --rewrite -k kafka` writes them anew; the notes in the last column of the APIs are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from georelay.wire.api import SUPPORTED, ApiKey, frame_bytes_max, is_flexible
from region.controller.topic_settings import TOPIC_SETTINGS, Change, Effect, Setting, SettingType

Rows = Callable[[str], list[list[str]]]
HEAD = "| key | API | versions | flexible from | request bytes at most | notes |\n|---|---|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")
SETTINGS_HEAD = "| setting | default | values | here | what it does, or what to use |\n|---|---|---|---|---|\n"
SETTINGS = re.compile(re.escape(SETTINGS_HEAD) + r"(\|.*\n)*")


def row(key: ApiKey, versions: range, note: str) -> str:
    flexible = next((str(version) for version in versions if is_flexible(key, version)), "-")
    last = versions.stop - 1
    shown = str(last) if versions.start == last else f"{versions.start}-{last}"
    return f"| {int(key)} | {key.name} | {shown} | {flexible} | {frame_bytes_max(key)} | {note} |\n"


def settings_table() -> str:
    """Return the table of topic settings as the code has it."""
    return SETTINGS_HEAD + "".join(map(setting_row, TOPIC_SETTINGS.values()))


def setting_row(row: Setting) -> str:
    here = str(row.effect) + ("; at creation only" if row.change is Change.AT_CREATION else "")
    default = f"`{row.default}`" if row.default else "empty"
    return f"| `{row.name}` | {default} | {values_of(row)} | {here} | {row.text} |\n"


def values_of(row: Setting) -> str:
    if row.effect is Effect.REFUSED:
        return f"`{row.default}`"
    match row.type:
        case SettingType.BOOLEAN:
            return "`true`, `false`"
        case SettingType.INT | SettingType.LONG:
            return f"{row.low}..{row.highest}"
        case SettingType.DOUBLE:
            return "0..1"
        case _:
            words = ", ".join(f"`{word}`" for word in row.words) or "any"
            return f"list of {words}" if row.type is SettingType.LIST else words


@pytest.fixture
def page(root: Path, request: pytest.FixtureRequest, table_rows: Rows) -> str:
    """The document, written anew first when that was asked for."""
    file = root / "docs/protocol/kafka.md"
    if request.config.getoption("--rewrite"):
        file.write_text(TABLE.sub(lambda _: generated(file.read_text(), table_rows), file.read_text()))
        file.write_text(SETTINGS.sub(lambda _: settings_table(), file.read_text()))
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


def test_the_table_of_topic_settings_is_what_the_code_does(page: str) -> None:
    found = SETTINGS.search(page)
    assert found is not None
    assert found[0] == settings_table()
