"""The bytes of a marker's entry as a home writes it and every mirror copies it: on disk for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.replication.stream_header import EntryType
from region.log.entry import decode_entry

GOLDEN = Path(__file__).parent / "marker_entry.hex"


async def written(make_bench: Any) -> dict[str, bytes]:
    bench = make_bench().ready()
    bench.confirm()
    bench.publish_in_transaction(producer=(2 << 48) | 5, epoch=3)
    for _ in range(5):
        await asyncio.sleep(0)
    bench.mark(producer=(2 << 48) | 5, epoch=3, is_commit=True, number=2**31 - 1)
    bench.mark(producer=9, epoch=0, is_commit=False, number=1)
    batch, commit, abort = (bytes(entry.frame) for entry in bench.log.entries[-3:])
    return {"batch": batch, "commit": commit, "abort": abort}


async def test_the_bytes_are_those_of_format_1(make_bench: Any, request: pytest.FixtureRequest) -> None:
    rows = await written(make_bench)
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text("".join(f"{name} {raw.hex()}\n" for name, raw in rows.items()))
    assert dict(line.split() for line in GOLDEN.read_text().splitlines()) == {
        name: raw.hex() for name, raw in rows.items()
    }


def test_the_stored_bytes_are_markers() -> None:
    rows = dict(line.split() for line in GOLDEN.read_text().splitlines())
    for name in ("commit", "abort"):
        entry = decode_entry(bytes.fromhex(rows[name]))
        assert (entry.type, entry.record_count) == (EntryType.TXN_MARKER, 1)
