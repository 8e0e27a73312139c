"""A mesh with a user: who does not sign in gets no answer but the refusal, and the password is nowhere to be read."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from georelay.cli.application import run

pytestmark = pytest.mark.slow

SECONDS = 30
SASL_AUTHENTICATION_FAILED = 58
CORRELATION = 7


def _request(api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, CORRELATION, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


API_VERSIONS = _request(18, 0, b"")
METADATA_FOR_ALL = _request(3, 1, struct.pack(">i", -1))


@pytest.fixture(params=["gateway", "eu"])
def place(request: pytest.FixtureRequest) -> str:
    """Each kind of process that has listeners for clients; the gateway asks a broker of us who somebody is."""
    return str(request.param)


# Every wrong sign-in makes the next one of the same address slower, a right one too: strangers come last in this file,
# and each kind of them at the gateway only.
AT_THE_GATEWAY = ["no credentials", "wrong password", "unknown user", "empty password"]
REQUESTS = (
    ("POST", "/v1/topics/t/records"),
    ("GET", "/v1/status"),
    ("GET", "/v1/topics"),
    ("GET", "/metrics"),
    ("GET", "/no/such/path"),
)
strangers = pytest.mark.parametrize(
    ("place", "stranger"),
    [*(("gateway", who) for who in AT_THE_GATEWAY), ("eu", "no credentials"), ("eu", "wrong password")],
    indirect=True,
)


def address(mesh: Any, place: str, kind: str) -> str:
    if place != "gateway":
        return str(mesh.addresses(place, "admin" if kind == "http" else kind)[0])
    return str(mesh.process.endpoints["gateway"][kind][0])


def test_http_answers_the_user(guarded_mesh: Any, place: str) -> None:
    where = address(guarded_mesh, place, "http")
    assert guarded_mesh.http("GET", "/v1/status", address=where).status == 200
    assert guarded_mesh.http("GET", "/v1/topics", address=where).status == 200


def test_probes_of_health_need_no_user(guarded_mesh: Any, place: str) -> None:
    where = address(guarded_mesh, place, "http")
    for path in ("/healthz", "/readyz"):
        assert guarded_mesh.http("GET", path, address=where, sign_in=None).status == 200


@pytest.mark.parametrize("begin", [b"", API_VERSIONS], ids=["at once", "after ApiVersions"])
def test_a_kafka_request_before_sign_in_ends_the_connection_unanswered(
    guarded_mesh: Any, place: str, begin: bytes
) -> None:
    with _connect(guarded_mesh, place) as connection:
        connection.sendall(begin)
        if begin:
            assert _answer(connection)[:2] == b"\0\0"
        connection.sendall(METADATA_FOR_ALL)
        assert connection.recv(1) == b""


def _connect(mesh: Any, place: str) -> socket.socket:
    host, port = address(mesh, place, "kafka").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def _answer(connection: socket.socket) -> bytes:
    """Return the body of one answer."""
    body = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    assert body[:4] == struct.pack(">i", CORRELATION)
    return body[4:]


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, "the connection ended too early"
        data += piece
    return data


def _channel(target: str) -> Any:
    return cast("Any", grpc).insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])


def test_grpc_serves_the_user(guarded_mesh: Any, place: str, alice: Any) -> None:
    metadata = [("authorization", alice.header.replace("Basic", "basic"))]
    topic = guarded_mesh.new_topic("guarded-grpc", partitions=1).encode()
    with _channel(address(guarded_mesh, place, "grpc")) as channel:
        publish = channel.unary_unary("/broker.Broker/Publish")
        body = bytes([10, len(topic)]) + topic + b"\x12\x02hi"
        assert publish(body, metadata=metadata, timeout=SECONDS).endswith(topic + b"/0/0")


@pytest.mark.parametrize("entry", ["gateway", "eu"])
def test_every_kafka_client_signs_in_produces_and_reads(
    guarded_mesh: Any, client: Any, alice: Any, entry: str, keyed_records: Any, check_received: Any
) -> None:
    topic = guarded_mesh.new_topic(f"guarded-{client.name}", partitions=2)
    sent = keyed_records(topic, 100)
    client.produce(address(guarded_mesh, entry, "kafka"), topic, sent, compression="gzip", sign_in=alice)
    guarded_mesh.wait_for_records(topic, region="ap", partitions=2, count=100)
    check_received(sent, client.consume(guarded_mesh.kafka("ap"), topic, 2, 100, sign_in=alice))


@pytest.mark.parametrize("way", ["--user", "GEORELAY_USER"])
def test_the_command_line_signs_in(guarded_mesh: Any, alice: Any, way: str) -> None:
    topic = guarded_mesh.new_topic("guarded-cli", partitions=1)
    secret = f"{alice.user}:{alice.password}"
    flags = ("--user", secret) if way == "--user" else ()
    environment = {"GEORELAY_USER": "" if way == "--user" else secret}
    published = guarded_mesh.cli("publish", topic, *flags, stdin=b"one\ntwo\n", **environment)
    assert (published.returncode, published.stdout) == (0, ""), published
    read = guarded_mesh.cli("subscribe", topic, "--from", "earliest", "--max", "2", *flags, **environment)
    assert (read.returncode, read.stdout) == (0, "one\ntwo\n"), read


@pytest.mark.parametrize(
    ("module", "name", "old", "new"),
    [
        ("region", "us-1", 'kafka = "127.0.0.1:', 'kafka = "0.0.0.0:'),
        ("region", "us-1", 'grpc = "127.0.0.1:', 'grpc = "192.0.2.1:'),
        ("region", "us-1", 'admin = "127.0.0.1:', 'admin = "[::]:'),
        ("gateway", "gateway", 'http = "127.0.0.1:', 'http = "0.0.0.0:'),
    ],
    ids=["kafka", "grpc", "admin", "gateway"],
)
def test_an_address_that_is_not_loopback_refuses_to_start_in_one_line(
    guarded_mesh: Any, tmp_path: Path, module: str, name: str, old: str, new: str
) -> None:
    text = (guarded_mesh.process.directory / "mesh" / "config" / f"{name}.toml").read_text()
    assert old in text
    changed = tmp_path / "changed.toml"
    changed.write_text("\n".join(line for line in text.replace(old, new, 1).splitlines() if "die_with" not in line))
    command = [sys.executable, "-m", module, "--config", str(changed)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=dict(os.environ), check=False)
    assert ran.returncode in (1, 2)
    assert (ran.stdout, ran.stderr.strip().count("\n")) == ("", 0), ran.stderr
    assert "loopback" in ran.stderr


@pytest.mark.parametrize("user", ["alice", "alice:", ":secret"])
def test_a_user_without_name_or_password_is_refused_without_showing_it(
    tmp_path: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--data", str(tmp_path / "data"), "--user", user]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "secret" not in said.err
    assert not (tmp_path / "data").exists() or json.dumps([str(p) for p in (tmp_path / "data").rglob("users*")]) == "[]"


@strangers
def test_http_answers_401_to_strangers(guarded_mesh: Any, place: str, stranger: Any) -> None:
    for method, path in REQUESTS if stranger is None else REQUESTS[:1]:
        body = {"value": "x"} if method == "POST" else None
        answer = guarded_mesh.http(method, path, body, address=address(guarded_mesh, place, "http"), sign_in=stranger)
        assert (answer.status, answer.content_type.split(";")[0]) == (401, "application/problem+json"), path
        assert answer.document["code"] == "UNAUTHENTICATED"
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")


@strangers
def test_kafka_refuses_the_sign_in_of_strangers_and_closes(guarded_mesh: Any, place: str, stranger: Any) -> None:
    token = b"\0\0" if stranger is None else f"\0{stranger.user}\0{stranger.password}".encode()
    with _connect(guarded_mesh, place) as connection:
        connection.sendall(_request(17, 1, struct.pack(">h", 5) + b"PLAIN"))
        assert _answer(connection)[:2] == b"\0\0"
        connection.sendall(_request(36, 1, struct.pack(">i", len(token)) + token))
        assert struct.unpack(">h", _answer(connection)[:2]) == (SASL_AUTHENTICATION_FAILED,)
        assert connection.recv(1) == b""


def test_a_real_client_without_the_password_learns_nothing(guarded_mesh: Any, clients: Any, alice: Any) -> None:
    for sign_in in (None, dataclasses.replace(alice, password="guess")):
        listed = clients["kcat"].run("-L", "-b", guarded_mesh.bootstrap, "-m", "2", sign_in=sign_in)
        assert (listed.returncode, listed.stdout) == (1, ""), listed
        assert "SASL" in listed.stderr or "metadata" in listed.stderr


@strangers
def test_grpc_answers_unauthenticated_to_strangers(guarded_mesh: Any, place: str, stranger: Any) -> None:
    metadata = [] if stranger is None else [("authorization", stranger.header.replace("Basic", "basic"))]
    with _channel(address(guarded_mesh, place, "grpc")) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/broker.Broker/Publish")(b"\x0a\x01t", metadata=metadata, timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as refused:
            next(channel.unary_stream("/broker.Broker/Subscribe")(b"", metadata=metadata, timeout=SECONDS))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("command", "user"),
    [
        (("publish", "t"), ""),
        (("subscribe", "t"), "alice:wrong"),
        (("topics", "list"), ""),
        (("status",), "alice:wrong"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value or "nobody",
)
def test_the_command_line_refuses_strangers_in_one_line(guarded_mesh: Any, command: tuple[str, ...], user: str) -> None:
    ran = guarded_mesh.cli(*command, stdin=b"x\n", GEORELAY_USER=user)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1), ran
    assert ran.stderr.startswith("georelay: ")
    assert "wrong" not in ran.stderr.replace("wrong user or password", "")


def test_the_password_is_in_no_file_no_command_line_and_no_environment(guarded_mesh: Any, alice: Any) -> None:
    """Last: what was said to strangers, one of whom had nearly the right password, is looked through too."""
    guarded_mesh.http("GET", "/v1/topics")
    secrets = [alice.password.encode(), base64.b64encode(f"{alice.user}:{alice.password}".encode())]
    files = [path for path in guarded_mesh.process.directory.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    assert [path for path in files if any(secret in path.read_bytes() for secret in secrets)] == []
    users = guarded_mesh.process.directory / "mesh" / "users.json"
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    pids = [int(path.read_text()) for path in (guarded_mesh.process.directory / "mesh" / "run").glob("*.pid")]
    assert len(pids) >= len(guarded_mesh.regions) + 1
    for pid in pids:
        shown = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        assert not any(secret in shown for secret in secrets), pid
