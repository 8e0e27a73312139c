"""The state of a coordinator as bytes: what is written is read back, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from georelay.ids import Epoch
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


def test_every_shorter_container_is_refused() -> None:
    for cut in range(1, len(WHOLE.encode())):
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


MOVED = StreamContainer(
    stream=b"stream",
    parts={Part.GROUPS: b"groups"},
    is_exact=False,
    checkpoint_epoch=Epoch(7),
    pieces=(b"one", b""),
)


def test_the_bytes_of_both_versions_never_change() -> None:
    tail = "00000006" + b"stream".hex() + "01" + "01" + "00000006" + b"groups".hex()
    plain = StreamContainer(stream=b"stream", parts={Part.GROUPS: b"groups"})
    assert plain.encode().hex() == "81" + tail
    assert MOVED.encode().hex() == "82" + "00000007" + "00" + "0002" + "00000003" + b"one".hex() + "00000000" + tail


def test_what_a_move_left_is_read_back() -> None:
    assert StreamContainer.decode(MOVED.encode()) == MOVED
    exact = replace(MOVED, is_exact=True, pieces=())
    assert StreamContainer.decode(exact.encode()) == exact


def test_every_shorter_container_of_a_moved_stream_is_refused() -> None:
    for cut in range(1, len(MOVED.encode())):
        with pytest.raises(ValueError, match=r"container|part"):
            StreamContainer.decode(MOVED.encode()[:cut])


def test_flags_of_a_newer_version_are_refused() -> None:
    raw = bytearray(MOVED.encode())
    raw[5] = 2
    with pytest.raises(ValueError, match="flags"):
        StreamContainer.decode(bytes(raw))
