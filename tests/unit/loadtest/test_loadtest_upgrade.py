"""What the campaign `upgrade` says when it cannot have the older version."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.campaign.old_version import unpack_version
from loadtest.campaign.upgrade import main


def test_a_commit_that_there_is_not_is_named_with_what_git_says(tmp_path: Path) -> None:
    with pytest.raises(CampaignFailed, match=r"cannot take no-such-commit from git: .*no-such-commit"):
        unpack_version("no-such-commit", tmp_path / "old")


def test_the_campaign_says_so_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["upgrade", "--from", "no-such-commit", "--scratch", str(tmp_path)])
    assert main() == 2
    assert "the campaign could not run: cannot take no-such-commit from git" in capsys.readouterr().out
