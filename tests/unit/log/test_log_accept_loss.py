"""The way out for the only replica of a group that has lost its end: an operator gives it up, knowingly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from georelay.ids import BrokerId, GroupId
from region.log.accept_loss import main
from region.log.data_directory import DataDirectory

if TYPE_CHECKING:
    from tests.unit.log.conftest import EntryMaker

GROUP = GroupId(7)


def opened(path: Path) -> DataDirectory:
    return DataDirectory.open(path, mesh_id="m", broker_id=BrokerId(1001))


@pytest.fixture
def home(tmp_path: Path, entry_maker: Callable[[], EntryMaker]) -> Path:
    """A data directory with a group of six entries, all of them promised."""
    path, make = tmp_path / "broker", entry_maker()
    directory = opened(path)
    log = directory.open_group(GROUP)
    log.append([make.data(b"x" * 100) for _ in range(6)])
    log.sync()
    directory.marks.note({GROUP: log.end_mark})
    log.close()
    directory.close()
    return path


def damage(home: Path, at: float) -> None:
    (path,) = (home / "groups" / str(GROUP)).glob("*.log")
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * at)] ^= 1
    path.write_bytes(raw)


def lost_of(home: Path) -> tuple[int, bool]:
    directory = opened(home)
    log = directory.open_group(GROUP)
    try:
        return log.last_index, log.lost is not None
    finally:
        log.close()
        directory.close()


def test_a_lost_end_is_given_up_for_good(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(home, 0.6)
    assert lost_of(home) == (3, True) == lost_of(home)
    assert main([str(home), "7", "--only-replica"]) == 0
    assert "ends at index 3" in capsys.readouterr().out
    assert lost_of(home) == (3, False)


def test_a_log_that_is_refused_for_want_of_a_mark_is_opened_again(home: Path) -> None:
    damage(home, 0.6)
    directory = opened(home)
    directory.marks.forget(GROUP)
    directory.close()
    assert main([str(home), "7", "--only-replica"]) == 0
    assert lost_of(home) == (3, False)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["7"], "--only-replica"),
        (["7", "--only-replica"], "has lost nothing"),
        (["0", "--only-replica"], "controller"),
        (["9", "--only-replica"], "no group 9"),
    ],
)
def test_what_is_not_asked_for_rightly_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    assert main([str(home), *arguments]) == 1
    assert why in capsys.readouterr().err
    assert lost_of(home) == (6, False)


def test_without_the_operators_word_the_loss_stays(home: Path) -> None:
    damage(home, 0.6)
    assert main([str(home), "7"]) == 1
    assert lost_of(home) == (3, True)


def test_a_directory_in_use_and_one_of_nobody_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = opened(home)
    assert main([str(home), "7", "--only-replica"]) == 1
    assert "in use" in capsys.readouterr().err
    directory.close()
    assert main([str(tmp_path / "nothing"), "7", "--only-replica"]) == 1
    assert not (tmp_path / "nothing").exists()
