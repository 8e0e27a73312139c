"""Bodies that are made to cost much: what is refused is refused at once."""

from __future__ import annotations

import time

import pytest

from georelay.errors import BadRequest
from region.api.record_json import parse_json


def test_a_field_that_stands_twice_is_found_among_many_at_once_and_shown_short() -> None:
    fields = ",".join(f'"{number:x}":0' for number in range(100_000))
    name = "x" * 10_000
    began_s = time.process_time()
    with pytest.raises(BadRequest, match="stands twice") as caught:
        parse_json(f'{{{fields},"{name}":0,"{name}":0}}'.encode())
    assert time.process_time() - began_s < 2
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000], ids=["lists", "objects", "digits"]
)
def test_a_body_that_is_nested_or_long_for_its_own_sake_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_json(body)
