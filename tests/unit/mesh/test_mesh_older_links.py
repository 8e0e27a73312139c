"""A region whose brokers know no framed links and one of this version mirror and ask each other, whoever dials."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import RegionNumber
from tests.older_links import OlderListener, dial_as_older

OLDER = {"dial": dial_as_older, "make_listener": OlderListener}
NEWER: dict[str, Any] = {}


@pytest.mark.parametrize(("home", "mirror"), [(OLDER, NEWER), (NEWER, OLDER), (NEWER, NEWER)])
async def test_regions_of_two_versions_mirror_and_ask(
    join: Any, until: Any, memory_log: Any, key: Any, home: dict[str, Any], mirror: dict[str, Any]
) -> None:
    there, here = await join(home, mirror)
    stored, copy = memory_log(), memory_log()
    stored.sequence(b"before")
    there.logs[key] = stored
    here.links.mirror_started(copy)
    await until(lambda: copy.payloads() == stored.payloads())
    stored.sequence(b"x" * 300_000)
    await until(lambda: copy.payloads() == stored.payloads())
    answer = await here.links.request(RegionNumber(1), "echo", {"n": 1}, timeout_s=5)
    assert (answer.body["from"], answer.attachment) == (2001, b"attached")
