"""How the C library takes memory from the kernel: record batches come and go, their pages should stay.

Left alone, it maps a buffer of over 128 KiB by itself and gives it back as soon as it is free, so each batch costs a
page fault per 4 KiB of it. Told so, it serves them from its heap and gives back only what lies unused at the end.
"""

from __future__ import annotations

import ctypes
from typing import Final

from georelay.limits import KIB, MIB

# glibc, malloc.h: mallopt(3)
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3

MAPPED_BYTES_MIN: Final = 4 * MIB  # larger ones are mapped one by one: a frame of the largest size, a segment
KEPT_FREE_BYTES: Final = 64 * MIB  # at the end of the heap
GROWTH_BYTES: Final = 512 * KIB


def spare_memory_calls() -> bool:
    """Set it for this process; False where the C library is another one."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (_TRIM_THRESHOLD, KEPT_FREE_BYTES), (_TOP_PAD, GROWTH_BYTES))
    return all(mallopt(number, value) == 1 for number, value in settings)
