"""Brokers without certificates know each other by a secret: nobody else is talked to, and mixed meshes can get one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import ConfigError
from georelay.ids import BrokerId, RegionNumber
from mesh.listening.mesh_secret import NO_NONCE, Call, MeshSecret
from mesh.replication import frames as f
from mesh.replication.link_grpc import DialledGrpcLink
from mesh.replication.link_proof_core import LinkProof
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.settings import BrokerAddress, MeshIdentity

OURS, THEIRS = MeshSecret(key=b"the secret of this mesh"), MeshSecret(key=b"what a stranger guesses")
OFFERED = replace(OURS, required=False)
HOME, MIRROR = BrokerId(1001), BrokerId(2001)
US = RegionNumber(1)


def opening(version: int = f.PROTOCOL_VERSION, mesh_id: str = "test-mesh") -> f.Open:
    return f.Open(version, mesh_id, "r2", RegionNumber(2), MIRROR)


def identity(broker: BrokerId, secret: MeshSecret | None) -> MeshIdentity:
    region = RegionNumber(broker // 1000)
    return MeshIdentity(mesh_id="test-mesh", region=f"r{region}", region_number=region, broker_id=broker, secret=secret)


# --- what is proved ---------------------------------------------------------------------------------------------------


def test_a_proof_is_of_one_end_one_call_and_one_purpose() -> None:
    call = Call(MIRROR, HOME, b"d" * 14, b"a" * 14)
    others = [
        call._replace(dialler=BrokerId(2002)),
        call._replace(acceptor=BrokerId(1002)),
        call._replace(dialler_nonce=b"D" * 14),
        call._replace(acceptor_nonce=b"A" * 14),
    ]
    proofs = [OURS.dialler_proof(call, b"link"), OURS.acceptor_proof(call, b"link"), OURS.dialler_proof(call, b"peers")]
    proofs += [THEIRS.dialler_proof(call, b"link"), *(OURS.dialler_proof(other, b"link") for other in others)]
    assert len(set(proofs)) == len(proofs)
    assert b"secret of this mesh" not in repr(OURS).encode()


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (b"short\n", 0o600, "holds 5 bytes, a secret has 16 to 4096"),
        (b"x" * 5000, 0o600, "a secret has 16 to 4096"),
        (b"a secret that is long enough", 0o640, "chmod 600"),
        (None, 0, "cannot read"),
    ],
)
def test_a_file_that_keeps_no_secret_is_refused(tmp_path: Path, content: bytes | None, mode: int, text: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=text):
        MeshSecret.load(path)


def exchange(dialler: MeshSecret | None, acceptor: MeshSecret | None, *, version: int = 3) -> tuple[str, str]:
    """Return why (dialler, acceptor) refuse the other end, as LinkEndpoint has them meet."""
    here = LinkProof(dialler, me=MIRROR, nonce=b"d" * 14)
    there = LinkProof(acceptor, me=HOME, nonce=b"a" * 14)
    challenge = there.challenge(opening(version))
    if challenge is not None:
        shown = there.answered(here.answer(challenge))
        if not there.missing:
            here.shown(shown)
    return here.missing, there.missing


@pytest.mark.parametrize(
    ("dialler", "acceptor", "version", "refused"),
    [
        (OURS, OURS, 3, (False, False)),
        (None, None, 3, (False, False)),
        (THEIRS, OURS, 3, (True, True)),
        (None, OURS, 3, (False, True)),
        (OURS, None, 3, (True, False)),
        (None, OURS, 2, (False, True)),  # an older broker
        (OFFERED, OURS, 3, (False, False)),  # while brokers get the secret one by one ...
        (OURS, OFFERED, 3, (False, False)),
        (OFFERED, None, 3, (False, False)),
        (None, OFFERED, 3, (False, False)),
        (None, OFFERED, 2, (False, False)),  # ... also among older ones
        (THEIRS, OFFERED, 3, (True, False)),  # and another secret in place of it
        (replace(THEIRS, required=False), OFFERED, 3, (False, False)),
    ],
)
def test_who_is_refused_by_whom(
    dialler: MeshSecret | None, acceptor: MeshSecret | None, version: int, refused: tuple[bool, bool]
) -> None:
    missing = exchange(dialler, acceptor, version=version)
    assert tuple(map(bool, missing)) == refused
    assert all("mesh_secret_file" in reason for reason in missing if reason)


def test_nobody_is_shown_a_proof_that_was_not_asked_for() -> None:
    proof = LinkProof(OURS, me=HOME, nonce=b"a" * 14)
    with pytest.raises(PeerProtocolError):
        proof.answered(f.Proof(NO_NONCE, bytes(32)))
    with pytest.raises(PeerProtocolError):
        proof.shown(f.Proof(NO_NONCE, bytes(32)))


# --- links ------------------------------------------------------------------------------------------------------------


class Stranger:
    """Dials the link port of a broker, says what it likes, and keeps what it hears."""

    def __init__(self, port: int) -> None:
        self.heard: list[f.Part] = []
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._link = DialledGrpcLink(BrokerAddress(broker_id=HOME, address=f"127.0.0.1:{port}"))
        self._link.start(self)

    def frame_received(self, frame: bytes) -> None:
        self.heard += f.decode_frame(frame)

    def link_writable(self) -> None: ...

    def link_closed(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)

    async def say(self, *parts: f.Part, until: Callable[[], bool]) -> list[f.Part]:
        async with asyncio.timeout(5):
            while not self._link.is_writable and not self.closed.done():
                await asyncio.sleep(0.002)
            if self.closed.done():  # it was refused, and heard no more
                return self.heard
            self._link.send(f.encode_frame(*parts))
            while not until() and not self.closed.done():
                await asyncio.sleep(0.002)
        return self.heard

    async def close(self) -> None:
        self._link.close("done")
        await self._link.closed()


@pytest.fixture
async def broker(start_broker: Callable[..., Any]) -> AsyncIterator[Callable[..., Any]]:
    """Start broker 1001 with a secret, and make brokers that dial it."""
    started: list[Any] = []
    home: Any = None

    async def start(mine: MeshSecret | None, theirs: MeshSecret | None) -> tuple[Any, Any]:
        nonlocal home
        home = await start_broker(HOME)
        await home.links.stop()
        home.identity = identity(HOME, mine)
        address = BrokerAddress(broker_id=HOME, address=f"127.0.0.1:{await home.start()}")
        other = type(home)(identity(MIRROR, theirs), {US: [address]})
        await other.start()
        started.append(other)
        return home, other

    yield start
    for one in started:
        await one.links.stop()


async def asked(other: Any) -> Any:
    return await other.links.request(US, "echo", {}, timeout_s=3.0)


@pytest.mark.parametrize(("mine", "theirs"), [(OURS, OURS), (None, None), (OURS, OFFERED), (OFFERED, None)])
async def test_brokers_that_may_talk_do(broker: Any, mine: MeshSecret | None, theirs: MeshSecret | None) -> None:
    _, other = await broker(mine, theirs)
    assert (await asked(other)).body["from"] == MIRROR


@pytest.mark.parametrize("theirs", [None, THEIRS])
async def test_who_cannot_prove_the_secret_is_told_why_and_asks_nothing(
    broker: Any, theirs: MeshSecret | None, until: Any
) -> None:
    home, other = await broker(OURS, theirs)
    other.links.tick()
    next(iter(other.links._outgoing.all())).want()
    await until(lambda: "SECRET" in next(iter(other.links._outgoing.all())).last_failure)
    assert "mesh_secret_file" in next(iter(other.links._outgoing.all())).last_failure
    assert not other.links.is_linked(US) and home.links.counters.peers_refused["SECRET"] >= 1


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_stranger_that_knows_the_mesh_id_is_no_broker(broker: Any, version: int) -> None:
    home, _ = await broker(OURS, OURS)
    stranger = Stranger(home.port)
    heard = await stranger.say(opening(version), until=lambda: bool(stranger.heard))
    assert not any(isinstance(part, f.Open) for part in heard)
    if version == 3:
        await stranger.say(f.Proof(bytes(14), bytes(32)), until=lambda: len(stranger.heard) > 1)
    await stranger.say(f.Request(1, "echo", {"wish": "everything"}), until=lambda: stranger.closed.done())
    assert [part.code for part in stranger.heard if isinstance(part, f.LinkRefused)] == ["SECRET"]
    assert {type(part) for part in stranger.heard} <= {f.Challenge, f.LinkRefused}
    await stranger.close()


async def test_a_refusal_does_not_tell_the_mesh_id(broker: Any) -> None:
    home, _ = await broker(None, None)
    stranger = Stranger(home.port)
    heard = await stranger.say(opening(mesh_id="a guess"), until=lambda: bool(stranger.heard))
    assert [part.code for part in heard if isinstance(part, f.LinkRefused)] == ["MESH_ID"]
    assert "test-mesh" not in str(heard)
    await stranger.close()
