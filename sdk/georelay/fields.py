"""Strict reading of small JSON objects: every field is named, typed and bounded, and nothing is left over.

Rule 1: bytes over the limit, duplicate keys, floats, NaN and deep nesting are errors, never a surprise later.
Rule 2: the only exception that leaves this file is FieldError; its text names the field and the bound.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable
from typing import Final, NoReturn, TypeAlias, TypeVar

JsonObject: TypeAlias = dict[str, object]
E = TypeVar("E", bound=enum.StrEnum)

JSON_BYTES_MAX: Final = 512 * 1024  # a topology of 64 regions is the largest: about 60 KiB
INT64_MAX: Final = 2**63 - 1
_SURROGATE: Final = b"\\ud"  # how JSON spells one


class FieldError(ValueError):
    """A JSON object that is not what its reader expects."""


def _refuse_number(text: str) -> NoReturn:
    raise FieldError(f"number {text[:20]!r} is not an integer")


def _object_of(pairs: list[tuple[str, object]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FieldError("a JSON object names one field twice")
    return found


def parse_object(raw: bytes, *, bytes_max: int = JSON_BYTES_MAX) -> JsonObject:
    """Return the JSON object in `raw` (at most `bytes_max` bytes of UTF-8).

    Raises:
        FieldError: too long, not JSON, not an object, or holding a float or half of a surrogate pair.
    """
    if len(raw) > bytes_max:
        raise FieldError(f"{len(raw)} bytes of JSON are over {bytes_max}")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
            object_pairs_hook=_object_of,
        )
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:
        raise FieldError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FieldError("the JSON is not an object")
    if _SURROGATE in raw.lower():
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(value: JsonObject) -> None:
    """Half of a surrogate pair is JSON, but no text: what holds it could be read and never be written again."""
    try:
        dump_object(value)
    except UnicodeEncodeError as error:
        raise FieldError("not UTF-8: half of a surrogate pair") from error


def dump_object(value: JsonObject) -> bytes:
    """Return compact JSON with sorted keys: equal values give equal bytes."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


class Fields:
    """One JSON object being read; `done()` refuses what was not asked for."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise FieldError(f"{what} is not a JSON object")
        self._left: JsonObject = dict(value)
        self._what = what

    def _take(self, name: str) -> object:
        if name not in self._left:
            raise FieldError(f"{self._what} lacks the field {name!r}")
        return self._left.pop(name)

    def has(self, name: str) -> bool:
        """Return whether the field is there and not yet read."""
        return name in self._left

    def text(self, name: str, *, chars_max: int, chars_min: int = 0, pattern: re.Pattern[str] | None = None) -> str:
        """Take a string of `chars_min`..`chars_max` characters that matches `pattern` as a whole."""
        value = self._take(name)
        if not isinstance(value, str) or not chars_min <= len(value) <= chars_max:
            raise FieldError(f"{self._what}.{name} is not a string of {chars_min}..{chars_max} characters")
        if pattern is not None and pattern.fullmatch(value) is None:
            raise FieldError(f"{self._what}.{name} does not match {pattern.pattern}")
        return value

    def integer(self, name: str, *, low: int, high: int) -> int:
        """Take an integer of `low`..`high`."""
        value = self._take(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise FieldError(f"{self._what}.{name} is not an integer of {low}..{high}")
        return value

    def integers(self, name: str, *, count_max: int, low: int, high: int) -> list[int]:
        """Take a list of at most `count_max` integers of `low`..`high`."""
        return integers(self.items(name, count_max=count_max), f"{self._what}.{name}", low=low, high=high)

    def member(self, name: str, kind: type[E]) -> E:
        """Take the value of one member of a StrEnum."""
        text = self.text(name, chars_max=40)
        try:
            return kind(text)
        except ValueError as error:
            raise FieldError(f"{self._what}.{name}: {text!r} is not one of {', '.join(kind)}") from error

    def flag(self, name: str) -> bool:
        """Take true or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise FieldError(f"{self._what}.{name} is not true or false")
        return value

    def blob(self, name: str, *, size_bytes: int) -> bytes:
        """Take exactly `size_bytes` bytes, written as lower-case hex."""
        text = self.text(name, chars_max=2 * size_bytes, chars_min=2 * size_bytes, pattern=_HEX)
        return bytes.fromhex(text)

    def items(self, name: str, *, count_max: int) -> list[object]:
        """Take a list of at most `count_max` values; the caller reads each."""
        value = self._take(name)
        if not isinstance(value, list) or len(value) > count_max:
            raise FieldError(f"{self._what}.{name} is not a list of at most {count_max}")
        return value

    def child(self, name: str) -> Fields:
        """Take an object to read field by field."""
        return Fields(self._take(name), f"{self._what}.{name}")

    def value(self, name: str) -> object:
        """Take a value that another reader checks."""
        return self._take(name)

    def texts(self, *, count_max: int, name_chars_max: int, chars_max: int) -> tuple[tuple[str, str], ...]:
        """Take all that is left as (name, text) pairs, sorted by name."""
        names = sorted(self._left)
        if len(names) > count_max or any(len(name) > name_chars_max for name in names):
            raise FieldError(f"{self._what} has over {count_max} names or a name over {name_chars_max} characters")
        return tuple((name, self.text(name, chars_max=chars_max)) for name in names)

    def done(self) -> None:
        """Refuse fields that nobody asked for: a typing error or a newer writer must not pass unseen."""
        if self._left:
            raise FieldError(f"{self._what} has unknown fields: {_listed(self._left)}")


_HEX: Final = re.compile(r"[0-9a-f]*")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(repr(name[:40]) for name in names)[:8])


def integers(values: list[object], what: str, *, low: int, high: int) -> list[int]:
    """Check that every one of `values` is an integer of `low`..`high`."""
    checked = [
        value for value in values if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    ]
    if len(checked) != len(values):
        raise FieldError(f"{what} holds something else than integers of {low}..{high}")
    return checked
