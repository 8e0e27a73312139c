"""The state of a coordinator as bytes: what is written is read back, and nothing else is."""

from __future__ import annotations

import pytest

from region.coordination.part import Part
from region.coordination.stream_container import StreamContainer

WHOLE = StreamContainer(stream=b"stream", parts={Part.QUEUES: b"queues", Part.GROUPS: b"groups"})


def test_what_is_written_is_read_back() -> None:
    read = StreamContainer.decode(WHOLE.encode())
    assert (read.stream, dict(read.parts), read.is_plain) == (b"stream", dict(WHOLE.parts), False)


def test_empty_parts_and_the_order_of_parts_make_no_difference() -> None:
    other = StreamContainer(
        stream=b"stream", parts={Part.GROUPS: b"groups", Part.TRANSACTIONS: b"", Part.QUEUES: b"queues"}
    )
    assert other.encode() == WHOLE.encode()


@pytest.mark.parametrize("cut", range(1, len(WHOLE.encode())))
def test_every_shorter_container_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="container"):
        StreamContainer.decode(WHOLE.encode()[:cut])


def test_longer_unknown_and_disordered_containers_are_refused() -> None:
    raw = WHOLE.encode()
    disordered = raw[:12] + raw[23:] + raw[12:23]
    unknown = bytearray(raw)
    unknown[12] = 9
    for wrong in (raw + b"x", b"\x82" + raw[1:], disordered, bytes(unknown)):
        with pytest.raises(ValueError, match=r"."):
            StreamContainer.decode(wrong)


def test_a_plain_state_is_told_apart_by_its_first_byte() -> None:
    for version in (1, 2, 127):
        read = StreamContainer.decode(bytes([version]) + b"rest")
        assert read.is_plain and read.stream == bytes([version]) + b"rest" and not read.parts
