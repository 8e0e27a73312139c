"""The msgpack of Serf: what is written, what is read leniently, and what is refused."""

from __future__ import annotations

import tracemalloc

import pytest

from mesh.gossip.dialect import FieldMap, pack, read_map, read_maps
from mesh.gossip.faults import CodecError
from tests.tiers import in_one_test


def fields(**values: object) -> FieldMap:
    return read_map(pack(values), array_max=100)


@pytest.mark.parametrize(
    ("size", "head"), [(0, "a0"), (31, "bf"), (32, "da0020"), (255, "da00ff"), (65536, "db00010000")]
)
def test_texts_and_bytes_are_written_in_the_old_raw_family(size: int, head: str) -> None:
    for value in ("x" * size, b"x" * size):
        assert pack({"k": value})[3:].hex().startswith(head)


@pytest.mark.parametrize(
    "number", ["07", "cc07", "cd0007", "ce00000007", "cf0000000000000007", "d007", "d10007", "d200000007"]
)
def test_an_integer_may_have_any_width_and_sign(number: str) -> None:
    assert read_map(bytes.fromhex("81a16b" + number)).uint("k") == 7


def test_nil_is_a_missing_field() -> None:
    nil = fields(k=None)
    assert not nil.has("k")
    assert nil.raw_or_none("k", limit=1) is None
    assert nil.texts("k", limit=1) == ()
    assert nil.text_texts("k", limit=1, each_limit=1) == {}
    assert nil.uint("k", default=3) == 3
    with pytest.raises(CodecError, match="k is missing"):
        nil.uint("k")


def test_fields_are_read_by_their_type() -> None:
    found = fields(
        U=7,
        I=-7,
        F=True,
        T="é",
        R=b"\xff",
        X=1.5,
        V=[1.0, 2],
        B=[b"a"],
        W=["a"],
        M=[None, {"U": 1}],
        N={"a": 9},
        S={"a": "b"},
    )
    assert (found.uint("U"), found.integer("I"), found.flag("F"), found.text("T")) == (7, -7, True, "é")
    assert (found.raw("R", limit=1), found.real("X"), found.reals("V", count=2)) == (b"\xff", 1.5, (1.0, 2.0))
    assert (found.raws("B", limit=1, each_limit=1), found.texts("W", limit=1)) == ((b"a",), ("a",))
    first, second = found.maps("M", limit=2)
    assert first is None
    assert second is not None and second.uint("U") == 1
    assert found.text_uints("N", limit=1) == {"a": 9}
    assert found.text_texts("S", limit=1, each_limit=1) == {"a": "b"}
    assert found.inner("S").as_texts(limit=1, each_limit=1) == {"a": "b"}


@in_one_test(
    "read",
    [
        lambda f: f.uint("N"),
        lambda f: f.uint("T"),
        lambda f: f.uint("F"),
        lambda f: f.uint("U", bits=8),
        lambda f: f.integer("X"),
        lambda f: f.integer("H"),
        lambda f: f.flag("U"),
        lambda f: f.text("U"),
        lambda f: f.text("R"),
        lambda f: f.text("T", limit=1),
        lambda f: f.raw("T", limit=1),
        lambda f: f.real("T"),
        lambda f: f.real("Q"),
        lambda f: f.real("H"),
        lambda f: f.reals("V", count=2),
        lambda f: f.reals("V", count=4),
        lambda f: f.reals("U", count=1),
        lambda f: f.raws("V", limit=3, each_limit=9),
        lambda f: f.maps("V", limit=3),
        lambda f: f.inner("U"),
        lambda f: f.text_uints("S", limit=9),
        lambda f: f.text_texts("S", limit=0, each_limit=9),
        lambda f: f.text_texts("U", limit=9, each_limit=9),
        lambda f: f.as_texts(limit=1, each_limit=9),
        lambda f: f.as_texts(limit=99, each_limit=9),
    ],
)
def test_a_value_of_another_kind_or_beyond_its_limit_is_refused(read: object) -> None:
    found = fields(
        U=256, N=-1, F=True, T="text", R=b"\xff", X=1.5, V=[1.0, 2.0, 3.0], S={"a": "b"}, Q=float("nan"), H=2**63
    )
    with pytest.raises(CodecError):
        read(found)  # type: ignore[operator]


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "c1",
        "01",
        "80ff",
        "81",
        "8180",
        "818001",
        "8190c0",
        "81a16bd40100",
        "81a16bd6ff00000000",
        "81a16bc70001",
        "81a16b91c0",
    ],
)
def test_what_is_no_single_bounded_map_is_refused(raw: str) -> None:
    with pytest.raises(CodecError):
        read_map(bytes.fromhex(raw)).uint("k")


def test_a_nest_of_announced_arrays_reserves_nothing() -> None:
    raw = b"\x81\xa1k" + b"\xdc\xff\xff" * 900 + b"\x00" * 65_000
    tracemalloc.start()
    with pytest.raises(CodecError):
        read_map(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_maps_back_to_back_tell_where_they_end() -> None:
    raw = b"\x06" + pack({"a": 1}) + pack({"a": 2}) + b"rest"
    found, end = read_maps(raw, 2, offset=1)
    assert [row.uint("a") for row in found] == [1, 2]
    assert raw[end:] == b"rest"


@pytest.mark.parametrize("count", [-1, 3, 10**9])
def test_more_maps_than_bytes_are_refused(count: int) -> None:
    with pytest.raises(CodecError):
        read_maps(pack({"a": 1}), count)
