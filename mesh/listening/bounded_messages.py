"""Protobuf messages of callers, read only when they are within bounds: two bytes can announce an object of a hundred.

Rule: fields are counted before anything is made of a message that could hold many. Bytes that are no message are left
to the parser, which refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from georelay.errors import BadRequest, TooLarge
from georelay.limits import GRPC_FIELDS_MAX, KIB

UNCOUNTED_BYTES_MAX: Final = 64 * KIB
VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

M = TypeVar("M")
Nested: TypeAlias = Mapping[int, "Nested"]  # what is inside the fields that are messages, by number


def reader_of(kind: type[M], *, bytes_max: int | None = None) -> Callable[[bytes], M]:
    """Return what makes a message of a type of protobuf out of bytes.

    What it returns raises:
        TooLarge: over `bytes_max`, or over GRPC_FIELDS_MAX fields. BadRequest: no message of that type.
    """
    of_type: Any = kind
    name = of_type.DESCRIPTOR.full_name
    nested, parse = nested_of(of_type.DESCRIPTOR), of_type.FromString

    def read(raw: bytes) -> M:
        if bytes_max is not None and len(raw) > bytes_max:
            raise TooLarge(f"a request of {len(raw)} bytes is over the limit of {bytes_max} here")
        if nested and len(raw) > UNCOUNTED_BYTES_MAX and has_more_fields(raw, nested, GRPC_FIELDS_MAX):
            raise TooLarge(f"the request has more than {GRPC_FIELDS_MAX} fields: send less in one")
        try:
            message: M = parse(raw)
        except DecodeError:
            raise BadRequest(f"the request is no {name}") from None
        return message

    return read


def nested_of(descriptor: Any) -> Nested:
    """Return the messages inside a type of protobuf (its DESCRIPTOR) that is not inside itself."""
    return {
        field.number: nested_of(field.message_type) for field in descriptor.fields if field.message_type is not None
    }


def has_more_fields(raw: bytes, nested: Nested, most: int) -> bool:
    """Return whether a message and those inside of it have more than `most` fields; looks no further than it has to."""
    count = 0
    waiting = [(0, len(raw), nested)]
    try:
        while waiting:
            at, end, inside = waiting.pop()
            while at < end:
                count += 1
                if count > most:
                    return True
                tag, at = _varint(raw, at)
                kind = tag & 7
                if kind == _BYTES:
                    size, at = _varint(raw, at)
                    if (inner := inside.get(tag >> 3)) is not None:
                        waiting.append((at, at + size, inner))
                    at += size
                elif kind == _VARINT:
                    _, at = _varint(raw, at)
                else:
                    at += 8 if kind == _FIXED64 else 4 if kind == _FIXED32 else 0
    except IndexError:
        return False
    return False


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends (IndexError: beyond the end, or longer than one may be)."""
    value = raw[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for more in range(1, VARINT_BYTES_MAX):
        byte = raw[at + more]
        value |= (byte & 0x7F) << 7 * more
        if byte < 0x80:
            return value, at + more + 1
    raise IndexError
