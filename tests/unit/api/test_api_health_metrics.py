"""Loop, disk, repair and replicas as Prometheus families."""

from __future__ import annotations

from typing import Any

from region.api.metrics import BrokerMetrics, HealthSnapshot
from region.kafka.counters import KafkaCounters


def rendered(cluster: Any, snapshot: HealthSnapshot | None) -> dict[str, float]:
    metrics = BrokerMetrics(cluster, KafkaCounters(), None if snapshot is None else lambda: snapshot)
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_what_the_broker_knows_is_shown(cluster: Any) -> None:
    shown = rendered(
        cluster,
        HealthSnapshot(
            loop_stalls=3,
            disk_free_bytes=1000,
            disk_reserve_bytes=1500,
            disk_is_writable=False,
            corrupt_segments=2,
            bulk_bytes={"sent": 5, "received": 7},
            catch_up_entries={(4, 1003): 99},
        ),
    )
    assert shown["georelay_loop_stalls_total"] == 3
    assert (shown["georelay_disk_free_bytes"], shown["georelay_disk_writable"]) == (1000, 0)
    assert shown["georelay_disk_reserve_bytes"] == 1500
    assert shown["georelay_corrupt_segments_total"] == 2
    assert shown['georelay_bulk_bytes_total{direction="received"}'] == 7
    assert shown['georelay_replica_catch_up_entries{broker="1003",group="4"}'] == 99


def test_what_is_not_known_is_absent(cluster: Any) -> None:
    assert "georelay_disk_free_bytes" not in rendered(cluster, HealthSnapshot())
    assert "georelay_disk_writable" not in rendered(cluster, None)
