"""Contexts follow their files, and a certificate proves exactly one name."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import ConfigError
from georelay.tls import (
    ClientAuth,
    PrincipalFrom,
    TlsContexts,
    TlsSettings,
    broker_name,
    certificate_names,
    mesh_label,
    principal_of,
    principal_of_call,
)


def test_a_client_that_trusts_the_authority_talks_tls_1_3(mesh: Any, handshake: Any) -> None:
    assert handshake(mesh.contexts("broker-1001"), mesh.contexts("")).version() == "TLSv1.3"


def test_tls_1_1_is_refused(mesh: Any, handshake: Any) -> None:
    client = mesh.contexts("")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.client().minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.client().maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(mesh.contexts("broker-1001"), client)


def test_tls_1_2_has_forward_secrecy_and_authenticated_ciphers_only(mesh: Any) -> None:
    names = {row["name"] for row in mesh.contexts("broker-1001").server().get_ciphers()}
    old = {name for name in names if not name.startswith("TLS_")}
    assert old
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in old)


def test_a_certificate_of_another_authority_is_refused(mesh: Any, other_mesh: Any, handshake: Any) -> None:
    with pytest.raises(ssl.SSLError, match=r"self-signed certificate|unable to get local issuer"):
        handshake(other_mesh.contexts("broker-1001"), mesh.contexts(""))


def test_a_clients_certificate_cannot_be_a_servers(mesh: Any, handshake: Any) -> None:
    with pytest.raises(ssl.SSLError, match=r"unsuitable certificate purpose|unsupported certificate purpose"):
        handshake(mesh.contexts("client-eve"), mesh.contexts(""))


def test_a_required_certificate_must_be_shown(mesh: Any, handshake: Any) -> None:
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        handshake(mesh.contexts("broker-1001", ClientAuth.REQUIRED), mesh.contexts(""))


def test_an_optional_certificate_must_be_right_if_it_is_shown(mesh: Any, other_mesh: Any, handshake: Any) -> None:
    server = mesh.contexts("broker-1001", ClientAuth.OPTIONAL)
    assert principal_of(handshake(server, mesh.contexts(""))) == ""
    assert principal_of(handshake(server, mesh.contexts("client-alice"))) == "User:alice"
    stranger = TlsContexts(
        TlsSettings(
            cert_file=other_mesh.settings("client-alice").cert_file,
            key_file=other_mesh.settings("client-alice").key_file,
            ca_file=mesh.settings("").ca_file,
        ),
        name="stranger",
    )
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(server, stranger)


def test_a_renewed_certificate_is_used_by_the_next_handshake(mesh: Any, handshake: Any) -> None:
    server, client = mesh.contexts("broker-1001"), mesh.contexts("")
    handshake(server, client)
    mesh.pki.issue_broker(1001, hosts=("new.example.com",), renew=True)
    handshake(server, client, server_hostname="new.example.com")
    assert server.reloads == 1


def test_files_are_looked_at_only_after_a_while(mesh: Any, handshake: Any, clock: Any) -> None:
    server = TlsContexts(mesh.settings("broker-1001"), name="kafka", monotonic_s=clock)
    before = server.server()
    mesh.pki.issue_broker(1001, renew=True)
    clock.now_s += 4.9
    assert server.server() is before
    clock.now_s += 0.2
    assert server.server() is not before


def test_a_broken_new_file_keeps_the_old_one_and_is_counted_once(mesh: Any, handshake: Any) -> None:
    server, client = mesh.contexts("broker-1001"), mesh.contexts("")
    (mesh.path / "broker-1001.crt").write_text("-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n")
    for _ in range(3):
        handshake(server, client)
    assert (server.reloads, server.reload_failures) == (0, 1)
    mesh.pki.issue_broker(1001, renew=True)
    handshake(server, client)
    assert (server.reloads, server.reload_failures) == (1, 1)


def test_a_key_that_does_not_fit_keeps_the_old_pair(mesh: Any, handshake: Any) -> None:
    server = mesh.contexts("broker-1001")
    mesh.settings("broker-1002")
    shutil.copy(mesh.path / "broker-1002.key", mesh.path / "broker-1001.key")
    handshake(server, mesh.contexts(""))
    assert server.reload_failures == 1


def test_an_authority_that_was_taken_away_is_not_trusted_by_the_next_handshake(mesh: Any, handshake: Any) -> None:
    server = mesh.contexts("broker-1001", ClientAuth.REQUIRED)
    shutil.copytree(mesh.path, mesh.path.with_name("kept"))
    mesh.settings("client-alice")
    old = TlsSettings(
        cert_file=Path(shutil.copy(mesh.path / "client-alice.crt", mesh.path.with_name("alice.crt"))),
        key_file=Path(shutil.copy(mesh.path / "client-alice.key", mesh.path.with_name("alice.key"))),
        ca_file=mesh.path / "bundle.crt",
    )
    handshake(server, TlsContexts(old, name="old", check_s=0))
    mesh.pki.rotate()
    handshake(server, TlsContexts(old, name="old", check_s=0))  # both are trusted
    mesh.pki.reissue()
    mesh.pki.finish()
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(server, TlsContexts(old, name="old", check_s=0))
    handshake(server, mesh.contexts("client-alice"))


def test_rotation_never_breaks_a_handshake_between_processes_that_reload_at_different_times(
    mesh: Any, handshake: Any, clock: Any
) -> None:
    late = TlsContexts(mesh.settings("broker-1001", ClientAuth.REQUIRED), name="late", monotonic_s=clock)
    soon = mesh.contexts("broker-1002", ClientAuth.REQUIRED)
    for step in (mesh.pki.rotate, mesh.pki.reissue, mesh.pki.finish):
        step()
        soon.check()
        handshake(soon, late)  # one of them has not seen the step yet
        handshake(late, soon)
        late.check()
        handshake(late, soon)


def test_the_ends_of_certificate_and_authority_are_told(mesh: Any, clock: Any) -> None:
    contexts = mesh.contexts("broker-1001")
    ends = contexts.expires_s()
    assert 396 < ends["cert"] / 86_400 < 398
    assert 3_649 < ends["ca"] / 86_400 < 3_651


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: (path / "broker-1001.crt").unlink(), "cannot read .*broker-1001.crt: No such file"),
        (lambda path: (path / "broker-1001.key").write_text("nothing"), "broker-1001.key is not a PEM file"),
        (lambda path: shutil.copy(path / "ca-1.key", path / "broker-1001.key"), "mismatch"),
    ],
)
def test_a_file_that_cannot_be_used_refuses_the_start_in_one_line(mesh: Any, change: Any, says: str) -> None:
    settings = mesh.settings("broker-1001")
    change(mesh.path)
    with pytest.raises(ConfigError, match=says) as raised:
        TlsContexts(settings, name="kafka")
    assert "\n" not in str(raised.value)


def test_no_key_appears_in_any_text_form(mesh: Any) -> None:
    contexts = mesh.contexts("broker-1001")
    key = (mesh.path / "broker-1001.key").read_text().splitlines()[1]
    for thing in (contexts, contexts.settings, contexts.pem(), contexts._loaded, mesh.pki.authority()):
        assert key not in repr(thing)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match="cert_file and key_file belong together"):
        TlsSettings(cert_file=Path("a.crt"))


class _Shown:
    """An ssl object whose other end showed this certificate."""

    def __init__(self, certificate: dict[str, Any]) -> None:
        self._certificate = certificate

    def getpeercert(self) -> dict[str, Any]:
        return self._certificate


SUBJECT = ((("countryName", "DE"),), (("organizationName", "Acme, Inc."),), (("commonName", "alice"),))


@pytest.mark.parametrize(
    ("certificate", "principal_from", "principal"),
    [
        ({"subject": SUBJECT}, PrincipalFrom.CN, "User:alice"),
        ({"subject": SUBJECT}, PrincipalFrom.DN, "User:CN=alice,O=Acme\\, Inc.,C=DE"),
        ({"subject": SUBJECT}, PrincipalFrom.SAN, ""),
        ({"subjectAltName": (("DNS", "a.b"), ("URI", "spiffe://x/y"))}, PrincipalFrom.SAN, "User:spiffe://x/y"),
        ({"subjectAltName": (("email", "a@b"), ("DNS", "a.b"), ("DNS", "c"))}, PrincipalFrom.SAN, "User:a.b"),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, PrincipalFrom.CN, ""),
        ({"subject": ((("commonName", "a\nUser:admin"),),)}, PrincipalFrom.CN, ""),
        ({"subject": ((("commonName", "x" * 300),),)}, PrincipalFrom.CN, ""),
        ({}, PrincipalFrom.CN, ""),
    ],
)
def test_the_principal_is_the_name_that_the_setting_says(
    certificate: dict[str, Any], principal_from: PrincipalFrom, principal: str
) -> None:
    assert principal_of(_Shown(certificate), principal_from) == principal


def test_nobody_is_the_principal_of_a_plain_connection() -> None:
    assert principal_of(None) == ""
    assert certificate_names(None) == frozenset()


def test_a_grpc_caller_has_the_same_principal(mesh: Any) -> None:
    mesh.settings("client-alice")
    shown = {"x509_common_name": [b"alice"], "x509_pem_cert": [(mesh.path / "client-alice.crt").read_bytes()]}
    assert principal_of_call(shown) == "User:alice"
    assert principal_of_call(shown, PrincipalFrom.DN) == "User:CN=alice"
    names = {"x509_subject_alternative_name": [b"b@c", b"a.b"]}
    assert principal_of_call(names, PrincipalFrom.SAN) == "User:a.b"
    assert principal_of_call({}) == principal_of_call({}, PrincipalFrom.DN) == ""


def test_a_mesh_id_that_is_no_dns_label_becomes_one() -> None:
    assert mesh_label("My-Mesh") == "my-mesh"
    hashed = mesh_label("my mesh.eu")
    assert hashed.startswith("m-")
    assert hashed != mesh_label("my mesh.us")
    assert broker_name(1001, "prod") == "broker-1001.prod"
