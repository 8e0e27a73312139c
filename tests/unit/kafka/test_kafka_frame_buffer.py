"""Frames that are received in place: whole whatever way the bytes arrive, and never more than the cap."""

from __future__ import annotations

import random
import struct

import pytest

from georelay.limits import KAFKA_FRAME_BYTES_MAX
from georelay.wire.api import WireError
from region.kafka.frame_buffer import OWN_BUFFER_BYTES_MIN, SHARED_BYTES, FrameBuffer

OTHERS = b"\xee"  # what another connection leaves in the shared buffer between two reads


def feed(buffer: FrameBuffer, shared: memoryview, data: bytes) -> list[bytes]:
    """Receive `data` in as many reads as the buffer's room asks for; the shared buffer is soiled after each."""
    got = []
    while data:
        room = buffer.room()
        assert len(room) > 0
        size = min(len(room), len(data))
        room[:size] = data[:size]
        del room
        got += [bytes(frame) for frame in buffer.received(size)]
        data = data[size:]
        shared[:] = OTHERS * len(shared)
    return got


def frames(rng: random.Random) -> list[bytes]:
    sizes = [*(rng.randrange(300) for _ in range(30)), OWN_BUFFER_BYTES_MIN, 3 * SHARED_BYTES + 5, 0, 20_000]
    rng.shuffle(sizes)
    return [struct.pack(">hhi", 0, 9, number) + rng.randbytes(size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("step", [1, 5, 6, 7, 1_000, 40_000, 10**7])
def test_frames_come_out_whole_however_the_stream_is_cut(step: int) -> None:
    rng = random.Random(step)
    wanted = frames(rng)
    if step < 10:
        wanted = [frame for frame in wanted if len(frame) < 1_000]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in wanted)
    shared = memoryview(bytearray(SHARED_BYTES))
    buffer, got = FrameBuffer(shared), []
    for start in range(0, len(stream), step):
        got += feed(buffer, shared, stream[start : start + step])
    assert got == wanted
    assert buffer.buffered_bytes == 0


def test_two_connections_do_not_mix_their_bytes_in_the_shared_buffer() -> None:
    shared = memoryview(bytearray(SHARED_BYTES))
    one, other = FrameBuffer(shared), FrameBuffer(shared)
    frame, second = struct.pack(">hhi", 3, 0, 1) + b"one", struct.pack(">hhi", 3, 0, 2) + b"other"
    raw, raw_second = (struct.pack(">i", len(each)) + each for each in (frame, second))
    assert feed(one, shared, raw[:7]) == feed(other, shared, raw_second[:9]) == []
    assert feed(one, shared, raw[7:]) == [frame]
    assert feed(other, shared, raw_second[9:]) == [second]


def test_only_what_lies_in_the_shared_buffer_is_said_to_be_gone_with_the_next_read() -> None:
    shared = memoryview(bytearray(SHARED_BYTES))
    buffer = FrameBuffer(shared)
    raw = struct.pack(">ih", 2_000, 3) + bytes(1_998)
    buffer.room()[: len(raw)] = raw
    (small,) = buffer.received(len(raw))
    assert buffer.is_shared(small)
    assert not buffer.is_shared(bytes(small))
    size = 2 * SHARED_BYTES
    room = buffer.room()
    room[:6] = struct.pack(">ih", size, 0)
    assert buffer.received(6) == []
    assert len(buffer.room()) == size - 2, "the rest of a large frame goes into a buffer of its own"
    (large,) = buffer.received(size - 2)
    assert not buffer.is_shared(large)


def test_a_length_outside_the_bounds_is_refused_before_anything_is_kept_for_it() -> None:
    for length, key in ((KAFKA_FRAME_BYTES_MAX + 1, 3), (3, 0), (-1, 0)):
        shared = memoryview(bytearray(SHARED_BYTES))
        buffer = FrameBuffer(shared)
        buffer.room()[:6] = struct.pack(">ih", length, key)
        with pytest.raises(WireError, match="outside"):
            buffer.received(6)
        assert buffer.buffered_bytes == 0
