"""What a path's settings are for the kernel's own delay (netem): arguments of its queueing discipline. Pure.

Rule 1: netem holds every packet that is under way, so its limit must cover what a fast stream sends in one delay; over
        it packets are dropped, as in a full buffer. With a cap the limit is what the wire and the queue before it hold.
Rule 2: jitter is refused: netem draws it anew for every packet and reorders them. The router's does not.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from georelay.errors import ConfigError
from mesh.testbed.path_core import PathSettings

PACKETS_MAX: Final = 200_000  # 30 Gbit/s over 75 ms in packets of 1500 bytes
PACKETS_MIN: Final = 100
PACKET_BITS: Final = 12_000
Arguments: TypeAlias = dict[str, int | float | str]


def netem_arguments(settings: PathSettings) -> Arguments:
    """Return delay (us), loss (percent), limit (packets) and rate, as tc-netem(8) has them.

    Raises:
        ConfigError: jitter.
    """
    if settings.jitter_us:
        raise ConfigError("jitter needs the router: start the test bed with --engine router")
    arguments: Arguments = {"delay": settings.delay_us, "loss": settings.loss_ppm / 10_000, "limit": PACKETS_MAX}
    if settings.rate_bits_s:
        held = settings.rate_bits_s * (settings.delay_us + settings.queue_us) // (1_000_000 * PACKET_BITS)
        arguments |= {"rate": f"{settings.rate_bits_s}bit", "limit": min(PACKETS_MAX, max(PACKETS_MIN, held))}
    return arguments
