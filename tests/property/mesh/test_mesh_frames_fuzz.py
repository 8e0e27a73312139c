"""Whatever arrives is a list of parts or FrameError, never another exception."""

from __future__ import annotations

import random
import time

import hypothesis.strategies as st
from hypothesis import given, settings

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication import frames as f

KEY = StreamKey(bytes(16), RegionNumber(1), 3)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=40)
parts: st.SearchStrategy[f.Part] = st.one_of(
    st.builds(f.Batch, u32, u32.map(Epoch), st.binary(min_size=80, max_size=80), st.binary(max_size=200)),
    st.builds(f.Ack, st.lists(st.tuples(u32, i64.map(Offset)), max_size=5).map(tuple)),
    st.builds(f.Heartbeat, i64, st.lists(st.tuples(u32, i64.map(Offset), i64), max_size=5).map(tuple)),
    st.builds(f.LogStarts, st.lists(st.tuples(u32, i64.map(Offset)), max_size=5).map(tuple)),
    st.builds(
        f.Skip,
        u32,
        u32.map(Epoch),
        i64.map(Offset),
        st.binary(min_size=16, max_size=16),
        st.lists(st.tuples(u32.map(Epoch), i64.map(Offset)), max_size=3).map(tuple),
        st.binary(max_size=50),
    ),
    st.builds(f.Refused, u32, text, text),
    st.builds(f.Forward, u64, u64, u32, st.just(KEY), i64, st.integers(0, 65535), st.binary(max_size=200)),
    st.builds(f.Forwarded, u64, u32, i64, i64, i64),
    st.builds(f.Request, u64, text, st.dictionaries(text, st.integers() | text, max_size=4)),
    st.builds(f.Reply, u64, st.dictionaries(text, st.none() | st.booleans(), max_size=4), st.binary(max_size=50)),
)


@given(st.lists(parts, max_size=8))
def test_frames_round_trip(some: list[f.Part]) -> None:
    assert f.decode_frame(f.encode_frame(*some)) == some


@given(st.binary(max_size=300))
def test_random_bytes_give_parts_or_a_frame_error(raw: bytes) -> None:
    try:
        f.decode_frame(b"\x01" + raw)
    except f.FrameError:
        return


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_mutated_frames_give_parts_or_a_frame_error_in_bounded_time(seed: int) -> None:
    rng = random.Random(seed)
    whole = f.encode_frame(
        f.Open(1, "m", "eu", RegionNumber(2), 2001),  # type: ignore[arg-type]
        f.Hello(1, KEY, Epoch(1), Offset(0), bytes(16)),
        f.Welcome(1, Epoch(1), 0, Offset(0), Offset(9), bytes(16), ((Epoch(1), Offset(0)),)),
        f.Request(1, "x", {"a": [1, {"b": None}]}),
        f.RequestFailed(1, f.Fault("A", "b")),
        f.Reply(1, {"a": 1}, b"zz"),
        f.Batch(1, Epoch(1), bytes(80), b"payload"),
        f.Skip(1, Epoch(1), Offset(8), bytes(16), ((Epoch(1), Offset(0)),), b"states"),
        f.LogStarts(((1, Offset(9)),)),
    )
    began = time.monotonic()
    for _ in range(1000):
        raw = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            f.decode_frame(bytes(raw[: rng.randrange(len(raw) + 1)]))
        except f.FrameError:
            continue
    assert time.monotonic() - began < 10
