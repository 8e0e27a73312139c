"""Frames of a peer connection come back whole however TCP cut them; any bytes are frames or the end of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mesh.replication.frame_reader import HEAD, LARGE_FRAME_BYTES, READ_BUFFER_BYTES, FrameReader

FRAME_BYTES_MAX = 2 * READ_BUFFER_BYTES
SIZES = st.one_of(
    st.integers(0, 300),
    st.integers(LARGE_FRAME_BYTES - 3, LARGE_FRAME_BYTES + 3),
    st.integers(READ_BUFFER_BYTES - 8, READ_BUFFER_BYTES + 8),
)


class Read(FrameReader):
    """Keeps what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[int, bytes]] = []
        self.garbage: list[ValueError] = []

    def frame_bytes_max(self) -> int:
        return FRAME_BYTES_MAX

    def frame_received(self, kind: int, body: memoryview) -> None:
        self.frames.append((kind, bytes(body)))

    def garbage_received(self, error: ValueError) -> None:
        self.garbage.append(error)

    def take(self, data: bytes, cuts: st.DataObject) -> None:
        """Receive bytes as a socket would give them: as many as fit, or fewer."""
        while data and not self.garbage:
            room = self.get_buffer(-1)
            assert len(room), "a reader without room is never called"
            most = min(len(data), len(room))
            size = cuts.draw(st.sampled_from([1, most, *({most // 2} - {0})]) if most < 64 else st.integers(1, most))
            room[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]


@given(st.lists(st.tuples(st.integers(0, 255), SIZES), max_size=4), st.data())
def test_frames_come_back_whole_however_they_were_cut(rows: list[tuple[int, int]], cuts: st.DataObject) -> None:
    frames = [(kind, bytes([row % 251]) * size) for row, (kind, size) in enumerate(rows)]
    reader = Read()
    reader.take(b"".join(HEAD.pack(1 + len(body), kind) + body for kind, body in frames), cuts)
    assert reader.frames == frames and reader.garbage == []


@given(st.binary(max_size=2_000), st.data())
def test_any_bytes_are_frames_or_an_end(data: bytes, cuts: st.DataObject) -> None:
    reader = Read()
    reader.take(data, cuts)
    taken = sum(HEAD.size + len(body) for _, body in reader.frames)
    if reader.garbage:
        length, _ = HEAD.unpack_from(data, taken)
        assert not 1 <= length <= FRAME_BYTES_MAX and str(length) in str(reader.garbage[0])
    elif len(data) - taken >= HEAD.size:
        assert HEAD.unpack_from(data, taken)[0] > len(data) - taken - 4
