"""`georelay audit` over three real regions: agreement, a region that is away, and one whose log was changed."""

from __future__ import annotations

import os
import signal
from typing import Any

RECORDS = 300


async def test_a_changed_replica_is_found_named_and_told_by_the_exit_code(audited: Any, run_audit: Any) -> None:
    async with audited.running() as mesh:
        await audited.fill(mesh, "orders", RECORDS)
        agreed = await run_audit(mesh)
        assert agreed.code == 0, agreed.error
        assert agreed.output.splitlines()[-1].endswith("requests: agrees")
        deep = await run_audit(mesh, "orders", "--deep", "--json")
        assert deep.code == 0, deep.error
        recomputed = deep.document["streams"][0]["deep"]
        assert [(row["region"], row["following"]) for row in recomputed] == [
            ("us", RECORDS),
            ("eu", RECORDS),
            ("ap", RECORDS),
        ]
        os.kill(pid := mesh.pid_of("ap-1"), signal.SIGSTOP)
        try:
            away = await run_audit(mesh, "orders", "--json")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert away.code == 3, away.output
        states = {row["region"]: row["state"] for row in away.document["streams"][0]["regions"]}
        assert states == {"us": "reference", "eu": "agrees", "ap": "no_answer"}

    first = audited.change("ap", b"record 0123", b"record ABCD", with_chain=True)
    async with audited.running() as mesh:
        await audited.until(mesh, "orders", RECORDS)
        found = await run_audit(mesh, "orders", "--json")
        assert found.code == 1, found.error
        stream = found.document["streams"][0]
        assert {row["region"]: row["state"] for row in stream["regions"]} == {
            "us": "reference",
            "eu": "agrees",
            "ap": "diverged",
        }
        divergence = stream["divergence"]
        assert (divergence["epoch"], divergence["is_exact"]) == (1, True)
        assert divergence["first"] <= first <= divergence["last"]
        digests = {name: batch["digest"] for name, batch in divergence["batches"].items()}
        assert digests["us"] == digests["eu"] != digests["ap"]
        assert found.document["requests"] <= 3 * 6
        shown = await run_audit(mesh, "orders")
        assert f"first divergence in epoch 1, offsets {divergence['first']}..{divergence['last']}" in shown.output


async def test_bytes_that_do_not_fit_their_digest_are_found_by_a_deep_audit_only(audited: Any, run_audit: Any) -> None:
    async with audited.running() as mesh:
        await audited.fill(mesh, "orders", RECORDS)
    first = audited.change("eu", b"record 0200", b"record ABCD", with_chain=False)
    async with audited.running() as mesh:
        await audited.until(mesh, "orders", RECORDS)
        assert (await run_audit(mesh, "orders")).code == 0
        found = await run_audit(mesh, "orders", "--deep", "--json")
        assert found.code == 1, found.error
        faults = {row["region"]: row["fault"] for row in found.document["streams"][0]["deep"]}
        assert faults["us"] is faults["ap"] is None
        assert faults["eu"]["what"] == "digest chain"
        assert faults["eu"]["first"] <= first < faults["eu"]["following"]
        assert faults["eu"]["stored"] != faults["eu"]["computed"]
