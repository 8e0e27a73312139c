"""LZW: width changes, the code before its definition, clears, and the cap on what comes out."""

from __future__ import annotations

import random

import pytest

from mesh.gossip import lzw
from mesh.gossip.faults import CodecError


def pack_codes(*codes: tuple[int, int]) -> bytes:
    """Return codes of given widths, lowest bit first."""
    bits = place = 0
    for code, width in codes:
        bits |= code << place
        place += width
    return bits.to_bytes((place + 7) // 8, "little")


def read_codes(raw: bytes) -> list[int]:
    """Return the codes of a stream: the width rule once more, by itself."""
    bits, place, width, high = int.from_bytes(raw, "little"), 0, 9, 257
    codes: list[int] = []
    while not codes or codes[-1] != 257:
        code = bits >> place & (1 << width) - 1
        place += width
        codes.append(code)
        if code == 256:
            width, high = 9, 257
        else:
            high += 1
            width += high == 1 << width and width < 12
    return codes


def test_a_code_may_come_one_step_before_its_definition() -> None:
    raw = pack_codes((256, 9), (ord("a"), 9), (258, 9), (259, 9), (257, 9))
    assert lzw.decompress(raw, limit_bytes=100) == b"a" + b"aa" + b"aaa"


def test_a_code_two_steps_before_its_definition_is_refused() -> None:
    with pytest.raises(CodecError, match="before its definition"):
        lzw.decompress(pack_codes((256, 9), (97, 9), (259, 9), (257, 9)), limit_bytes=100)


def test_a_code_of_the_table_right_after_a_clear_is_refused() -> None:
    with pytest.raises(CodecError, match="before its definition"):
        lzw.decompress(pack_codes((256, 9), (258, 9), (257, 9)), limit_bytes=100)


def test_codes_get_wider_when_the_newest_reaches_a_power_of_two() -> None:
    raw = bytes(range(255))
    packed = lzw.compress(raw)
    codes = read_codes(packed)
    assert len(codes) == 257  # clear, 255 literals (none repeats a pair), end
    # 258 codes of 9 bits would have 2322 bits; `high` reaches 512 at the 255th literal, so only the end code is wider.
    assert len(packed) == (256 * 9 + 10 + 7) // 8
    assert lzw.decompress(packed, limit_bytes=255) == raw


def test_the_encoder_clears_when_the_newest_code_reaches_4095() -> None:
    raw = random.Random(2).randbytes(9000)
    packed = lzw.compress(raw)
    codes = read_codes(packed)
    clears = [place for place, code in enumerate(codes) if code == 256]
    # 3838 codes raise `high` from 257 to 4095.
    assert clears[:2] == [0, 3839]
    assert lzw.decompress(packed, limit_bytes=9000) == raw


def every_pair_once() -> bytes:
    """Return bytes in which no two neighbours come twice: each byte is one code."""
    return bytes(byte for low in range(64) for high in range(low + 1, 64) for byte in (low, high)) + b"\xff"


@pytest.mark.parametrize("length", range(3834, 3842))
def test_the_end_around_a_clear_is_read_back(length: int) -> None:
    raw = every_pair_once()[:length]
    packed = lzw.compress(raw)
    assert lzw.decompress(packed, limit_bytes=length) == raw
    assert read_codes(packed).count(256) == 1 + (length >= 3838)


def test_a_full_table_without_a_clear_is_read_on_with_twelve_bits() -> None:
    codes, width, high = [(256, 9)], 9, 257
    for number in range(5000):
        codes.append((number % 256, width))
        high += 1
        width += high == 1 << width and width < 12
    raw = pack_codes(*codes, (257, 12))
    assert lzw.decompress(raw, limit_bytes=5000) == bytes(number % 256 for number in range(5000))


def test_output_beyond_the_cap_is_refused_before_it_is_made() -> None:
    packed = lzw.compress(b"a" * 1_000_000)
    assert len(packed) < 3000
    assert lzw.decompress(packed, limit_bytes=1_000_000) == b"a" * 1_000_000
    with pytest.raises(CodecError, match="more than 999999 bytes"):
        lzw.decompress(packed, limit_bytes=999_999)


@pytest.mark.parametrize("cut", range(1, 12))
def test_data_without_its_end_code_is_refused(cut: int) -> None:
    with pytest.raises(CodecError, match="without its end code"):
        lzw.decompress(lzw.compress(b"gossip gossip")[:-cut], limit_bytes=100)


def test_bytes_behind_the_end_code_are_ignored() -> None:
    assert lzw.decompress(lzw.compress(b"abc") + b"more", limit_bytes=3) == b"abc"
