"""The [tls] section and the rule about listening in the open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from georelay.tls import ClientAuth
from mesh.listening.listeners import Listeners, ListeningCollector
from mesh.listening.settings import LimitsSection, TlsSection, is_loopback, known_listeners, refuse_open_listener

FILES: dict[str, Any] = {"cert_file": "c", "key_file": "k", "ca_file": "a"}


def section_of(**raw: Any) -> TlsSection:
    return TlsSection.model_validate(raw)


def test_without_a_certificate_everything_is_plain_text() -> None:
    assert TlsSection().of("kafka") is None


def test_one_certificate_is_for_every_listener() -> None:
    settings = section_of(**FILES, client_auth="optional").of("kafka")
    assert settings is not None
    assert (settings.cert_file, settings.ca_file, settings.client_auth) == (Path("c"), Path("a"), ClientAuth.OPTIONAL)


def test_a_listener_may_differ() -> None:
    section = section_of(
        **FILES,
        listeners={
            "grpc": {"enabled": False},
            "kafka": {"cert_file": "c2", "key_file": "k2", "client_auth": "required"},
        },
    )
    assert section.of("grpc") is None
    kafka = section.of("kafka")
    assert kafka is not None
    assert (kafka.cert_file, kafka.key_file, kafka.client_auth) == (Path("c2"), Path("k2"), ClientAuth.REQUIRED)


def test_brokers_always_require_certificates_of_each_other() -> None:
    settings = section_of(**FILES).of("peers", mutual=True)
    assert settings is not None
    assert settings.client_auth is ClientAuth.REQUIRED


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"cert_file": "c"}, "cert_file and key_file belong together"),
        ({"cert_file": "c", "key_file": "k"}, "ca_file: whom to trust"),
        ({"listeners": {"kafka": {"key_file": "k"}}}, "belong together"),
        (
            {"client_auth": "required", "listeners": {"kafka": {"cert_file": "c", "key_file": "k"}}},
            'listeners.kafka: client_auth = "required" needs ca_file',
        ),
        ({"principal_from": "name"}, "principal_from"),
        ({"ciphers": "ALL"}, "ciphers"),
    ],
)
def test_a_wrong_section_is_refused(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        section_of(**raw)


def test_an_exception_for_an_unknown_listener_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tls.listeners.kafak: there is no such listener; there are grpc, kafka"):
        known_listeners(section_of(listeners={"kafak": {}}), ("kafka", "grpc"))


TLS = section_of(**FILES).of("kafka")
MUTUAL = section_of(**FILES, client_auth="required").of("kafka")


@pytest.mark.parametrize(
    ("address", "settings", "authenticates", "for_clients", "says"),
    [
        ("127.0.0.1:1", None, False, True, ""),
        ("[::1]:1", None, False, True, ""),
        ("localhost:1", None, False, True, ""),
        ("127.9.9.9:1", None, False, True, ""),
        ("0.0.0.0:1", None, True, True, "has no TLS: set cert_file, key_file and ca_file in"),
        ("example.com:1", None, True, True, "has no TLS"),
        ("[::]:1", None, True, True, "has no TLS"),
        ("10.0.0.1:1", TLS, False, True, 'lets anybody in: set users_file, or client_auth = "required"'),
        ("10.0.0.1:1", TLS, True, True, ""),
        ("10.0.0.1:1", MUTUAL, False, True, ""),
        ("10.0.0.1:1", None, False, False, "has no TLS"),
        ("10.0.0.1:1", TLS, False, False, ""),
    ],
)
def test_an_address_off_loopback_needs_tls_and_authentication(
    address: str, settings: Any, authenticates: bool, for_clients: bool, says: str
) -> None:
    def check() -> None:
        refuse_open_listener("kafka", address, settings=settings, authenticates=authenticates, for_clients=for_clients)

    if not says:
        return check()
    with pytest.raises(ValueError, match=says) as raised:
        check()
    assert str(raised.value).startswith(f"listen.kafka: {address} is not a loopback address")
    return None


@pytest.mark.parametrize("host", ["localhost.example.com", "", "128.0.0.1", "::2", "127.0.0.1.nip.io"])
def test_what_only_looks_like_loopback_is_none(host: str) -> None:
    assert not is_loopback(host)


def test_metrics_tell_refusals_and_the_end_of_certificates(mesh: Any) -> None:
    files = mesh.settings("broker-1001")
    section = section_of(
        cert_file=str(files.cert_file), key_file=str(files.key_file), ca_file=str(files.ca_file),
        listeners={"grpc": {"enabled": False}},
    )  # fmt: skip
    listeners = Listeners(section, LimitsSection(), names=("kafka", "grpc"), mutual=("peers",))
    families = {family.name: family for family in ListeningCollector(listeners).collect()}
    rows = {
        (sample.labels["listener"], sample.labels["kind"]): sample.value
        for sample in families["georelay_tls_certificate_expires_seconds"].samples
    }
    assert set(rows) == {("kafka", "cert"), ("kafka", "ca"), ("peers", "cert"), ("peers", "ca")}
    assert rows["kafka", "cert"] > 396 * 86_400
