"""Where the brokers of the mesh are, put together from the configuration and from gossip. Pure: time is an argument.

Rule 1: what the configuration names stays as it is named; gossip adds the others.
Rule 2: what a broker of the own pool says of itself counts more than what another one says of it.
Rule 3: gossip never takes a broker away for being silent or dead: probes find that out sooner. It is taken away when it
        has left, or when nobody has told of it for FORGOTTEN_AFTER_S while others were told of.
Rule 4: without TLS to the brokers only loopback addresses are used, whoever told them: no credentials in the open.
Rule 5: a region has one name and one number; who says otherwise is not believed. Everything is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from georelay.ids import BrokerId, RegionNumber, region_of
from georelay.limits import REGIONS_MAX
from mesh.gossip.directory_core import BrokerRow

FORGOTTEN_AFTER_S: Final = 600.0
BROKERS_MAX: Final = 512  # each is probed over a connection of its own


@dataclass(slots=True, kw_only=True)
class _Heard:
    row: BrokerRow
    at_s: float
    rtt_s: float | None


class KnownBrokers:
    """Args:
    configured: regions of the configuration, in its order.
    may_dial: whether an address ("host:port") may be used (rule 4).
    """

    def __init__(self, configured: Sequence[RegionEndpoints], *, may_dial: Callable[[str], bool]) -> None:
        self._configured = tuple(configured)
        self._fixed = {broker.id for region in configured for broker in region.brokers}
        self._may_dial = may_dial
        self._heard: dict[BrokerId, _Heard] = {}
        self._pool: frozenset[BrokerId] = frozenset()
        self._told_s = 0.0
        self.refused: dict[BrokerId, str] = {}  # why a broker that was told of is not used; text for one log line

    def pool_changed(self, rows: Iterable[BrokerRow], now_s: float) -> None:
        """Take in what the brokers of the own pool say of themselves, all of them."""
        rows = list(rows)
        self._pool = frozenset(row.broker for row in rows)
        for row in rows:
            self._take(row, now_s, row.rtt_s)

    def directory_told(self, rows: Iterable[BrokerRow], now_s: float, *, rtt_s: float | None) -> None:
        """Take in a whole directory. `rtt_s`: estimated round trip to the broker that told it."""
        for row in rows:
            if row.broker not in self._pool:
                far = None if rtt_s is None or row.rtt_s is None else rtt_s + row.rtt_s
                self._take(row, now_s, far)
        self._told_s = now_s
        for broker, heard in list(self._heard.items()):
            if broker not in self._pool and now_s - heard.at_s > FORGOTTEN_AFTER_S:
                del self._heard[broker]

    def _take(self, row: BrokerRow, now_s: float, rtt_s: float | None) -> None:
        if row.broker in self._fixed:
            return
        if row.has_left:
            self._heard.pop(row.broker, None)
            self.refused.pop(row.broker, None)
            return
        reason = self._reason_against(row)
        if reason:
            self.refused[row.broker] = reason
            self._heard.pop(row.broker, None)
            return
        self.refused.pop(row.broker, None)
        self._heard[row.broker] = _Heard(row=row, at_s=now_s, rtt_s=rtt_s)

    def _reason_against(self, row: BrokerRow) -> str:
        open_to_all = [address for address in (row.kafka, row.grpc, row.admin) if not self._may_dial(address)]
        if open_to_all:
            return f"{open_to_all[0]} is not a loopback address, and there is no [upstream_tls]"
        number = region_of(row.broker)
        names: dict[RegionNumber, str] = {region.number: region.name for region in self._configured}
        names |= {region_of(b): heard.row.region for b, heard in self._heard.items() if b != row.broker}
        if names.get(number, row.region) != row.region:
            return f"region {number} is {names[number]}, not {row.region}"
        if any(name == row.region and other != number for other, name in names.items()):
            return f"region {row.region} has another number than {number}"
        if number not in names and len(names) >= REGIONS_MAX:
            return f"{REGIONS_MAX} regions are known already"
        if row.broker not in self._heard and len(self._heard) >= BROKERS_MAX:
            return f"{BROKERS_MAX} brokers are known already"
        return ""

    def regions(self) -> tuple[RegionEndpoints, ...]:
        """Return every region with its brokers: configured ones first, then by number."""
        rows: dict[RegionNumber, list[BrokerEndpoints]] = {r.number: list(r.brokers) for r in self._configured}
        names = {region.number: region.name for region in self._configured}
        order = list(rows)
        for broker in sorted(self._heard, key=int):
            row, number = self._heard[broker].row, region_of(broker)
            if number not in names:
                order.append(number)
                names[number] = row.region
            rows.setdefault(number, []).append(
                BrokerEndpoints(id=broker, kafka=row.kafka, grpc=row.grpc, admin=row.admin)
            )
        return tuple(RegionEndpoints(name=names[n], number=n, brokers=tuple(rows[n])) for n in order)

    def estimates_ns(self) -> Mapping[BrokerId, int]:
        """Return the estimated round trips; of brokers that are not there, nothing."""
        return {b: round(heard.rtt_s * 1e9) for b, heard in self._heard.items() if heard.rtt_s is not None}
