"""Events, queries, keys, coordinates and refusals with Debian's serf agent; both ways."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.gossip.agent import Agent
from mesh.gossip.agent_answers import JoinFailed
from mesh.gossip.key_queries_core import INSTALL_KEY, LIST_KEYS, REMOVE_KEY, USE_KEY
from mesh.gossip.query_core import names_filter, tag_filter
from mesh.gossip.view import MemberStatus

ALIVE = MemberStatus.ALIVE
QUERIES_MAX = 5
Make = Callable[..., Awaitable[Any]]
Until = Callable[..., Awaitable[float]]
Status = Callable[[Agent, str], MemberStatus | None]


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


def keyring_file(folder: Path, name: str, *keys: str) -> Path:
    path = folder / f"{name}.keyring"
    path.write_text(json.dumps(list(keys)))
    path.chmod(0o600)
    return path


async def pool(make_serf: Make, make_ours: Make, until: Until, status: Status) -> tuple[Any, Any, Agent, Agent]:
    go_1 = await make_serf("go-1", "-tag", "role=agent")
    go_2 = await make_serf("go-2", "-tag", "role=agent")
    py_1 = await make_ours("py-1", seeds=[go_1.address])
    py_2 = await make_ours("py-2", seeds=[go_1.address])
    await go_2.run("join", go_1.address)
    for ours in (py_1, py_2):
        await until(lambda ours=ours: all(status(ours, name) is ALIVE for name in ("go-1", "go-2", "py-1", "py-2")), 5)
    return go_1, go_2, py_1, py_2


async def test_user_events_travel_both_ways(make_serf: Make, make_ours: Make, until: Until, status: Status) -> None:
    go_1, go_2, py_1, py_2 = await pool(make_serf, make_ours, until, status)
    heard: list[tuple[str, str, bytes]] = []
    py_1.listeners.on_event = lambda name, payload: heard.append(("py-1", name, payload))
    py_2.listeners.on_event = lambda name, payload: heard.append(("py-2", name, payload))
    await go_2.run("event", "deploy", "version-7")
    await until(lambda: len(heard) == 2, 3, str(heard))
    assert sorted(heard) == [("py-1", "deploy", b"version-7"), ("py-2", "deploy", b"version-7")]
    await py_2.tell("rollback", b"version-6")
    for serf in (go_1, go_2):
        await until(lambda serf=serf: "rollback" in serf.text(), 3)
    await asyncio.sleep(1)
    assert len(heard) == 4  # each heard its own and the other's once


@pytest.mark.slow
async def test_a_query_of_serf_reaches_us_with_acks_and_filters(
    make_serf: Make, make_ours: Make, until: Until, status: Status
) -> None:
    go_1, _, py_1, py_2 = await pool(make_serf, make_ours, until, status)
    py_1.listeners.on_query = lambda name, payload: b"up:" + payload if name == "load" else None
    py_2.listeners.on_query = lambda name, payload: b"up:" + payload if name == "load" else None
    both = {"py-1", "py-2"}

    async def answer_of(*arguments: str, acks: set[str]) -> dict[str, str]:
        """Ask until everybody has answered: an answer that is later than the 2 s of a query does not count."""
        for _ in range(QUERIES_MAX):
            found = json.loads(await go_1.run("query", "-format=json", "-timeout=2s", *arguments))
            if set(found["Acks"] or ()) == acks:
                break
        assert set(found["Acks"] or ()) == acks
        responses: dict[str, str] = found["Responses"]
        return responses

    assert await answer_of("load", "x", acks={"go-1", "go-2", *both}) == {"py-1": "up:x", "py-2": "up:x"}
    assert await answer_of("-node=py-2", "load", "y", acks={"py-2"}) == {"py-2": "up:y"}
    assert await answer_of("-tag", "role=^brok", "load", "z", acks=both) == {"py-1": "up:z", "py-2": "up:z"}
    relayed = await answer_of("-relay-factor=2", "load", "r", acks={"go-1", "go-2", *both})
    assert relayed == {"py-1": "up:r", "py-2": "up:r"}


async def test_our_query_reaches_serf_with_acks_and_filters(
    make_serf: Make, make_ours: Make, until: Until, status: Status, tmp_path: Path
) -> None:
    script = tmp_path / "answer.sh"
    script.write_text('#!/bin/sh\nprintf "from-go:%s" "$(cat)"\n')
    script.chmod(0o755)
    go_1 = await make_serf("go-1", "-tag", "role=agent", f"-event-handler=query:load={script}")
    go_2 = await make_serf("go-2", f"-event-handler=query:load={script}")
    await go_2.run("join", go_1.address)
    ours = await make_ours("py-1", seeds=[go_1.address])
    await until(lambda: status(ours, "go-2") is ALIVE and status(ours, "go-1") is ALIVE, 5)

    async def is_answered(*names: str, acknowledged: tuple[str, ...], **asked: Any) -> bool:
        report = await ours.query("load", b"q", timeout_s=1.5, **asked)
        assert set(report.acknowledged) <= set(acknowledged)
        return bool(report.acknowledged == acknowledged and report.answers == dict.fromkeys(names, b"from-go:q"))

    # Packets may be lost and scripts late: then one asks again.
    everybody = ("go-1", "go-2", "py-1")
    await until(lambda: is_answered("go-1", "go-2", acknowledged=everybody, ack=True), 30)
    filters = [names_filter(["go-2"])]
    await until(lambda: is_answered("go-2", acknowledged=("go-2",), ack=True, filters=filters), 30)
    filters = [tag_filter("role", "^age")]
    await until(lambda: is_answered("go-1", acknowledged=("go-1",), ack=True, filters=filters), 30)
    await until(lambda: is_answered("go-1", "go-2", acknowledged=(), relay_factor=2), 30)


async def test_serf_rtt_and_ours_know_each_other(
    make_serf: Make, make_ours: Make, until: Until, status: Status
) -> None:
    go_1, _, py_1, _ = await pool(make_serf, make_ours, until, status)

    async def known() -> bool:
        return "rtt" in (await go_1.run("rtt", "py-1", check=False)).lower()

    await until(known, 20)
    found = re.search(r"rtt: ([0-9.]+) ms", await go_1.run("rtt", "py-1"))
    assert found is not None
    assert 0 < float(found[1]) < 50
    await until(lambda: py_1.serf.rtt_s("py-1", "go-1") is not None, 20)
    rtt_s = await py_1.rtt("py-1", "go-1")
    assert rtt_s is not None
    assert 0 < rtt_s < 0.05


async def test_serf_reachability_finds_everybody(
    make_serf: Make, make_ours: Make, until: Until, status: Status
) -> None:
    go_1, _, _, _ = await pool(make_serf, make_ours, until, status)
    text = await go_1.run("reachability", check=False)
    assert "Total members: 4, live members: 4" in text.replace("  ", " ")
    assert "Successfully contacted all live nodes" in text


async def test_an_encrypted_pool_rotates_its_keys_by_serf(
    make_serf: Make, make_ours: Make, until: Until, status: Status, tmp_path: Path
) -> None:
    old, new = new_key(), new_key()
    go_1 = await make_serf("go-1", f"-keyring-file={keyring_file(tmp_path, 'go', old)}")
    ours_file = keyring_file(tmp_path, "py", old)
    ours = await make_ours("py-1", seeds=[go_1.address], keyring_file=ours_file)
    await until(lambda: status(ours, "go-1") is ALIVE, 5)
    assert "Successfully installed" in await go_1.run("keys", f"-install={new}")
    assert json.loads(ours_file.read_text()) == [old, new]
    assert "Successfully" in await go_1.run("keys", f"-use={new}")
    assert json.loads(ours_file.read_text()) == [new, old]
    assert "Successfully" in await go_1.run("keys", f"-remove={old}")
    assert json.loads(ours_file.read_text()) == [new]
    listed = await go_1.run("keys", "-list")
    assert f"{new} [2/2]" in " ".join(listed.split())
    assert old not in listed
    refused = await go_1.run("keys", f"-remove={new}", check=False)
    assert "primary" in refused
    await asyncio.sleep(3)
    assert status(ours, "go-1") is ALIVE
    assert await go_1.status_of("py-1") == "alive"


@pytest.mark.slow
async def test_an_encrypted_pool_rotates_its_keys_by_us(
    make_serf: Make, make_ours: Make, until: Until, status: Status, tmp_path: Path
) -> None:
    old, new = new_key(), new_key()
    go_1 = await make_serf("go-1", f"-keyring-file={keyring_file(tmp_path, 'go', old)}")
    ours = await make_ours("py-1", seeds=[go_1.address], keyring_file=keyring_file(tmp_path, "py", old))
    await until(lambda: status(ours, "go-1") is ALIVE, 5)
    for action, key in ((INSTALL_KEY, new), (USE_KEY, new), (REMOVE_KEY, old)):
        report = await ours.keys(action, base64.b64decode(key), timeout_s=1.5)
        assert (report.members, report.done, dict(report.faults)) == (2, 2, {}), action
    listed = await ours.keys(LIST_KEYS, timeout_s=1.5)
    assert dict(listed.keys) == {new: 2}
    assert "[2/2]" in await go_1.run("keys", "-list")


@pytest.mark.parametrize("theirs", ["", "another"])
async def test_a_wrong_key_or_plaintext_is_refused_by_an_encrypted_pool_and_nobody_crashes(
    theirs: str, make_serf: Make, make_ours: Make, until: Until, status: Status, tmp_path: Path
) -> None:
    ours = await make_ours("py-1", keyring_file=keyring_file(tmp_path, "py", new_key()))
    arguments = [f"-keyring-file={keyring_file(tmp_path, 'go', new_key())}"] if theirs else []
    serf = await make_serf("go-1", *arguments)
    text = await serf.run("join", f"127.0.0.1:{ours.address[1]}", check=False)
    assert "Error joining" in text
    with pytest.raises(JoinFailed) as failed:
        await ours.join([serf.address])
    assert "\n" not in str(failed.value)
    assert serf.address in str(failed.value)
    assert ours.counts["refused_no_key"] + ours.counts["refused_plaintext"] >= 1
    await asyncio.sleep(1.5)
    assert [member.name for member in ours.members()] == ["py-1"]
    assert serf.process.poll() is None
    assert "panic" not in serf.text()


async def test_plain_we_are_refused_by_an_encrypted_serf_and_told_so(
    make_serf: Make, make_ours: Make, tmp_path: Path
) -> None:
    serf = await make_serf("go-1", f"-keyring-file={keyring_file(tmp_path, 'go', new_key())}")
    ours = await make_ours("py-1")
    with pytest.raises(JoinFailed, match="key"):
        await ours.join([serf.address])
    assert serf.process.poll() is None


async def test_a_member_of_another_mesh_is_refused_by_its_tag(make_serf: Make, make_ours: Make, status: Status) -> None:
    serf = await make_serf("go-1", "-tag", "cl=other")
    ours = await make_ours("py-1", mesh="shop", tags={"cl": "shop"})
    with pytest.raises(JoinFailed, match="other"):
        await ours.join([serf.address])
    assert status(ours, "go-1") is None
