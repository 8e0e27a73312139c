"""A region joins a running mesh and is filled from the log start; then what it holds is compared with the home's.

Rule 1: the clock runs from the start of the new region's broker, whose file and directory hold nothing of the mesh.
Rule 2: it has everything when it has every partition up to what was committed before.
Rule 3: equal means equal twice: by the digest chains, computed again from the stored bytes (`georelay audit --deep`),
        and by the records that a client reads in the home and in the new region.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from georelay.client.stream_reader import EARLIEST, StreamReader
from loadtest.campaign.mesh import CLI, CampaignFailed, NotYet, run_command, until
from loadtest.load.replicas import SETTLE_S, committed, note

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

READ_S: Final = 300.0
AUDIT_S: Final = 600.0
AUDITED: Final = (0, 1)  # they agree, they differ
Ends = Mapping[str, Mapping[int, int]]  # topic -> partition -> offset behind the last record


async def join(stage: Stage, region: str) -> dict[str, Any]:
    """Let a region join, and wait until it has everything; return how long it took. Raises CampaignFailed."""
    wanted = await _ends(stage)
    began = time.monotonic()
    joined = await stage.one_region_more(region)
    answered_s = time.monotonic() - began
    await _until_there(stage, region, wanted)
    return {
        "answered_s": round(answered_s, 2),
        "filled_s": round(time.monotonic() - began, 2),
        "records": sum(sum(ends.values()) for ends in wanted.values()),
        "broker": joined.name,
    }


async def compare(stage: Stage, region: str) -> None:
    """Compare what is committed now, as clients read it and by the audit; add it to replicas.jsonl (CampaignFailed)."""
    wanted = await _ends(stage)
    await _until_there(stage, region, wanted)
    for topic in stage.campaign.topics:
        sites = (topic.home or stage.regions[0], region)
        for partition, end in wanted[topic.name].items():
            read = {
                site: await _digest(stage.endpoints["regions"][site]["kafka"], topic.name, partition, end)
                for site in sites
            }
            differ = [site for site in sites if read[site] != read[sites[0]]]
            note(stage, f"{topic.name}/{partition}", end, compared=sites, differ=differ)
        await _audit(stage, topic.name)


async def _ends(stage: Stage) -> dict[str, dict[int, int]]:
    ends: dict[str, dict[int, int]] = {}
    for topic in stage.campaign.topics:
        ends[topic.name] = await committed(stage, topic.home or stage.regions[0], topic.name)
        if len(ends[topic.name]) < topic.partitions:
            raise CampaignFailed(f"nobody says how far all partitions of {topic.name} go: {ends[topic.name]}")
    return ends


async def _until_there(stage: Stage, region: str, wanted: Ends) -> None:
    async def look() -> None:
        for topic, ends in wanted.items():
            found = await committed(stage, region, topic)
            if any(found.get(partition, 0) < end for partition, end in ends.items()):
                raise NotYet(f"{topic} came to {found} instead of {ends} in {region}")

    await until(look, within_s=SETTLE_S)


async def _audit(stage: Stage, topic: str) -> None:
    """Audit until it comes to an end: the load goes on, what is newest may not be everywhere yet (CampaignFailed)."""

    async def audit() -> None:
        words = (*CLI, "audit", topic, "--deep", "--endpoints", str(stage.endpoints_file))
        code, said, why = await run_command(words, within_s=AUDIT_S)
        if code not in AUDITED:
            raise NotYet(f"the audit of {topic} reaches no end: {said}{why}")
        note(stage, f"audit of {topic}", 0, compared=stage.regions, differ=stage.regions if code else ())

    await until(audit, within_s=SETTLE_S)


async def _digest(brokers: Sequence[str], topic: str, partition: int, end: int) -> str:
    """Return the SHA-256 of all that a client sees of the records below an offset. Raises CampaignFailed."""
    digest, seen = hashlib.sha256(), 0
    if not end:
        return f"{seen} {digest.hexdigest()}"
    reader = StreamReader(brokers=list(brokers), topic=topic, partition=partition, offset=EARLIEST, max_wait_ms=100)
    try:
        async with asyncio.timeout(READ_S):
            async for batch in reader.batches():
                for record in batch.records:
                    if record.offset < end:
                        digest.update(repr(record).encode())
                        seen += 1
                if batch.records and batch.records[-1].offset + 1 >= end:
                    break
    except TimeoutError as error:
        raise CampaignFailed(f"only {seen} of {end} records of {topic}/{partition} could be read") from error
    finally:
        reader.close()
    return f"{seen} {digest.hexdigest()}"
