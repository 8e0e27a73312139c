"""Tables into functions: `codec_of(class, version, flexible)` compiles the rows of `georelay.wire.schema` once.

Neighbouring fields of fixed size are read and written by one `struct.Struct`; everything else is one small
closure per field. Requests and responses that pass often have hand-written twins in `georelay.wire.hot`;
the tests hold the two against each other.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from georelay.wire.primitives import (
    Reader,
    WireError,
    check_count,
    each_tag,
    read_compact_length,
    read_length16,
    read_length32,
    skip_tags,
    take,
    take_text,
    write_compact_length,
    write_length16,
    write_length32,
    write_uvarint,
)
from georelay.wire.schema import Field, Kind, fields_of

Decode = Callable[[Reader], Any]
Encode = Callable[[bytearray, Any], None]
ReadLength = Callable[[Reader], int]
WriteLength = Callable[[bytearray, int], None]

_HERE: Final = 1  # the byte before a nullable struct
_NULL: Final = 0xFF
_FIXED: Final = frozenset({Kind.BOOL, Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.FLOAT64, Kind.UUID})


class Codec(NamedTuple):
    """How one value is read and written; `bytes_min` is the least it takes on the wire."""

    decode: Decode
    encode: Encode
    bytes_min: int


class _Step(NamedTuple):
    """Reads `names` in a row (`decode` returns as many values), or writes them from an object."""

    names: tuple[str, ...]
    decode: Callable[[Reader], Iterable[Any]]
    encode: Encode
    bytes_min: int


def _compile(cls: type, version: int, flexible: bool) -> Codec:
    rows = fields_of(cls)
    here = [row for row in rows if row.is_in(version) and row.at.tag < 0]
    tagged = [row for row in rows if row.is_in(version) and row.at.tag >= 0]
    steps = list(_steps(here, version, flexible))
    order = [name for step in steps for name in step.names]
    absent = {row.name: row.default for row in rows if row.name not in order}
    # Positions of the decoded values in the constructor's order; most versions need no reordering.
    complete = [row.name for row in rows] == order
    read_tags, write_tags = _tag_codecs(tagged, version) if flexible else (None, None)

    def decode(reader: Reader) -> Any:
        values: list[Any] = []
        for step in steps:
            values.extend(step.decode(reader))
        if complete:
            if flexible:
                skip_tags(reader)
            return cls(*values)
        named = dict(zip(order, values, strict=True))
        if read_tags is not None:
            return cls(**absent | named | read_tags(reader))
        return cls(**absent, **named)

    def encode(out: bytearray, value: Any) -> None:
        for step in steps:
            step.encode(out, value)
        if write_tags is not None:
            write_tags(out, value)

    return Codec(decode, encode, sum(step.bytes_min for step in steps) + flexible)


codec_of: Final[Callable[[type, int, bool], Codec]] = functools.cache(_compile)
"""Return the codec of a `struct` class in one version, flexible (compact lengths, tagged fields) or not."""


def _steps(rows: list[Field], version: int, flexible: bool) -> Iterable[_Step]:
    run: list[Field] = []
    for row in rows:
        if row.kind in _FIXED:
            run.append(row)
            continue
        if run:
            yield _fixed_step(run)
            run = []
        yield _single_step(row, version, flexible)
    if run:
        yield _fixed_step(run)


def _fixed_step(rows: list[Field]) -> _Step:
    layout = struct.Struct(">" + "".join(row.kind.value for row in rows))
    names = tuple(row.name for row in rows)
    get = attrgetter(*names)
    unpack, pack, size = layout.unpack_from, layout.pack, layout.size

    def decode(reader: Reader) -> Iterable[Any]:
        values = unpack(reader.raw, reader.position)
        reader.position += size
        return values

    def encode_one(out: bytearray, value: Any) -> None:
        out += pack(get(value))

    def encode_run(out: bytearray, value: Any) -> None:
        out += pack(*get(value))

    return _Step(names, decode, encode_one if len(names) == 1 else encode_run, size)


def _single_step(row: Field, version: int, flexible: bool) -> _Step:
    codec = _field_codec(row, version, flexible)
    read, write, get = codec.decode, codec.encode, attrgetter(row.name)
    return _Step(
        (row.name,), lambda reader: (read(reader),), lambda out, value: write(out, get(value)), codec.bytes_min
    )


def _field_codec(row: Field, version: int, flexible: bool) -> Codec:
    nullable = row.is_nullable(version)
    if row.kind is Kind.STRUCT:
        assert row.cls is not None, row
        inner = codec_of(row.cls, version, flexible)
        return _nullable_struct(inner, row.name) if nullable and row.at.tag < 0 else inner  # a tagged one is there
    if row.kind in _FIXED:
        return _fixed_codec(row)
    read_length: ReadLength = read_length16 if row.kind is Kind.STRING else read_length32
    write_length: WriteLength = write_length16 if row.kind is Kind.STRING else write_length32
    bytes_min = 2 if row.kind is Kind.STRING else 4
    if flexible:
        read_length, write_length, bytes_min = read_compact_length, write_compact_length, 1
    if row.kind is Kind.ARRAY:
        assert row.element is not None, row
        decode, encode = _array(_field_codec(row.element, version, flexible), write_length)
    else:
        decode, encode = _SIZED[row.kind](write_length)
    read = _sized_reader(decode, read_length, row, nullable)
    return Codec(read, _sized_writer(encode, write_length, row, nullable), bytes_min)


def _fixed_codec(row: Field) -> Codec:
    step = _fixed_step([row])
    pack = struct.Struct(">" + row.kind.value).pack

    def encode(out: bytearray, value: Any) -> None:
        out += pack(value)

    return Codec(lambda reader: next(iter(step.decode(reader))), encode, step.bytes_min)


def _nullable_struct(inner: Codec, name: str) -> Codec:
    """Return the codec of a struct behind a byte that says whether it is there (KIP-893)."""

    def decode(reader: Reader) -> Any:
        here = take(reader, 1)[0]
        if here == _HERE:
            return inner.decode(reader)
        if here == _NULL:
            return None
        raise WireError(f"{name} begins with {here}: 1 says that it is there, 255 that it is null")

    def encode(out: bytearray, value: Any) -> None:
        out.append(_NULL if value is None else _HERE)
        if value is not None:
            inner.encode(out, value)

    return Codec(decode, encode, 1)


DecodeSized = Callable[[Reader, int], Any]


def _sized_reader(decode: DecodeSized, read_length: ReadLength, row: Field, nullable: bool) -> Decode:
    def decode_field(reader: Reader) -> Any:
        length = read_length(reader)
        if length == -1:
            if nullable:
                return None
            raise WireError(f"{row.name} must not be null")
        return decode(reader, length)

    return decode_field


def _sized_writer(encode: Encode, write_length: WriteLength, row: Field, nullable: bool) -> Encode:
    def encode_field(out: bytearray, value: Any) -> None:
        if value is not None:
            encode(out, value)
        elif nullable:
            write_length(out, -1)
        else:
            raise ValueError(f"{row.name} must not be null in this version")

    return encode_field


def _array(item: Codec, write_length: WriteLength) -> tuple[DecodeSized, Encode]:
    decode_item, encode_item, bytes_min = item

    def decode(reader: Reader, count: int) -> tuple[Any, ...]:
        check_count(reader, count, bytes_min)
        return tuple([decode_item(reader) for _ in range(count)])

    def encode(out: bytearray, value: Any) -> None:
        write_length(out, len(value))
        for element in value:
            encode_item(out, element)

    return decode, encode


def _string(write_length: WriteLength) -> tuple[DecodeSized, Encode]:
    def encode(out: bytearray, value: str) -> None:
        raw = value.encode()
        write_length(out, len(raw))
        out += raw

    return take_text, encode


def _bytes(write_length: WriteLength) -> tuple[DecodeSized, Encode]:
    def encode(out: bytearray, value: bytes | memoryview) -> None:
        write_length(out, len(value))
        out += value

    return lambda reader, length: bytes(take(reader, length)), encode


def _records(write_length: WriteLength) -> tuple[DecodeSized, Encode]:
    return lambda reader, length: memoryview(take(reader, length)), _bytes(write_length)[1]


def _buffers(write_length: WriteLength) -> tuple[DecodeSized, Encode]:
    def decode(reader: Reader, length: int) -> tuple[memoryview, ...]:
        return (memoryview(take(reader, length)),) if length else ()

    def encode(out: bytearray, value: Iterable[bytes | memoryview]) -> None:
        buffers = tuple(value)
        write_length(out, sum(map(len, buffers)))
        for buffer in buffers:
            out += buffer

    return decode, encode


_SIZED: Final[dict[Kind, Callable[[WriteLength], tuple[DecodeSized, Encode]]]] = {
    Kind.STRING: _string,
    Kind.BYTES: _bytes,
    Kind.RECORDS: _records,
    Kind.BUFFERS: _buffers,
}


def _tag_codecs(rows: list[Field], version: int) -> tuple[Callable[[Reader], dict[str, Any]], Encode]:
    known = {row.at.tag: (row, _field_codec(row, version, True)) for row in rows}

    def read_tags(reader: Reader) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for tag, inner in each_tag(reader):
            if tag not in known:
                continue
            row, codec = known[tag]
            inner.items_left = reader.items_left
            values[row.name] = codec.decode(inner)
            reader.items_left = inner.items_left
            if inner.position != inner.end:
                raise WireError(f"{inner.end - inner.position} bytes follow the tagged field {row.name}")
        return values

    def write_tags(out: bytearray, value: Any) -> None:
        fields = ((tag, codec, getattr(value, row.name), row.default) for tag, (row, codec) in known.items())
        present = [(tag, codec, at) for tag, codec, at, default in fields if at != default]
        write_uvarint(out, len(present))
        for tag, codec, at in present:
            body = bytearray()
            codec.encode(body, at)
            write_uvarint(out, tag)
            write_uvarint(out, len(body))
            out += body

    return read_tags, write_tags
