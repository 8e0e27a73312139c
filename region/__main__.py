"""`georelay-broker --config FILE`: runs one broker until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import structlog
import uvloop

from georelay.errors import ConfigError, GeorelayError
from georelay.process_guard import (
    close_files_to_others,
    die_with_parent,
    leave_out,
    refuse_foreign_packages,
    refuse_optimised_python,
)
from georelay.process_log import configure_log
from georelay.service_notice import ServiceNotice
from region.config import BrokerConfig, load_config
from region.memory import spare_memory_calls

log = structlog.get_logger()

SWITCH_INTERVAL_S = 0.0005


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 after a signal, 1 when the broker could not start or had to stop, 2 for a bad call."""
    parser = argparse.ArgumentParser(
        prog="georelay-broker", description="Run one broker of a region in the foreground until SIGINT or SIGTERM."
    )
    parser.add_argument("--config", type=Path, required=True, help="TOML file; see docs/config.md")
    options = parser.parse_args(arguments)
    try:
        refuse_optimised_python()
        leave_out("numpy", "pandas")
        close_files_to_others()
        config = load_config(options.config)
        notice = ServiceNotice(os.environ)
        die_with_parent(config.die_with_parent)
        refuse_foreign_packages()
    except ConfigError as error:
        print(f"georelay-broker: {error}", file=sys.stderr)  # noqa: T201 - before logging exists
        return 2
    configure_log(config.log_level)
    spare_memory_calls()
    # The flusher waits for the interpreter lock after every sync: 5 ms, the default, is longer than the sync itself.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return uvloop.run(_run(config, notice))


async def _run(config: BrokerConfig, notice: ServiceNotice) -> int:
    gc.disable()  # what an import makes stays: to look through it again and again takes a twentieth of the time
    from region.app import Broker, open_unless_stopped  # heavy: only once the configuration is known to be right

    gc.enable()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    broker: Broker | None = None
    started = False
    telling = loop.create_task(notice.follow(lambda: started and broker is not None and broker.cluster.ready()))
    try:
        broker = await open_unless_stopped(stopped, config)
        if broker is None:
            return 0
        await broker.start()
    except (GeorelayError, OSError) as error:
        print(f"georelay-broker: {error}", file=sys.stderr)  # noqa: T201 - the one line for the operator
        return 1
    started = True
    broker.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    telling.cancel()
    notice.stopping()
    if broker.failed.done():
        # A disk that failed, or a broken invariant: what is on disk stays as it is, nothing more is promised.
        log.critical("broker.failed", reason=broker.failed.result())
        return 1
    await broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
