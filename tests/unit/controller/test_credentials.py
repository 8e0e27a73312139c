"""Signing in: right, wrong, malformed, and cheap the second time."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path

import pytest

from georelay import credentials as module
from georelay.credentials import Credentials, basic, given_credentials, parse_basic, write_users_file
from georelay.errors import ConfigError, Unauthenticated


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two users; each takes a hash that is slow on purpose."""
    path = tmp_path_factory.mktemp("credentials") / "users.json"
    write_users_file(path, {"alice": "secret", "bob": "grün"})
    return path


@pytest.fixture
def users(users_file: Path) -> Credentials:
    return Credentials.load(users_file)


def test_without_a_file_nobody_has_to_sign_in() -> None:
    assert not Credentials.load(None).required
    assert not Credentials.load("").required


def test_right_password_is_accepted_and_others_are_not(users: Credentials) -> None:
    assert users.required
    assert users.verify("alice", "secret")
    assert users.verify("bob", "grün")
    assert not users.verify("alice", "grün")
    assert not users.verify("alice", "")
    assert not users.verify("carol", "secret")
    assert not users.verify("alicesecret", "")


def test_second_check_computes_no_hash(users: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [users.verify("alice", "secret"), users.verify("alice", "wrong")]

    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("hashed again")

    monkeypatch.setattr(hashlib, "scrypt", refuse)
    assert [users.verify("alice", "secret"), users.verify("alice", "wrong")] == verdicts == [True, False]


def test_unknown_name_costs_a_hash_as_a_wrong_password_does(
    users: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def record(password: str, salt: bytes) -> bytes:
        hashed.append(password)
        return bytes(32)

    monkeypatch.setattr(module, "_scrypt", record)
    assert not users.verify("nobody", "x")
    assert hashed == ["x"]


def test_what_is_remembered_is_bounded_and_holds_no_password(
    users: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_scrypt", lambda password, salt: bytes(32))
    for number in range(module.REMEMBERED_MAX + 10):
        users.verify("alice", f"guess-{number}")
    assert len(users._remembered) == module.REMEMBERED_MAX
    assert all(len(key) == 32 for key in users._remembered)


async def test_header_signs_in(users: Credentials) -> None:
    assert await users.authenticate_header(basic("alice", "secret")) == "alice"
    assert await users.authenticate_header("Basic  " + basic("alice", "secret").split()[1]) == "alice"
    assert await Credentials.load(None).authenticate_header(None) == ""


@pytest.mark.parametrize(
    "header",
    [None, "", "basic", "basic !!!", "bearer YTpi", "basic " + base64.b64encode(b"nocolon").decode(), "basic /w=="],
)
async def test_missing_or_malformed_header_is_unauthenticated(users: Credentials, header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        await users.authenticate_header(header)


async def test_refusal_does_not_tell_a_wrong_name_from_a_wrong_password(users: Credentials) -> None:
    said = set()
    for user, password in (("alice", "wrong"), ("nobody", "wrong")):
        with pytest.raises(Unauthenticated) as refused:
            await users.authenticate_header(basic(user, password))
        said.add(str(refused.value))
    assert len(said) == 1


def test_oversized_input_is_refused_before_any_work(users: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, "_scrypt")
    assert not users.verify("alice", "x" * 2_000)
    with pytest.raises(Unauthenticated, match="over 8192"):
        parse_basic("basic " + "A" * 10_000)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"users": 3}', '{"users": [{}]}', '{"users": [{"name": "a", "salt_b64": "", "scrypt_b64": "AA=="}]}'],
)
def test_wrong_users_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "users.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a users file"):
        Credentials.load(tmp_path / "users.json")


def test_missing_users_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        Credentials.load(tmp_path / "none.json")


@pytest.mark.parametrize("users", [{"a:b": "x"}, {"": "x"}, {"a": ""}, {"a\n": "x"}])
def test_names_and_passwords_that_cannot_be_sent_are_refused(tmp_path: Path, users: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        write_users_file(tmp_path / "users.json", users)


def test_credentials_are_given_on_the_command_line_or_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "me").write_text("alice:correct: horse\nand more\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("bob:secret\n"))
    assert given_credentials("ann:pw") == ("ann", "pw")
    assert given_credentials(f"@{tmp_path / 'me'}") == ("alice", "correct: horse")
    assert given_credentials("@-") == ("bob", "secret")


@pytest.mark.parametrize("text", ["", "alice", ":hush", "alice:", "@", "@no/such/file", "@{empty}"])
def test_credentials_that_are_none_are_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(ConfigError) as caught:
        given_credentials(text.replace("{empty}", str(tmp_path / "empty")))
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
