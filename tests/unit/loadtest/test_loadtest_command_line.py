"""How a campaign that is a program begins and ends."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import CampaignFailed
from loadtest.history.operation import HistoryError

NOTHING = argparse.Namespace()


def ended_by(error: BaseException) -> int:
    async def campaign(_: argparse.Namespace, console: Console) -> int:
        raise error

    return carry_out(campaign, NOTHING, run=asyncio.run)


@pytest.mark.parametrize(
    "error",
    [
        CampaignFailed("eu has no leader"),
        HistoryError("eu has no leader"),
        RuntimeError("eu has no leader"),
        OSError("eu has no leader"),
    ],
)
def test_a_campaign_that_could_not_run_says_why_in_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_by(error) == 2
    assert capsys.readouterr().out == "the campaign could not run: eu has no leader\n"


def test_an_error_without_words_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended_by(TimeoutError()) == 2
    assert capsys.readouterr().out == "the campaign could not run: TimeoutError()\n"


def test_a_program_that_took_too_long_ends_a_campaign_as_one_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended_by(subprocess.TimeoutExpired(["georelay"], 5)) == 2
    assert "timed out after 5 seconds" in capsys.readouterr().out


def test_a_mistake_in_a_campaign_shows_as_one() -> None:
    with pytest.raises(KeyError):
        ended_by(KeyError("eu"))


def test_a_campaign_that_is_interrupted_ends_with_130() -> None:
    assert ended_by(KeyboardInterrupt()) == 130


@pytest.mark.parametrize("code", [0, 1])
def test_the_verdict_of_a_campaign_is_its_exit_code(code: int) -> None:
    async def campaign(options: argparse.Namespace, console: Console) -> int:
        return int(options.code)

    assert carry_out(campaign, argparse.Namespace(code=code)) == code


def test_a_table_has_its_width_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    async def campaign(_: argparse.Namespace, console: Console) -> int:
        console.rule(characters="-")
        return 0

    carry_out(campaign, NOTHING, width_chars=123)
    assert capsys.readouterr().out == f"{'-' * 123}\n"


def test_every_command_line_knows_where_data_may_be() -> None:
    parser = new_parser("campaign.upgrade", "What it does.")
    assert parser.prog == "python -m loadtest.campaign.upgrade"
    assert parser.parse_args(["--scratch", "/var/tmp"]).scratch == Path("/var/tmp")
