"""report.json: the model field by field, in a stable order. Its schema is made by sla.report.jsonschema."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any, Final

from sla.report.model import Report

_INDENT: Final = "  "


def to_json(report: Report) -> str:
    """Return the report as JSON text: one field per line, one line per list of plain values."""
    return _written(to_plain(report), "") + "\n"


def to_plain(value: Any) -> Any:
    """Return a value of the model as dictionaries, lists, strings, numbers, booleans and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def _written(value: Any, margin: str) -> str:
    inner = margin + _INDENT
    if isinstance(value, dict) and value:
        lines = (f"{inner}{json.dumps(key)}: {_written(item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _written(item, inner) for item in value) + f"\n{margin}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
