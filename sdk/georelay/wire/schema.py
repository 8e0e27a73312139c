"""How a request or response is declared: one dataclass, whose annotations are the table of its fields.

    @struct
    class ListOffsetsPartition:
        partition_index: I32
        current_leader_epoch: Annotated[I32, At(since=4)] = -1
        timestamp: I64 = -1

Fields stand in wire order. `| None` makes a field nullable, from version `At(nullable=)` on where that is given.
A field that a version lacks takes its default when decoded and is left out when encoded.

The type checker sees frozen classes. At run time they are not: setting fields through
`object.__setattr__` doubles the cost of a decoded struct, and hot requests make several each.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

T = TypeVar("T")

VERSION_LAST: Final = 32_767


class Kind(enum.Enum):
    """What stands on the wire for a field."""

    BOOL = "?"
    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    FLOAT64 = "d"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"  # bytes that are handed on as a view of the frame, never copied
    BUFFERS = "buffers"  # the same as a list of buffers, sent one after the other
    STRUCT = "struct"
    ARRAY = "array"


Bool = Annotated[bool, Kind.BOOL]
I8 = Annotated[int, Kind.INT8]
I16 = Annotated[int, Kind.INT16]
I32 = Annotated[int, Kind.INT32]
I64 = Annotated[int, Kind.INT64]
F64 = Annotated[float, Kind.FLOAT64]
Uuid = Annotated[bytes, Kind.UUID]
Str = Annotated[str, Kind.STRING]
Bytes = Annotated[bytes, Kind.BYTES]
Records = Annotated[bytes | memoryview, Kind.RECORDS]
Buffers = Annotated[Sequence[bytes | memoryview], Kind.BUFFERS]

NO_UUID: Final = bytes(16)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The versions of a field: there from `since` to `until`, null allowed from `nullable`, tagged when `tag` >= 0."""

    since: int = 0
    until: int = VERSION_LAST
    nullable: int = 0
    tag: int = -1


@dataclass_transform(frozen_default=True)
def struct(cls: type[T]) -> type[T]:
    """Make `cls` a value with slots (see the module text on why it is frozen for the type checker only)."""
    return dataclasses.dataclass(slots=True)(cls)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the table: `element` describes an array's items, `cls` a struct's class."""

    name: str
    kind: Kind
    at: At = At()
    is_optional: bool = False
    element: Field | None = None
    cls: type | None = None
    default: Any = None

    def is_in(self, version: int) -> bool:
        """Return whether `version` has the field."""
        return self.at.since <= version <= self.at.until

    def is_nullable(self, version: int) -> bool:
        """Return whether `version` allows null."""
        return self.is_optional and version >= self.at.nullable


_FIELDS: Final[dict[type, tuple[Field, ...]]] = {}  # hints are evaluated from text: once a class, not once a version


def fields_of(cls: type) -> tuple[Field, ...]:
    """Return the rows of a class declared with `struct`, in wire order."""
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = tuple(_field(row.name, hints[row.name], _default(row)) for row in dataclasses.fields(cls))
    return _FIELDS[cls]


def _default(row: dataclasses.Field[Any]) -> Any:
    return None if row.default is dataclasses.MISSING else row.default


def _field(name: str, hint: Any, default: Any = None) -> Field:
    at, optional, kind = At(), False, None
    while True:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            hint, *marks = typing.get_args(hint)
            for mark in marks:
                if isinstance(mark, At):
                    at = mark
                else:
                    kind = mark
            if kind is not None:
                return Field(name=name, kind=kind, at=at, is_optional=optional, default=default)
        elif origin in (typing.Union, types.UnionType):
            (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
            optional = True
        else:
            break
    if dataclasses.is_dataclass(hint):
        return Field(
            name=name, kind=Kind.STRUCT, at=at, is_optional=optional, cls=typing.cast(type, hint), default=default
        )
    element = _field(name, typing.get_args(hint)[0])
    return Field(name=name, kind=Kind.ARRAY, at=at, is_optional=optional, element=element, default=default)
