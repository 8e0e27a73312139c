"""A record is named by its value only when every byte of it is right."""

from __future__ import annotations

import pytest

from loadtest.load.engine_values import name_of, parts_of, value_of

VALUE = value_of("a", 7, 1_790_000_000_000_000_000, 100)


def test_a_value_is_as_long_as_it_shall_be_and_named_after_its_publisher_and_number() -> None:
    assert len(VALUE) == 100
    assert name_of(VALUE) == "a:7"
    assert parts_of(VALUE) == ("a", 7, 1_790_000_000_000_000_000)


def test_a_value_is_longer_where_its_size_has_no_room_for_what_it_says() -> None:
    assert parts_of(value_of("a", 7, 12, 1)) == ("a", 7, 12)


def test_a_flipped_bit_anywhere_makes_it_another_value() -> None:
    for place in range(8 * len(VALUE)):
        value = bytearray(VALUE)
        value[place // 8] ^= 1 << place % 8
        assert name_of(bytes(value)) == f"bytes:{value[:64].hex()}", place


@pytest.mark.parametrize("value", [b"", b"a", b"a:b:", b"a:7:", VALUE[:-1], VALUE + b"."])
def test_bytes_that_are_no_value_of_ours_are_shown_in_hex(value: bytes) -> None:
    assert name_of(value) == f"bytes:{value[:64].hex()}"
