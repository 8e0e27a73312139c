"""`georelay-sla live`: how the mesh does now, from the brokers themselves."""

from __future__ import annotations

import argparse
import signal
import types
from pathlib import Path
from typing import Final

from sla.commands import arguments as a
from sla.errors import UsageError

TRIGGER_DEFAULT: Final = "5s"
WATERMARK_DEFAULT: Final = "2m"
STALE_DEFAULT: Final = "30s"


def register(commands: a.Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "live",
        help="follow the brokers' traces and keep live.json",
        description="Follow the traces of every broker of a mesh and keep CHECKPOINT/live.json: latency per pair, how "
        "old the newest traces of each region are. Provisional: reports are made of the files. Ends with Ctrl-C; begun "
        "again with the same checkpoint, it goes on where it was.",
    )
    parser.add_argument(
        "--source", required=True, metavar="URL[,URL]", help="gateways, which name every broker, or brokers' admin URLs"
    )
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="DIR", help="directory of this live view")
    parser.add_argument(
        "--trigger", type=a.duration_s, default=a.duration_s(TRIGGER_DEFAULT), metavar="LENGTH",
        help=f"how often to read (default: {TRIGGER_DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--watermark", type=a.duration_s, default=a.duration_s(WATERMARK_DEFAULT), metavar="LENGTH",
        help=f"how long a minute waits for late rows (default: {WATERMARK_DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--stale", type=a.duration_s, default=a.duration_s(STALE_DEFAULT), metavar="LENGTH",
        help=f"age of a region's newest traces from which it is degraded (default: {STALE_DEFAULT})",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="read what is there now, and end")
    parser.add_argument(
        "--begin", choices=("latest", "oldest"), default="latest", help="of a new checkpoint (default: latest)"
    )
    parser.add_argument("--rows", type=int, default=200_000, metavar="N", help="rows per batch at most")
    parser.add_argument("--token-file", default="", metavar="FILE", help="its first line is a bearer token")
    for name, text in (("ca", "whom to trust"), ("cert", "certificate to show"), ("key", "its key")):
        parser.add_argument(f"--{name}", default="", metavar="FILE", help=f"for https: {text}")
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve the counts for Prometheus on this loopback address"
    )
    a.add_spark(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.rows < 1:
        raise UsageError("--rows must be at least 1")
    from sla.live.metrics import parse_address, serve

    if arguments.metrics is not None:
        parse_address(arguments.metrics)
    from sla.jobs.live import LiveRequest, run_live
    from sla.live.reaching import Credentials
    from sla.live.store import LIVE_NAME
    from sla.session import stop_java

    request = LiveRequest(
        sources=tuple(arguments.source.split(",")),
        checkpoint=arguments.checkpoint,
        trigger_s=arguments.trigger,
        watermark_s=arguments.watermark,
        stale_s=arguments.stale,
        is_once=arguments.once,
        is_from_oldest=arguments.begin == "oldest",
        rows_per_batch=arguments.rows,
        credentials=Credentials(
            token_file=arguments.token_file, ca_file=arguments.ca, cert_file=arguments.cert, key_file=arguments.key
        ),
        master=arguments.master,
        conf=dict(arguments.conf),
    )
    stopped = False

    def stop(_: int, __: types.FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    end_metrics = None if arguments.metrics is None else serve(arguments.metrics, request.checkpoint / LIVE_NAME)
    try:
        with a.progress() as on_step:
            run_live(request, on_step, is_stopped=lambda: stopped)
    finally:
        if end_metrics is not None:
            end_metrics()
        stop_java()
    return 0
