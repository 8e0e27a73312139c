"""The demo counts what it saw, and reads its input without changing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest import demo
from loadtest.demo import read_lines
from loadtest.demo_tally import RegionTally


def tally(*lines: tuple[int, str], total: int = 3) -> RegionTally:
    made = RegionTally("us", total)
    for line, key in lines:
        made.saw(line=line, key=key, latency_us=1)
    return made


def test_every_line_once_and_in_order_is_exact() -> None:
    assert tally((0, "a"), (2, "b"), (1, "a")).is_exact


def test_a_missing_a_doubled_and_a_late_line_are_each_counted() -> None:
    made = tally((1, "a"), (0, "a"), (1, "a"))
    assert (made.missing, made.duplicates, made.out_of_order, made.received) == (1, 1, 1, 3)
    assert not made.is_exact


def test_lines_without_a_key_have_no_order() -> None:
    assert tally((2, ""), (0, ""), (1, "")).is_exact


def test_lines_come_whole_with_the_key_of_their_json(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"key": "a", "n": 1}\r\n\nplain\n{"key": 5}\n\xff\xfe\n["key"]')
    assert list(read_lines(path)) == [
        ("a", b'{"key": "a", "n": 1}'),
        ("", b"plain"),
        ("", b'{"key": 5}'),
        ("", b"\xff\xfe"),
        ("", b'["key"]'),
    ]


def test_a_line_over_the_limit_is_refused_and_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LINE_BYTES_MAX", 10)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 10 + b"\r\n" + b"y" * 10 + b"\n")
    assert [len(line) for _, line in read_lines(path)] == [10, 10]
    path.write_bytes(b"ok\n" + b"x" * 11 + b"\n")
    with pytest.raises(RuntimeError, match="line 2"):
        list(read_lines(path))
