"""Packets under way: they leave in order of time, at the region their address names."""

from __future__ import annotations

import random

import pytest

from mesh.testbed import delay_line_core
from mesh.testbed.delay_line_core import Addressing, DelayLine
from mesh.testbed.path_core import Path, PathSettings

MS = 1_000_000
HEADER = 10


def packet(destination: int, *, slot: int = 0, size: int = 40, version: int = 4) -> bytes:
    raw = bytearray(size)
    raw[0] = version << 4 | 5
    raw[12:16] = bytes([198, 18, 16 * slot + 1, 1])
    raw[16:20] = bytes([198, 18, 16 * slot + destination, 1])
    return bytes(HEADER) + bytes(raw)


def line(**delays_us: int) -> DelayLine:
    rng = random.Random(1)
    paths = {
        (1, 2): Path(PathSettings(delay_us=delays_us.get("near", 10_000)), rng),
        (1, 3): Path(PathSettings(delay_us=delays_us.get("far", 50_000)), rng),
    }
    return DelayLine(paths, header_bytes=HEADER)


def test_the_packet_that_is_due_first_leaves_first() -> None:
    one = line()
    far, near = packet(3), packet(2)
    one.accept(1, far, 0)
    one.accept(1, near, 0)
    assert one.next_due_ns == 10 * MS
    assert [one.take() for _ in range(2)] == [(10 * MS, 2, near), (50 * MS, 3, far)]


def test_packets_due_at_one_moment_keep_their_order() -> None:
    one = line()
    packets = [packet(2, size=40 + number) for number in range(20)]
    for raw in packets:
        one.accept(1, raw, 0)
    assert [one.take()[2] for _ in packets] == packets


def test_the_region_is_found_in_every_slot() -> None:
    one = line()
    one.accept(1, packet(3, slot=15), 0)
    assert one.take()[1] == 3


def test_another_octet_may_say_the_region_and_values_of_nobody_are_dropped() -> None:
    rng = random.Random(1)
    networks = bytes({10: 1, 20: 2}.get(value, 0) for value in range(256))
    one = DelayLine(
        {(1, 2): Path(PathSettings(delay_us=10_000), rng)}, addressing=Addressing(octet=1, index_of=networks)
    )
    raw = bytearray(40)
    raw[0] = 4 << 4 | 5
    for second in (20, 30):
        raw[16:20] = bytes([10, second, 64, 11])
        one.accept(1, bytes(raw), 0)
    assert (one.take()[1], one.strange) == (2, 1)


@pytest.mark.parametrize("raw", [b"", bytes(HEADER + 19), packet(2, version=6), packet(1), packet(9)])
def test_what_is_no_ipv4_packet_to_another_region_is_dropped_and_counted(raw: bytes) -> None:
    one = line()
    one.accept(1, raw, 0)
    assert (one.next_due_ns, one.strange) == (-1, 1)


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_line_core, "HELD_BYTES_MAX", 3 * len(packet(2)))
    one = line()
    for _ in range(5):
        one.accept(1, packet(2), 0)
    assert one.overflown == 2
    for _ in range(3):
        one.take()
    assert (one.held_bytes, one.next_due_ns) == (0, -1)
