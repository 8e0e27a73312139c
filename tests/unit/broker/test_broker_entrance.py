"""How a broker enters its region: what it writes down, and what it may be afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from georelay.errors import DataDirectoryError
from georelay.ids import BrokerId, RegionNumber
from region.broker.entrance import Entrance
from region.broker.founding_file import FOUNDING_FILE, Origin, read_origin, write_origin
from region.controller.founding_core import FoundingRecord
from region.log.filesystem import OsFileSystem

ONE, TWO, THREE = BrokerId(1001), BrokerId(1002), BrokerId(1003)


class Directory:
    """As much of a data directory as the entrance needs."""

    def __init__(self, path: Path, disk: str = "disk-1") -> None:
        self.path = path
        self.disk_id = disk
        self.fs = OsFileSystem()


def entrance(directory: Any, *, brokers: tuple[BrokerId, ...], has_log: bool = False, request: Any = None) -> Entrance:
    return Entrance(
        me=ONE,
        region=RegionNumber(1),
        directory=directory,
        configured=brokers,
        has_log=has_log,
        is_formed=lambda: False,
        request=request,
    )


async def test_a_region_of_one_founds_itself_and_writes_that_down(tmp_path: Path) -> None:
    alone = entrance(Directory(tmp_path), brokers=(ONE,))
    assert not alone.is_settled
    await alone.settle()
    assert alone.founders == (ONE,)
    again = entrance(Directory(tmp_path), brokers=(ONE, TWO))  # whatever the configuration says later
    assert again.is_settled
    assert again.founders == (ONE,)
    assert again.disks == ((ONE, "disk-1"),)


async def test_a_broker_that_finds_a_formed_region_joins_it_without_any_voters(tmp_path: Path) -> None:
    async def formed(**_: Any) -> dict[str, Any]:
        return {"ok": {"broker": TWO, "disk": "d2", "standing": "formed", "record": None}}

    joiner = entrance(Directory(tmp_path), brokers=(ONE, TWO), request=formed)
    await joiner.settle()
    assert joiner.founders == ()
    assert entrance(Directory(tmp_path), brokers=(ONE, TWO)).founders == ()


def test_a_directory_with_a_log_and_no_decision_was_a_founder_by_configuration(tmp_path: Path) -> None:
    old = entrance(Directory(tmp_path), brokers=(ONE, TWO, THREE), has_log=True)
    assert old.is_settled
    assert old.founders == (ONE, TWO, THREE)
    assert old.answer({})["standing"] == "formed"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"v": 2, "founded": null}', b'{"v": 1}', b'{"v":1,"founded":{"v":1}}']
)
def test_a_decision_that_cannot_be_read_stops_the_broker_before_it_votes(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / FOUNDING_FILE).write_bytes(raw)
    with pytest.raises(DataDirectoryError, match="join anew"):
        entrance(Directory(tmp_path), brokers=(ONE,))


def test_a_flipped_bit_anywhere_in_a_decision_is_refused(tmp_path: Path) -> None:
    write_origin(OsFileSystem(), tmp_path, Origin(record=FoundingRecord(disks=((ONE, "a1"), (TWO, "b2")))))
    path = tmp_path / FOUNDING_FILE
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        spoiled = bytearray(whole)
        spoiled[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoiled)
        with pytest.raises(DataDirectoryError, match="join anew"):
            read_origin(OsFileSystem(), tmp_path)


def test_what_was_decided_is_read_back(tmp_path: Path) -> None:
    record = FoundingRecord(disks=((ONE, "a"), (TWO, "b")))
    for origin in (Origin(record=record), Origin(record=None)):
        write_origin(OsFileSystem(), tmp_path, origin)
        assert read_origin(OsFileSystem(), tmp_path) == origin
