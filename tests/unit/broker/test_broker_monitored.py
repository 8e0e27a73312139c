"""Alert rules and dashboard name metrics and labels that a broker, a gateway and the live view really have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import aiohttp
from prometheus_client import CollectorRegistry, generate_latest

from gateway.app import Gateway
from gateway.config import BrokerConfig, GatewayConfig, ListenConfig, RegionConfig
from sla.live.metrics import LiveCollector
from sla.live.state_core import LiveState
from sla.live.status_core import live_document

ROOT: Final = Path(__file__).resolve().parents[3]
ALERTS: Final = (ROOT / "deploy/monitoring/alerts.yml").read_text()
DASHBOARD: Final = json.loads((ROOT / "deploy/monitoring/dashboard.json").read_text())
NAME: Final = re.compile(r"\bgeorelay_[a-z_]+(?![:\w])")
SELECTED: Final = re.compile(r"\b(georelay_[a-z_]+)\{([^}]*)\}")
ROW: Final = re.compile(r"^\| (`georelay_[^|]+) \| (?:counter|gauge|histogram) \|([^|]*)\|", flags=re.M)
OF_TARGETS: Final = {"at_region", "instance", "job"}
METRICS_MIN: Final = 40  # fewer: the files are not read any more


def queries() -> list[str]:
    """Return every expression of the dashboard."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def shown(text: str) -> set[str]:
    """Return the names of the families in an exposition, those of counters without their suffix."""
    return {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", text, flags=re.M)}


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


async def metrics_of_gateway(broker: Any) -> str:
    listen = broker.config.listen
    config = GatewayConfig(
        mesh_id="test",
        listen=ListenConfig(http="127.0.0.1:0", kafka="127.0.0.1:0", grpc="127.0.0.1:0"),
        regions=(
            RegionConfig(
                name="us",
                number=1,
                brokers=(BrokerConfig(number=1, kafka=listen.kafka, grpc=listen.grpc, admin=listen.admin),),
            ),
        ),
    )
    gateway = Gateway(config)
    ports = await gateway.start()
    try:
        return await get(f"http://127.0.0.1:{ports.http}/metrics")
    finally:
        await gateway.close()


async def test_every_metric_of_alerts_and_dashboard_is_in_the_metrics_of_a_running_process(
    broker: Any, tmp_path: Path
) -> None:
    (tmp_path / "live.json").write_text(json.dumps(live_document(LiveState(), known=[], now_s=0, stale_s=30)))
    live = CollectorRegistry()
    live.register(LiveCollector(tmp_path / "live.json"))
    there = shown(await get(f"http://{broker.config.listen.admin}/metrics"))
    there |= shown(await metrics_of_gateway(broker)) | shown(generate_latest(live).decode())
    named = {
        name.removesuffix("_total").removesuffix("_bucket")
        for text in (ALERTS, *queries())
        for name in NAME.findall(text)
    }
    assert len(named) > METRICS_MIN
    assert named - there == set()


def test_every_label_that_is_asked_for_is_one_that_the_metric_has() -> None:
    labels = {
        name: set(re.findall(r"\w+", row[1]))
        for row in ROW.findall((ROOT / "docs/operate/metrics.md").read_text())
        for name in re.findall(r"`(georelay_\w+)`", row[0])
    }
    wrong = []
    for text in (ALERTS, *queries()):
        for name, selectors in SELECTED.findall(text):
            family = name.removesuffix("_total").removesuffix("_bucket")
            asked = set(re.findall(r"(\w+)(?:=~|!=|=)", selectors))
            wrong += [f"{name}: {label}" for label in asked - labels[family] - OF_TARGETS]
        for by, name in re.findall(r"by \(([\w, ]+)\) \((?:rate\(|increase\()?(georelay_[a-z_]+)(?![:\w])", text):
            family = name.removesuffix("_total").removesuffix("_bucket")
            asked = {label for label in by.split(", ") if label != "le"}
            wrong += [f"{name}: {label}" for label in asked - labels[family] - OF_TARGETS]
    assert wrong == []


def test_what_the_dashboard_takes_from_the_rules_is_recorded_by_them() -> None:
    recorded = set(re.findall(r"- record: (\S+)", ALERTS))
    used = {name for text in (ALERTS, *queries()) for name in re.findall(r"georelay_sla:[\w:]+", text)}
    assert used and used <= recorded


def test_every_alert_says_how_urgent_it_is_and_what_to_do() -> None:
    alerts = ALERTS.split("- alert: ")[1:]
    assert len(alerts) > 20
    rows = set(re.findall(r"^\| `(Georelay\w+)` ", (ROOT / "docs/operate/alerts.md").read_text(), flags=re.M))
    assert rows == {alert.split("\n")[0] for alert in alerts}
    for alert in alerts:
        assert "runbook: docs/operate/alerts.md" in alert, alert
        assert re.search(r"severity: (page|ticket)", alert) and "summary: " in alert and "description: " in alert, alert
        for page in re.findall(r"docs/[\w/.-]+\.md", alert):
            assert (ROOT / page).is_file(), page


def test_every_panel_of_the_dashboard_says_what_it_shows() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len(panels) > 20 and len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels)
