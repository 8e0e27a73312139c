"""One bit of one file: which file, which bit, and how the broker says that it found it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.load.file_kinds import FILE_KINDS
from loadtest.load.flips import UNSOUND, _flip, _is_whole, _judged
from loadtest.load.stage import Stage


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for group in ("0", "7"):
        folder = tmp_path / "groups" / group
        folder.mkdir(parents=True)
        for number in range(1, 6):
            (folder / f"{number}.log").write_bytes(b"x")
        (folder / "6.log").write_bytes(b"")  # it was just made
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "group", "names"),
    [
        ("sealed-log", "7", {"1.log", "2.log", "3.log", "4.log"}),
        ("active-log", "7", {"5.log"}),
        ("controller-log", "0", {"5.log"}),
    ],
)
def test_a_file_of_a_kind_is_chosen_among_those_that_hold_something(
    kind: str, group: str, names: set[str], home: Path
) -> None:
    rng = random.Random(1)
    chosen = {FILE_KINDS[kind].choose(home, 7, rng) for _ in range(200)}
    assert chosen == {home / "groups" / group / name for name in names}


def test_none_is_chosen_before_there_are_several_sealed_ones(home: Path) -> None:
    (home / "groups" / "7" / "1.log").unlink()
    (home / "groups" / "7" / "2.log").unlink()
    assert FILE_KINDS["sealed-log"].choose(home, 7, random.Random(1)) is None
    assert FILE_KINDS["sealed-index"].choose(home, 7, random.Random(1)) is None
    assert FILE_KINDS["FORMAT"].choose(home, 7, random.Random(1)) == home / "FORMAT"


def test_one_bit_is_flipped_and_not_in_room_taken_in_advance(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = b"\x55" * 20 + bytes(1000)
    for seed in range(50):
        path.write_bytes(whole)
        assert _flip(path, random.Random(seed)) == whole
        differing = [(old ^ new, place) for place, (old, new) in enumerate(zip(whole, path.read_bytes(), strict=True))]
        ((bit, place),) = [row for row in differing if row[0]]
        assert bit.bit_count() == 1 and place < 20


def test_the_log_of_the_broker_says_how_it_was_found_and_what_was_done(tmp_path: Path) -> None:
    log = tmp_path / "us-1.log"
    before = json.dumps({"event": "segment.damaged"}) + "\n"
    log.write_text(before)
    assert _judged(log, len(before)) == {"found": "not read", "done": "harmless"}
    with log.open("a") as file:
        file.write('{"event": "damage.found"}\n{"event": "segment.repaired"}\nno JSON\n')
    assert _judged(log, len(before)) == {"found": "by the scrubber", "done": "fetched again"}
    with log.open("a") as file:
        file.write("georelay-broker: hard-state is damaged\n")
    assert _judged(log, len(before))["done"] == "refused: hard-state is damaged; joined anew"


SOUND = [f"{name}0.0" for name in UNSOUND] * 2


@pytest.mark.parametrize(
    ("lines", "is_whole"),
    [(SOUND, True), ([f"{UNSOUND[0]}1.0", *SOUND[1:]], False), (SOUND[:2], False), ([], False)],
    ids=["both brokers say so", "one repairs", "one does not answer", "both know no such metric"],
)
async def test_a_region_is_whole_when_every_broker_was_seen_to_be_sound(lines: list[str], is_whole: bool) -> None:
    stream = {"topic": "orders", "partition": 0, "high_watermark": 7}

    async def ask(_: str, __: str) -> dict[str, Any]:
        return {"ready": True, "brokers": [{"alive": True}], "streams": [stream]}

    async def metric_lines(begin: tuple[str, ...], *regions: str) -> list[str]:
        assert (begin, regions) == (UNSOUND, ("us",))
        return lines

    admins = {"us-1": "one", "us-2": "two"}
    stage: Any = SimpleNamespace(admins=lambda _: admins, ask=ask, metric_lines=metric_lines)
    assert await _is_whole(stage, "us", "us-1", "orders") is is_whole


async def test_metrics_are_asked_of_the_brokers_of_a_region_or_of_all_and_who_is_down_has_none() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(
            text=f"# HELP {UNSOUND[0]}\n{UNSOUND[0]}0.0\n{UNSOUND[1]}1.0\n{UNSOUND[1].strip()}_ms 2.0\n"
        )

    app = web.Application()
    app.add_routes([web.get("/metrics", answer)])
    async with TestServer(app) as server:
        admins = {"us": {"us-1": f"127.0.0.1:{server.port}", "us-2": "127.0.0.1:1"}}
        admins["eu"] = {"eu-1": f"127.0.0.1:{server.port}"}
        mesh = SimpleNamespace(scheme="http", headers={}, ssl_context=None)
        stage: Any = SimpleNamespace(_mesh=mesh, regions=("us", "eu"), admins=admins.get)
        of_one = [f"{UNSOUND[0]}0.0", f"{UNSOUND[1]}1.0"]
        assert await Stage.metric_lines(stage, UNSOUND, "us") == of_one
        assert await Stage.metric_lines(stage, UNSOUND) == 2 * of_one
