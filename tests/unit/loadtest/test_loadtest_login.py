"""How the clients of a benchmark are told to connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.login import PLAIN, VARIABLE, environment, from_environment, settings_of
from loadtest.mesh_process import MeshProcess


def test_a_client_process_gets_the_settings_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = environment({"sasl.username": "ann"})
    monkeypatch.setenv(VARIABLE, given[VARIABLE])
    assert from_environment() == {"sasl.username": "ann"}


def test_without_settings_a_client_speaks_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert from_environment() == {}
    assert environment(PLAIN)[VARIABLE] == "{}"


@pytest.mark.parametrize(
    ("user", "ca", "protocol"),
    [
        (None, None, None),
        (None, "/ca", "ssl"),
        (("me", "a:b"), None, "sasl_plaintext"),
        (("me", "a:b"), "/ca", "sasl_ssl"),
    ],
)
def test_a_mesh_is_dialled_over_tls_where_it_has_that_and_signed_in_to_where_it_has_users(
    user: tuple[str, str] | None, ca: str | None, protocol: str | None, tmp_path: Path
) -> None:
    mesh = MeshProcess(tmp_path, regions="us", brokers_per_region=1, user=user)
    mesh.endpoints = {"ca": ca} if ca else {}
    settings = settings_of(mesh)
    assert settings.get("security.protocol") == protocol
    assert settings.get("ssl.ca.location") == ca
    signed_in = (settings.get("sasl.mechanism"), settings.get("sasl.username"), settings.get("sasl.password"))
    assert signed_in == (("PLAIN", *user) if user else (None, None, None))
