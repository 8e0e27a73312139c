"""`python -m region.faults`: a TEST TOOL that runs the shipping broker with faults, or tears a stopped one's log.

broker   run one broker; a control file (region.faults.settings) says what is broken, at any time
tear     write half an entry, zeros, or an entry with holes behind the end of one of a stopped broker's logs

Both refuse to start without --break-things: what they are pointed at must be worthless.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
from pathlib import Path

import structlog
import uvloop

from georelay.errors import GeorelayError
from georelay.process_guard import die_with_parent, refuse_optimised_python
from georelay.process_log import configure_log
from region.__main__ import SWITCH_INTERVAL_S
from region.app import open_unless_stopped
from region.config import BrokerConfig, load_config
from region.faults.faulty_file_system import FaultyFileSystem
from region.faults.loop_hold import LoopHold
from region.faults.rewired_loop import dial_framed_only, read_wires, rewired
from region.faults.settings import FaultControl, FaultSettings
from region.faults.stepped_clock import SteppedClock
from region.faults.tear import tear_a_log

log = structlog.get_logger()


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 the broker failed or nothing could be torn, 2 for a bad call."""
    options = parser().parse_args(arguments)
    if not options.break_things:
        sys.stderr.write("region.faults breaks things on purpose: it needs --break-things\n")
        return 2
    try:
        return run_broker(options) if options.command == "broker" else tear(options)
    except (GeorelayError, OSError) as error:
        sys.stderr.write(f"region.faults: {error}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m region.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    broker = commands.add_parser("broker", help="run one broker in the foreground until SIGINT or SIGTERM")
    broker.add_argument("--config", type=Path, required=True, help="TOML file of the broker")
    broker.add_argument("--control", type=Path, required=True, help="JSON file that says what is broken")
    broker.add_argument("--wires", type=Path, default=None, help="JSON file: address to the forwarder before it")
    torn = commands.add_parser("tear", help="tear the log of a stopped broker")
    torn.add_argument("--data-dir", type=Path, required=True, help="its data directory")
    torn.add_argument("--seed", type=int, required=True, help="chooses the group and the kind of tear")
    for command in (broker, torn):
        command.add_argument("--break-things", action="store_true", help="yes, this is a test")
    return parser


def tear(options: argparse.Namespace) -> int:
    """Tear one log and print what was done as JSON."""
    done = tear_a_log(options.data_dir, random.Random(options.seed))
    if done is None:
        sys.stderr.write(f"region.faults: no group of {options.data_dir} has an entry\n")
        return 1
    row = {"segment": str(done.segment), "position": done.position, "size": done.size, "kind": done.kind}
    sys.stdout.write(json.dumps(row) + "\n")
    return 0


def run_broker(options: argparse.Namespace) -> int:
    """Run one broker with faults; logs as the shipping one does."""
    refuse_optimised_python()
    config = load_config(options.config)
    wires = read_wires(options.wires) if options.wires is not None else {}
    if wires:
        dial_framed_only()
    die_with_parent(config.die_with_parent)
    configure_log(config.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return uvloop.run(_run(config, options.control), loop_factory=lambda: rewired(wires))


async def _run(config: BrokerConfig, control_file: Path) -> int:
    loop = asyncio.get_running_loop()
    clock, file_system, hold = SteppedClock(), FaultyFileSystem(), LoopHold(loop)

    def obey(settings: FaultSettings) -> None:
        clock.step_ms = settings.wall_step_ms
        file_system.apply(settings)
        hold.obey(settings)

    control = FaultControl(control_file, on_change=obey)
    control.start()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    broker = await open_unless_stopped(stopped, config, clock=clock, file_system=file_system)
    if broker is None:
        control.stop()
        return 0
    await broker.start()
    broker.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    control.stop()
    if broker.failed.done():
        log.critical("broker.failed", reason=broker.failed.result())
        return 1
    await broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
