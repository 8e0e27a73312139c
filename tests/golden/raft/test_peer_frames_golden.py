"""The bytes that open a connection between brokers of one region, and those that carry a link on it, for ever."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.ids import BrokerId
from mesh.listening.mesh_secret import NO_NONCE, Call, MeshSecret
from mesh.replication.frame_reader import HEAD
from mesh.replication.link_framed import ACCEPTED, BEGIN, FramedLink
from region.multiraft.peer_hello import answer_challenge, decode_hello, encode_challenge, encode_hello
from region.multiraft.transport import FrameKind, Lane

FROM, TO = BrokerId(1001), BrokerId(1002)
DISK, NONCE, THEIR_NONCE = bytes(range(16)), bytes(range(100, 114)), bytes(range(200, 214))
SECRET = MeshSecret(key=b"the secret of this mesh")


class Kept:
    """The connection below a link: keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, _: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None)

    def write(self, data: bytes) -> None:
        self.written += data


async def link_frame() -> bytes:
    below: Any = Kept()
    link = FramedLink(peer="peer", quiet_ns=lambda: None)
    link.opened(below)
    link.send(b"\x01a frame of the link protocol")
    return bytes(below.written)


def hello(lane: Lane) -> bytes:
    return encode_hello(lane=lane, sender=FROM, to=TO, disk=DISK, mesh_id="test", port=9093, nonce=NONCE)


def challenge() -> bytes:
    return encode_challenge(SECRET, Call(FROM, TO, NONCE, THEIR_NONCE), Lane.LINK)


FRAMES = {
    "peer_hello_control": hello(Lane.CONTROL),
    "peer_hello_link": hello(Lane.LINK),
    "peer_challenge_link": challenge(),
    "peer_proof_link": answer_challenge(SECRET, challenge(), Call(FROM, TO, NONCE, NO_NONCE), Lane.LINK),
    "peer_accepted": ACCEPTED,
    "link_begin": BEGIN,
}


def golden(name: str, frame: bytes, request: pytest.FixtureRequest) -> bytes:
    path = Path(__file__).parent / f"{name}.hex"
    if request.config.getoption("--rewrite"):
        path.write_text("\n".join(frame[i : i + 32].hex(" ") for i in range(0, len(frame), 32)) + "\n")
    return bytes.fromhex(path.read_text())


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_the_greeting_is_these_bytes(name: str, request: pytest.FixtureRequest) -> None:
    frame = FRAMES[name]
    assert frame == golden(name, frame, request)
    assert HEAD.unpack_from(frame)[0] == len(frame) - 4


async def test_a_frame_of_a_link_is_these_bytes(request: pytest.FixtureRequest) -> None:
    frame = await link_frame()
    assert frame == golden("peer_link", frame, request)
    assert HEAD.unpack_from(frame) == (len(frame) - 4, FrameKind.LINK)


def test_a_hello_of_lane_link_comes_back_as_it_was() -> None:
    found = decode_hello(hello(Lane.LINK)[HEAD.size :], me=TO, mesh_id="test")
    assert (found.sender, found.lane, found.disk, found.port, found.nonce) == (FROM, Lane.LINK, DISK, 9093, NONCE)
