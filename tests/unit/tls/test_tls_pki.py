"""The files of `georelay pki`: complete, private, never overwritten by mistake."""

from __future__ import annotations

import datetime
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from georelay.cli.application import run
from georelay.errors import ConfigError
from georelay.pki.directory import PkiDirectory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_readable_by_their_owner_only(mesh: Any) -> None:
    for name in ("broker-1001", "gateway-front", "client-alice"):
        mesh.settings(name)
    keys = list(mesh.path.glob("*.key"))
    assert len(keys) == 4
    assert {mode(key) for key in keys} == {0o600}
    assert mode(mesh.path) == 0o700


def test_the_authority_signs_end_certificates_only(mesh: Any) -> None:
    certificate = mesh.pki.authority().certificate
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)


def test_permitted_names_are_a_critical_constraint_and_bind_everybody(tmp_path: Path, handshake: Any) -> None:
    pki = PkiDirectory.create(tmp_path, mesh_id="m", permitted=("example.com", "10.0.0.0/8"))
    constraint = pki.authority().certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraint.critical
    names = [str(name.value) for name in constraint.value.permitted_subtrees or ()]
    assert names == ["example.com", "10.0.0.0/8", "m", "localhost", "127.0.0.0/8", "::1/128"]


def test_a_certificate_beyond_the_permitted_names_is_not_trusted(tmp_path: Path, handshake: Any) -> None:
    import ssl

    from georelay.tls import TlsContexts, TlsSettings

    pki = PkiDirectory.create(tmp_path, mesh_id="m", permitted=("example.com",))
    for broker, host in ((1001, "a.example.com"), (1002, "a.example.org")):
        path = pki.issue_broker(broker, hosts=(host,))
        settings = TlsSettings(cert_file=path, key_file=path.with_suffix(".key"), ca_file=tmp_path / "bundle.crt")
        contexts = TlsContexts(settings, name="x")
        if broker == 1001:
            handshake(contexts, contexts, server_hostname=host)
        else:
            with pytest.raises(ssl.SSLError, match="permitted subtree violation"):
                handshake(contexts, contexts, server_hostname=host)


def test_a_second_authority_in_the_same_place_is_refused(mesh: Any) -> None:
    before = (mesh.path / "ca-1.key").read_bytes()
    with pytest.raises(ConfigError, match="holds an authority already"):
        PkiDirectory.create(mesh.path, mesh_id="x")
    assert (mesh.path / "ca-1.key").read_bytes() == before


def test_a_certificate_is_replaced_only_when_asked(mesh: Any) -> None:
    path = mesh.pki.issue_client("alice")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="is there already; --renew"):
        mesh.pki.issue_client("alice")
    assert path.read_bytes() == before
    mesh.pki.issue_client("alice", renew=True)
    assert path.read_bytes() != before


@pytest.mark.parametrize("name", ["../x", "", "a/b", "broker-1001", "GATEWAY-x", "x" * 70, "a\nb", "a b", "é"])
def test_a_client_cannot_have_a_name_that_leads_astray(mesh: Any, name: str) -> None:
    before = sorted(mesh.path.iterdir())
    with pytest.raises(ConfigError):
        mesh.pki.issue_client(name)
    assert sorted(mesh.path.iterdir()) == before


def test_only_a_brokers_certificate_names_a_broker(mesh: Any) -> None:
    with pytest.raises(ConfigError, match="neither an address nor a DNS name"):
        mesh.pki.issue_gateway("x", hosts=("a b",))
    for name in ("gateway-front", "client-alice"):
        mesh.settings(name)
    named = {row.name for row in mesh.pki.listed() if any(host.endswith(".test-mesh") for host in row.hosts)}
    assert named == set()


def test_a_gateway_cannot_take_a_brokers_name(mesh: Any) -> None:
    with pytest.raises(ConfigError, match="only a broker's certificate"):
        mesh.pki.issue_gateway("x", hosts=("broker-1001.TEST-mesh",))
    with pytest.raises(ConfigError, match="only a broker's certificate"):
        mesh.pki.issue_broker(1002, hosts=("broker-1001.test-mesh",))


def test_nothing_outlives_its_authority(tmp_path: Path) -> None:
    pki = PkiDirectory.create(tmp_path, mesh_id="m", days=100)
    with pytest.raises(ConfigError, match="the authority itself ends on"):
        pki.issue_client("alice", days=101)


def test_rotation_is_finished_only_when_everything_is_issued_anew(mesh: Any) -> None:
    mesh.settings("broker-1001")
    assert mesh.pki.rotate() == 2
    with pytest.raises(ConfigError, match="a rotation is under way"):
        mesh.pki.rotate()
    with pytest.raises(ConfigError, match="broker-1001 would not be trusted any more"):
        mesh.pki.finish()
    assert mesh.pki.reissue() == ["broker-1001"]
    assert mesh.pki.reissue() == []
    mesh.pki.finish()
    assert not (mesh.path / "ca-1.key").exists()
    assert [(row.name, row.issuer, row.trusted) for row in mesh.pki.listed()] == [
        ("ca-1", 1, False),
        ("ca-2", 2, True),
        ("broker-1001", 2, True),
    ]


def test_what_is_issued_anew_says_the_same(mesh: Any) -> None:
    mesh.pki.issue_broker(1001, hosts=("a.example.com", "10.1.2.3"), days=30)
    (before,) = [row for row in mesh.pki.listed() if row.name == "broker-1001"]
    mesh.pki.rotate()
    mesh.pki.reissue()
    (after,) = [row for row in mesh.pki.listed() if row.name == "broker-1001"]
    assert (after.subject, sorted(after.hosts)) == (before.subject, sorted(before.hosts))
    assert abs(after.not_after - before.not_after) < datetime.timedelta(minutes=10)


def test_an_authority_whose_certificate_was_not_written_does_not_count(mesh: Any) -> None:
    (mesh.path / "ca-2.key").write_bytes((mesh.path / "ca-1.key").read_bytes())  # as a crash would leave it
    mesh.pki.issue_client("alice")
    assert mesh.pki.listed()[-1].issuer == 1
    assert mesh.pki.rotate() == 2


def test_the_commands_do_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--dir", str(tmp_path / "pki"))
    assert run(["pki", "init", "--mesh", "demo", *where], []) == 0
    assert run(["pki", "issue", "broker", "1001", "--host", "b1.example.com", *where], []) == 0
    assert run(["pki", "issue", "gateway", "front", *where], []) == 0
    assert run(["pki", "issue", "client", "alice", "--days", "7", *where], []) == 0
    assert run(["pki", "rotate", *where], []) == 0
    assert run(["pki", "rotate", "--reissue", *where], []) == 0
    assert run(["pki", "rotate", "--finish", *where], []) == 0
    capsys.readouterr()
    assert run(["pki", "show", "--json", *where], []) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["broker-1001"]["hosts"][0] == "broker-1001.demo"
    assert {row["issuer"] for name, row in rows.items() if not name.startswith("ca-")} == {2}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["init", "--mesh", "m"], 1, "holds an authority already"),
        (["issue", "broker", "x"], 2, "is not the id of a broker"),
        (["issue", "server", "x"], 2, "is neither broker, gateway nor client"),
        (["issue", "client", "x", "--host", "y"], 2, "a client does not listen"),
        (["rotate", "--reissue", "--finish"], 2, "are two steps"),
    ],
)
def test_a_wrong_command_is_one_line(
    mesh: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert run(["pki", *arguments, "--dir", str(mesh.path)], []) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
