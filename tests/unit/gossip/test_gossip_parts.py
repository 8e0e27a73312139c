"""Small parts around the Serf core: snapshot, keyring file, watchdog, packet gate, flood-join, matching, settings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from georelay.errors import ConfigError
from mesh.gossip.flood_join_core import missing_in
from mesh.gossip.keyring_file import KeyringFile
from mesh.gossip.packet_gate_core import BURST_S, SOURCE_PACKETS_PER_S, SOURCES_MAX, PacketGate
from mesh.gossip.seeds import resolve, split_seed
from mesh.gossip.serf_core import Clocks
from mesh.gossip.settings import GossipPoolSection, GossipSection, GossipWanSection
from mesh.gossip.snapshot_core import Remembered, read_snapshot
from mesh.gossip.snapshot_file import SnapshotFile
from mesh.gossip.tag_match import matches
from mesh.gossip.timing import LAN, TUNED_WAN
from mesh.gossip.view import MemberStatus, MemberView
from mesh.gossip.watchdog_core import Pulse, Watchdog

A, B = ("10.0.0.1", 7946), ("fd00::1", 7946)


# --- snapshot --------------------------------------------------------------------------------------


def written(path: Path) -> SnapshotFile:
    file = SnapshotFile(path)
    file.member_alive("a", A, {"id": "1001"})
    file.member_alive("b", B, {})
    file.clocks(Clocks(members=5, events=6, queries=7), 1700000000)
    return file


def reopened(path: Path) -> Remembered:
    file = SnapshotFile(path)
    file.close()
    return file.remembered


def test_a_snapshot_survives_without_a_close(tmp_path: Path) -> None:
    killed = written(tmp_path / "gossip" / "lan")
    found = reopened(tmp_path / "gossip" / "lan")  # while the first is not closed, as after kill -9
    killed.close()
    assert found.alive == {"a": A, "b": B}
    assert found.clocks == Clocks(members=5, events=6, queries=7)
    assert found.incarnation == 1700000000
    assert found.tags() == {"a": {"id": "1001"}, "b": {}}


def test_a_snapshot_cut_anywhere_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    written(tmp_path / "lan").close()
    raw = (tmp_path / "lan").read_bytes()
    known: set[str] = set()
    for end in range(len(raw) + 1):
        found, refused = read_snapshot(raw[:end])
        assert refused == 0
        assert known <= set(found.alive)
        known = set(found.alive)
    assert known == {"a", "b"}


def test_a_line_that_is_none_is_passed_over() -> None:
    found, refused = read_snapshot(
        b"alive: a 10.0.0.1:7946\nwhat: is this\nalive: b nowhere\n\xff\xfe\nclock: 1x\nclock: 9\n"
    )
    assert (found.alive, found.numbers, refused) == ({"a": A}, {"clock": 9}, 4)


def test_the_lines_are_those_of_the_serf_agent_and_its_file_is_read(tmp_path: Path) -> None:
    written(tmp_path / "lan").close()
    assert (tmp_path / "lan").read_text().splitlines()[:1] == ["alive: a 10.0.0.1:7946"]
    assert "alive: b [fd00::1]:7946" in (tmp_path / "lan").read_text()
    agents = b"alive: go-1 10.0.0.1:7946\nclock: 4\nevent-clock: 2\nquery-clock: 3\nnot-alive: go-1\nleave\n"
    found, refused = read_snapshot(agents)
    assert (found.alive, found.has_left, refused) == ({}, True, 0)


def test_a_snapshot_does_not_grow_for_ever(tmp_path: Path) -> None:
    file = written(tmp_path / "lan")
    for n in range(5000):
        file.clocks(Clocks(members=n, events=1, queries=1), 1)
    file.close()
    assert (tmp_path / "lan").stat().st_size < 70_000
    assert reopened(tmp_path / "lan").clocks.members == 4999


def test_a_disk_that_refuses_makes_forgetful_not_dead(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = SnapshotFile(tmp_path / "file" / "lan")
    file.member_alive("a", A, {})
    assert file.faults == 1
    assert file.remembered.alive == {"a": A}


# --- keyring file ------------------------------------------------------------------------------------


def test_a_keyring_file_is_written_whole_and_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(json.dumps(["bW1tbW1tbW1tbW1tbW1tbQ=="]))
    path.chmod(0o600)
    file = KeyringFile(path)
    assert file.keyring is not None
    file.keyring.install(b"n" * 16)
    file.write()
    assert len(json.loads(path.read_text())) == 2
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{}", "[]", '["short"]', '["bW1tbW1tbW1tbW1tbW1tbQ==", 7]'])
def test_a_file_that_is_no_keyring_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError) as refused:
        KeyringFile(tmp_path / "keys")
    assert "bW1t" not in str(refused.value)


def test_a_missing_keyring_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="georelay keys generate"):
        KeyringFile(tmp_path / "keys")


# --- watchdog and gate ---------------------------------------------------------------------------------


def test_the_watchdog_announces_at_5_s_doubts_itself_at_15_s_and_one_sign_of_life_ends_it() -> None:
    dog = Watchdog(0.0)
    dog.turned(1.0)
    pulses: list[tuple[float, Pulse]] = []
    suspect: list[float] = []
    for quarter in range(4, 90):
        now = quarter / 4
        look = dog.look(now)
        if look.changed:
            pulses.append((now, look.pulse))
        if look.suspect_s:
            suspect.append(now)
    assert pulses == [(6.25, Pulse.STALLED), (16.25, Pulse.SUSPECT)]
    assert suspect == [16.25, 21.25]
    dog.turned(22.5)
    assert dog.lag_s == 21.25
    look = dog.look(22.5)
    assert (look.pulse, look.changed) == (Pulse.STEADY, True)
    assert (dog.lag_s, dog.longest_lag_s) == (0.0, 21.25)


def test_signs_of_life_on_time_are_no_lag() -> None:
    dog = Watchdog(0.0)
    for quarter in range(1, 9):
        dog.turned(quarter / 4)
        assert dog.look(quarter / 4 + 0.2).lag_s == 0.0
    dog.turned(2.5)
    assert (dog.lag_s, dog.longest_lag_s) == (0.25, 0.25)


def test_a_flood_from_one_address_does_not_shut_out_another() -> None:
    gate = PacketGate(0.0)
    taken = sum(gate.admits("10.0.0.1", 0.0) for _ in range(100_000))
    assert taken == SOURCE_PACKETS_PER_S * BURST_S
    assert gate.admits("10.0.0.2", 0.0)


def test_the_gate_remembers_few_sources() -> None:
    gate = PacketGate(0.0)
    for n in range(SOURCES_MAX + 100):
        gate.admits(f"10.{n >> 8}.{n & 255}.1", n / 1000)
    assert len(gate._sources) == SOURCES_MAX


# --- flood-join, matching, seeds -----------------------------------------------------------------------


def view(name: str, port: int, status: MemberStatus = MemberStatus.ALIVE, **tags: str) -> MemberView:
    return MemberView(name=name, address=("10.0.0.1", port), status=status, tags=tags)


def test_flood_join_names_who_lives_in_one_pool_and_not_in_the_other() -> None:
    lan = [view("1", 1, wan="10.0.0.1:11"), view("2", 2, wan="10.0.0.1:12"), view("3", 3), view("4", 4, wan="nonsense")]
    wan = [view("1.us", 11), view("2.us", 12, MemberStatus.FAILED)]
    assert missing_in(wan, lan, tag="wan") == [("10.0.0.1", 12)]


def test_flood_join_into_the_lan_pool_takes_the_own_region_only() -> None:
    wan = [view("1.us", 11, lan="10.0.0.1:1", rg="us"), view("1.eu", 21, lan="10.0.0.1:5", rg="eu")]
    assert missing_in([], wan, tag="lan", region="us") == [("10.0.0.1", 1)]


def test_tags_are_matched_as_go_does_and_never_for_long() -> None:
    assert matches("^bro", "broker")
    assert matches("o.e", "broker")
    assert not matches("^ro", "broker")
    assert not matches("(", "broker")
    assert not matches("(a+)+$", "a" * 60 + "b")  # hours for an engine that tries all ways


@pytest.mark.parametrize("seed", ["", "host", ":7946", "host:0", "host:70000", "host:x"])
def test_a_seed_that_is_not_host_and_port_is_refused(seed: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_seed(seed)


async def test_a_name_with_several_addresses_is_several_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def looked_up(*_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", ("10.0.0.1", 7946)), (0, 0, 0, "", ("10.0.0.2", 7946))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", looked_up, raising=False)
    assert await resolve(["brokers.example:7946"]) == [("10.0.0.1", 7946), ("10.0.0.2", 7946)]


# --- settings ------------------------------------------------------------------------------------------


def test_off_loopback_a_pool_needs_a_keyring_and_the_refusal_says_how_to_make_one() -> None:
    with pytest.raises(ValidationError, match="georelay keys generate"):
        GossipPoolSection(listen="10.0.0.1:7946")
    with pytest.raises(ValidationError, match="georelay keys generate"):
        GossipPoolSection(listen="127.0.0.1:7946", advertise="10.0.0.1:7946")
    assert GossipPoolSection(listen="10.0.0.1:7946", keyring_file="keys").is_on
    assert GossipPoolSection(listen="127.0.0.1:7946").is_on


def test_every_address_of_this_machine_needs_one_to_tell() -> None:
    with pytest.raises(ValidationError, match="advertise"):
        GossipPoolSection(listen="0.0.0.0:7946", keyring_file="keys")


def test_a_name_is_for_seeds_only() -> None:
    with pytest.raises(ValidationError, match="names are for seeds"):
        GossipPoolSection(listen="localhost:7946")


def test_an_external_agent_has_its_own_addresses_and_keys() -> None:
    with pytest.raises(ValidationError, match="external agent"):
        GossipPoolSection(agent_rpc="127.0.0.1:7373", listen="127.0.0.1:7946")


def test_the_wan_pool_has_our_timing_and_an_unknown_profile_is_refused() -> None:
    assert GossipPoolSection().timing is LAN
    assert GossipWanSection().timing is TUNED_WAN
    with pytest.raises(ValidationError, match="tuned-wan"):
        GossipPoolSection(profile="fast")


def test_without_addresses_there_is_no_gossip() -> None:
    assert not GossipSection().is_on
    assert not GossipSection(enabled=False, lan=GossipPoolSection(listen="127.0.0.1:1")).is_on
