"""What a replica reads as JSON it must be able to write again: a state that holds it goes into a snapshot."""

from __future__ import annotations

import pytest

from georelay.fields import FieldError, dump_object, parse_object


@pytest.mark.parametrize("raw", [rb'{"a": "\ud800"}', rb'{"\uDFFF": 1}', rb'{"a": ["\udc00\ud800"]}'])
def test_half_of_a_surrogate_pair_is_refused(raw: bytes) -> None:
    with pytest.raises(FieldError, match="surrogate"):
        parse_object(raw)


@pytest.mark.parametrize("raw", [rb'{"a": "\ud83d\ude00"}', rb'{"a": "\\ud800"}', '{"a": "😀"}'.encode()])
def test_what_is_text_is_read_and_written_again(raw: bytes) -> None:
    value = parse_object(raw)
    assert parse_object(dump_object(value)) == value
