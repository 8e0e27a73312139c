"""Prometheus families about gossip, read from the pools when they are scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.gossip.pools import GossipPools
from mesh.gossip.view import MemberStatus


class GossipCollector(Collector):
    """Members, health, traffic and lags; nothing per member: their number is not ours to bound."""

    def __init__(self, pools: GossipPools) -> None:
        self._pools = pools

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        members = GaugeMetricFamily("georelay_gossip_members", "Members of a pool.", labels=["pool", "status"])
        awareness = GaugeMetricFamily(
            "georelay_gossip_awareness", "0: healthy; more: this process doubts itself.", labels=["pool"]
        )
        queued = GaugeMetricFamily("georelay_gossip_queued", "Broadcasts that wait.", labels=["pool", "kind"])
        events = CounterMetricFamily("georelay_gossip_events", "What happened, by name.", labels=["pool", "event"])
        sent = CounterMetricFamily("georelay_gossip_bytes", "Bytes of UDP packets.", labels=["pool", "direction"])
        for name, pool in self._pools.pools.items():
            statuses = Counter(member.status for member in pool.members())
            health = pool.health()
            for status in MemberStatus:
                members.add_metric([name, status.value], statuses[status])
            awareness.add_metric([name], health.awareness)
            for kind, count in health.queued.items():
                queued.add_metric([name, kind], count)
            for event, count in sorted(pool.counts.items()):
                events.add_metric([name, event], count)
            sent.add_metric([name, "in"], health.bytes_in)
            sent.add_metric([name, "out"], health.bytes_out)
        yield from (members, awareness, queued, events, sent)
        watchdog = self._pools.watchdog
        yield GaugeMetricFamily(
            "georelay_main_loop_lag_seconds", "How late the main loop's newest sign of life is.", value=watchdog.lag_s
        )
        yield GaugeMetricFamily(
            "georelay_main_loop_lag_max_seconds", "The longest since the start.", value=watchdog.longest_lag_s
        )
        yield GaugeMetricFamily(
            "georelay_gossip_loop_lag_seconds", "How late the gossip thread woke up.", value=self._pools.gossip_lag_s
        )
