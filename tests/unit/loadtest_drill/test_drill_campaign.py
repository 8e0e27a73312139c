"""A run of a drill as a campaign: who publishes and reads where, and what is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.drill.drill_run import _result
from loadtest.drill.shot import DrillPlan, Kind, Shot, text_of
from loadtest.load.campaign import Campaign, Topology
from loadtest.load.campaign_file import parse
from loadtest.load.homes import HOME_BACK
from loadtest.load.links import LinkedMesh
from loadtest.load.stage import _mesh_of
from loadtest.mesh_process import MeshProcess
from loadtest.wan.wan_mesh import WanMesh

BROKER_LOSS, LINK_CUT, REGION_LOSS = Kind.BROKER_LOSS, Kind.LINK_CUT, Kind.REGION_LOSS
REGIONS = ("us", "eu", "ap")
UP = Topology(brokers_per_region=3)
WAN = Topology(kind="wan", pairs="us-eu=70ms,us-ap=150ms,eu-ap=120ms")
RUNNING = Topology(kind="endpoints", endpoints="/e.json", data="/d", bed="bench", brokers_per_region=3)


def made(kind: Kind, how: str, topology: Topology = UP, regions: tuple[str, ...] = REGIONS) -> Campaign:
    plan = DrillPlan(kind=kind, topology=topology)
    shot = Shot(plan=plan, how=how, topic="drill-1", home="eu", regions=regions)
    return parse(text_of(shot), name="drill-1", place="drill.toml")


def killed(kind: Kind) -> Shot:
    plan = DrillPlan(kind=kind, topology=UP, rate_per_s=1, fault_s=1)
    return Shot(plan=plan, how="kill", topic="t", home="us", regions=REGIONS)


@pytest.mark.parametrize("topology", [UP, WAN, RUNNING], ids=["up", "wan", "endpoints"])
@pytest.mark.parametrize(
    ("kind", "how", "faults"),
    [
        (REGION_LOSS, "kill", ["kill-client moving-reader", "region-loss home of drill-1"]),
        (REGION_LOSS, "cut", ["kill-client moving-reader", "link-cut home of drill-1"]),
        (LINK_CUT, "link", ["link-cut eu-us"]),
        (BROKER_LOSS, "kill", ["kill leader of drill-1"]),
    ],
)
def test_every_drill_is_a_right_campaign_for_every_mesh(
    kind: Kind, how: str, faults: list[str], topology: Topology
) -> None:
    campaign = made(kind, how, topology)
    assert sorted(f"{fault.do} {fault.what}" for fault in campaign.faults) == faults
    assert campaign.topology == Topology(**{name: getattr(topology, name) for name in topology.__slots__})
    assert campaign.checks.orphans


def test_three_publishers_offer_the_same_and_ask_for_what_their_names_say() -> None:
    campaign = made(REGION_LOSS, "kill")
    assert [(users.regions, users.durability) for users in campaign.users] == [
        (("eu",), "region"),
        (("us",), "region"),
        (("ap",), "geo:2"),
    ]
    assert campaign.rate_of_one_user(1.0) == 50.0
    assert campaign.topics[0].settings["failover"] == "auto"


def test_each_region_has_a_reader_and_that_of_a_lost_one_moves() -> None:
    assert made(REGION_LOSS, "kill").readers[0].regions == ("us", "ap")
    assert made(REGION_LOSS, "kill").programs[0].kind == "moving-reader"
    assert made(LINK_CUT, "link").readers[0].regions == REGIONS
    assert made(LINK_CUT, "link").programs == ()


def test_the_load_lasts_until_what_was_lost_had_time_to_come_back() -> None:
    assert [made(kind, "kill").seconds for kind in (REGION_LOSS, LINK_CUT)] == [29.0, 19.0]


@pytest.mark.parametrize(
    ("kind", "away"),
    [
        (REGION_LOSS, {"away-region", "away-geo"}),
        (LINK_CUT, {"home"}),
        (BROKER_LOSS, {"home", "away-region", "away-geo"}),
    ],
)
def test_who_is_outside_of_what_is_broken_says_when_it_works_again(kind: Kind, away: set[str]) -> None:
    assert killed(kind).away == away


def test_one_region_alone_has_all_publishers_and_no_other_region_to_ask_for() -> None:
    campaign = made(BROKER_LOSS, "kill", regions=("eu",))
    assert {users.regions for users in campaign.users} == {("eu",)}
    assert {users.durability for users in campaign.users} == {"region"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run has left: a region was killed at 10 s, and one record of a publisher elsewhere came after it."""
    (tmp_path / "t.toml").write_text(text_of(killed(REGION_LOSS)))
    events: list[dict[str, Any]] = [
        {"what": "kill-client", "of": "moving-reader", "for_s": 0, "took_s": 0, "ns": 9 * 10**9},
        {"what": "region-loss", "of": "us", "for_s": 1, "took_s": 2.0, "ns": 12 * 10**9},
        {"what": "healed", "of": "us", "fault": "region-loss", "ns": 13 * 10**9},
        {"what": HOME_BACK, "of": "t", "region_ready_s": 1.5, "fail_back_s": 3.5, "refused": ["too early"], "ns": 1},
    ]
    rows = [row | {"second": row["ns"] / 1e9} for row in events]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "histories").mkdir()
    sends = [{"format": "georelay-history", "version": 1}]
    for number, (at_s, epoch) in enumerate(((9, 1), (14, 2))):
        place = {"p": "local-1-eu.0", "n": number, "t": at_s * 10**9}
        sends += [place | {"e": "invoke", "op": "produce", "key": "t/0", "value": f"local-1-eu:{number}"}]
        sends += [place | {"e": "ok", "offset": number, "note": f"epoch {epoch}"}]
    (tmp_path / "histories" / "a.history").write_text("".join(f"{json.dumps(row)}\n" for row in sends))
    read = {"p": "end-complete-eu", "n": 0, "t": 20 * 10**9}
    kept = [sends[0], read | {"e": "invoke", "op": "fetch", "key": "t/0", "site": "eu", "position": 0, "final": True}]
    kept += [read | {"e": "ok", "records": [[0, "local-1-eu:0"]]}]
    (tmp_path / "histories" / "b.history").write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    return tmp_path


def test_a_folder_of_a_run_says_what_came_of_the_drill(folder: Path) -> None:
    result = _result(killed(REGION_LOSS), folder, "eu", "us", ("diverged", "at 3"))
    assert result["rto_by_publisher_s"] == {"away-region": 4.0, "away-geo": None}, (
        "from before the first broker is killed"
    )
    assert result["marks"] == {"region_ready_s": 1.5, "fail_back_s": 3.5}
    assert result["notes"] == ["region-loss of us for 1 s at least", "the move back was refused at first: too early"]
    assert "away-geo was never answered again" in result["broken"]
    assert "the audit says diverged: at 3" in result["broken"]
    assert {"history: 1 x UNSEEN"} < set(result["broken"]), "one record that was acknowledged is nowhere"
    assert any(text.startswith("orphan branches: ") for text in result["broken"])
    assert any(text.startswith("no engine told anything") for text in result["invalid"]), "a run that says nothing"
    assert not set(result["invalid"]) & set(result["broken"])


def test_what_is_in_an_orphan_branch_where_it_was_said_to_be_is_counted_and_breaks_nothing(folder: Path) -> None:
    row = {"region": "us", "key": "t/0", "epoch": 3, "listed": 1, "records": [[1, 2, "local-1-eu:1"]]}
    (folder / "orphans.jsonl").write_text(f"{json.dumps(row)}\n")
    result = _result(killed(REGION_LOSS), folder, "eu", "us", ("agrees", ""))
    assert (result["region_orphaned"], result["region_lost"]) == (1, 0)
    assert not any(text.startswith(("history", "orphan branches")) for text in result["broken"])


@pytest.mark.parametrize(
    ("kind", "how", "topology", "made_of"),
    [
        (REGION_LOSS, "cut", WAN, WanMesh),
        (REGION_LOSS, "kill", UP, MeshProcess),
        (REGION_LOSS, "cut", UP, LinkedMesh),
        (LINK_CUT, "link", UP, LinkedMesh),
    ],
)
async def test_the_mesh_that_a_drill_starts_can_be_broken_so_and_lets_what_was_killed_come_back(
    kind: Kind, how: str, topology: Topology, made_of: type[MeshProcess], tmp_path: Path
) -> None:
    mesh = _mesh_of(made(kind, how, topology), tmp_path)
    for forwarder in mesh.links.values() if isinstance(mesh, LinkedMesh) else ():
        await forwarder.close()
    assert type(mesh) is made_of
    assert "--restart" in mesh._arguments
    assert (mesh.user is not None) == isinstance(mesh, WanMesh), "a test bed lets nobody in unknown"
