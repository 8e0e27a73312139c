"""Lines of a file as records: one line is one record, its key found as the flags say. Pure.

The end of line (LF or CRLF) is not part of the record. An empty line is a record with an empty value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from georelay.cli.failure import CommandFailed
from georelay.limits import RECORD_BATCH_BYTES_MAX

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024  # of lines; base64 and JSON around them stay below the body limit

JsonRecord = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """Where the key of a line is. At most one is set; neither: records have no key.

    Args:
        field: name of a field, every line being a JSON object; its text (or its JSON) is the key.
        separator: the key is what stands before its first occurrence, the value what stands after it.
    """

    field: str | None = None
    separator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBatch:
    """Consecutive lines that travel in one request; lines count from 1, `size_bytes` with ends of line."""

    first_line: int
    records: tuple[JsonRecord, ...]
    size_bytes: int

    @property
    def last_line(self) -> int:
        """Return the number of the last line."""
        return self.first_line + len(self.records) - 1


def batches(lines: Iterable[bytes], rule: KeyRule, *, records_max: int) -> Iterator[LineBatch]:
    """Yield the lines in order, at most `records_max` and REQUEST_BYTES_MAX at a time.

    Raises:
        CommandFailed: a line without its key or over the limit of a record; the text has its number.
    """
    records: list[JsonRecord] = []
    size_bytes, first_line = 0, 1
    for number, line in enumerate(lines, 1):
        if records and (len(records) == records_max or size_bytes + len(line) > REQUEST_BYTES_MAX):
            yield LineBatch(first_line=first_line, records=tuple(records), size_bytes=size_bytes)
            records, size_bytes, first_line = [], 0, number
        records.append(_record(line, number, rule))
        size_bytes += len(line)
    if records:
        yield LineBatch(first_line=first_line, records=tuple(records), size_bytes=size_bytes)


def _record(line: bytes, number: int, rule: KeyRule) -> JsonRecord:
    if len(line) > RECORD_BATCH_BYTES_MAX:
        raise CommandFailed(f"line {number}: over the limit of {RECORD_BATCH_BYTES_MAX} bytes for a record")
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if rule.field is not None:
        return {"key": _field_of(text, number, rule.field), **_encoded("value", text)}
    if rule.separator is not None:
        key, found, value = text.partition(rule.separator.encode())
        if not found:
            raise CommandFailed(f"line {number}: no separator {rule.separator!r} in it")
        return {**_encoded("key", key), **_encoded("value", value)}
    return _encoded("value", text)


def _field_of(text: bytes, number: int, name: str) -> str:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"line {number}: not JSON, so it has no field {name!r}") from error
    if not isinstance(document, dict) or document.get(name) is None:
        raise CommandFailed(f"line {number}: no field {name!r} in it")
    key = document[name]
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False, separators=(",", ":"))


def _encoded(field: str, raw: bytes) -> JsonRecord:
    """Return the field as text, or as base64 when it is not UTF-8."""
    try:
        return {field: raw.decode()}
    except UnicodeDecodeError:
        return {f"{field}_b64": base64.b64encode(raw).decode()}
