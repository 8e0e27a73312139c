"""What a running broker has loaded: memory of every broker there is, so it loads what it uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.free_ports import free_ports

RUN = """
import json, os, signal, sys, threading, time, urllib.request
from pathlib import Path
from region.__main__ import main

def is_ready(admin, spool):
    try:
        with urllib.request.urlopen(f"http://{admin}/readyz", timeout=1):
            return not spool or any(Path(spool).glob("*.wal"))
    except OSError:
        return False

def look(admin, spool):
    while not is_ready(admin, spool):
        time.sleep(0.02)
    names = json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))
    os.write(2, b"\\n" + names.encode() + b"\\n")  # in one piece: the broker's other thread writes lines too
    os.kill(os.getpid(), signal.SIGTERM)

for config, admin, spool in json.loads(sys.argv[1]):  # one after the other: what one has loaded stays
    looking = threading.Thread(target=look, args=(admin, spool))
    looking.start()
    if code := main(["--config", config]):
        os._exit(code)
    looking.join()
"""


def configured(folder: Path, *, traces: bool) -> tuple[str, str, str]:
    """Write the file of a lone broker; return it, its admin address, and where it writes traces, "" for nowhere."""
    folder.mkdir()
    listen = dict(
        zip(("kafka", "grpc", "peers", "link", "admin"), map("127.0.0.1:{}".format, free_ports(5)), strict=True)
    )
    config = folder / "broker.toml"
    config.write_text(
        f'mesh_id = "m"\nregion = "us"\nbroker = 1\ndata_dir = "{folder / "data"}"\ndefinitions_home = "us"\n'
        + f"die_with_parent = {os.getpid()}\n"
        + (f'trace_dir = "{folder / "traces"}"\n' if traces else "")
        + "[listen]\n"
        + "".join(f'{name} = "{address}"\n' for name, address in listen.items())
        + '[[regions]]\nname = "us"\nnumber = 1\n'
        + f'brokers = [{{number = 1, peers = "{listen["peers"]}", link = "{listen["link"]}"}}]\n'
    )
    return str(config), listen["admin"], str(folder / "traces/.spool") if traces else ""


def loaded(*brokers: tuple[str, str, str]) -> list[set[str]]:
    """Run brokers in one process; return what it has loaded once each was ready, and had written traces if it does."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(brokers)], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [set(json.loads(line)) for line in ran.stderr.splitlines() if line.startswith("[")]


def test_no_broker_loads_pandas_or_numpy_and_one_without_traces_no_arrow(tmp_path: Path) -> None:
    without, with_traces = loaded(*(configured(tmp_path / str(traces), traces=traces) for traces in (False, True)))
    assert "pyarrow" in with_traces
    assert {"pandas", "numpy"} & with_traces == set()
    assert {"pandas", "numpy", "pyarrow"} & without == set()
    assert {"region", "grpc"} <= without  # it looked at a broker
