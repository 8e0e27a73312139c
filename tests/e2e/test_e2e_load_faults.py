"""Faults of campaigns in their shortest form: a region that joins, a flipped bit, a flood; each is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_e2e_chaos import CAMPAIGN
from tests.e2e.test_e2e_load import georelay

pytestmark = pytest.mark.slow

BULK = '[[topics]]\nname = "bulk"\nhome = "us"\nfilled_mb = 2\nfilled_record_bytes = 100\n'


def run(tmp_path: Path, text: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Run a campaign that is kept; return what it found of each thing, and its events."""
    file = tmp_path / "short.toml"
    file.write_text(text)
    done = georelay("run", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    lines = json.loads((folder / "verdict.json").read_text())["lines"]
    events = [json.loads(row) for row in (folder / "events.jsonl").read_text().splitlines()]
    return {line["what"]: line["found"] for line in lines}, events


def test_a_region_that_joins_has_everything(tmp_path: Path) -> None:
    fault = '[[faults]]\nat = "3s"\ndo = "region-add"\nwhat = "sa"\nfor = "2s"\n'
    text = CAMPAIGN.replace("brokers_per_region = 3", "brokers_per_region = 1").replace(
        "[[stages]]", f"{BULK}[[stages]]"
    )
    found, events = run(tmp_path, text + fault)
    assert found["replicas"] == "10 compared, none differs"  # three partitions and two audits, of two regions each
    joined = next(event for event in events if event["what"] == "region-add")
    assert joined["records"] >= 20_000
    acknowledged, read = (int(part.split()[0].replace(",", "")) for part in found["history"].split(", "))
    assert read >= 3 * acknowledged  # by the reader, and completely in both regions


def test_a_flipped_bit_is_found_and_mended_before_anybody_sees_it(tmp_path: Path) -> None:
    small = 'home = "us"\nsettings = {"segment.bytes" = "32768"}'
    text = CAMPAIGN.replace('home = "us"', small).replace("partitions = 2", "partitions = 1")
    flips = [(3, "sealed-log of any of us"), (4, "FORMAT of any of us")]
    faults = "".join(f'[[faults]]\nat = "{at}s"\ndo = "bit-flip"\nwhat = "{what}"\nfor = "0s"\n' for at, what in flips)
    found, events = run(tmp_path, f"{text}{faults}[checks]\nreplicas = true\n")
    assert found["replicas"] == "3 compared, none differs"
    done = {event["of"].partition(" ")[0]: event["done"] for event in events if event["what"] == "bit-flip"}
    assert done["sealed-log"] in ("fetched again", "cut and sent again")
    assert done["FORMAT"].startswith("refused: ")


def test_a_flood_is_counted_and_other_clients_are_measured_under_it(tmp_path: Path) -> None:
    attacks = (("flood", 4, "per_s = 500\n"), ("slow-clients", 9, ""))
    faults = "".join(
        f'[[faults]]\nat = "{at}s"\ndo = "{do}"\nwhat = "leader of orders"\nfor = "3s"\n{more}'
        for do, at, more in attacks
    )
    text = CAMPAIGN.replace('kind = "aiokafka"', 'kind = "kafka"').replace(
        "= 3\n[[topics]]", "= 3\ntls = true\n[[topics]]"
    )
    found, events = run(tmp_path, f"{text}{faults}[checks]\nslowdown_max = 1000\n")
    assert len([what for what in found if what.startswith("deliver p99 under ")]) == 2
    healed = [event for event in events if event["what"] == "healed"]
    assert healed[0]["attacked"]["attempts"] == 1_500
    assert healed[1]["attacked"]["held"] > 0
