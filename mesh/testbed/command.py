"""The commands `georelay wan ...`; registered through the entry point group `georelay.commands`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from georelay.errors import ConfigError, Unavailable
from mesh.testbed.bed_client import BedClient
from mesh.testbed.bed_process import READY_S, BedOptions, BedProcess, open_bed
from mesh.testbed.plan_core import ADDRESSES_DEFAULT, HUB, MTU_DEFAULT, Engine, parse_wan
from mesh.testbed.quantities_core import parse_duration_us, parse_rate_bits_s, parse_share_ppm
from mesh.testbed.report import stat_lines
from mesh.testbed.run_directory import RunDirectory

EXIT_USAGE: Final = 2
NAME_DEFAULT: Final = "dev"
NameOption = Annotated[str, typer.Option("--name", help="Of the test bed; needed when several run.")]
OneWayOption = Annotated[bool, typer.Option("--one-way", help="Only what the first region sends.")]
JsonOption = Annotated[bool, typer.Option("--json", help='Print {"at_ns": when it was done, monotonic clock}.')]
FirstRegion = Annotated[str, typer.Argument(metavar="REGION")]
OtherRegion = Annotated[str, typer.Argument(metavar="[REGION]", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add `wan` to the command line."""
    wan = typer.Typer(help="Regions on this machine with real delays between them.", no_args_is_help=True)
    wan.command("up")(up)
    wan.command("cut")(cut)
    wan.command("heal")(heal)
    wan.command("slow")(slow)
    wan.command("stat")(stat)
    wan.command("down")(down)
    wan.command("gc")(gc)
    passes_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    wan.command("exec", context_settings=passes_on)(execute)
    app.add_typer(wan, name="wan")


def up(
    spec: Annotated[str, typer.Argument(metavar="PAIRS", help="Round trips: us-eu=70ms,us-ap=150ms,eu-ap=120ms")],
    name: NameOption = NAME_DEFAULT,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready; `wan down` ends it.")] = False,
    addresses: Annotated[int, typer.Option(help="How many each region has.")] = ADDRESSES_DEFAULT,
    mtu: Annotated[int, typer.Option(help="Bytes.")] = MTU_DEFAULT,
    congestion_control: Annotated[str, typer.Option(help="reno, cubic or bbr; default: the kernel's.")] = "",
    engine: Annotated[
        Engine, typer.Option(help="Who makes the delays: the kernel's netem or our router; auto: netem if it works.")
    ] = Engine.AUTO,
) -> None:
    """Run a test bed until Ctrl-C or `georelay wan down`."""
    options = BedOptions(
        spec=parse_wan(spec),
        name=name,
        addresses=addresses,
        mtu_bytes=mtu,
        congestion_control=congestion_control,
        engine=engine,
    )
    if detach:
        _start_detached(options.name)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with open_bed(options) as bed:
        _describe(bed)
        bed.wait()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _start_detached(name: str) -> None:
    """Run the same command without --detach in a session of its own, and return when its bed is ready."""
    directory = RunDirectory()
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    log = directory.path / f"{name}.up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "georelay.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        if any(record.plan.name == name for record in directory.running()):
            typer.echo(log.read_text(encoding="utf-8").rstrip())
            return
        time.sleep(0.05)
    said = log.read_text(encoding="utf-8").strip().splitlines()
    raise Unavailable(said[-1].removeprefix("georelay: ") if said else "the test bed did not become ready")


def _describe(bed: BedProcess) -> None:
    record, plan = bed.record, bed.plan
    how = ("real-time" if record.realtime else "no real-time priority") + (", rootless" if record.rootless else "")
    typer.echo(f"test bed {plan.name} is ready: router pid {record.pid}, {how}")
    for place in plan.regions:
        typer.echo(f"  {place.name}: {place.wan(1)}..{plan.addresses}, management {place.management}")
    way = "and the host's routes lead there" if record.host_link else f"reached by `georelay wan exec {HUB} -- ...`"
    typer.echo(f"  {HUB}: {plan.hub_address}, {way}")
    sys.stdout.flush()


def cut(
    one: FirstRegion,
    other: OtherRegion = "",
    one_way: OneWayOption = False,
    name: NameOption = "",
    as_json: JsonOption = False,
) -> None:
    """Cut two regions from each other, or one from all."""
    _say_when(BedClient(name).cut(one, other, one_way=one_way), as_json=as_json)


def heal(one: OtherRegion = "", other: OtherRegion = "", name: NameOption = "", as_json: JsonOption = False) -> None:
    """Make a pair, a region or everything as it was at first."""
    _say_when(BedClient(name).heal(one, other), as_json=as_json)


def _say_when(at_ns: int, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"at_ns": at_ns}))


def slow(
    one: FirstRegion,
    other: OtherRegion = "",
    rtt: Annotated[str, typer.Option(help="Round trip, such as 200ms; with --one-way half of it.")] = "",
    jitter: Annotated[str, typer.Option(help="Standard deviation of each direction's delay, such as 5ms.")] = "",
    loss: Annotated[str, typer.Option(help="Share of packets, such as 1%.")] = "",
    rate: Annotated[str, typer.Option(help="Cap of each direction, such as 50mbit; 0 for none.")] = "",
    queue: Annotated[str, typer.Option(help="Longest wait in front of the cap, such as 100ms.")] = "",
    one_way: OneWayOption = False,
    name: NameOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change delay, jitter, loss or bandwidth of a pair, or of all pairs of a region."""
    wanted = {
        "delay_us": parse_duration_us(rtt) // 2 if rtt else None,
        "jitter_us": parse_duration_us(jitter) if jitter else None,
        "loss_ppm": parse_share_ppm(loss) if loss else None,
        "rate_bits_s": parse_rate_bits_s(rate) if rate else None,
        "queue_us": parse_duration_us(queue) if queue else None,
    }
    settings = {name: value for name, value in wanted.items() if value is not None}
    if not settings:
        raise ConfigError("nothing to change: give --rtt, --jitter, --loss, --rate or --queue")
    _say_when(BedClient(name).slow(one, other, one_way=one_way, **settings), as_json=as_json)


def stat(
    name: NameOption = "", as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False
) -> None:
    """Show every direction, its packets, and how punctual the router is."""
    client = BedClient(name)
    found = client.stat()
    if as_json:
        typer.echo(json.dumps({"bed": client.record.to_json(), **found}, indent=2))
        return
    for line in stat_lines(client.record, found):
        typer.echo(line)


def down(name: NameOption = "") -> None:
    """End a test bed and everything that runs in it."""
    client = BedClient(name)
    client.stop()
    deadline = time.monotonic() + READY_S
    while any(record.pid == client.record.pid for record in RunDirectory().running()):
        if time.monotonic() > deadline:
            raise Unavailable(f"the test bed {client.record.plan.name} does not end")
        time.sleep(0.02)


def gc() -> None:
    """Take away what killed test beds left; does nothing when there is nothing."""
    for line in RunDirectory().collect():
        typer.echo(line)


def execute(
    context: typer.Context,
    region: Annotated[str, typer.Argument(help=f"A region, or '{HUB}'.")],
    name: NameOption = "",
) -> None:
    """Run a command in a region: `georelay wan exec us -- COMMAND...`; it ends with the test bed."""
    if not context.args:
        raise ConfigError("no command: georelay wan exec REGION -- COMMAND...")
    words = [*BedClient(name).record.enter_argv(region, contained=True), *context.args]
    os.execvp(words[0], words)  # noqa: S606 - the user's own command
