"""The command `georelay load`; registered through the entry point group `georelay.commands`.

Rule: what a run needs is imported when it runs: `georelay --help` needs the options only, and Locust is an extra.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from georelay.cli.failure import CommandFailed
from georelay.errors import GeorelayError
from loadtest.load.campaign import EXIT_CANNOT_RUN as EXIT_CANNOT_RUN

WORKERS_MAX: Final = 64
EXTRA: Final = ("locust", "jsonschema", "confluent_kafka", "jinja2", "matplotlib")


def register(app: typer.Typer) -> None:
    """Add `load` to the command line."""
    load = typer.Typer(help="Load a mesh by campaigns, break it meanwhile, judge what it kept.", no_args_is_help=True)
    load.command("run")(run)
    load.command("list")(list_shipped)
    load.command("validate")(validate)
    load.command("report")(report)
    load.command("schema")(schema)
    app.add_typer(load, name="load")


def run(
    campaign: Annotated[str, typer.Argument(help="Name of a shipped campaign, or a .toml file.")] = "smoke",
    out: Annotated[Path, typer.Option(help="Folder below which the results go.")] = Path("out/load"),
    workers: Annotated[
        int,
        typer.Option(min=0, max=WORKERS_MAX, metavar="N", help="So many workers of Locust for each region; 0: alone."),
    ] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, metavar="N", help="Load for so long; stages and moments of faults in proportion."),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1000, metavar="SHARE", help="Offer this share of the records; 0.3: a small machine."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Chooses what the campaign leaves open.")] = None,
    commit: Annotated[str, typer.Option(metavar="COMMIT", help="Of upgrade: which version it begins with.")] = "",
    web: Annotated[str, typer.Option(metavar="HOST:PORT", help="Show Locust's page there meanwhile.")] = "",
) -> None:
    """Run a campaign. Ends with 0 when everything was kept, 1 on a breach, 2 when invalid, 3 when it could not run."""
    need_extra("load")
    from loadtest.load.campaign_file import begun_with, find, load, parse, scaled, seeded, shortened
    from loadtest.load.locust_processes import RunOptions
    from loadtest.load.runner import run_campaign

    with _no_failure_is_a_breach():
        file = find(campaign)
        chosen, text = load(file), file.read_text(encoding="utf-8")
        if seconds is not None:
            text = shortened(text, seconds)
        if scale is not None:
            text = scaled(text, scale)
        if seed is not None:
            text = seeded(text, seed)
        if commit:
            text = begun_with(text, commit)
        chosen = parse(text, name=chosen.name, place=f"{file.name} as changed")
        options = RunOptions(campaign_text=text, out=out, web=web, workers_per_region=workers)
        code = asyncio.run(run_campaign(chosen, options, typer.echo))
    raise typer.Exit(code)


def list_shipped() -> None:
    """List the campaigns that come with georelay."""
    need_extra("load")
    from loadtest.load.campaign_file import load, shipped

    for path in shipped():
        campaign = load(path)
        typer.echo(f"{campaign.name.ljust(16)} {campaign.seconds:>7g} s  {campaign.about}")


def validate(files: Annotated[list[str], typer.Argument(help="Names of shipped campaigns, or .toml files.")]) -> None:
    """Check campaigns without running them. Ends with 3 when one is wrong."""
    need_extra("load")
    from loadtest.load.campaign_file import CampaignError, find, load

    is_wrong = False
    for name in files:
        try:
            campaign = load(find(name))
            typer.echo(f"{campaign.name}: right, {campaign.seconds:g} s")
        except CampaignError as error:
            is_wrong = True
            typer.echo(str(error), err=True)
    if is_wrong:
        raise typer.Exit(EXIT_CANNOT_RUN)


def report(folder: Annotated[Path, typer.Argument(help="Folder of a run's results.")]) -> None:
    """Judge the results of a run again. Ends as `run` does."""
    need_extra("load")
    from loadtest.load.runner import judge

    with _no_failure_is_a_breach():
        code = judge(folder, typer.echo)
    raise typer.Exit(code)


def schema() -> None:
    """Print the JSON schema of campaigns: every key, its values and bounds. Editors with TOML support read it."""
    typer.echo(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"), nl=False)


@contextmanager
def _no_failure_is_a_breach() -> Iterator[None]:
    """End with EXIT_CANNOT_RUN whatever goes wrong: the exit code of other commands would say BREACH here."""
    from loadtest.campaign.mesh import CampaignFailed
    from loadtest.load.campaign_file import CampaignError

    try:
        yield
    except BrokenPipeError:  # who read what we print has left
        raise
    except (CampaignError, CampaignFailed, GeorelayError, OSError) as error:
        raise CommandFailed(str(error), exit_code=EXIT_CANNOT_RUN) from error
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="georelay-load-", suffix=".txt", delete=False) as file:
            file.writelines(traceback.format_exception(error))
        text = f"a mistake of georelay load itself, nothing was judged: {error!r} (traceback: {file.name})"
        raise CommandFailed(text, exit_code=EXIT_CANNOT_RUN) from error


def need_extra(command: str) -> None:
    """Say what has to be installed for a command, where something is missing (CommandFailed)."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(
            f"georelay {command} needs {', '.join(missing)}: pip install 'georelay-server[load]'",
            exit_code=EXIT_CANNOT_RUN,
        )
