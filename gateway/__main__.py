"""Command `georelay-gateway`: one gateway process, in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from gateway.app import Gateway
from gateway.config import GatewayConfig, load_config
from georelay import process_guard
from georelay.errors import ConfigError, GeorelayError
from georelay.process_log import configure_log
from georelay.service_notice import ServiceNotice


def main() -> None:
    """Run the command; exits with one line on stderr: 2 for a wrong call or configuration, 1 when it cannot start."""
    arguments = _parser().parse_args()
    try:
        process_guard.refuse_optimised_python()
        process_guard.leave_out("numpy", "pandas")
        process_guard.close_files_to_others()
        config = load_config(arguments.config)
        if config.die_with_parent is not None:
            process_guard.die_with_parent(config.die_with_parent)
        process_guard.refuse_foreign_packages()
        notice = ServiceNotice(os.environ)
    except ConfigError as error:
        print(f"georelay-gateway: {error}", file=sys.stderr)  # noqa: T201 - before logging exists
        sys.exit(2)
    configure_log(config.log_level)
    try:
        uvloop.run(_serve(config, notice))
    except GeorelayError as error:
        sys.exit(f"georelay-gateway: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="georelay-gateway", description="Sends clients to the nearest ready region.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file, see gateway/config.py")
    return parser


async def _serve(config: GatewayConfig, notice: ServiceNotice) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    gateway = Gateway(config)
    await gateway.start()
    telling = asyncio.get_running_loop().create_task(notice.follow(gateway.ready))
    try:
        await stop.wait()
    finally:
        telling.cancel()
        notice.stopping()
        await gateway.close()


if __name__ == "__main__":
    main()
