"""The bytes of the link protocol, version 1: one frame per part kind, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from georelay.durability import Durability
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.replication import frames as f
from mesh.replication.level import AskedLevel
from tests.tiers import in_one_test

GOLDEN = Path(__file__).parent / "frames.hex"
KEY = StreamKey(bytes(range(16)), RegionNumber(2), 7)
FAULT = f.Fault("NOT_HOME", "the home is region 3", -1, 4, 3)
PARTS: list[f.Part] = [
    f.Open(1, "mesh-1", "eu", RegionNumber(2), BrokerId(2001)),
    f.LinkRefused("MESH_ID", "another mesh"),
    f.Hello(1, KEY, Epoch(3), Offset(4711), b"d" * 16),
    f.Welcome(1, Epoch(3), 9, Offset(5), Offset(5000), b"e" * 16, ((Epoch(1), Offset(0)), (Epoch(3), Offset(100)))),
    f.Redirect(1, -1),
    f.Refused(1, "NO_POSITION", "below the log start"),
    f.Batch(1, Epoch(3), bytes(range(80)), b"payload"),
    f.Ack(((1, Offset(10)), (2, Offset(20)))),
    f.Heartbeat(1_700_000_000_000_000, ((1, Offset(10), 250),)),
    f.Gap(1, Offset(11)),
    f.FencedBy(1, Epoch(4)),
    f.DivergedAt(1, Offset(12)),
    f.Reset(1, "a new epoch began"),
    f.Skip(1, Epoch(1), Offset(119), b"f" * 16, ((Epoch(1), Offset(0)), (Epoch(3), Offset(100))), b"producer states"),
    f.LogStarts(((1, Offset(120)), (2, Offset(0)))),
    f.Forward(77, 5, 1, KEY, 123456789, RegionNumber(2), b"batch"),
    f.Forwarded(77, Epoch(3), Offset(42), 1_700_000_000_000_000, Offset(0)),
    f.ForwardFailed(78, FAULT),
    f.Request(79, "definitions.list", {"from": 3}),
    f.Reply(79, {"ok": True}, b"\x00\x01"),
    f.RequestFailed(80, FAULT),
    # Of protocol version 2: sent to peers that speak it only.
    f.GeoWatermark(((1, 3, Offset(10)), (2, 2, Offset(0)))),
    f.ForwardGeo(
        81, 5, 1, KEY, 123456789, RegionNumber(2), AskedLevel(durability=Durability(3), deadline_ms=500), b"batch"
    ),
    f.ForwardGeo(
        82,
        5,
        1,
        KEY,
        123456789,
        RegionNumber(2),
        AskedLevel(durability=Durability.MAJORITY, deadline_ms=300_000, needs_live=True),
        b"batch",
    ),
    f.ForwardedGeo(
        81, Epoch(3), Offset(42), 1_700_000_000_000_000, Offset(0), 2, True, (RegionNumber(1), RegionNumber(3))
    ),
    f.ClockAsk(1_700_000_000_000_000_001),
    f.ClockAnswer(1_700_000_000_000_000_001, 1_700_000_000_080_000_000, 1_700_000_000_080_000_900, 1500, -1),
    f.Raft(b"a frame of mesh control"),
    f.ForwardedGeo(
        83, Epoch(3), Offset(43), 1_700_000_000_000_000, Offset(0), 2, True, (RegionNumber(1),), is_isolated=True
    ),
    f.ForwardedGeo(84, Epoch(3), Offset(44), 1_700_000_000_000_000, Offset(0), 1, False, (), is_isolated=True),
    f.Challenge(BrokerId(2001), bytes(range(14))),
    f.Proof(bytes(range(14)), bytes(range(32))),
]


def transcript() -> str:
    return "".join(f"{type(part).__name__} {f.encode_frame(part).hex()}\n" for part in PARTS)


def test_every_part_has_the_bytes_of_version_1(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(transcript())
    assert transcript() == GOLDEN.read_text()


def test_the_bytes_of_version_1_decode_to_the_same_parts() -> None:
    rows = [bytes.fromhex(line.split()[1]) for line in GOLDEN.read_text().splitlines()]
    assert [f.decode_frame(row) for row in rows] == [[part] for part in PARTS]


def test_many_parts_of_many_streams_share_a_frame() -> None:
    assert f.decode_frame(f.encode_frame(*PARTS)) == PARTS


def test_every_kind_is_in_the_transcript() -> None:
    assert {type(part) for part in PARTS} == set(f._KINDS)


def test_every_truncated_frame_is_refused_or_loses_whole_parts_only() -> None:
    whole = f.encode_frame(*PARTS)
    ends = {1 + sum(len(f.encode_part(part)) for part in PARTS[:count]) for count in range(len(PARTS) + 1)}
    for size in range(len(whole)):
        if size in ends:
            assert f.decode_frame(whole[:size]) == PARTS[: len(f.decode_frame(whole[:size]))]
        else:
            with pytest.raises(f.FrameError):
                f.decode_frame(whole[:size])


@in_one_test("part", PARTS)
def test_a_part_with_any_shorter_body_is_refused_or_another_valid_value(part: f.Part) -> None:
    encoded = f.encode_part(part)
    for size in range(len(encoded) - 5):
        frame = b"\x01" + encoded[:1] + size.to_bytes(4, "big") + encoded[5 : 5 + size]
        try:
            (decoded,) = f.decode_frame(frame)
        except f.FrameError:
            continue
        assert f.encode_frame(decoded) == frame or isinstance(decoded, f.Reply | f.Request)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x02", b"\x01\x63\x00\x00\x00\x00", b"\x01\x07\xff\xff\xff\xff", bytes(17 * 1024 * 1024)],
    ids=["empty", "another version", "unknown kind", "a length beyond the frame", "over the limit"],
)
def test_garbage_is_refused(frame: bytes) -> None:
    with pytest.raises(f.FrameError):
        f.decode_frame(frame)
