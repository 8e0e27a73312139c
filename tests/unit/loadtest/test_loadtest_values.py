"""A record is named by its value only when every byte of it is right."""

from __future__ import annotations

import pytest

from loadtest.campaign.producer import name_of, number_of, value_of


def test_a_value_is_named_after_its_producer_and_number() -> None:
    assert name_of(value_of("a", 7)) == "a:7"
    assert number_of(value_of("a", 7)) == ("a", 7)


def test_a_flipped_bit_anywhere_makes_it_another_value() -> None:
    for position in range(len(value_of("a", 7))):
        value = bytearray(value_of("a", 7))
        value[position] ^= 1
        assert name_of(bytes(value)) != "a:7", position


@pytest.mark.parametrize("value", [b"", b"a", b"a:b:", b"a:7:", value_of("a", 7)[:-1], value_of("a", 7) + b"."])
def test_bytes_that_are_no_value_of_ours_are_shown_in_hex(value: bytes) -> None:
    assert name_of(value) == f"bytes:{value[:64].hex()}"
