"""The msgpack of Serf: strings and byte strings are the old "raw" family, structs are maps with CamelCase keys.

Rule 1: written are fixraw, raw16, raw32 only; never str8, bin or ext, which Go's old codec does not know.
Rule 2: nothing is built before its size is known to be allowed: arrays need an explicit limit, because msgpack
        reserves their slots at once (a nest of empty arrays would cost a thousand times its bytes).
Rule 3: a nil field is a missing field, as Go reads it. Unknown fields are ignored: newer versions add some.
Rule 4: integers may come signed or unsigned, in any width: the range of the VALUE is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

import msgpack

from mesh.gossip.faults import CodecError

_MAP_ENTRIES_MAX: Final = 64  # the largest struct of the protocol has 9 fields
_INT64_MAX: Final = 2**63 - 1
_MISSING: Final[Any] = object()
# What msgpack raises on foreign bytes; TypeError is an unhashable key of a map.
_MSGPACK_ERRORS: Final = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError, OverflowError)

D = TypeVar("D")


def pack(value: Mapping[str, object]) -> bytes:
    """Return the map of one struct; floats stay floats, ints take their shortest form."""
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


def read_map(raw: bytes | memoryview, *, array_max: int = 0, map_max: int = _MAP_ENTRIES_MAX) -> FieldMap:
    """Read exactly one map; anything behind it is an error.

    Args:
        raw: the struct's bytes.
        array_max: length of the longest array allowed inside; 0 for structs without arrays.
        map_max: entries of the largest map allowed.

    Raises:
        CodecError: no msgpack, no map, or beyond a limit.
    """
    try:
        value = msgpack.unpackb(
            raw, raw=True, strict_map_key=False, max_array_len=array_max, max_map_len=map_max, max_ext_len=0
        )
    except _MSGPACK_ERRORS as error:
        _refuse(error)
    return _as_map(value)


def read_maps(
    raw: bytes, count: int, *, offset: int = 0, array_max: int = 0, map_max: int = _MAP_ENTRIES_MAX
) -> tuple[list[FieldMap], int]:
    """Read `count` maps that stand back to back from `offset` on.

    Returns:
        the maps, and the position behind the last.
    """
    if count < 0 or count > len(raw) - offset:
        raise CodecError(f"{count} objects cannot stand in {len(raw) - offset} bytes")
    body = memoryview(raw)[offset:]
    unpacker = msgpack.Unpacker(
        raw=True,
        strict_map_key=False,
        max_buffer_size=max(1, len(body)),
        max_array_len=array_max,
        max_map_len=map_max,
        max_ext_len=0,
    )
    try:
        unpacker.feed(body)
        found = [_as_map(unpacker.unpack()) for _ in range(count)]
    except _MSGPACK_ERRORS as error:
        _refuse(error)
    return found, offset + unpacker.tell()


def _refuse(error: Exception) -> NoReturn:
    if isinstance(error, CodecError):
        raise error
    # The text of msgpack names sizes only, never the bytes.
    raise CodecError(f"not the msgpack of gossip: {str(error) or type(error).__name__}") from error


def _as_map(value: object) -> FieldMap:
    if not isinstance(value, dict):
        raise CodecError(f"a map is wanted, this is {type(value).__name__}")
    return FieldMap(value)


class FieldMap:
    """Typed reading of one struct's fields; every method raises CodecError and names the field."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[Any, Any]) -> None:
        self._fields = fields

    def has(self, name: str) -> bool:
        """Return whether the field is there and not nil."""
        return self._fields.get(name.encode()) is not None

    def _get(self, name: str, default: D) -> Any | D:
        value = self._fields.get(name.encode())
        if value is not None:
            return value
        if default is _MISSING:
            raise CodecError(f"field {name} is missing")
        return default

    def uint(self, name: str, *, bits: int = 32, default: int = _MISSING) -> int:
        """Return an integer of 0..2**bits - 1."""
        value = self._get(name, default)
        if type(value) is not int or not 0 <= value < 1 << bits:
            raise CodecError(f"field {name} is no unsigned integer of {bits} bits")
        return value

    def integer(self, name: str, *, default: int = _MISSING) -> int:
        """Return an integer of 64 bits with sign."""
        value = self._get(name, default)
        if type(value) is not int or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
            raise CodecError(f"field {name} is no integer of 64 bits")
        return value

    def flag(self, name: str, *, default: bool = _MISSING) -> bool:
        """Return a boolean."""
        value = self._get(name, default)
        if type(value) is not bool:
            raise CodecError(f"field {name} is no boolean")
        return value

    def text(self, name: str, *, limit: int = 128, default: str = _MISSING) -> str:
        """Return UTF-8 text of at most `limit` bytes."""
        value = self._get(name, default)
        return value if isinstance(value, str) else _text(value, name, limit)

    def raw(self, name: str, *, limit: int, default: bytes = _MISSING) -> bytes:
        """Return at most `limit` bytes."""
        return _raw(self._get(name, default), name, limit)

    def raw_or_none(self, name: str, *, limit: int) -> bytes | None:
        """Return at most `limit` bytes, or None where the field is nil or missing."""
        value = self._get(name, None)
        return None if value is None else _raw(value, name, limit)

    def real(self, name: str, *, default: float = _MISSING) -> float:
        """Return a finite float; Go never writes one as integer, others do."""
        return _real(self._get(name, default), name)

    def reals(self, name: str, *, count: int) -> tuple[float, ...]:
        """Return exactly `count` finite floats."""
        values = self._array(name, count)
        if len(values) != count:
            raise CodecError(f"field {name} has {len(values)} numbers, {count} are wanted")
        return tuple(_real(value, name) for value in values)

    def raws(self, name: str, *, limit: int, each_limit: int) -> tuple[bytes, ...]:
        """Return at most `limit` byte strings; nil is none."""
        return tuple(_raw(value, name, each_limit) for value in self._array(name, limit))

    def texts(self, name: str, *, limit: int, each_limit: int = 128) -> tuple[str, ...]:
        """Return at most `limit` texts; nil is none."""
        return tuple(_text(value, name, each_limit) for value in self._array(name, limit))

    def maps(self, name: str, *, limit: int) -> tuple[FieldMap | None, ...]:
        """Return at most `limit` structs, None where a slot is nil (Go sends arrays of pointers)."""
        return tuple(None if value is None else _as_map(value) for value in self._array(name, limit))

    def inner(self, name: str) -> FieldMap:
        """Return a struct in a field."""
        return _as_map(self._get(name, _MISSING))

    def text_uints(self, name: str, *, limit: int, key_limit: int = 128) -> dict[str, int]:
        """Return a map of at most `limit` texts to unsigned integers of 64 bits; nil is empty."""
        rows = self._map(name, limit)
        for value in rows.values():
            if type(value) is not int or not 0 <= value < 1 << 64:
                raise CodecError(f"field {name} holds something that is no unsigned integer")
        return {_text(key, name, key_limit): value for key, value in rows.items()}

    def text_texts(self, name: str, *, limit: int, each_limit: int) -> dict[str, str]:
        """Return a map of at most `limit` texts to texts; nil is empty."""
        rows = self._map(name, limit)
        return {_text(key, name, each_limit): _text(value, name, each_limit) for key, value in rows.items()}

    def as_texts(self, *, limit: int, each_limit: int) -> dict[str, str]:
        """Return the whole map as texts: it is no struct but a map of the sender's own keys."""
        if len(self._fields) > limit:
            raise CodecError(f"the map has {len(self._fields)} entries, {limit} are allowed")
        return {_text(key, "key", each_limit): _text(value, "value", each_limit) for key, value in self._fields.items()}

    def _array(self, name: str, limit: int) -> list[Any]:
        value: object = self._get(name, [])
        if not isinstance(value, list):
            raise CodecError(f"field {name} is no array")
        if len(value) > limit:
            raise CodecError(f"field {name} has {len(value)} elements, {limit} are allowed")
        return value

    def _map(self, name: str, limit: int) -> dict[Any, Any]:
        value: object = self._get(name, {})
        if not isinstance(value, dict):
            raise CodecError(f"field {name} is no map")
        if len(value) > limit:
            raise CodecError(f"field {name} has {len(value)} entries, {limit} are allowed")
        return value


def _raw(value: object, name: str, limit: int) -> bytes:
    if not isinstance(value, bytes):
        raise CodecError(f"field {name} is no byte string")
    if len(value) > limit:
        raise CodecError(f"field {name} has {len(value)} bytes, {limit} are allowed")
    return value


def _text(value: object, name: str, limit: int) -> str:
    try:
        return _raw(value, name, limit).decode()
    except UnicodeDecodeError as error:
        raise CodecError(f"field {name} is no UTF-8") from error


def _real(value: object, name: str) -> float:
    if type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise CodecError(f"field {name} is no finite number")
    return value
