"""How far this host's clock is from UTC at most, as its kernel knows it: one system call, read only.

The kernel's `maxerror` is set by whoever disciplines the clock (ntpd; chronyd with `rtcsync`, its default in every
distribution: root delay / 2 + root dispersion) and grows by 500 ppm until it is set again; STA_UNSYNC says that nobody
does. Source: adjtimex(2), kernel/time/ntp.c. 1.8 us per call.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Final

STA_UNSYNC: Final = 0x0040
TIME_ERROR: Final = 5  # return code: the clock is not synchronised
MAXERROR_US_MAX: Final = 16_000_000  # NTP_PHASE_LIMIT: the kernel's "unknown"


class _Timeval(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_usec", ctypes.c_long)]


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>; only what stands before the fields that are read matters."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", _Timeval),
        ("rest", ctypes.c_byte * 256),
    ]


def _load() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(ctypes.util.find_library("c") or "libc.so.6", use_errno=True)
        library.adjtimex.argtypes = [ctypes.POINTER(_Timex)]
        library.adjtimex.restype = ctypes.c_int
    except (OSError, AttributeError):  # no such library or call: another operating system
        return None
    return library


class KernelClock:
    """Asks the kernel; `max_error_us` is None wherever it does not know."""

    def __init__(self) -> None:
        self._library = _load()

    def max_error_us(self) -> int | None:
        """Return the bound in microseconds, None while the clock is not synchronised or the kernel cannot say."""
        if self._library is None:
            return None
        answer = _Timex()
        code = self._library.adjtimex(ctypes.byref(answer))
        return judge(code, int(answer.status), int(answer.maxerror))


def judge(code: int, status: int, maxerror_us: int) -> int | None:
    """Return the bound in an answer of adjtimex(2), None when it is none."""
    if code < 0 or code == TIME_ERROR or status & STA_UNSYNC or not 0 <= maxerror_us < MAXERROR_US_MAX:
        return None
    return maxerror_us
