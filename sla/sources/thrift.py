"""Reads structures of Thrift's compact protocol, which the footer of a Parquet file is written in. Pure.

Here because pyarrow ends the whole process at some footers in which one byte is wrong: its accessors of statistics let
a C++ exception through. What is read here is bytes, numbers and lists; any input gives them or a ValueError.
Source: thrift/doc/specs/thrift-compact-protocol.md of Apache Thrift.
"""

from __future__ import annotations

from typing import Final, TypeAlias

DEPTH_MAX: Final = 12
_VARINT_BYTES_MAX: Final = 10

Value: TypeAlias = "bool | int | float | bytes | list[Value] | Struct"
Struct: TypeAlias = dict[int, Value]  # field id -> value

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def read_struct(raw: bytes) -> Struct:
    """Return the structure that `raw` begins with; bytes behind it are not looked at.

    Raises:
        ValueError: there is none.
    """
    try:
        return _Reader(raw).struct(0)
    except IndexError:
        raise ValueError("the footer ends in the middle of a value") from None


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def struct(self, depth: int) -> Struct:
        fields: Struct = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self._zigzag()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Value:
        if depth > DEPTH_MAX:
            raise ValueError(f"the footer is nested deeper than {DEPTH_MAX}")
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _BYTE:
            return self._byte()
        if kind == _DOUBLE:
            return self._take(8)
        if kind in (_TRUE, _FALSE):  # in a list: a byte of its own
            return self._byte() == _TRUE
        raise ValueError(f"the footer has a value of unknown type {kind}")

    def _list(self, depth: int) -> list[Value]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._varint()
        if size > len(self._raw) - self._at:  # every element has a byte at least
            raise ValueError(f"the footer has a list of {size} elements and no room for them")
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        value = self._raw[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value = 0
        for position in range(_VARINT_BYTES_MAX):
            byte = self._byte()
            value |= (byte & 127) << 7 * position
            if byte < 128:
                return value
        raise ValueError("the footer has a number that does not end")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _take(self, size: int) -> bytes:
        if size > len(self._raw) - self._at:
            raise ValueError(f"the footer has a value of {size} bytes and no room for it")
        self._at += size
        return self._raw[self._at - size : self._at]
