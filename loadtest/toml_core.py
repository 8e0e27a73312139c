"""A document as TOML. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(document: Mapping[str, Any]) -> str:
    """Return a document as TOML, a line for each key; tables stand inline, those of a list on a line each."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in document.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        between = ",\n    " if any(isinstance(item, Mapping) for item in value) else ", "
        return "[" + between.join(map(_value, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)  # numbers, booleans and texts: but for DEL, what JSON writes is TOML
    return text.replace("\x7f", "\\u007f")
