"""The JSON schema of report.json, made from the model; a test compares it with report.schema.json beside this file.

Source: JSON Schema, draft 2020-12.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import types
import typing
from importlib import resources
from typing import Any, Final

from sla.report.model import REPORT_SCHEMA_VERSION, Report

SCHEMA_FILE: Final = "report.schema.json"
_PLAIN: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def report_schema() -> dict[str, Any]:
    """Return the schema of the whole report."""
    definitions: dict[str, Any] = {}
    root = _schema_of(Report, definitions)
    definitions["Report"]["properties"]["schema_version"] = {"const": REPORT_SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"georelay service report, version {REPORT_SCHEMA_VERSION}",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """Return the text of the file."""
    return json.dumps(report_schema(), indent=2) + "\n"


def stored_schema_text() -> str:
    """Return what the file says."""
    return resources.files("sla.report").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return _object(typing.cast("type", kind), definitions)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema_of(part, definitions) for part in arguments]}
    if origin is tuple:
        assert arguments[1:] == (...,), kind  # the model has no tuples of fixed length
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    return {"type": "null"} if kind is type(None) else {"type": _PLAIN[kind]}


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}
        hints = typing.get_type_hints(kind)
        definitions[kind.__name__] = {
            "type": "object",
            "description": " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()),
            "properties": {name: _schema_of(hint, definitions) for name, hint in hints.items()},
            "required": list(hints),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
