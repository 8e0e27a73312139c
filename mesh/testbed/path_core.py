"""One direction between two regions: which packets arrive, and when.

Rule 1: pure; time (monotonic nanoseconds) and randomness are handed in.
Rule 2: packets of one path keep their order. Jitter is an AR(1) process that moves every 20 ms: jitter that is drawn
        anew for every packet would either reorder half of them or, with the order kept, raise the mean delay (by
        0.93 ms at 2 ms deviation and 1000 packets/s, measured).
Rule 3: a cap is a queue in front of a wire: a packet waits for those before it, and is dropped when it would wait
        longer than `queue_us`.
Rule 4: a cut drops what enters; what is under way arrives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

JITTER_STEP_NS: Final = 20_000_000
JITTER_CORRELATION: Final = 0.9  # from step to step: 200 ms until most of it is forgotten
_STEPS_MAX: Final = 200  # nothing of the past is left after that
_PPM: Final = 1_000_000


class Randomness(Protocol):
    """What a path asks of random.Random."""

    def random(self) -> float:
        """Return a number of 0 to 1, 1 excluded."""

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normally distributed number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSettings:
    """How one direction behaves.

    Args:
        jitter_us: standard deviation of the delay.
        loss_ppm: packets lost, in parts per million, each independently.
        rate_bits_s: cap; 0 for none.
        queue_us: longest wait in front of a capped wire.
    """

    delay_us: int = 0
    jitter_us: int = 0
    loss_ppm: int = 0
    rate_bits_s: int = 0
    queue_us: int = 200_000
    is_cut: bool = False

    @property
    def needs_single_packets(self) -> bool:
        """Return whether large packets of the kernel (GSO, up to 64 KiB) would falsify it: lost or queued as one."""
        return self.loss_ppm > 0 or self.rate_bits_s > 0


@dataclass(slots=True)
class PathCounters:
    """What happened since the bed was started."""

    packets: int = 0
    bytes: int = 0  # of packets that were let in
    lost: int = 0
    cut: int = 0
    queue_full: int = 0


class Path:
    """One direction; `admit` is called once per packet, in order of time."""

    def __init__(self, settings: PathSettings, rng: Randomness) -> None:
        self._rng = rng
        self.counters = PathCounters()
        self._jitter = 0.0  # in standard deviations
        self._jitter_at_ns = 0
        self.settings = settings
        self.change(settings)

    def change(self, settings: PathSettings) -> None:
        """Behave otherwise from now on; the wire of a cap begins empty, and a shorter path may overtake the longer."""
        self.settings = settings
        self._delay_ns = settings.delay_us * 1_000
        self._jitter_ns = settings.jitter_us * 1_000
        self._loss = settings.loss_ppm / _PPM
        self._queue_ns = settings.queue_us * 1_000
        self._free_ns = 0
        self._last_due_ns = 0

    def admit(self, now_ns: int, size_bytes: int) -> int:
        """Return when the packet arrives (same clock as `now_ns`), or -1: never."""
        counters, settings = self.counters, self.settings
        counters.packets += 1
        if settings.is_cut:
            counters.cut += 1
            return -1
        if self._loss and self._rng.random() < self._loss:
            counters.lost += 1
            return -1
        due_ns = now_ns
        if settings.rate_bits_s:
            begin_ns = max(self._free_ns, now_ns)
            if begin_ns - now_ns > self._queue_ns:
                counters.queue_full += 1
                return -1
            self._free_ns = due_ns = begin_ns + size_bytes * 8_000_000_000 // settings.rate_bits_s
        counters.bytes += size_bytes
        due_ns += self._delay_ns
        if self._jitter_ns:
            due_ns = max(now_ns, due_ns + self._jitter_offset_ns(now_ns))
        due_ns = max(due_ns, self._last_due_ns)
        self._last_due_ns = due_ns
        return due_ns

    def _jitter_offset_ns(self, now_ns: int) -> int:
        steps = (now_ns - self._jitter_at_ns) // JITTER_STEP_NS
        if steps > 0:
            kept = JITTER_CORRELATION ** min(steps, _STEPS_MAX)
            self._jitter = kept * self._jitter + math.sqrt(1 - kept * kept) * self._rng.gauss(0.0, 1.0)
            self._jitter_at_ns += steps * JITTER_STEP_NS
        return round(self._jitter * self._jitter_ns)
