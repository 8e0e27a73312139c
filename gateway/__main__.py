"""Command `georelay-gateway`: one gateway process, in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from gateway.app import Gateway
from gateway.config import GatewayConfig, load_config
from georelay import process_guard
from georelay.errors import GeorelayError


def main() -> None:
    """Run the command; exits 1 with one line on stderr when it cannot start."""
    arguments = _parser().parse_args()
    try:
        process_guard.refuse_optimised_python()
        process_guard.close_files_to_others()
        config = load_config(arguments.config)
        if config.die_with_parent is not None:
            process_guard.die_with_parent(config.die_with_parent)
        process_guard.refuse_foreign_packages()
        uvloop.run(_serve(config))
    except GeorelayError as error:
        sys.exit(f"georelay-gateway: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="georelay-gateway", description="Sends clients to the nearest ready region.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML file, see gateway/config.py")
    return parser


async def _serve(config: GatewayConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    gateway = Gateway(config)
    await gateway.start()
    try:
        await stop.wait()
    finally:
        await gateway.close()


if __name__ == "__main__":
    main()
