"""The folder of a mesh and the secrets that Terraform made: what goes where. `make tf` asks moto."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.ansible.roles.secrets.files import mesh_secrets
from deploy.ansible.roles.secrets.files.mesh_secrets import decide

SECRETS = {
    name: f"arn:aws:secretsmanager:eu-west-1:123456789012:secret:shop/{name}"
    for name in ("authority", "gossip_wan", "administration", "gossip_lan/eu-west-1")
}
FILES = {
    "pki/ca-1.key": "KEY",
    "pki/ca-1.crt": "CRT",
    "pki/bundle.crt": "CRT",
    "pki/pki.json": "{}",
    "pki/broker-2001.key": "of this machine",
    "wan.keyring": '["WAN"]',
    "lan-eu-west-1.keyring": '["LAN"]',
    "admin.password": "secret",
    "users.json": "{}",
    "mesh.json": '{"home": "eu-west-1"}',
}


class Aws:
    """Answers as the command line of AWS does."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.commands: list[list[str]] = []
        self.refusal = ""

    def __call__(self, command: list[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        verb, arn = command[2], command[4]
        if self.refusal:
            return subprocess.CompletedProcess(command, 254, "", self.refusal)
        if verb == "put-secret-value":
            self.held[arn] = input
        elif arn not in self.held:
            said = "An error occurred (ResourceNotFoundException): can't find the value for staging label: AWSCURRENT"
            return subprocess.CompletedProcess(command, 254, "", said)
        return subprocess.CompletedProcess(command, 0, self.held[arn] + "\n", "")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    made = Aws()
    monkeypatch.setattr("deploy.ansible.roles.secrets.files.mesh_secrets.subprocess.run", made)
    return made


def folder(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def brought_together(path: Path, capsys: pytest.CaptureFixture[str], secrets: dict[str, str] = SECRETS) -> list[str]:
    code = mesh_secrets.main([str(path), json.dumps(secrets)])
    said = capsys.readouterr()
    assert code == (1 if said.err else 0)
    return (said.out or said.err).splitlines()


@pytest.mark.parametrize(
    ("here", "there", "last", "way"),
    [
        ("", "", "", "same"),
        ("a", "a", "", "same"),
        ("a", "", "", "put"),
        ("a", "", "a", "put"),
        ("", "a", "", "take"),
        ("", "a", "a", "take"),
        ("b", "a", "a", "put"),
        ("a", "b", "a", "take"),
        ("a", "b", "", "differs"),
        ("a", "b", "c", "differs"),
    ],
)
def test_the_side_that_changed_since_both_were_the_same_is_ahead(here: str, there: str, last: str, way: str) -> None:
    assert decide(here, there, last) == way


def test_a_new_mesh_is_kept_and_another_machine_gets_it_whole(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = folder(tmp_path / "first", FILES), folder(tmp_path / "second", {})
    assert [line.split(":")[0] for line in brought_together(first, capsys)] == [f"put {name}" for name in SECRETS]
    assert brought_together(first, capsys) == []
    second.mkdir()
    assert [line.split(":")[0] for line in brought_together(second, capsys)] == [f"took {name}" for name in SECRETS]
    assert brought_together(second, capsys) == []
    taken = {name: (second / name).read_text() for name in FILES if (second / name).exists()}
    assert taken == {name: text for name, text in FILES.items() if name != "pki/broker-2001.key"}
    assert all((second / name).stat().st_mode & 0o077 == 0 for name in taken)


def test_a_rotated_authority_replaces_the_old_one_on_the_other_machine(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = folder(tmp_path / "first", FILES), folder(tmp_path / "second", FILES)
    brought_together(first, capsys)
    brought_together(second, capsys)
    for name in ("pki/ca-1.key", "pki/ca-1.crt"):
        (first / name).unlink()
    folder(first, {"pki/ca-2.key": "NEW", "pki/ca-2.crt": "NEW", "pki/bundle.crt": "NEW"})
    assert brought_together(first, capsys) == [
        "put authority: pki/bundle.crt, pki/ca-2.crt, pki/ca-2.key, pki/pki.json"
    ]
    assert brought_together(second, capsys) == [
        "took authority: pki/bundle.crt, pki/ca-2.crt, pki/ca-2.key, pki/pki.json"
    ]
    assert sorted(file.name for file in (second / "pki").glob("ca-*")) == ["ca-2.crt", "ca-2.key"]
    assert (second / "pki/broker-2001.key").exists()


def test_where_both_sides_changed_nothing_is_written(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brought_together(folder(tmp_path / "first", FILES), capsys)
    held = dict(aws.held)
    another = folder(tmp_path / "second", {**FILES, "mesh.json": "{}", "wan.keyring": '["OTHER"]'})
    (said,) = brought_together(another, capsys)
    assert (
        said.startswith("secrets: gossip_wan: the folder and arn:aws:") and "move its files (wan.keyring) away" in said
    )
    assert aws.held == held and not (another / "secrets.json").exists()


def test_values_are_no_arguments_that_other_users_see(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brought_together(folder(tmp_path, FILES), capsys)
    assert len(aws.commands) == 8
    assert not [word for command in aws.commands for word in command if "WAN" in word or "KEY" in word]


@pytest.mark.parametrize(
    "value",
    [
        "no JSON",
        "[]",
        '{"files": {}}',
        '{"files": {"../x": "y"}}',
        '{"files": {"/etc/wan.keyring": "y"}}',
        '{"files": {"admin.password": "y"}}',
        '{"files": {"wan.keyring": 3}}',
    ],
)
def test_a_secret_that_something_else_filled_is_refused_in_one_line(
    value: str, aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.held[SECRETS["gossip_wan"]] = value
    (said,) = brought_together(tmp_path, capsys)
    assert "was filled by something else" in said and list(tmp_path.iterdir()) == []


def test_what_aws_refuses_and_wrong_secrets_are_one_line(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (said,) = brought_together(tmp_path, capsys, {"passwords": SECRETS["authority"]})
    assert said.startswith("secrets: passwords is no secret of a mesh; there are authority, gossip_wan, ")
    (said,) = brought_together(tmp_path, capsys, {"gossip_wan": "shop/gossip-wan"})
    assert said == "secrets: 'shop/gossip-wan' is no ARN of a secret; `terraform output secrets` has them"
    aws.refusal = (
        "\nAn error occurred (AccessDeniedException) when calling the GetSecretValue operation:\nnot allowed\n"
    )
    (said,) = brought_together(tmp_path, capsys)
    assert said.startswith(f"secrets: {SECRETS['authority']}: An error occurred (AccessDeniedException)")
    aws.refusal = ""
    folder(tmp_path, {"pki/ca-1.crt": "x" * 65_536})
    (said,) = brought_together(tmp_path, capsys)
    assert said.endswith("bytes, and a secret holds 65536")
