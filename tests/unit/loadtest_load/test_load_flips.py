"""One bit of one file: which file, which bit, and how the broker says that it found it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from loadtest.load.file_kinds import FILE_KINDS
from loadtest.load.flips import _flip, _judged


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
