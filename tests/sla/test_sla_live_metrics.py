"""live.json as Prometheus metrics."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sla import cli
from sla.errors import JobFailed, UsageError
from sla.live.metrics import LiveCollector, families, parse_address, serve
from sla.live.status_core import live_document
from tests.sla.test_sla_live_view import M, batch, run


def document(**changes: Any) -> dict[str, Any]:
    state, _ = run(batch({0: 100, 1: 50}, newest={"eu/2001": 60, "us/1001": 100}, late=7))
    return live_document(state, known=["eu/2001", "us/1001"], now_s=M + 110, stale_s=30) | changes


def samples(shown: dict[str, Any], *, now_s: float = M + 120) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in families(shown, now_s=now_s):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_records_are_counted_since_the_start_with_those_that_came_late() -> None:
    shown = document()
    (pair,) = shown["pairs"]
    pair["since_start"] |= {"n": 1_000, "n_good": 990, "n_good_lo": 900, "n_good_hi": 995, "probes_ok": 58}
    pair["since_start"]["probes_bad"] = 2
    found = samples(shown)
    assert found["georelay_sla_records_total{dest=eu,origin=us}"] == 1_000
    late = {bound: found[f"georelay_sla_records_late_total{{bound={bound},dest=eu,origin=us}}"] for bound in LATE}
    assert late == {"measured": 10, "surely": 5, "perhaps": 100}
    assert found["georelay_sla_probes_total{dest=eu,origin=us,outcome=ok}"] == 58
    assert found["georelay_sla_probes_total{dest=eu,origin=us,outcome=bad}"] == 2


LATE = ("measured", "surely", "perhaps")


def test_a_view_that_nobody_keeps_and_a_region_that_is_silent_grow_old() -> None:
    found = samples(document(), now_s=M + 120)
    assert found["georelay_sla_live_age_seconds{}"] == 10
    assert found["georelay_sla_region_age_seconds{region=eu}"] == 60
    assert found["georelay_sla_region_age_seconds{region=us}"] == 20
    assert found["georelay_sla_live_degraded{}"] == 1
    assert samples(document(state="live"))["georelay_sla_live_degraded{}"] == 0


def test_requests_keep_their_outcomes() -> None:
    counts = {"attempts": 10, "ok": 6, "client_error": 1, "server_error": 2, "timeout": 1}
    row = {"region": "eu", "gateway": "", "op": "publish", "since_start": counts}
    found = samples(document(requests=[row]))
    shown = {
        outcome: found[f"georelay_sla_requests_total{{gateway=,op=publish,outcome={outcome},region=eu}}"]
        for outcome in ("ok", "client_error", "server_error", "timeout")
    }
    assert shown == {"ok": 6, "client_error": 1, "server_error": 2, "timeout": 1}


def test_a_region_of_which_nothing_was_read_has_no_age() -> None:
    found = samples(document(regions=[{"region": "ap", "newest_s": None, "age_s": None}]))
    assert not any(name.startswith("georelay_sla_region_age") for name in found)


def test_each_scrape_reads_the_file_and_the_end_gives_the_port_back(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stop = serve(f"127.0.0.1:{port}", path)
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        assert b"georelay" not in urllib.request.urlopen(url).read()
        path.write_text(json.dumps(document()))
        assert b'georelay_sla_records_total{dest="eu",origin="us"}' in urllib.request.urlopen(url).read()
        with pytest.raises(JobFailed, match="Address already in use"):
            serve(f"127.0.0.1:{port}", path)
    finally:
        stop()
    serve(f"127.0.0.1:{port}", path)()


def test_a_registry_takes_the_collector_before_there_is_a_file(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(LiveCollector(tmp_path / "live.json"))
    assert generate_latest(registry) == b""


@pytest.mark.parametrize("where", ["0.0.0.0:9109", "10.0.0.1:9109", "9109", "localhost:9109", "127.0.0.1:0", ":1", ""])
def test_an_address_that_others_reach_is_refused(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"such as 127\.0\.0\.1:9109"):
        parse_address(where)
    assert cli.main(["live", "--source", "http://x", "--checkpoint", str(tmp_path), "--metrics", where]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_loopback_of_both_kinds_is_taken() -> None:
    assert parse_address("127.0.0.1:9109") == ("127.0.0.1", 9109)
    assert parse_address("[::1]:9109") == ("::1", 9109)
