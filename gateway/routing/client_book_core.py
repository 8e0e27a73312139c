"""What this gateway remembers of its clients: round trips, what they observed, the region each has. Pure and bounded.

Rule 1: a client is its name at its address; a name alone could be anybody's. What a client says counts for itself only.
Rule 2: the kernel's round trips of the last WINDOW_S count by their minimum: a reply that waits for the application
        makes single ones longer (measured: 65 ms on a path of 40 ms), nothing makes one shorter. Young connections
        count by the kernel's own minimum. A connection that acknowledged nothing for ACK_AGE_S_MAX says nothing of
        today.
Rule 3: of what a client observes a lower value counts at once, a higher one when the next one is high as well, and
        then by OBSERVED_RISE: one late observation lasts for three evaluations, and made clients move between two
        regions that are equally near.
Rule 4: a prefix keeps the kernel's round trips of its last addresses, one of each, and counts by their median.
Rule 5: CLIENTS_MAX are remembered, PREFIX_CLIENTS_MAX of one prefix; of these the longest silent one gives way when it
        has been silent for IDLE_S. Whoever finds no place is answered by what is measured, without a memory: a flood
        takes nobody's place.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from statistics import median
from typing import Final

from gateway.routing.choosing_core import Memory
from gateway.routing.distance_core import Estimate, Leg, estimate
from mesh.distance.kernel_sample import KernelSample
from mesh.distance.prefix_core import Prefix, prefix_of
from mesh.distance.prefix_table_core import PrefixDistance
from mesh.distance.spread_core import client_key

CLIENTS_MAX: Final = 100_000
PREFIX_CLIENTS_MAX: Final = 10_000
PREFIXES_MAX: Final = 20_000
NAME_CHARS_MAX: Final = 128
NAME_HEADER: Final = "Georelay-Client-Name"  # of a request over HTTP, or of a call's metadata in lower case
FORGOTTEN_S: Final = 900.0
IDLE_S: Final = 90.0  # clients ask every 36 s at the latest
WINDOW_S: Final = 120.0
WINDOW_SAMPLES: Final = 6
SPACING_S: Final = 1.0
ACK_AGE_S_MAX: Final = 30.0
OBSERVED_AGE_S_MAX: Final = 180.0
OBSERVED_SAMPLES_MIN: Final = 3
OBSERVED_RISE: Final = 1 / 3
OBSERVED_REGIONS_MAX: Final = 4
RTT_MS_MAX: Final = 10_000.0
PREFIX_ADDRESSES: Final = 6
PREFIX_AGE_S_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client: the name that it gives itself, cut to NAME_CHARS_MAX, and its IP address."""

    name: str
    address: str

    @property
    def text(self) -> str:
        """Return what its hash is made of, the same at every gateway."""
        return client_key(self.name, self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a client says of its way to a region: median of `samples` warm exchanges, the first left out."""

    region: str
    rtt_ms: float
    samples: int
    age_s: float = 0.0


class _Prefix:
    """What the clients of one prefix have in common. `near`: triples (tag of an address, rtt, at) of the kernel."""

    __slots__ = ("clients", "near")

    def __init__(self) -> None:
        self.clients = 0
        self.near: array[float] | None = None


class _Row(Memory):
    """One client. `window`: pairs (taken at, rtt) of the kernel. `observed`: fours (region's number, rtt that
    counts, newest rtt, at).

    Arrays of 4-byte floats, seconds since the book began: to the second for a hundred days.
    """

    __slots__ = ("asked_s", "observed", "prefix", "window")

    def __init__(self, prefix: _Prefix | None) -> None:
        super().__init__()
        self.prefix = prefix
        self.asked_s = 0.0
        self.window: array[float] | None = None
        self.observed: array[float] | None = None


class ClientBook:
    """The rows, and what their prefixes have in common. `began_s`: monotonic; the others: see rule 5."""

    def __init__(
        self, *, began_s: float = 0.0, clients_max: int = CLIENTS_MAX, prefix_clients_max: int = PREFIX_CLIENTS_MAX
    ) -> None:
        self._began_s = began_s
        self._clients_max = clients_max
        self._prefix_clients_max = prefix_clients_max
        self._rows: dict[int, _Row] = {}  # by hash of the client's key, the longest silent one first
        self._prefixes: dict[Prefix, _Prefix] = {}  # the longest silent one first
        self._numbers: dict[str, int] = {}  # of regions, as `observed` has them
        self.without_place = 0  # asked without finding one

    def __len__(self) -> int:
        return len(self._rows)

    # --- what comes in ---------------------------------------------------------------------------------------

    def saw(self, client: ClientKey, sample: KernelSample, now_s: float) -> None:
        """Take in what the kernel knows of a connection of the client."""
        if sample.last_ack_s > ACK_AGE_S_MAX:
            return
        rtt_ms = min(sample.min_rtt_ms if sample.is_young else sample.srtt_ms, RTT_MS_MAX)
        if not rtt_ms > 0:
            return
        row, at_s = self._row(client, now_s), now_s - self._began_s
        window = row.window or array("f")
        if window and at_s - window[-2] < SPACING_S:
            return
        row.window = array("f", [*window[-2 * (WINDOW_SAMPLES - 1) :], at_s, rtt_ms])
        if row.prefix is not None:
            tag = float(_digest(client.address) & 0xFFFFFF)
            others = [row for row in _by(3, row.prefix.near) if row[0] != tag][1 - PREFIX_ADDRESSES :]
            row.prefix.near = array("f", [x for triple in (*others, (tag, rtt_ms, at_s)) for x in triple])

    def told(self, client: ClientKey, observations: Iterable[Observation], now_s: float) -> None:
        """Take in what the client says it measured, for itself only; what cannot be is left out."""
        good = [o for o in observations if o.samples >= OBSERVED_SAMPLES_MIN and 0 < o.rtt_ms <= RTT_MS_MAX]
        good = [o for o in good if o.region in self._numbers and 0 <= o.age_s <= OBSERVED_AGE_S_MAX]
        if not good:
            return
        row, at_s = self._row(client, now_s), now_s - self._began_s
        kept = {int(number): (counts, last, at) for number, counts, last, at in _by(4, row.observed)}
        for observation in good[:OBSERVED_REGIONS_MAX]:
            number, rtt_ms, taken_s = self._numbers[observation.region], observation.rtt_ms, at_s - observation.age_s
            before_ms, last_ms, before_s = kept.get(number, (rtt_ms, rtt_ms, taken_s))
            low_ms = min(rtt_ms, last_ms)
            if taken_s - before_s > OBSERVED_AGE_S_MAX:
                low_ms = rtt_ms
            elif low_ms > before_ms:
                low_ms = before_ms + OBSERVED_RISE * (low_ms - before_ms)
            kept[number] = low_ms, rtt_ms, taken_s
        newest = sorted(kept.items(), key=lambda item: item[1][2])[-OBSERVED_REGIONS_MAX:]
        row.observed = array("f", [x for number, numbers in newest for x in (number, *numbers)])

    def know_regions(self, names: Iterable[str]) -> None:
        """Observations of these regions are taken in from now on."""
        for name in names:
            self._numbers.setdefault(name, len(self._numbers))

    # --- what is asked ---------------------------------------------------------------------------------------

    def memory(self, client: ClientKey, now_s: float) -> Memory:
        """Return what is remembered of the client, to be changed by choosing."""
        return self._row(client, now_s)

    def remembered(self, client: ClientKey) -> Memory:
        """Return a copy of what is remembered of the client; a new one of a client that is not known."""
        row = self._rows.get(_digest(client.text))
        return Memory() if row is None else replace_memory(row)

    def kernel_ms(self, client: ClientKey, now_s: float) -> float | None:
        """Return the round trip to the client by the kernel; its prefix's median while it has none of its own."""
        row, at_s = self._rows.get(_digest(client.text)), now_s - self._began_s
        window = (row.window if row is not None else None) or ()
        fresh = [window[i + 1] for i in range(0, len(window), 2) if at_s - window[i] <= WINDOW_S]
        if fresh:
            return min(fresh)
        prefix = prefix_of(client.address)
        return None if prefix is None else self.prefix_ms(prefix, now_s)

    def observed_ms(self, client: ClientKey, now_s: float) -> dict[str, float]:
        """Return what the client said lately, by region."""
        row, at_s = self._rows.get(_digest(client.text)), now_s - self._began_s
        if row is None or row.observed is None:
            return {}
        fresh = {int(n): rtt for n, rtt, _, at in _by(4, row.observed) if at_s - at <= OBSERVED_AGE_S_MAX}
        return {name: fresh[number] for name, number in self._numbers.items() if number in fresh}

    def prefix_ms(self, prefix: Prefix, now_s: float) -> float | None:
        """Return the median round trip of a prefix to this gateway."""
        known = self._prefixes.get(prefix)
        at_s = now_s - self._began_s
        fresh = [rtt for _, rtt, at in _by(3, known.near if known else None) if at_s - at <= PREFIX_AGE_S_MAX]
        return median(fresh) if fresh else None

    def prefix_distance(self, prefix: Prefix, now_s: float) -> PrefixDistance | None:
        """Return what other gateways are told of a prefix, None while nothing was measured within the hour."""
        known = self._prefixes.get(prefix)
        at_s = now_s - self._began_s
        ages_s = [at_s - at for _, _, at in _by(3, known.near if known else None) if at_s - at <= PREFIX_AGE_S_MAX]
        rtt_ms = self.prefix_ms(prefix, now_s)
        if rtt_ms is None or not ages_s:
            return None
        return PrefixDistance(prefix, rtt_ms, len(ages_s), max(0, int(min(ages_s) / 60)))

    def prefixes(self) -> list[Prefix]:
        """Return the prefixes that have clients, the one heard of last first."""
        return list(reversed(self._prefixes))

    def estimates(
        self, client: ClientKey, legs: Mapping[str, Leg | None], far: Mapping[str, PrefixDistance], now_s: float
    ) -> dict[str, Estimate]:
        """Return the client's distance from every region.

        Args:
            legs: from this gateway to the regions. far: the client's prefix as gateways of other regions see it.
        """
        kernel_ms = self.kernel_ms(client, now_s)
        observed = self.observed_ms(client, now_s)
        return {
            name: estimate(leg=leg, kernel_ms=kernel_ms, observed_ms=observed.get(name), far=far.get(name))
            for name, leg in legs.items()
        }

    # --- rows ------------------------------------------------------------------------------------------------

    def _row(self, client: ClientKey, now_s: float) -> _Row:
        """Return the client's row, a new one if need be; one that is not kept when there is no place (rule 5)."""
        key = _digest(client.text)
        row = self._rows.pop(key, None)
        if row is None:
            prefix = self._prefix(client.address)
            row = _Row(prefix)
            if not self._makes_place(prefix, now_s):
                self.without_place += 1
                row.prefix = None  # and it adds nothing to what others are judged by
                return row
            if prefix is not None:
                prefix.clients += 1
        row.asked_s = now_s
        self._rows[key] = row
        return row

    def _prefix(self, address: str) -> _Prefix | None:
        """Return what is known of a prefix; None of what has none, and of one that finds no place."""
        prefix = prefix_of(address)
        if prefix is None:
            return None
        known = self._prefixes.pop(prefix, None)
        if known is None:
            if len(self._prefixes) >= PREFIXES_MAX:
                oldest = next(iter(self._prefixes))
                if self._prefixes[oldest].clients:
                    self._prefixes[oldest] = self._prefixes.pop(oldest)  # the next one may have none
                    return None
                del self._prefixes[oldest]
            known = _Prefix()
        self._prefixes[prefix] = known
        return known

    def _makes_place(self, prefix: _Prefix | None, now_s: float) -> bool:
        """Return whether one more row may be kept, after rows that were silent for long have gone."""
        for _ in range(2):  # one more than comes, so that a quiet book shrinks
            oldest = next(iter(self._rows), None)
            silent_s = 0.0 if oldest is None else now_s - self._rows[oldest].asked_s
            if oldest is None or silent_s <= (IDLE_S if len(self._rows) >= self._clients_max else FORGOTTEN_S):
                break
            gone = self._rows.pop(oldest).prefix
            if gone is not None:
                gone.clients -= 1
        if len(self._rows) >= self._clients_max:
            return False
        return prefix is None or prefix.clients < self._prefix_clients_max


def replace_memory(memory: Memory) -> Memory:
    """Return a copy, of whatever kind the memory is."""
    return Memory(**{name: getattr(memory, name) for name in Memory.__slots__})


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _by(width: int, numbers: array[float] | None) -> list[tuple[float, ...]]:
    """Return numbers by threes, or by fours."""
    return [] if numbers is None else [tuple(numbers[i : i + width]) for i in range(0, len(numbers), width)]
