"""How far prefixes of clients are from a region, as gateways there measured it: a table that travels. Pure.

A gateway measures its own clients by the kernel. A gateway of another region, which has clients of the same /24 or /48,
learns from the table how far these are from the region that it cannot measure.

Rule 1: a row says the median round trip of a prefix, of how many addresses it is, and how old its newest sample is.
        Nothing in it names a client.
Rule 2: of two rows of one prefix that of more addresses counts, then the younger, then the nearer one. So it does not
        matter in which order tables are merged, or how often.
Rule 3: a row grows older wherever it waits and is gone after EXPIRY_MIN. Its error grows meanwhile.
Rule 4: a table has ROWS_MAX rows at most, those heard of last. It is kept as the bytes that it came in, sorted.

    "pt" 0x01, then rows: family u8 (4, 6), prefix 6 bytes (IPv4: 3 and zeros), rtt u16 in 0.1 ms, addresses u8,
    age u8 in minutes; big-endian, prefixes ascending
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mesh.distance.prefix_core import IPV4_BYTES, IPV6_BYTES, Prefix

HEAD: Final = b"pt\x01"
ROWS_MAX: Final = 2_048
ROW_BYTES: Final = 11
KEY_BYTES: Final = 7
RTT_MS_MAX: Final = 6_553.5
ADDRESSES_MAX: Final = 6
EXPIRY_MIN: Final = 60
FEW_ADDRESSES: Final = 2  # so many may be anywhere in the prefix
ERROR_SHARE: Final = 0.15  # addresses of one /24 may be a metropolis apart
ERROR_MS_MIN: Final = 1.0
_ROW: Final = struct.Struct(">7sHBB")
_UNITS_PER_MS: Final = 10


class PrefixTableFault(ValueError):
    """Bytes that are no table."""


@dataclass(frozen=True, slots=True)
class PrefixDistance:
    """One row: median round trip in ms, of `addresses` (1..ADDRESSES_MAX), the newest sample `age_min` minutes old."""

    prefix: Prefix
    rtt_ms: float
    addresses: int
    age_min: int = 0

    @property
    def error_ms(self) -> float:
        """Return how wrong it may be: more for few addresses, and twice as much when it is about to expire."""
        share = ERROR_SHARE * (2 if self.addresses <= FEW_ADDRESSES else 1)
        return max(ERROR_MS_MIN, self.rtt_ms * share * (1 + self.age_min / EXPIRY_MIN))


class PrefixTable:
    """Rows by prefix; what is asked is how far one prefix is."""

    __slots__ = ("_rows",)

    def __init__(self, rows: bytes = b"") -> None:
        self._rows = rows  # packed and sorted, see `read` and `of`

    def __len__(self) -> int:
        return len(self._rows) // ROW_BYTES

    def __iter__(self) -> Iterator[PrefixDistance]:
        return (_row(self._rows, place) for place in range(len(self)))

    @classmethod
    def of(cls, rows: Iterable[PrefixDistance]) -> PrefixTable:
        """Return the table of rows, the first ROWS_MAX prefixes of them; what has expired is left out."""
        best: dict[bytes, bytes] = {}
        for row in rows:
            if not 0 <= row.age_min < EXPIRY_MIN:
                continue
            packed = _pack(row)
            key = packed[:KEY_BYTES]
            known = best.get(key)
            if known is None and len(best) == ROWS_MAX:
                continue
            if known is None or _rank(packed) > _rank(known):
                best[key] = packed
        return cls(b"".join(best[key] for key in sorted(best)))

    @classmethod
    def read(cls, raw: bytes) -> PrefixTable:
        """Return the table in bytes that came from elsewhere. Raises PrefixTableFault."""
        if raw[: len(HEAD)] != HEAD:
            raise PrefixTableFault("not a table of distances of version 1")
        return cls.read_rows(raw[len(HEAD) :])

    @classmethod
    def read_rows(cls, rows: bytes) -> PrefixTable:
        """Return the table of rows without a head. Raises PrefixTableFault."""
        count, rest = divmod(len(rows), ROW_BYTES)
        if rest or count > ROWS_MAX:
            raise PrefixTableFault(f"{len(rows)} bytes are not 0..{ROWS_MAX} rows of {ROW_BYTES}")
        before = b""
        for key, units, addresses, age_min in _ROW.iter_unpack(rows):
            is_family = key[0] == 6 or (key[0] == 4 and not any(key[1 + IPV4_BYTES :]))
            if not is_family or key <= before:
                raise PrefixTableFault("prefixes are not in order")
            if not units or not 1 <= addresses <= ADDRESSES_MAX or age_min >= EXPIRY_MIN:
                raise PrefixTableFault("a row makes no sense")
            before = key
        return cls(bytes(rows))

    @property
    def raw(self) -> bytes:
        """Return its bytes."""
        return HEAD + self._rows

    def find(self, prefix: Prefix) -> PrefixDistance | None:
        """Return the row of a prefix, None without one."""
        key, low, high = _key(prefix), 0, len(self)
        while low < high:
            middle = (low + high) // 2
            start = middle * ROW_BYTES
            if self._rows[start : start + KEY_BYTES] < key:
                low = middle + 1
            else:
                high = middle
        start = low * ROW_BYTES
        return _row(self._rows, low) if self._rows[start : start + KEY_BYTES] == key else None

    def page(self, after: bytes, rows_max: int) -> bytes:
        """Return the packed rows of the prefixes behind a key (b"": from the first), `rows_max` at most."""
        place = 0
        while place < len(self) and self._rows[place * ROW_BYTES : place * ROW_BYTES + KEY_BYTES] <= after:
            place += 1
        return self._rows[place * ROW_BYTES : (place + rows_max) * ROW_BYTES]

    def aged(self, minutes: int) -> PrefixTable:
        """Return what is left of it after so many whole minutes."""
        if minutes <= 0:
            return self
        kept = bytearray()
        for place in range(0, len(self._rows), ROW_BYTES):
            age_min = self._rows[place + ROW_BYTES - 1] + minutes
            if age_min < EXPIRY_MIN:
                kept += self._rows[place : place + ROW_BYTES - 1]
                kept.append(age_min)
        return PrefixTable(bytes(kept))


def merge(tables: Iterable[PrefixTable]) -> PrefixTable:
    """Return what several gateways of one region know together (rule 2); with more than ROWS_MAX the youngest rows."""
    best: dict[bytes, bytes] = {}
    for table in tables:
        for place in range(len(table)):
            packed = table._rows[place * ROW_BYTES : (place + 1) * ROW_BYTES]
            known = best.get(packed[:KEY_BYTES])
            if known is None or _rank(packed) > _rank(known):
                best[packed[:KEY_BYTES]] = packed
    rows = sorted(best.values(), key=lambda packed: (packed[-1], packed[:KEY_BYTES]))[:ROWS_MAX]
    return PrefixTable(b"".join(sorted(rows)))


def key_of_page(rows: bytes) -> bytes:
    """Return the key of the last of packed rows: the next page begins behind it."""
    return rows[-ROW_BYTES:][:KEY_BYTES]


def _key(prefix: Prefix) -> bytes:
    family = 4 if len(prefix.raw) == IPV4_BYTES else 6
    return bytes([family]) + prefix.raw.ljust(IPV6_BYTES, b"\0")


def _pack(row: PrefixDistance) -> bytes:
    units = min(max(1, round(row.rtt_ms * _UNITS_PER_MS)), int(RTT_MS_MAX * _UNITS_PER_MS))
    return _ROW.pack(_key(row.prefix), units, min(max(1, row.addresses), ADDRESSES_MAX), row.age_min)


def _row(rows: bytes, place: int) -> PrefixDistance:
    key, units, addresses, age_min = _ROW.unpack_from(rows, place * ROW_BYTES)
    size = IPV4_BYTES if key[0] == 4 else IPV6_BYTES
    return PrefixDistance(Prefix(key[1 : 1 + size]), units / _UNITS_PER_MS, addresses, age_min)


def _rank(packed: bytes) -> tuple[int, int, int]:
    """Return how much a packed row counts: more addresses, then younger, then nearer."""
    _, units, addresses, age_min = _ROW.unpack(packed)
    return addresses, -age_min, -units
