"""`make alerts`: a real Prometheus with the shipped rules on a mesh that is wounded: alerts fire, and resolve.

Rule 1: scrape configuration, rules and dashboard are those of deploy/monitoring; only addresses and intervals differ.
Rule 2: traffic is that of an unmodified client (kcat), and the live view runs: each query of the dashboard has data.
Rule 3: an alert that is drilled fires for what was wounded, and is gone after that was mended; else exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CampaignFailed, NotYet, until
from loadtest.child_process import end
from loadtest.free_ports import free_ports
from loadtest.http_body import body_of
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

SHIPPED: Final = Path(__file__).resolve().parents[1] / "deploy/monitoring"
NEEDED: Final = {
    "prometheus": "apt-get install prometheus",
    "kcat": "apt-get install kcat",
    "java": "apt-get install openjdk-17-jre-headless",
}
WAIT_S_MAX: Final = 240
GRAFANA_INTERVAL: Final = "1m"  # what Grafana puts for $__rate_interval at such a scrape interval
RECORDS_PER_S: Final = 20
TOPIC: Final = "alerts-drill"


class Prometheus:
    """A Prometheus on loopback with the shipped files; asked over its HTTP API."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer. Raises OSError, also for a query that is refused."""
        url = f"{self._base}/{path}?{urllib.parse.urlencode(query)}"
        return json.loads(body_of(url, timeout_s=5))["data"]

    def has_data(self, query: str) -> bool:
        """Return whether a query has a result."""
        return bool(self.ask("query", query=query)["result"])

    def firing(self) -> set[tuple[str, str]]:
        """Return the names of alerts that fire, each with its at_region."""
        rows = self.ask("alerts")["alerts"]
        return {(r["labels"]["alertname"], r["labels"].get("at_region", "")) for r in rows if r["state"] == "firing"}


def main() -> int:
    """Return the exit code: 0 when everything fired and resolved."""
    argparse.ArgumentParser(prog="python -m loadtest.alerts", description=__doc__).parse_args()
    missing = [line for name, line in NEEDED.items() if shutil.which(name) is None]
    if missing:
        print(f"make alerts needs more. Run: {'; '.join(missing)}", file=sys.stderr)
        return 1
    try:
        asyncio.run(_drill())
    except CampaignFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


async def _drill() -> None:
    with scratch_directory("georelay-alerts-") as directory:
        async with MeshProcess(directory, regions="us,eu,ap", brokers_per_region=1, arguments=("--tls",)) as mesh:
            live_port, port = await asyncio.to_thread(free_ports, 2)
            commands = _live(mesh, directory, live_port), _prometheus(mesh, directory, live_port, port)
            with _running(*commands), _traffic(mesh):
                prometheus = Prometheus(port)
                await _all_queries_have_data(prometheus)
                await _drill_certificate(mesh, prometheus)
                await _drill_regions(mesh, prometheus)


async def _all_queries_have_data(prometheus: Prometheus) -> None:
    dashboard = json.loads((SHIPPED / "dashboard.json").read_text())
    open_queries = {
        target["expr"].replace("$__rate_interval", GRAFANA_INTERVAL): panel["title"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    count = len(open_queries)

    def look() -> bool:
        for query in [query for query in open_queries if prometheus.has_data(query)]:
            del open_queries[query]
        return not open_queries

    seconds = await _until(look, lambda: f"no data for {open_queries}")
    print(f"all {count} queries of the dashboard have data after {seconds:.0f} s", flush=True)


async def _drill_certificate(mesh: MeshProcess, prometheus: Prometheus) -> None:
    issue = ("pki", "issue", "broker", "2001", "--dir", str(mesh.directory / "mesh/pki"), "--renew")
    wanted = {("GeorelayCertificateEnds", "eu")}
    _georelay(*issue, "--days", "20")
    await _fired(prometheus, wanted, "the certificate of eu's broker is one for 20 days")
    _georelay(*issue)
    await _resolved(prometheus, wanted, "it is one for 397 days")


async def _drill_regions(mesh: MeshProcess, prometheus: Prometheus) -> None:
    gone = {("GeorelayBrokerDown", "ap"), ("GeorelayRegionDown", "ap"), ("GeorelayLinkDown", "us")}
    mesh.kill("ap-1")
    await _fired(prometheus, gone, "ap's broker was killed")
    alone = {("GeorelayLeaseExpiring", "us"), ("GeorelayControlLeaderMissing", "")}
    mesh.kill("eu-1")
    await _fired(prometheus, alone, "eu's broker was killed too")
    for name in ("ap-1", "eu-1"):
        _georelay("up", "--data", str(mesh.directory / "mesh"), "--start", name)
    await _resolved(prometheus, gone | alone, "both run again")


async def _fired(prometheus: Prometheus, wanted: set[tuple[str, str]], why: str) -> None:
    seconds = await _until(lambda: wanted <= prometheus.firing(), lambda: f"{why}: of {wanted} fire too few")
    print(f"{why}: {_names(wanted)} fired after {seconds:.0f} s", flush=True)


async def _resolved(prometheus: Prometheus, wanted: set[tuple[str, str]], why: str) -> None:
    seconds = await _until(
        lambda: not wanted & prometheus.firing(), lambda: f"{why}: {wanted & prometheus.firing()} fire on"
    )
    print(f"{why}: {_names(wanted)} resolved after {seconds:.0f} s", flush=True)


def _names(alerts: set[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({region})" if region else name for name, region in sorted(alerts))


async def _until(condition: Callable[[], bool], otherwise: Callable[[], str]) -> float:
    """Return after how many seconds it was so. Raises CampaignFailed when it never was."""
    began_s = time.monotonic()

    async def look() -> float:
        with contextlib.suppress(OSError):  # Prometheus starts
            if await asyncio.to_thread(condition):
                return time.monotonic() - began_s
        raise NotYet(otherwise())

    return await until(look, within_s=WAIT_S_MAX, every_s=0.5)


# --- what runs ---------------------------------------------------------------------------------------


def _georelay(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "georelay.cli", *arguments], check=True, capture_output=True)


def _live(mesh: MeshProcess, directory: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "sla", "live", "--source", mesh.gateway, "--ca", str(mesh.ca)),
        *("--checkpoint", str(directory / "live"), "--metrics", f"127.0.0.1:{port}"),
    ]


def _prometheus(mesh: MeshProcess, directory: Path, live_port: int, port: int) -> list[str]:
    """Write the shipped files with this mesh's addresses; return the command that starts Prometheus on them."""
    folder = directory / "prometheus"
    shutil.copytree(SHIPPED, folder)
    pki = mesh.directory / "mesh/pki"
    _georelay("pki", "issue", "client", "prometheus", "--dir", str(pki))
    text = (SHIPPED / "prometheus.yml").read_text()
    for word, value in (
        ("/etc/georelay/pki", str(pki)),
        ("_interval: 15s", "_interval: 1s"),
        ("127.0.0.1:9109", f"127.0.0.1:{live_port}"),
    ):
        assert word in text, word
        text = text.replace(word, value)
    (folder / "prometheus.yml").write_text(text)
    regions = mesh.endpoints["regions"]
    for name, rows in (
        ("brokers", [(region, address) for region, listen in regions.items() for address in listen["admin"]]),
        ("gateways", [(next(iter(regions)), address) for address in mesh.endpoints["gateway"]["http"]]),
    ):
        targets = [{"targets": [address], "labels": {"at_region": region}} for region, address in rows]
        (folder / f"targets/{name}.yml").write_text(json.dumps(targets))
    return [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address=127.0.0.1:{port}"),
        *(f"--storage.tsdb.path={directory / 'tsdb'}", "--log.level=warn"),
    ]


@contextlib.contextmanager
def _running(*commands: list[str]) -> Iterator[None]:
    """Run commands until the block ends."""
    with contextlib.ExitStack() as stack:
        for command in commands:
            stack.callback(end, subprocess.Popen(command, stdout=subprocess.DEVNULL))
        yield


@contextlib.contextmanager
def _traffic(mesh: MeshProcess) -> Iterator[None]:
    """Publish and consume through the gateway until the block ends."""
    (bootstrap,) = mesh.endpoints["gateway"]["kafka"][:1]
    kcat = ["kcat", "-b", bootstrap, "-X", "security.protocol=ssl", "-X", f"ssl.ca.location={mesh.ca}", "-t", TOPIC]
    write = f"import time\nwhile True:\n print(time.time(), flush=True); time.sleep({1 / RECORDS_PER_S})"
    lines = subprocess.Popen([sys.executable, "-c", write], stdout=subprocess.PIPE)
    with contextlib.ExitStack() as stack:
        stack.callback(end, lines)
        for role in (["-P"], ["-C", "-o", "beginning"]):
            given = lines.stdout if role == ["-P"] else subprocess.DEVNULL
            command = [*kcat, *role, "-X", "topic.metadata.refresh.interval.ms=1000"]
            process = subprocess.Popen(command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(end, process)
        yield


if __name__ == "__main__":
    sys.exit(main())
