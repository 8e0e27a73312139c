"""What a campaign of upgrades says when it cannot have the older version, and which campaigns may have one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from georelay.cli.application import PLUGIN_GROUP, build_app
from georelay.cli.failure import CommandFailed
from loadtest.campaign.mesh import CampaignFailed
from loadtest.load.campaign_file import CampaignError, begun_with, find, parse
from loadtest.load.older_mesh import unpack_version

UPGRADE = find("upgrade").read_text(encoding="utf-8")


def test_a_commit_that_there_is_not_is_named_with_what_git_says(tmp_path: Path) -> None:
    with pytest.raises(CampaignFailed, match=r"cannot take no-such-commit from git: .*no-such-commit"):
        unpack_version("no-such-commit", tmp_path / "old")


def test_the_command_says_so_and_ends_with_3(tmp_path: Path) -> None:
    app = build_app(importlib.metadata.entry_points(group=PLUGIN_GROUP), ())
    said = CliRunner().invoke(app, ["load", "run", "upgrade", "--commit", "no-such-commit", "--out", str(tmp_path)])
    assert isinstance(said.exception, CommandFailed)
    assert said.exception.exit_code == 3
    assert "cannot take no-such-commit from git" in str(said.exception)


def test_an_upgrade_begins_with_the_commit_that_is_asked_for() -> None:
    assert parse(begun_with(UPGRADE, "v1.2~3"), name="upgrade", place="upgrade.toml").topology.commit == "v1.2~3"


@pytest.mark.parametrize("commit", ["-rf", 'a"', "a b"])
def test_what_cannot_be_a_commit_is_refused(commit: str) -> None:
    with pytest.raises(CampaignError, match=r"topology\.commit: .* is not a commit"):
        parse(begun_with(UPGRADE, commit), name="upgrade", place="upgrade.toml")


def test_a_campaign_without_an_older_version_takes_none() -> None:
    with pytest.raises(CampaignError, match="leave --commit away"):
        begun_with(find("smoke").read_text(encoding="utf-8"), "HEAD")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"up"', '"up"\ntls = true', "topology.commit: needs topology.kind = up, without tls and without programs"),
        (
            'do = "upgrade"',
            'do = "kill"',
            "'kill': upgrade is the fault of a mesh with topology.commit",
        ),
        ('commit = "HEAD"\n', "", "'upgrade': upgrade is the fault of a mesh with topology.commit, and of no other"),
        ('what = "us"', 'what = "us-1"', "'us-1' is not one of us, eu"),
    ],
)
def test_upgrades_are_of_regions_of_an_older_mesh(before: str, after: str, said: str) -> None:
    with pytest.raises(CampaignError) as refused:
        parse(UPGRADE.replace(before, after, 1), name="wrong", place="wrong.toml")
    assert said in str(refused.value)
