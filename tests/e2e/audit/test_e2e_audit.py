"""`georelay audit` over three real regions: agreement, a region that is away, and one whose log was changed."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.slow


async def test_regions_that_have_the_same_agree(whole: Any, run_audit: Any, records: int) -> None:
    agreed = await run_audit(whole)
    assert agreed.code == 0, agreed.error
    assert agreed.output.splitlines()[-1].endswith("requests: agrees")
    deep = await run_audit(whole, "orders", "--deep", "--json")
    assert deep.code == 0, deep.error
    recomputed = deep.document["streams"][0]["deep"]
    assert [(row["region"], row["following"]) for row in recomputed] == [
        ("us", records),
        ("eu", records),
        ("ap", records),
    ]


async def test_a_region_that_does_not_answer_is_told_by_the_exit_code(whole: Any, run_audit: Any) -> None:
    os.kill(pid := whole.pid_of("ap-1"), signal.SIGSTOP)
    try:
        away = await run_audit(whole, "orders", "--json")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert away.code == 3, away.output
    states = {row["region"]: row["state"] for row in away.document["streams"][0]["regions"]}
    assert states == {"us": "reference", "eu": "agrees", "ap": "no_answer"}


async def test_a_changed_replica_is_found_named_and_told_by_the_exit_code(changed: Any, run_audit: Any) -> None:
    found = await run_audit(changed.mesh, "orders", "--json")
    assert found.code == 1, found.error
    stream = found.document["streams"][0]
    assert {row["region"]: row["state"] for row in stream["regions"]} == {
        "us": "reference",
        "eu": "agrees",
        "ap": "diverged",
    }
    divergence = stream["divergence"]
    assert (divergence["epoch"], divergence["is_exact"]) == (1, True)
    assert divergence["first"] <= changed.written <= divergence["last"]
    digests = {name: batch["digest"] for name, batch in divergence["batches"].items()}
    assert digests["us"] == digests["eu"] != digests["ap"]
    assert found.document["requests"] <= 3 * 6
    shown = await run_audit(changed.mesh, "orders")
    assert f"first divergence in epoch 1, offsets {divergence['first']}..{divergence['last']}" in shown.output


async def test_bytes_that_do_not_fit_their_digest_are_found_by_a_deep_audit_only(changed: Any, run_audit: Any) -> None:
    assert (await run_audit(changed.mesh, "shipments")).code == 0
    found = await run_audit(changed.mesh, "shipments", "--deep", "--json")
    assert found.code == 1, found.error
    faults = {row["region"]: row["fault"] for row in found.document["streams"][0]["deep"]}
    assert faults["us"] is faults["ap"] is None
    assert faults["eu"]["what"] == "digest chain"
    assert faults["eu"]["first"] <= changed.damaged < faults["eu"]["following"]
    assert faults["eu"]["stored"] != faults["eu"]["computed"]


async def test_a_follower_that_its_own_region_believes_is_found_among_the_replicas_and_named(
    replicated: Any, run_audit: Any, records: int
) -> None:
    async with replicated.running() as mesh:
        await replicated.fill(mesh, "orders", records)
        agreed = await replicated.until(mesh, "orders", records, "--replicas")
        assert agreed["result"] == "agrees"
        rows = agreed["streams"][0]["regions"]
        assert [row["broker"] for row in rows] == [1001, 1002, 1003, 2001, 2002, 2003]

    first = replicated.change("eu", b"orders 0123", b"orders ABCD", with_chain=True, unseen=True, broker=3)
    async with replicated.running() as mesh:
        await replicated.until(mesh, "orders", records, "--replicas")
        found = await run_audit(mesh, "orders", "--json", "--replicas")
        assert found.code == 1, found.error
        stream = found.document["streams"][0]
        assert [row["broker"] for row in stream["regions"] if row["state"] == "diverged"] == [2003]
        divergence = stream["divergence"]
        assert divergence["first"] <= first <= divergence["last"]
        digests = {name: batch["digest"] for name, batch in divergence["batches"].items()}
        other = digests.pop("eu/2003")
        assert set(digests.values()) == {digests["us/1001"]} != {other}
        shown = await run_audit(mesh, "orders", "--replicas")
        assert f"orders/0: eu/2003: other records from {divergence['first']}" in shown.output
        both = await run_audit(mesh, "orders", "--replicas", "--deep")
        assert both.code == 2
