"""report.json: the model field by field, in a stable order."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

from sla.report.model import Report


def to_json(report: Report) -> str:
    """Return the report as JSON text."""
    return json.dumps(dataclasses.asdict(report), indent=2, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no place in report.json")
