"""Messages that are refused, and rows that are left out."""

from __future__ import annotations

import pytest

from mesh.gossip import codec as c
from mesh.gossip.dialect import pack
from mesh.gossip.faults import CodecError
from mesh.gossip.member import OUR_VERSIONS, MemberState, Versions, address_raw, address_text, is_name
from tests.tiers import in_one_test

VSN = OUR_VERSIONS.raw()
ALIVE: dict[str, object] = {"Incarnation": 1, "Node": "a", "Addr": b"\x0a\0\0\x01", "Port": 1, "Meta": b"", "Vsn": VSN}
ROW: dict[str, object] = {
    "Name": "a",
    "Addr": b"\x0a\0\0\x01",
    "Port": 1,
    "Meta": b"",
    "Incarnation": 1,
    "State": 0,
    "Vsn": VSN,
}
PING: dict[str, object] = {"SeqNo": 1, "Node": "a"}


def alive(**changes: object) -> bytes:
    return b"\x04" + pack({**ALIVE, **changes})


@in_one_test(
    "raw",
    [
        b"",
        b"\x06",
        b"\x07\x00",
        b"\x08abc",
        b"\x0c",
        b"\xf4",
        b"\x63",
        b"\x00",
        b"\x00" + pack(PING) + b"\x00",
        b"\x00" + pack({"Node": "a"}),
        b"\x00" + pack({**PING, "SeqNo": 2**32}),
        b"\x00" + pack({**PING, "SeqNo": -1}),
        b"\x00" + pack({**PING, "Node": "a" * 129}),
        b"\x00" + pack({**PING, "SourceAddr": b"\x0a\0\0\x01"}),
        b"\x00" + pack({**PING, "SourceAddr": b"\x0a\0\0", "SourcePort": 1}),
        b"\x02" + pack({"SeqNo": 1, "Payload": b"x" * 1025}),
        b"\x03" + pack({"Incarnation": 1, "Node": "a"}),
        b"\x03" + pack({"Incarnation": 1, "Node": "a b", "From": "c"}),
        b"\x09" + pack({"Algo": 1, "Buf": b""}),
    ],
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        c.decode(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"Port": 0},
        {"Port": 65536},
        {"Addr": b""},
        {"Addr": b"\0\0\0\0"},
        {"Addr": b"\0" * 16},
        {"Addr": b"\xe0\0\0\x01"},
        {"Meta": b"m" * 513},
        {"Vsn": None},
        {"Vsn": b""},
        {"Vsn": VSN[:5]},
        {"Vsn": VSN + b"\x01"},
        {"Vsn": b"\x00\x05\x02\x02\x05\x05"},
        {"Vsn": b"\x03\x02\x02\x02\x05\x05"},
        {"Vsn": b"\x01\x05\x02\x06\x05\x05"},
        {"Node": ""},
        {"Node": "a\n"},
        {"Incarnation": 1.0},
    ],
)
def test_a_member_that_nobody_could_use_is_refused(changes: dict[str, object]) -> None:
    assert isinstance(c.decode(alive()), c.Alive)
    with pytest.raises(CodecError):
        c.decode(alive(**changes))


def test_an_ipv4_address_in_sixteen_bytes_is_the_same_address() -> None:
    mapped = c.decode(alive(Addr=b"\0" * 10 + b"\xff\xff\x0a\0\0\x01"))
    assert isinstance(mapped, c.Alive)
    assert mapped.address == ("10.0.0.1", 1)
    assert address_text(address_raw("fd00::1")) == "fd00::1"


def test_a_host_name_is_no_address() -> None:
    with pytest.raises(CodecError):
        address_raw("localhost")


def test_unknown_fields_are_ignored() -> None:
    assert c.decode(alive(Later=7)) == c.decode(alive())


def push_pull(
    *rows: dict[str, object], nodes: int | None = None, user: bytes = b"", user_bytes: int | None = None
) -> bytes:
    header = {
        "Nodes": len(rows) if nodes is None else nodes,
        "UserStateLen": len(user) if user_bytes is None else user_bytes,
        "Join": False,
    }
    return b"\x06" + pack(header) + b"".join(map(pack, rows)) + user


def test_one_bad_row_does_not_cost_the_others() -> None:
    bad = [{**ROW, "Vsn": b"\x01"}, {**ROW, "Name": "a b"}, {**ROW, "State": 9}, {**ROW, "Port": 0}, {}]
    state = c.decode_push_pull(push_pull(ROW, *bad, {**ROW, "Name": "z", "State": 2}, user=b"u"))
    assert [(row.name, row.state) for row in state.rows] == [("a", MemberState.ALIVE), ("z", MemberState.DEAD)]
    assert (state.bad_rows, state.user_state) == (5, b"u")


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x06",
        push_pull(ROW, nodes=2),
        push_pull(ROW, nodes=0),
        push_pull(ROW, nodes=2**31),
        push_pull(ROW, nodes=-1),
        push_pull(ROW, user=b"u", user_bytes=2),
        push_pull(ROW, user=b"uu", user_bytes=1),
        push_pull(ROW)[:-1],
        b"\x04" + push_pull(ROW)[1:],
    ],
)
def test_a_state_that_is_cut_or_lies_about_its_size_is_refused(blob: bytes) -> None:
    with pytest.raises(CodecError):
        c.decode_push_pull(blob)


@pytest.mark.parametrize("raw", [b"", b"\x02\x80", b"\x01\x80", b"\x01" + pack({"Vec": [0.0] * 7, "Error": 1.0})])
def test_what_is_no_coordinate_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        c.decode_coordinate(raw)


def test_a_user_message_over_tcp_must_have_the_length_it_says() -> None:
    with pytest.raises(CodecError):
        c.read_stream_user(c.stream_user_message(b"abc") + b"d")


@pytest.mark.parametrize(
    ("name", "is_good"), [("eu-1.mesh_2", True), ("", False), ("é", False), ("a" * 129, False), ("a\n", False)]
)
def test_names_are_letters_digits_dots_hyphens(name: str, is_good: bool) -> None:
    assert is_name(name) == is_good


def test_versions_agree_when_each_speaks_what_the_other_speaks_now() -> None:
    assert OUR_VERSIONS.agrees_with(Versions(1, 5, 2, 2, 5, 4))
    assert not OUR_VERSIONS.agrees_with(Versions(3, 5, 3, 2, 5, 4))
    assert not OUR_VERSIONS.agrees_with(Versions(1, 9, 9, 2, 5, 4))
    assert not OUR_VERSIONS.agrees_with(Versions(1, 5, 2, 2, 4, 4))
