"""Round trips of a connection as the kernel has them, without a probe: getsockopt(TCP_INFO), one microsecond.

Source: struct tcp_info of linux/tcp.h; fields were only ever added at its end. TLS makes no difference.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from mesh.distance.kernel_sample import KernelSample

_BYTES: Final = 192
_LAST_ACK: Final = struct.Struct("=I")  # at 56, ms since the peer acknowledged anything
_RTT: Final = struct.Struct("=I")  # at 68, us, smoothed
_SEGMENTS_IN: Final = struct.Struct("=I")  # at 140
_MIN_RTT: Final = struct.Struct("=I")  # at 148, us, lowest of five minutes
_LAST_ACK_AT, _RTT_AT, _SEGMENTS_IN_AT, _MIN_RTT_AT = 56, 68, 140, 148
YOUNG_SEGMENTS: Final = 20


def decode(raw: bytes) -> KernelSample | None:
    """Return what a struct tcp_info says; None when it is of a kernel before 4.9, or nothing was measured yet."""
    if len(raw) < _MIN_RTT_AT + _MIN_RTT.size:
        return None
    rtt_us, min_rtt_us = _RTT.unpack_from(raw, _RTT_AT)[0], _MIN_RTT.unpack_from(raw, _MIN_RTT_AT)[0]
    if not 0 < min_rtt_us < 0xFFFFFFFF or not rtt_us:
        return None
    return KernelSample(
        srtt_ms=rtt_us / 1000,
        min_rtt_ms=min_rtt_us / 1000,
        last_ack_s=_LAST_ACK.unpack_from(raw, _LAST_ACK_AT)[0] / 1000,
        is_young=_SEGMENTS_IN.unpack_from(raw, _SEGMENTS_IN_AT)[0] < YOUNG_SEGMENTS,
    )


def sample_of(sock: socket.socket | None) -> KernelSample | None:
    """Return the round trips of a connected socket; None where it is no TCP socket, or has gone."""
    if sock is None:
        return None
    try:
        return decode(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES))
    except OSError:
        return None
