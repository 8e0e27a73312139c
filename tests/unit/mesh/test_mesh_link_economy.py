"""Pace, compression, packed frames and counters of a link."""

from __future__ import annotations

import random
import struct

import pytest
import zstandard

from georelay.ids import RegionNumber
from georelay.limits import LINK_FRAME_BYTES_MAX
from mesh.replication.compression_core import SKIPS_MAX, CompressionCore
from mesh.replication.frame_packing import FramePacker, pack_frame, unpack_frame
from mesh.replication.frames import FrameError
from mesh.replication.link_counters import OTHER_CODE, OTHER_REGION, REGIONS_MAX, LinkCounters
from mesh.replication.pace_core import BURST_NS, Pace

SECOND = 1_000_000_000
BACKLOG = 1 << 20
PACKER = zstandard.ZstdCompressor(level=1)
FRAME = b"\x01" + b"one frame of a link " * 1000


def test_a_link_without_a_cap_never_waits() -> None:
    pace = Pace(0)
    pace.sent(10**9, 0)
    assert (pace.wait_ns(0), pace.is_capped, pace.within(100, seconds=1, bytes_min=1)) == (0, False, 100)


def test_frames_of_a_capped_link_keep_to_the_rate_after_one_burst() -> None:
    pace = Pace(1_000_000)
    now = 10 * SECOND
    sent = 0
    while now < 12 * SECOND:
        now += pace.wait_ns(now)
        pace.sent(50_000, now)
        sent += 50_000
    assert 2_000_000 <= sent <= 2_000_000 + 1_000_000 * BURST_NS // SECOND + 2 * 50_000
    assert pace.within(1 << 20, seconds=0.25, bytes_min=1 << 16) == 250_000
    assert pace.within(100_000, seconds=0.25, bytes_min=1 << 16) == 100_000


def slow_link(core: CompressionCore) -> None:
    core.carried(256_000, 50_000_000)  # 5 MB/s


def test_nothing_is_compressed_while_nothing_waits_for_the_link() -> None:
    core = CompressionCore()
    assert not core.wants(256_000, backlog_bytes=BACKLOG)  # its rate is not known yet
    slow_link(core)
    assert not core.wants(256_000, backlog_bytes=0)
    assert not core.wants(1_000, backlog_bytes=BACKLOG)
    assert core.wants(256_000, backlog_bytes=BACKLOG)


def test_it_pays_on_a_slow_link_and_not_on_a_fast_one() -> None:
    core = CompressionCore()
    slow_link(core)
    assert core.pays(256_000, 128_000, took_ns=1_000_000)
    fast = CompressionCore()
    fast.carried(256_000, 300_000)
    assert not fast.pays(256_000, 128_000, took_ns=1_000_000)


def test_records_that_are_compressed_already_are_tried_ever_more_rarely() -> None:
    core = CompressionCore()
    slow_link(core)
    tried = 0
    for _ in range(10_000):
        if core.wants(256_000, backlog_bytes=BACKLOG):
            tried += 1
            assert not core.pays(256_000, 250_000, took_ns=1_000_000)
    assert tried <= 10 + 10_000 // SKIPS_MAX


def test_one_frame_that_pays_ends_the_pause() -> None:
    core = CompressionCore()
    slow_link(core)
    assert not core.pays(256_000, 250_000, took_ns=1)
    assert not core.wants(256_000, backlog_bytes=BACKLOG)
    assert core.wants(256_000, backlog_bytes=BACKLOG)
    assert core.pays(256_000, 100_000, took_ns=1)
    assert core.wants(256_000, backlog_bytes=BACKLOG)


# --- packed frames ------------------------------------------------------------------------------------


def test_a_packed_frame_gives_the_frame_again() -> None:
    packed = pack_frame(FRAME, PACKER)
    assert packed[:5] == b"\x80" + struct.pack(">I", len(FRAME))
    assert len(packed) < len(FRAME) // 10
    assert unpack_frame(packed) == FRAME
    assert unpack_frame(FRAME) is FRAME


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80",
        b"\x80\0\0\0\0",
        b"\x80" + struct.pack(">I", 5) + b"garbage",
        b"\x80" + struct.pack(">I", len(FRAME) + 1) + PACKER.compress(FRAME),
        b"\x80" + struct.pack(">I", len(FRAME) - 1) + PACKER.compress(FRAME),
        b"\x80" + struct.pack(">I", LINK_FRAME_BYTES_MAX + 1) + PACKER.compress(FRAME),
        b"\x80" + struct.pack(">I", len(FRAME)) + PACKER.compress(FRAME)[:-3],
        b"\x80" + struct.pack(">I", len(FRAME)) + PACKER.compress(FRAME) + b"more",
        pack_frame(pack_frame(FRAME, PACKER), PACKER),
        b"\x80" + struct.pack(">I", 2**31) + PACKER.compress(bytes(2**20)),
    ],
)
def test_a_packed_frame_that_is_not_what_it_says_is_refused(raw: bytes) -> None:
    with pytest.raises(FrameError):
        unpack_frame(raw)


def test_a_frame_that_unpacks_to_more_than_it_says_costs_no_memory() -> None:
    bomb = PACKER.compress(bytes(LINK_FRAME_BYTES_MAX + 1))
    assert len(bomb) < 10_000
    with pytest.raises(FrameError):
        unpack_frame(b"\x80" + struct.pack(">I", LINK_FRAME_BYTES_MAX) + bomb)


class StepClock:
    def __init__(self) -> None:
        self.now_ns = SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


@pytest.mark.parametrize(("version", "expected"), [(1, False), (2, True)])
def test_only_peers_that_speak_version_2_get_packed_frames(version: int, expected: bool) -> None:
    clock = StepClock()
    packer = FramePacker(clock, is_on=True)
    packer.packed(FRAME, backlog_bytes=BACKLOG, peer_version=version)
    clock.now_ns += SECOND
    packer.carried()
    sent = packer.packed(FRAME, backlog_bytes=BACKLOG, peer_version=version)
    assert (sent != FRAME) is expected
    assert unpack_frame(sent) == FRAME


def test_a_packer_that_is_off_packs_nothing() -> None:
    clock = StepClock()
    packer = FramePacker(clock, is_on=False)
    for _ in range(5):
        assert packer.packed(FRAME, backlog_bytes=BACKLOG, peer_version=2) is FRAME
        clock.now_ns += SECOND
        packer.carried()


def test_random_bytes_are_sent_as_they_are() -> None:
    clock = StepClock()
    packer = FramePacker(clock, is_on=True)
    noise = b"\x01" + random.Random(1).randbytes(100_000)
    for _ in range(5):
        assert packer.packed(noise, backlog_bytes=BACKLOG, peer_version=2) is noise
        clock.now_ns += SECOND
        packer.carried()


# --- counters -----------------------------------------------------------------------------------------


def test_codes_and_regions_that_peers_make_up_do_not_make_the_counters_grow() -> None:
    counters = LinkCounters()
    for row in range(1000):
        counters.session_refused("mirror", row + 1, f"MADE_UP_{row}")
        counters.peer_refused(f"MADE_UP_{row}")
    assert len(counters.refusals) == REGIONS_MAX + 1
    assert counters.refusals["mirror", OTHER_REGION, OTHER_CODE] == 1000 - REGIONS_MAX
    assert dict(counters.peers_refused) == {OTHER_CODE: 1000}


def test_sessions_and_resumes_are_counted_apart() -> None:
    counters = LinkCounters()
    counters.session_welcomed("home", 2, is_resume=False)
    counters.session_welcomed("home", 2, is_resume=True)
    row = ("home", RegionNumber(2))
    assert (counters.sessions[row], counters.resumes[row]) == (2, 1)
